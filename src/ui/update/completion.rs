//! Completion in the input: the list, and Tab and Enter on it.

use crate::ui::attach::{attachment, mentions, without_end};
use crate::ui::commands::{find, parse};
use crate::ui::completion::{Sources, complete as candidates};
use crate::ui::effect::Effect;
use crate::ui::examples::offered;
use crate::ui::paths::is_file;
use crate::ui::state::App;

/// Updates the completions after the input changed.
pub fn input_changed(app: &mut App) {
    let themes = app.setup.themes.clone();
    let sources = Sources {
        themes: &|| themes.names(),
        models: &app.cached_models,
        used: &app.used_models,
        paths: &crate::ui::paths::complete,
    };
    app.completion = candidates(app.input.text(), app.input.caret(), &sources);
}

/// Completes a partly typed command on Enter. True if it can be run: typed in full, or chosen in the list.
pub fn accept_partial_command(app: &mut App) -> bool {
    let Some(completion) = &app.completion else { return true };
    let command = |app: &App| parse(app.input.text()).and_then(|(name, _)| find(name));
    if completion.start != 0 || command(app).is_some() || !app.input.text().starts_with('/') {
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

/// Reads the files that the draft names with `@`; it is sent once they stand in it. False if it names none, or is a command
/// that is not a question.
pub fn attach_mentions(app: &mut App) -> bool {
    let text = app.input.text();
    if parse(text.trim()).and_then(|(name, _)| find(name)).is_some_and(|c| c.name != "parallel") {
        return false;
    }
    let attach = |mention: &str| {
        let names = [mention, without_end(mention)];
        let mut found = names.into_iter().filter_map(|typed| Some((typed, attachment(typed)?)));
        let (typed, path) = found.find(|(_, path)| is_file(path))?;
        Some(Effect::Attach { typed: typed.to_owned(), path: path.to_owned() })
    };
    let effects: Vec<Effect> = mentions(text).into_iter().filter_map(attach).collect();
    app.attaching = effects.len();
    app.effects.extend(effects);
    app.attaching > 0
}

/// Inserts the chosen completion; without a list, cycles through the examples.
pub fn complete(app: &mut App) {
    if let Some(completion) = &app.completion
        && let Some(candidate) = completion.candidates.get(completion.selected)
    {
        let (start, insert) = (completion.start, candidate.insert.clone());
        app.input.replace_before_caret(start, &insert);
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
