//! `dmschat man [SUBCOMMAND]`.

use super::args::{self, help};
use super::output;
use crate::config::{Dirs, KeymapName};
use crate::ui::action::{Action, Group};
use crate::ui::commands;
use crate::ui::keymap::{Keymap, VIM_KEYS};
use anyhow::Result;
use clap_mangen::Man;
use std::fmt::Write;

pub fn run(name: Option<&str>) -> Result<u8> {
    let mut cli = page_of_all(args::shown());
    cli.build();
    let page = match name {
        None => whole(&cli)?,
        Some(name) => {
            let found = cli.get_subcommands().find(|c| c.get_name() == name && !c.is_hide_set()).cloned();
            let command =
                found.ok_or_else(|| output::wrong_use(format!("man: no subcommand {name:?}; see dmschat --help")))?;
            let mut page = Vec::new();
            Man::new(command).render(&mut page)?;
            String::from_utf8_lossy(&page).into_owned()
        }
    };
    output::out(&page)?;
    Ok(output::OK)
}

/// The command line with a text for every flag: a man page has no short help that hides some.
fn page_of_all(cli: clap::Command) -> clap::Command {
    cli.mut_args(|arg| arg.hide_short_help(false)).mut_subcommands(page_of_all)
}

/// The page of the program.
fn whole(cli: &clap::Command) -> Result<String> {
    let man = Man::new(cli.clone());
    let mut clap = Vec::new();
    man.render_title(&mut clap)?;
    man.render_name_section(&mut clap)?;
    man.render_synopsis_section(&mut clap)?;
    man.render_description_section(&mut clap)?;
    man.render_subcommands_section(&mut clap)?;
    man.render_options_section(&mut clap)?;
    let mut page = String::from_utf8_lossy(&clap).into_owned();
    section(&mut page, "COMMANDS", "In a chat, a line that begins with a slash is a command.");
    for command in commands::ALL {
        item(&mut page, &command.label(), command.help);
    }
    let lists = "`dmschat config keymap` prints them as a file to edit.";
    section(&mut page, "KEYS", &format!("F1 in a chat shows these keys. {lists}"));
    let keymap = Keymap::load(KeymapName::Default, None)?;
    for action in Action::ALL.iter().filter(|a| a.group() == Group::Chat) {
        item(&mut page, &keymap.keys_of(*action).join(", "), action.help());
    }
    section(&mut page, "VIM KEYS", "`keymap = \"vim\"` in the config file, or `/set keymap vim` in a chat.");
    for (keys, what) in VIM_KEYS {
        item(&mut page, keys, what);
    }
    section(&mut page, "ENVIRONMENT", help::SOURCES);
    for (name, what) in ENVIRONMENT {
        item(&mut page, name, what);
    }
    section(&mut page, "FILES", "`dmschat config path` prints the path of the config file.");
    if let Ok(dirs) = Dirs::find() {
        let home = directories::BaseDirs::new().map(|base| base.home_dir().to_owned());
        let shown = |path: std::path::PathBuf| match home.as_ref().and_then(|home| path.strip_prefix(home).ok()) {
            Some(rest) => format!("~/{}", rest.display()),
            None => path.display().to_string(),
        };
        item(&mut page, &shown(dirs.config_file()), "settings");
        item(&mut page, &shown(dirs.config.join("keymap.toml")), "keys");
        item(&mut page, &shown(dirs.themes()), "themes, NAME.toml each");
        item(&mut page, &shown(dirs.sessions()), "saved conversations and their caches");
        item(&mut page, &shown(dirs.adapters()), "predictors, NAME.safetensors each");
        item(&mut page, &shown(dirs.weights()), "quantized weights");
    }
    section(&mut page, "EXIT STATUS", help::EXIT_CODES);
    section(&mut page, "EXAMPLES", "");
    let _ = write!(page, ".nf\n{}\n.fi\n", escaped(help::EXAMPLES));
    Ok(page)
}

const ENVIRONMENT: &[(&str, &str)] = &[
    ("DMSCHAT_CONFIG", "the config file, as --config"),
    ("DMSCHAT_CONFIG_DIR, DMSCHAT_DATA_DIR, DMSCHAT_CACHE_DIR", "folders instead of those under FILES"),
    ("DMSCHAT_MODEL, DMSCHAT_KV, ...", "each key of the config file, in capitals"),
    ("HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT", "as in Hugging Face's tools"),
    ("HF_HUB_OFFLINE", "1: open no connection"),
    ("NO_COLOR, VISUAL, EDITOR", "no colours; the editor for long messages"),
];

fn section(page: &mut String, title: &str, text: &str) {
    let _ = writeln!(page, ".SH \"{title}\"");
    if !text.is_empty() {
        let _ = writeln!(page, "{}", escaped(text));
    }
}

/// A term and what it means.
fn item(page: &mut String, term: &str, text: &str) {
    let _ = write!(page, ".TP\n\\fB{}\\fR\n{}\n", escaped(term), escaped(text));
}

/// Text without a meaning to roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |line: &str| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The terms of a page and their texts.
    fn items(page: &str) -> Vec<(&str, String)> {
        let all = page.split(".TP\n").skip(1).filter_map(|item| item.split_once('\n'));
        all.map(|(term, text)| (term, text.lines().take_while(|line| !line.starts_with(".SH")).collect())).collect()
    }

    #[test]
    fn every_flag_has_its_text() {
        let cli = page_of_all(args::shown());
        let flags = |command: &clap::Command| -> Vec<String> {
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            shown.filter_map(|arg| arg.get_long().map(|long| format!("\\-\\-{}", long.replace('-', "\\-")))).collect()
        };
        let mut pages = vec![(flags(&cli), whole(&cli).unwrap())];
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
            let mut page = Vec::new();
            Man::new(command.clone()).render(&mut page).unwrap();
            pages.push((flags(command), String::from_utf8(page).unwrap()));
        }
        let mut seen = 0;
        for (flags, page) in &pages {
            let items = items(page);
            for flag in flags {
                let item = items.iter().find(|(term, _)| term.contains(&**flag));
                let (term, text) = item.unwrap_or_else(|| panic!("{flag} is not in the page"));
                assert!(text.chars().any(char::is_alphabetic), "{term} has no text");
                seen += 1;
            }
            items.iter().for_each(|(term, text)| assert!(!text.trim().is_empty(), "{term} has no text"));
        }
        assert!(seen > 60, "{seen}");
    }
}
