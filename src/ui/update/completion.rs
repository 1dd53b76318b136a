//! Effects of a change of the input: the list of completions, Tab and Enter on it; pastes.

use crate::config::profile::names;
use crate::ui::action::Action;
use crate::ui::attach::{attachment, mentions, named, without_end};
use crate::ui::commands::{Args, Command, beginning, find, pairs};
use crate::ui::completion::{Candidate, Completion, Sources, files};
use crate::ui::effect::Effect;
use crate::ui::examples::offered;
use crate::ui::paths::{can_be_attached, is_folder};
use crate::ui::prompts;
use crate::ui::spelling::parse;
use crate::ui::state::App;
use crate::ui::text::{clean_line, truncate};
use crate::web::is_url;

/// Updates the completions after the input changed.
pub fn input_changed(app: &mut App) {
    let themes = app.setup.themes.clone();
    let dirs = app.setup.settings.dirs.clone();
    let sources = Sources {
        themes: &|| themes.names(),
        profiles: &|| names(&dirs.profiles(), ".toml"),
        prompts: &|| prompts::listed(&dirs.prompts()),
        models: &app.models.cached,
        short: &app.models.short,
        used: &app.used_models,
        paths: &crate::ui::paths::complete,
    };
    app.completion = candidates(app.input.text(), app.input.caret(), &sources);
}

/// Inserts text of a paste without brackets.
pub fn type_fast(app: &mut App, text: &str) {
    app.notice = None;
    let folds = app.input.folds_burst();
    match text.contains('\n') {
        // A paste without brackets.
        true => app.input.insert_fast(text),
        false => app.by_hand(|app| app.input.insert_fast(text)),
    }
    if !app.input.folds_burst() {
        return input_changed(app);
    }
    app.completion = None;
    if !folds {
        say_folded(app);
    }
}

/// Says that a long paste is folded.
pub fn say_folded(app: &mut App) {
    let (fold, send) = (app.key(Action::Fold), app.key(Action::Send));
    app.info(format!("pasted text is folded; {fold} shows it, {send} sends all of it"));
}

/// Completes a partly typed command on Enter. True if it can be run: typed in full, or chosen in
/// the list.
pub fn accept_partial_command(app: &mut App) -> bool {
    let Some(completion) = &app.completion else { return true };
    let command = |app: &App| parse(app.input.text()).and_then(|(name, _)| find(name));
    let is_prompt = |app: &App| parse(app.input.text()).is_some_and(|(name, _)| prompts::exists(app, name));
    if completion.start != 0 || command(app).is_some() || is_prompt(app) || !app.input.text().starts_with('/') {
        return true;
    }
    let chosen = completion.selected > 0;
    complete(app);
    chosen && command(app).is_some_and(|c| c.usage.is_empty() || c.usage.starts_with('['))
}

/// True if a file or folder was chosen in the list with the arrows, which Enter then inserts.
pub fn chooses_file(app: &App) -> bool {
    let chosen = app.completion.as_ref().filter(|c| c.selected > 0).and_then(|c| c.candidates.get(c.selected));
    chosen.is_some_and(|candidate| candidate.insert.starts_with('@'))
}

/// Reads the files that the unsent text names with `@`; the text is sent once they are included.
/// False if it names none, or is a command that is not a question.
pub fn attach_mentions(app: &mut App) -> bool {
    let text = app.input.text();
    if parse(text.trim()).and_then(|(name, _)| find(name)).is_some_and(|c| c.name != "parallel") {
        return false;
    }
    let attach = |mention: &str| {
        let names = [mention, without_end(mention)];
        // A dot after a URL or a folder ends the sentence.
        let ends = named(names[1]).is_some_and(|name| is_url(name) || is_folder(name));
        let (typed, path) = names.into_iter().skip(usize::from(ends)).find_map(|typed| {
            let path = named(typed)?;
            (is_url(path) || can_be_attached(path)).then_some((typed, path))
        })?;
        Some((typed.to_owned(), path.to_owned()))
    };
    let found: Vec<(String, String)> = mentions(text).into_iter().filter_map(attach).collect();
    let pages: Vec<&str> = found.iter().map(|(_, path)| path.as_str()).filter(|path| is_url(path)).collect();
    if found.is_empty() {
        return false;
    }
    if pages.is_empty() || app.is_by_hand() {
        read_attached(app, found);
    } else {
        let pages = truncate(&clean_line(&pages.join(" and ")), 150);
        app.ask(format!("Fetch {pages}? The message that names it was not typed here."), |app| {
            read_attached(app, found)
        });
    }
    true
}

/// Reads what a message names; the input is sent after the last one.
fn read_attached(app: &mut App, found: Vec<(String, String)>) {
    app.attaching = found.len();
    app.effects.extend(found.into_iter().map(|(typed, path)| Effect::Attach { typed, path }));
}

/// Inserts the chosen completion; without a list, cycles through the examples.
pub fn complete(app: &mut App) {
    if let Some(completion) = &app.completion
        && let Some(candidate) = completion.candidates.get(completion.selected)
    {
        let (start, insert) = (completion.start, candidate.insert.clone());
        app.by_hand(|app| app.input.replace_before_caret(start, &insert));
        let Some(path) = attachment(&insert) else { return input_changed(app) };
        app.completion = None;
        return app.emit(Effect::Attach { typed: insert.clone(), path: path.to_owned() });
    }
    if app.burst.is_fast(app.now_ms) && !app.input.is_empty() {
        // A tab within a paste.
        app.burst.typed(app.now_ms);
        app.input.insert_fast("\t");
    } else if app.chat.path().is_empty() {
        let examples = offered(&app.engine);
        let at = examples.iter().position(|e| *e == app.input.text());
        if app.input.is_empty() || at.is_some() {
            app.input.set(examples[at.map_or(0, |i| (i + 1) % examples.len())]);
        }
    }
}

/// Completions of the text before the caret: commands and their arguments, files after `@`.
fn candidates(text: &str, caret: usize, sources: &Sources) -> Option<Completion> {
    let before = text.get(..caret)?;
    if !text.starts_with('/') || text.contains('\n') || before.is_empty() {
        return files(before, sources);
    }
    let (start, candidates) = match before[1..].split_once(' ') {
        None => (0, command_candidates(&before[1..], sources)),
        Some((name, argument)) => {
            (before.len() - argument.len(), argument_candidates(&find(name)?.args, argument, sources))
        }
    };
    (!candidates.is_empty()).then_some(Completion { start, candidates, selected: 0 })
}

fn command_candidates(typed: &str, sources: &Sources) -> Vec<Candidate> {
    let candidate = |(name, command): (&str, &Command)| Candidate {
        insert: format!("/{name}{}", if command.usage.is_empty() { "" } else { " " }),
        label: format!("/{name} {}", command.usage).trim_end().to_owned(),
        help: command.help.to_owned(),
    };
    let prompt = |name: String| Candidate {
        insert: format!("/{name} "),
        label: format!("/{name} [TEXT]"),
        help: format!("your prompt {name}.md"),
    };
    let prompts =
        (sources.prompts)().into_iter().filter(|name| name.starts_with(typed) && find(name).is_none()).map(prompt);
    beginning(typed).into_iter().map(candidate).chain(prompts).collect()
}

fn argument_candidates(args: &Args, typed: &str, sources: &Sources) -> Vec<Candidate> {
    let words = pairs(args.words).into_iter().chain((args.more)(typed, sources));
    let fitting = words.filter(|(word, _)| word.starts_with(typed) && word != typed);
    fitting.map(|(word, help)| Candidate { label: word.trim_end().to_owned(), insert: word, help }).collect()
}

/// Sets the unsent text aside when a slash begins a command: typed before its first character, or
/// right after the program itself put the text into the input.
pub fn set_aside(app: &mut App) {
    let input = &app.input;
    let before = input.caret() == 0 && !input.text().starts_with('/');
    let given = app.given_back.as_deref() == Some(&*input.expanded());
    if !input.is_empty() && app.editing.is_none() && (before || given) {
        app.aside = Some(app.input.take());
    }
}

pub fn type_text(app: &mut App, text: &str) {
    (app.notice, app.priced) = (None, None);
    app.by_hand(|app| app.input.insert(text));
    input_changed(app);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::attach::*;
    use crate::ui::commands::{ALL, Group};

    #[test]
    fn a_path_with_spaces_is_quoted_when_attached() {
        let paths = |typed: &str, _| if typed == "my n" { vec!["my notes.md".to_owned()] } else { Vec::new() };
        let sources = Sources {
            themes: &Vec::new,
            profiles: &Vec::new,
            prompts: &Vec::new,
            models: &[],
            short: &[],
            used: &[],
            paths: &paths,
        };
        let text = "read @\"my n";
        let found = candidates(text, text.len(), &sources).unwrap();
        assert_eq!((found.start, &*found.candidates[0].insert), (5, "@\"my notes.md\""));
        assert_eq!(attachment(&found.candidates[0].insert), Some("my notes.md"));
        assert_eq!(attachment("@src/"), None);
        let found = mentions("a@b.c see @notes.md, @\"my notes.md\". @x");
        assert_eq!(found, ["@notes.md,", "@\"my notes.md\"", "@x"]);
        assert_eq!(without_end(found[0]), "@notes.md");
        assert_eq!(unattached("to a@b.c, @bob and @todo.md?"), Some("@todo.md"));
        assert!(ends_before("") && ends_before("., then") && !ends_before(".bak"));
    }

    #[test]
    fn completion_offers_commands_and_arguments() {
        let themes = || vec!["dark".to_owned(), "light".to_owned()];
        let models = ["nvidia/Qwen3-8B-DMS-8x".to_owned()];
        let used = ["/models/smol.gguf".to_owned()];
        let paths = |typed: &str, _| if typed == "./Q" { vec!["./Qwen3/".to_owned()] } else { Vec::new() };
        let (profiles, prompts) = (|| vec!["work".to_owned()], || vec!["review".to_owned()]);
        let (profiles, prompts): (&dyn Fn() -> _, &dyn Fn() -> _) = (&profiles, &prompts);
        let (models, used): (&[String], &[String]) = (&models, &used);
        let sources = Sources { themes: &themes, profiles, prompts, models, short: &[], used, paths: &paths };
        let labels = |text: &str| {
            candidates(text, text.len(), &sources)
                .map(|c| c.candidates.into_iter().map(|c| c.label).collect::<Vec<_>>())
                .unwrap_or_default()
        };
        assert_eq!(labels("/").len(), ALL.iter().filter(|c| c.group != Group::Hidden).count() + 1);
        assert_eq!(
            (labels("/rev"), labels("/profile w")),
            (vec!["/review [TEXT]".to_owned()], vec!["work".to_owned()])
        );
        assert_eq!(labels("/re")[..4], ["/regen", "/recall [TEXT]", "/rebuild", "/rename TITLE"]);
        // Letters in order; a name that is not listed, once nothing else begins like it.
        assert_eq!(labels("/evc"), ["/eviction on|off"]);
        assert_eq!(labels("/rcl"), ["/recall [TEXT]"]);
        assert_eq!(labels("/res"), ["/resume [ID]"]);
        assert_eq!(labels("/bye"), ["/bye"]);
        assert_eq!(labels("/eviction o"), ["on", "off"]);
        assert_eq!(labels("/theme l"), ["light"]);
        assert_eq!(labels("/model "), ["demo", "nvidia/Qwen3-8B-DMS-8x", "/models/smol.gguf"]);
        assert_eq!(labels("/model nv"), ["nvidia/Qwen3-8B-DMS-8x"]);
        assert_eq!(labels("/model ./Q"), ["./Qwen3/"]);
        assert_eq!(labels("see @./Q"), ["./Qwen3/"]);
        assert!(labels("see me@./Q").is_empty());
        assert_eq!(labels("/set top"), ["top_k", "top_p", "top_n_sigma"]);
        assert_eq!(labels("/set keep_thinking a"), ["keep_thinking auto"]);
        assert!(labels("hello /").is_empty());
        assert!(labels("/nonsense x").is_empty());
    }
}
