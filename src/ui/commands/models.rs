//! `/models`: the models on this machine, and facts about the chosen one.

use super::command::refused;
use super::model::model;
use super::prelude::*;
use crate::ui::models::ModelEntry;
use crate::ui::overlay::prelude::*;
use crate::ui::picker::{NOTHING, Picker, Row, fuzzy};

/// Opens the list, and has it read.
pub fn open(app: &mut App, _: &str) -> Done {
    app.open(ModelList { list: Picker::new(Vec::new(), "", fuzzy), is_read: false });
    app.emit(Effect::ListModels);
    Ok(())
}

pub struct ModelList {
    list: Picker<ModelEntry>,
    /// False while the files are read.
    is_read: bool,
}

/// Fills the list, if it is still open.
pub fn listed(app: &mut App, entries: Vec<ModelEntry>) {
    let current = app.engine.info.as_ref().map(|i| i.identity.name.clone());
    if let Some(open) = app.overlay_mut::<ModelList>() {
        open.is_read = true;
        open.list.fill(entries);
        open.list.choose(|entry| Some(&entry.name) == current.as_ref());
    }
}

impl Overlay<App> for ModelList {
    /// One model a row, and more about the chosen one at the bottom.
    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        let inside = inside(area);
        field(frame, row(inside, 0), &app.theme, "models:", &self.list.query);
        let (buffer, room) = (frame.buffer_mut(), usize::from(inside.width));
        let list = Rect { y: area.y + 2, height: area.height.saturating_sub(6), ..inside };
        let shown = |entry: &ModelEntry| Row {
            text: clean_line(&entry.name),
            facts: format!("{:>9}  {:<18}  {:<12}", size(entry), truncate(&clean_line(&entry.dms), 18), fit(entry)),
            warns: entry.fits == Some(false) || !entry.complete,
            ..Row::default()
        };
        let empty = if self.is_read { NOTHING } else { "reading the models on this machine" };
        self.list.draw(buffer, list, &app.theme, empty, shown);
        if let Some(entry) = self.list.chosen() {
            let licence =
                entry.licence.as_deref().map_or("licence not recorded".to_owned(), |l| format!("licence {l}"));
            let place = entry.path.as_ref().map_or_else(String::new, |path| format!("; {path}"));
            for (n, line) in [format!("{}; {}", entry.shape, entry.dms), licence + &place].iter().enumerate() {
                let at = row(inside, n as i16 - 3);
                buffer.set_string(at.x, at.y, truncate(&clean_line(line), room), app.theme.style(Role::Text));
            }
        }
        let keys = format!("Enter loads, {} closes", app.key(Action::Stop));
        buffer.set_stringn(inside.x, area.bottom() - 1, keys, room, app.theme.style(Role::Dim));
    }

    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        if key.code != KeyCode::Enter {
            self.list.key(key, action);
            return After::Stay;
        }
        let Some(ModelEntry { name, complete, .. }) = self.list.chosen() else { return After::Stay };
        if *complete {
            let loaded = model(app, name);
            loaded.unwrap_or_else(|why| refused(app, "model", why));
        } else {
            app.info(format!("{name} is incomplete; /model {name} downloads the rest"));
        }
        After::Close
    }

    fn field(&self) -> Field {
        Field::Filter
    }

    fn paste(&mut self, _: &mut App, line: &str) {
        self.list.paste(line);
    }

    fn scroll(&mut self, _: &mut App, down: bool) {
        self.list.scroll(down);
    }

    fn plain_lines(&self, _: &App, _: usize) -> Option<Vec<String>> {
        let line = |entry: &ModelEntry| format!("{}  {}  {}", entry.name, size(entry), clean_line(&entry.dms));
        let lines = self.list.items.iter().map(line).chain(["/model NAME loads one".to_owned()]);
        self.is_read.then(|| lines.collect())
    }
}

/// The bytes of a model's files, in words.
fn size(entry: &ModelEntry) -> String {
    if entry.path.is_some() { bytes(entry.bytes) } else { "built in".to_owned() }
}

fn fit(entry: &ModelEntry) -> &'static str {
    match (entry.complete, entry.fits) {
        (false, _) => "not all here",
        (true, Some(true)) => "fits",
        (true, Some(false)) => "does not fit",
        (true, None) => "",
    }
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
