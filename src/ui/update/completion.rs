//! Completion in the input: the list, and Tab and Enter on it.

use super::Effect;
use crate::ui::commands as slash;
use crate::ui::examples::offered;
use crate::ui::state::App;

/// Updates the completions after the input changed.
pub fn input_changed(app: &mut App) {
    let themes = app.setup.themes.clone();
    let sources =
        slash::Sources { themes: &|| themes.names(), models: &app.cached_models, paths: &crate::ui::paths::complete };
    app.completion = slash::complete(app.input.text(), app.input.caret(), &sources);
}

/// Completes a partly typed command on Enter. True if it can be run: typed in full, or chosen in the list.
pub fn accept_partial_command(app: &mut App) -> bool {
    let Some(completion) = &app.completion else { return true };
    let known = slash::parse(app.input.text()).is_some_and(|(name, _)| slash::spec(name).is_some());
    if completion.start != 0 || known || !app.input.text().starts_with('/') {
        return true;
    }
    let chosen = completion.selected > 0;
    complete(app);
    let spec = slash::parse(app.input.text()).and_then(|(name, _)| slash::spec(name));
    chosen && spec.is_some_and(|s| s.usage.is_empty() || s.usage.starts_with('['))
}

/// True if the typed name is that of the chosen file, which Enter then attaches.
pub fn completes_file(app: &App) -> bool {
    let chosen = app.completion.as_ref().and_then(|c| Some((c.start, c.candidates.get(c.selected)?)));
    chosen.is_some_and(|(start, candidate)| {
        let typed = app.input.text().get(start..app.input.caret());
        slash::attachment(&candidate.insert).is_some() && typed == Some(&*candidate.insert)
    })
}

/// Inserts the chosen completion; without a list, cycles through the examples.
pub fn complete(app: &mut App) -> Vec<Effect> {
    if let Some(completion) = &app.completion
        && let Some(candidate) = completion.candidates.get(completion.selected)
    {
        let (start, insert) = (completion.start, candidate.insert.clone());
        app.input.replace_before_caret(start, &insert);
        if let Some(path) = slash::attachment(&insert) {
            app.completion = None;
            return vec![Effect::Attach { typed: insert.clone(), path: path.to_owned() }];
        }
        input_changed(app);
        return Vec::new();
    }
    if app.burst.is_fast(app.now_ms) && !app.input.is_empty() {
        // A tab within a paste.
        app.burst.typed(app.now_ms);
        app.input.insert("\t");
    } else if app.chat.path().is_empty() {
        let examples = offered(&app.engine);
        let at = examples.iter().position(|e| *e == app.input.text());
        if app.input.is_empty() || at.is_some() {
            app.input.set(examples[at.map_or(0, |i| (i + 1) % examples.len())]);
        }
    }
    Vec::new()
}
