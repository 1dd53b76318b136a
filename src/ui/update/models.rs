//! The list of models (/models) and loading one.

use super::field::{PAGE, edit_line, move_selected};
use super::{Effect, turns};
use crate::ui::action::Action;
use crate::ui::intent::Intent;
use crate::ui::keymap::Key;
use crate::ui::models::{ModelEntry, ModelPicker};
use crate::ui::paths::expand_home;
use crate::ui::state::{App, Level, Overlay};
use crossterm::event::KeyCode;
use std::path::Path;

/// Opens the list; it is filled once the files were read.
pub fn open(app: &mut App) -> Vec<Effect> {
    app.overlays.push(Overlay::Models(ModelPicker::default()));
    vec![Effect::ListModels]
}

/// Fills the list, if it is still open.
pub fn listed(app: &mut App, entries: Vec<ModelEntry>) -> Vec<Effect> {
    let current = app.engine.info.as_ref().map(|i| i.name.clone());
    let open = app.overlays.iter_mut().find_map(|o| if let Overlay::Models(picker) = o { Some(picker) } else { None });
    if let Some(picker) = open {
        picker.entries = Some(entries);
        let at = picker.matching().iter().position(|e| Some(&e.name) == current.as_ref());
        picker.selected = at.unwrap_or(0);
    }
    Vec::new()
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
                app.say(Level::Info, format!("{name} is not all here; /model {name} downloads the rest"));
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

/// Loads a model by name; `~` is the home folder.
pub fn load(app: &mut App, name: &str) -> Vec<Effect> {
    let name = expand_home(Path::new(name)).to_str().unwrap_or(name).to_owned();
    turns::load(app, &name)
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
