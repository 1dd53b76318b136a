//! `dmschat show`: draws a saved conversation, each token tinted by how many KV heads still stored
//! it after the last turn, in the terminal or as an HTML page.

mod html;
mod parts;

use parts::{MERGED, PathPolicies, messages, remembered, stretches};

use super::args::ShowArgs;
use super::output::{self, as_wrong_use, wrong_use};
use crate::chat::retention::Retention;
use crate::chat::session::{Loaded, Store, open_stream, write_atomically};
use crate::config::Settings;
use crate::ui::colour::ansi_number;
use crate::ui::depth::Depth;
use crate::ui::heat;
use crate::ui::text::{append, clean, clean_line, wrap};
use crate::ui::theme::{AUTO, Background, Theme, Themes};
use anyhow::{Context, Result};
use ratatui::style::{Color, Style};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// Columns that no line reaches.
const UNWRAPPED: usize = usize::MAX;

pub fn run(settings: &Settings, args: &ShowArgs, json: bool) -> Result<u8> {
    if json {
        return Err(wrong_use("show prints no JSON; the file of a session is JSON, one record a line"));
    }
    let store = Store::new(settings.dirs.sessions());
    let loaded = store.read_named(&args.file).map_err(as_wrong_use)?;
    loaded.problems.iter().for_each(|line| output::notice(line));
    if loaded.conversation.path().is_empty() {
        output::notice("this conversation has no messages");
    } else if loaded.conversation.retention().is_empty() {
        output::notice("this file has no record of what was remembered; here is its text");
    }
    let themes = Themes { folder: Some(settings.dirs.themes()), ..Themes::default() };
    if let Some(path) = &args.html {
        let page = html::page(&loaded, &themes.load("dark")?, &themes.load("light")?);
        let exists = path.symlink_metadata().is_ok();
        match open_stream(path).with_context(|| format!("cannot write {}", path.display()))? {
            Some(mut stream) => stream.write_all(page.as_bytes()).map_err(output::of_stdout)?,
            None if exists => {
                return Err(wrong_use(format!("{} exists; name another file for the page", path.display())));
            }
            None => write_atomically(path, page.as_bytes()).map_err(as_wrong_use)?,
        }
        output::notice(&format!("wrote {}", path.display()));
        return Ok(output::OK);
    }
    let name = settings.theme.as_deref().filter(|name| *name != AUTO).unwrap_or(Background::Dark.theme());
    let (depth, width) = match std::io::stdout().is_terminal() {
        true => {
            let columns = crossterm::terminal::size().map_or(0, |(columns, _)| usize::from(columns));
            (Depth::detect(&|name| std::env::var(name).ok()), if columns == 0 { UNWRAPPED } else { columns })
        }
        false => (Depth::Mono, UNWRAPPED),
    };
    output::out(&text(&loaded, &themes.load(name)?, depth, width))?;
    Ok(output::OK)
}

/// The conversation for the terminal, in rows of `width` columns.
fn text(loaded: &Loaded, theme: &Theme, depth: Depth, width: usize) -> String {
    let mut out = format!("{}\n", clean_line(&loaded.conversation.title_or_first_line()));
    let policies = PathPolicies::of(loaded);
    let merges = policies.merge();
    if merges {
        let _ = writeln!(out, "({MERGED})");
    }
    for (role, text, message, kept) in messages(loaded) {
        let role = policies.role(role, message);
        let bar = kept.map_or(String::new(), |r| format!("{} ", heat::shade(theme, depth, r.share)));
        let _ = write!(out, "\n{bar}{role}: {}\n", remembered(kept, merges));
        let mut lines = vec![Vec::new()];
        for (part, percent) in stretches(text, kept) {
            let share = percent.map(|p| f64::from(p) / 100.0);
            let style = share.map_or(Style::new(), |share| heat::text_on(theme, depth, heat::level(share)));
            append(&mut lines, &clean(part), style);
        }
        for row in lines.iter().flat_map(|spans| wrap(spans, width, &[], &[])) {
            // No background reaches over the end of a row.
            row.spans.iter().for_each(|span| tinted(&mut out, &span.content, span.style));
            out.push('\n');
        }
    }
    out
}

fn tinted(out: &mut String, line: &str, style: Style) {
    match (style.fg, style.bg) {
        (Some(fg), Some(bg)) if !line.is_empty() => {
            let _ = write!(out, "\x1b[{};{}m{line}\x1b[0m", sgr(fg, 30), sgr(bg, 40));
        }
        _ => out.push_str(line),
    }
}

/// The parameters that set a colour; `base` is 30 for text and 40 for its background.
fn sgr(colour: Color, base: u8) -> String {
    match colour {
        Color::Rgb(r, g, b) => format!("{};2;{r};{g};{b}", base + 8),
        Color::Indexed(n) => format!("{};5;{n}", base + 8),
        named => match ansi_number(named) {
            Some(n) if n < 8 => (base + n as u8).to_string(),
            Some(n) => (base + 52 + n as u8).to_string(),
            None => (base + 9).to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::session::load;
    use crate::policy::{Budget, PolicyKind};

    /// A session file of one turn, as it is written.
    fn saved(answer: &str, stretches: &str) -> Loaded {
        load(lines(answer, stretches).as_bytes(), "s").unwrap()
    }

    fn lines(answer: &str, stretches: &str) -> String {
        let report = serde_json::to_string(&crate::ui::testing::report(1, crate::protocol::StopReason::End)).unwrap();
        let stamp = r#"{"name":"demo","model_fingerprint":"m","tokenizer_fingerprint":"t","device":"cpu"}"#;
        let header = format!(
            r#"{{"type":"header","format":"dmschat-session","version":1,"id":0,"parent":null,"session":"s","created":"","template_date":"","program":"","model":{stamp},"codec":"f32","policy":"dms","window":64,"n_layers":1,"n_kv_heads":1,"context":100,"system":null}}"#
        );
        let turn = format!(
            r#"{{"type":"turn","id":2,"parent":1,"time":"","user":{{"id":1,"parent":null,"text":"<b>q</b>"}},"text":{},"reasoning":null,"reasoning_closed":true,"think":false,"keep_thinking":null,"model":{stamp},"report":{report},"retention":[{{"message":2,"tokens":3,"share":0.5,"stretches":{stretches}}}]}}"#,
            serde_json::to_string(answer).unwrap()
        );
        format!("{header}\n{turn}\n")
    }

    #[test]
    fn a_saved_conversation_is_tinted_as_it_was_remembered() {
        let loaded = saved("\nfacts glow\n<i>\x1b[2J", "[[6,100],[6,0]]");
        let theme = Themes::default().load("dark").unwrap();
        let narrow = text(&loaded, &theme, Depth::Mono, 8);
        assert!(narrow.contains("\nfacts\nglow\n"), "{narrow}");
        let plain = text(&loaded, &theme, Depth::Mono, UNWRAPPED);
        assert!(plain.contains("assistant: 50 % of 3 tokens remembered\nfacts glow\n<i>^[[2J\n"), "{plain}");
        assert!(plain.contains("user: not in the cache\n<b>q</b>"), "{plain}");
        let rgb = text(&loaded, &theme, Depth::Rgb, UNWRAPPED);
        assert!(rgb.contains("48;2;253;231;37mfacts\x1b[0m") && rgb.contains("48;2;68;1;84m glow\x1b[0m\n"), "{rgb}");
        let (dark, light) = (theme, Themes::default().load("light").unwrap());
        let page = html::page(&loaded, &dark, &light);
        assert!(page.contains("&lt;b&gt;q&lt;/b&gt;") && !page.contains("<b>q") && !page.contains("<script"), "{page}");
        assert!(page.contains(r#"<span class="k20" title="100 %">facts</span>"#), "{page}");
        assert!(page.contains("prefers-color-scheme: light") && !page.contains('\x1b'), "{page}");
    }

    /// What is shown is what the last turn left, so that its policy counts.
    #[test]
    fn each_turn_names_its_policy_and_the_last_one_decides_what_a_share_is() {
        let mut loaded = saved("facts glow", "[[5,0],[5,100]]");
        let theme = Themes::default().load("dark").unwrap();
        let both = |loaded: &Loaded| [text(loaded, &theme, Depth::Mono, UNWRAPPED), html::page(loaded, &theme, &theme)];
        for shown in both(&loaded) {
            assert!(shown.contains("assistant: 50 % of 3 tokens remembered") && !shown.contains(MERGED), "{shown}");
        }
        loaded.header.policy = PolicyKind::Dmc;
        for shown in both(&loaded) {
            assert!(shown.contains(MERGED) && shown.contains("assistant: 3 tokens in 50 % as many slots"), "{shown}");
            assert!(!shown.contains("remembered") && !shown.contains("forgotten"), "{shown}");
        }
        let mut info = crate::ui::testing::model(1, 1);
        (info.policy, info.budget) = (PolicyKind::Pool, Some(Budget::of_ratio(4.0)));
        let exported = crate::chat::session::markdown(&loaded.conversation, &info, &Default::default(), None);
        assert!(exported.contains("*its 3 tokens are in 50 % as many slots*"), "{exported}");
        assert!(exported.contains("policy: \"pool\"\nbudget: \"4x\"\n"), "{exported}");
        // The second turn names its own.
        let first = lines("facts glow", "[]");
        let second = first.lines().last().unwrap().replace(r#""id":1,"parent":null"#, r#""id":3,"parent":2"#);
        let second =
            second.replace(r#""id":2,"parent":1"#, r#""id":4,"parent":3"#).replace(r#""turn":1"#, r#""turn":2"#);
        let own = r#""cache":{"policy":"pool","budget":"4x","window":null},"report""#;
        let loaded = load(format!("{first}{}\n", second.replace(r#""report""#, own)).as_bytes(), "s").unwrap();
        assert_eq!(loaded.problems, Vec::<String>::new());
        for shown in both(&loaded) {
            assert!(
                shown.contains("assistant (policy dms): ") && shown.contains("assistant (policy pool 4x): "),
                "{shown}"
            );
            assert!(shown.contains(MERGED) && shown.contains("user: "), "{shown}");
        }
        assert!(html::page(&loaded, &theme, &theme).contains("dms, then pool 4x"));
        // Older versions: what was asked for, where it says more than auto.
        for (asked, names) in [("tova", "dms, then tova"), ("auto", "dms, then not recorded")] {
            let reference = format!(
                r#""name":"demo","reference":{{"model":"demo","revision":null,"adapter":"auto","policy":"{asked}"}}"#
            );
            let loaded =
                load(format!("{first}{}\n", second.replace(r#""name":"demo""#, &reference)).as_bytes(), "s").unwrap();
            assert!(html::page(&loaded, &theme, &theme).contains(names), "{asked}");
        }
    }

    /// A file may say anything: cuts inside a character, beyond the end, more than all.
    #[test]
    fn stretches_of_a_broken_file_cut_nothing_and_lose_nothing() {
        let answer = "\u{65e5}\u{672c}";
        for stretches in ["[[1,255],[9007199254740991,3]]", "[[0,0],[4,200]]", "[]"] {
            let loaded = saved(answer, stretches);
            let theme = Themes::default().load("dark").unwrap();
            assert!(text(&loaded, &theme, Depth::Mono, UNWRAPPED).contains(answer), "{stretches}");
        }
    }
}
