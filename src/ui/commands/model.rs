//! `/model` and `/models`: loading a model, and the list of those on this machine.

use super::{Args, Command, Group, pairs};
use crate::ui::action::Action;
use crate::ui::completion::Sources;
use crate::ui::effect::Effect;
use crate::ui::intent::Intent;
use crate::ui::keymap::Key;
use crate::ui::models::{ModelEntry, ModelPicker};
use crate::ui::paths::expand_home;
use crate::ui::refusal::Done;
use crate::ui::state::{App, NO_MODEL, Overlay};
use crate::ui::update::field::{PAGE, edit_line, move_selected};
use crate::ui::update::turns;
use crossterm::event::KeyCode;
use std::path::Path;

pub const MODEL: Command = Command::new(
    Group::Model,
    "model",
    "[NAME]",
    "load another model: demo, a folder, a GGUF file, or ORG/NAME",
    model,
)
.args(Args { more: known, ..Args::TEXT })
.also(&["load"]);

pub const MODELS: Command = Command::new(
    Group::Model,
    "models",
    "",
    "the models on this machine: size, shape, DMS, licence; Enter loads one",
    |app, _| {
        app.overlays.push(Overlay::Models(ModelPicker::default()));
        app.emit(Effect::ListModels);
        Ok(())
    },
)
.also(&["list"]);

/// The built-in model, cached ones, folders and files of earlier conversations, and folders once the beginning of a path
/// is typed.
fn known(typed: &str, sources: &Sources) -> Vec<(String, String)> {
    let mut out = pairs(&[("demo", "built in")]);
    out.extend(sources.models.iter().map(|id| (id.clone(), "in the Hugging Face cache".to_owned())));
    out.extend(sources.used.iter().map(|path| (path.clone(), "used before".to_owned())));
    if !typed.is_empty() {
        out.extend((sources.paths)(typed, true).into_iter().map(|path| (path, "folder".to_owned())));
    }
    out
}

fn model(app: &mut App, name: &str) -> Done {
    if name.is_empty() {
        app.info(match &app.engine.info {
            Some(i) => format!(
                "{}, {}; /model NAME loads another: demo, a folder, or ORG/NAME",
                i.identity.name, i.identity.device
            ),
            None => format!("{NO_MODEL}: demo, a folder, or ORG/NAME"),
        });
        return Ok(());
    }
    turns::idle(app)?;
    let name = expand_home(Path::new(name)).to_str().unwrap_or(name).to_owned();
    turns::load(app, &name);
    Ok(())
}

/// Fills the list, if it is still open.
pub fn listed(app: &mut App, entries: Vec<ModelEntry>) {
    let current = app.engine.info.as_ref().map(|i| i.identity.name.clone());
    let open = app.overlays.iter_mut().find_map(|o| if let Overlay::Models(picker) = o { Some(picker) } else { None });
    if let Some(picker) = open {
        picker.entries = Some(entries);
        let at = picker.matching().iter().position(|e| Some(&e.name) == current.as_ref());
        picker.selected = at.unwrap_or(0);
    }
}

/// Handles a key of the list.
pub fn key(app: &mut App, key: Key, action: Option<Action>) -> Option<Intent> {
    let Some(Overlay::Models(picker)) = app.overlays.last_mut() else { return None };
    let count = picker.matching().len();
    match key.code {
        KeyCode::Up => move_selected(&mut picker.selected, count, false, 1),
        KeyCode::Down => move_selected(&mut picker.selected, count, true, 1),
        KeyCode::PageUp => move_selected(&mut picker.selected, count, false, PAGE),
        KeyCode::PageDown => move_selected(&mut picker.selected, count, true, PAGE),
        KeyCode::Enter => {
            let chosen = picker.matching().get(picker.selected).map(|e| (e.name.clone(), e.complete));
            let (name, complete) = chosen?;
            app.overlays.pop();
            if !complete {
                app.info(format!("{name} is incomplete; /model {name} downloads the rest"));
                return None;
            }
            return Some(Intent::Load(name));
        }
        _ => {
            edit_line(&mut picker.query, key, action);
            picker.clamp_selection();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::event::AppEvent;
    use crate::ui::testing::{app, press, say, screen};
    use crate::ui::update::update;

    #[test]
    fn the_list_shows_what_models_are_and_loads_the_chosen_one() {
        let mut app = app(100, 24, 8, 4);
        assert!(matches!(say(&mut app, "/models")[..], [Effect::ListModels]));
        assert!(screen(&mut app).contains("reading the models"));
        let entry = |name: &str, dms: &str, fits| ModelEntry {
            name: name.into(),
            path: Some(format!("/models/{name}")),
            bytes: 8_000_000_000,
            complete: true,
            shape: "qwen3, 36 layers, 32/8 heads, context 40,960".into(),
            dms: dms.into(),
            licence: Some("apache-2.0".into()),
            fits: Some(fits),
        };
        let demo = ModelEntry { path: None, ..entry("demo", "DMS, window 64", true) };
        let entries = vec![demo, entry("nvidia/Qwen3-8B-DMS-8x", "DMS, window 256", false)];
        update(&mut app, AppEvent::Models(entries));
        press(&mut app, KeyCode::Down);
        let shown = screen(&mut app);
        for part in ["8.0 GB", "does not fit", "36 layers, 32/8 heads", "DMS, window 256", "licence apache-2.0"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let effects = press(&mut app, KeyCode::Enter);
        assert!(matches!(&effects[..], [Effect::Load(name)] if name == "nvidia/Qwen3-8B-DMS-8x"));
        assert!(app.overlays.is_empty());
    }
}
