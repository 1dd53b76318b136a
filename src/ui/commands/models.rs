//! `/models`: the models on this machine, known ones to download, and facts about the chosen one.
//! A name with a slash that is typed here is a model of the hub.

use super::command::refused;
use super::model::model;
use super::prelude::*;
use crate::ui::models::{ModelEntry, OFFLINE, Place};
use crate::ui::overlay::prelude::*;
use crate::ui::picker::{NOTHING, Picker, Row, fuzzy};

/// Opens the list, and has it read.
pub fn open(app: &mut App, _: &str) -> Done {
    app.open(ModelList { list: Picker::new(Vec::new(), "", fitting), is_read: false });
    app.emit(Effect::ListModels);
    Ok(())
}

pub struct ModelList {
    list: Picker<ModelEntry>,
    /// False while the files are read.
    is_read: bool,
}

/// Fills the list, if it is still open. Where the built-in model is alone on this machine, the one
/// to recommend is chosen; else the one that is loaded.
pub fn listed(app: &mut App, entries: Vec<ModelEntry>) {
    let current = app.engine.info.as_ref().map(|i| i.identity.name.clone());
    if let Some(open) = app.overlay_mut::<ModelList>() {
        open.is_read = true;
        let alone = !entries.iter().any(|entry| entry.place == Place::Here && entry.path.is_some());
        open.list.fill(entries);
        if alone && open.list.items.iter().any(|entry| entry.is_best) {
            open.list.choose(|entry| entry.is_best);
        } else {
            open.list.choose(|entry| Some(&entry.name) == current.as_ref());
        }
        open.offer_typed();
    }
}

/// Entries that fit what is typed. The name that is typed itself stands last.
fn fitting<'a>(entries: &'a [ModelEntry], query: &str) -> Vec<&'a ModelEntry> {
    let (typed, listed): (Vec<&ModelEntry>, Vec<&ModelEntry>) =
        entries.iter().partition(|entry| entry.place == Place::Typed);
    let listed_names = fuzzy(entries, query).into_iter().filter(|entry| entry.place != Place::Typed);
    let found: Vec<&ModelEntry> = if query.trim().is_empty() { listed } else { listed_names.collect() };
    found.into_iter().chain(typed).collect()
}

impl ModelList {
    /// Adds the model of the hub that the typed text names, unless the list has it.
    fn offer_typed(&mut self) {
        self.list.items.retain(|entry| entry.place != Place::Typed);
        let typed = self.list.query.text().trim();
        let is_listed = |entry: &ModelEntry| entry.name == typed || entry.repository.as_deref() == Some(typed);
        if typed.contains('/') && !typed.contains(char::is_whitespace) && !self.list.items.iter().any(is_listed) {
            let name = typed.to_owned();
            let shape = "Enter asks the hub for it, says how large it is and whether it fits, and downloads it";
            let typed = ModelEntry { name, place: Place::Typed, shape: shape.into(), ..ModelEntry::default() };
            self.list.items.push(typed);
        }
        self.list.move_by(0);
    }

    /// Loads the chosen model, or says why not.
    fn load(&self, app: &mut App) -> After {
        let Some(ModelEntry { name, place, complete, fits, .. }) = self.list.chosen() else { return After::Stay };
        match place {
            Place::Here if !complete => app.info(format!("{name} is incomplete; /model {name} downloads the rest")),
            Place::Hub | Place::Typed if app.models.offline => {
                app.info(format!("{name} is not on this machine, and {OFFLINE}"));
                return After::Stay;
            }
            Place::Hub if *fits == Some(false) => {
                app.info(format!("{name} does not fit into this machine's memory; /model {name} downloads it anyway"));
                return After::Stay;
            }
            Place::Here | Place::Hub | Place::Typed => {
                model(app, name).unwrap_or_else(|why| refused(app, "model", why));
            }
        }
        After::Close
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
            text: match entry.place {
                Place::Typed => format!("Enter downloads {}", clean_line(&entry.name)),
                _ => clean_line(&entry.name),
            },
            more: if entry.place == Place::Hub { "  download".to_owned() } else { String::new() },
            facts: facts(entry, app.models.offline),
            warns: entry.fits == Some(false) || !entry.complete && entry.place != Place::Typed,
        };
        let empty = match self.is_read {
            true => format!("{NOTHING}; ORG/NAME is a model of the hub"),
            false => "reading the models on this machine".to_owned(),
        };
        self.list.draw(buffer, list, &app.theme, &empty, shown);
        if let Some(entry) = self.list.chosen() {
            for (n, line) in details(entry).iter().enumerate() {
                let at = row(inside, n as i16 - 3);
                buffer.set_string(at.x, at.y, truncate(&clean_line(line), room), app.theme.style(Role::Text));
            }
        }
        let does = if self.list.chosen().is_some_and(|e| e.place != Place::Here) { "downloads" } else { "loads" };
        let (send, stop) = (app.key(Action::Send), app.key(Action::Stop));
        let keys = match app.models.offline {
            true => format!("{OFFLINE}; {stop} closes"),
            false => format!("{send} {does}, {stop} closes; type ORG/NAME for any other model"),
        };
        buffer.set_stringn(inside.x, area.bottom() - 1, keys, room, app.theme.style(Role::Dim));
    }

    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        if key.code == KeyCode::Enter {
            return self.load(app);
        }
        self.list.key(key, action);
        self.offer_typed();
        After::Stay
    }

    fn field(&self) -> Field {
        Field::Filter
    }

    fn paste(&mut self, _: &mut App, line: &str) {
        self.list.paste(line);
        self.offer_typed();
    }

    fn scroll(&mut self, _: &mut App, down: bool) {
        self.list.scroll(down);
    }

    fn plain_lines(&self, app: &App, _: usize) -> Option<Vec<String>> {
        let offline = app.models.offline;
        let line = |entry: &ModelEntry| format!("{}  {}", entry.name, facts(entry, offline).trim());
        let end = if offline { OFFLINE } else { "/model NAME loads one, and downloads it if it is not here" };
        let lines = self.list.items.iter().map(line).chain([end.to_owned()]);
        self.is_read.then(|| lines.collect())
    }
}

/// Size, what makes it forget, and whether it fits.
fn facts(entry: &ModelEntry, offline: bool) -> String {
    if entry.place == Place::Typed {
        return String::new();
    }
    let (size, dms, fit) = (size(entry), truncate(&clean_line(&entry.dms), 18), fit(entry, offline));
    format!("{size:>9}  {dms:<18}  {fit:<22}")
}

/// Shape and what makes it forget; licence and place.
fn details(entry: &ModelEntry) -> [String; 2] {
    if entry.place == Place::Typed {
        return [entry.shape.clone(), String::new()];
    }
    let licence = entry.licence.as_deref().map_or("licence not recorded".to_owned(), |l| format!("licence {l}"));
    let place = entry.repository.as_ref().or(entry.path.as_ref());
    let place = place.map_or_else(String::new, |place| format!("; {place}"));
    [format!("{}; {}", entry.shape, entry.dms), licence + &place]
}

/// The bytes of a model's files, in words.
fn size(entry: &ModelEntry) -> String {
    match entry.path.is_some() || entry.place == Place::Hub {
        true => bytes(entry.bytes),
        false => "built in".to_owned(),
    }
}

fn fit(entry: &ModelEntry, offline: bool) -> String {
    let text = match (entry.complete, entry.fits) {
        (false, _) => "not all here",
        _ if offline && entry.place == Place::Hub => "needs the network",
        (true, Some(true)) if !entry.room.is_empty() => &entry.room,
        (true, Some(true)) => "fits",
        (true, Some(false)) => "does not fit",
        (true, None) => "",
    };
    text.to_owned()
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
            ..ModelEntry::default()
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

    fn known(name: &str, fits: bool) -> ModelEntry {
        ModelEntry {
            name: name.into(),
            place: Place::Hub,
            repository: Some(format!("Org/{name}")),
            bytes: 269_000_000,
            complete: true,
            fits: Some(fits),
            room: "bf16, 8,192 tokens".into(),
            is_best: name == "smollm2",
            ..ModelEntry::default()
        }
    }

    #[test]
    fn the_recommended_model_is_chosen_where_the_built_in_one_is_alone() {
        let demo = || ModelEntry { name: "demo".into(), complete: true, ..ModelEntry::default() };
        let mut app = app(100, 24, 8, 4);
        assert!(matches!(press(&mut app, KeyCode::F(10))[..], [Effect::ListModels]));
        update(&mut app, AppEvent::Models(vec![demo(), known("large", false), known("smollm2", true)]));
        let shown = screen(&mut app);
        assert!(shown.contains("bf16, 8,192 tokens") && shown.contains("Org/smollm2"), "{shown}");
        let effects = press(&mut app, KeyCode::Enter);
        assert!(matches!(&effects[..], [Effect::Load(name)] if name == "smollm2"), "{effects:?}");
        // Beside another model on this machine, the loaded one stays chosen.
        let mut app = super::tests::app(100, 24, 8, 4);
        say(&mut app, "/models");
        let other = ModelEntry { name: "other".into(), path: Some("/other".into()), ..demo() };
        update(&mut app, AppEvent::Models(vec![demo(), other, known("smollm2", true)]));
        let effects = press(&mut app, KeyCode::Enter);
        assert!(matches!(&effects[..], [Effect::Load(name)] if name == "demo"), "{effects:?}");
    }

    #[test]
    fn a_typed_name_of_the_hub_is_offered_and_refusals_keep_the_list_open() {
        let mut app = app(100, 24, 8, 4);
        say(&mut app, "/models");
        update(&mut app, AppEvent::Models(vec![known("large", false), known("smollm2", true)]));
        press(&mut app, KeyCode::Up);
        assert!(press(&mut app, KeyCode::Enter).is_empty() && screen(&mut app).contains("/model large downloads it"));
        for address in ["Qwen/Qwen3-0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B"] {
            update(&mut app, AppEvent::Paste(address.into()));
            assert!(screen(&mut app).contains(&format!("Enter downloads {address}")), "{}", screen(&mut app));
            app.models.offline = true;
            assert!(press(&mut app, KeyCode::Enter).is_empty() && screen(&mut app).contains("HF_HUB_OFFLINE"));
            app.models.offline = false;
            let effects = press(&mut app, KeyCode::Enter);
            assert!(matches!(&effects[..], [Effect::Load(name)] if name == address), "{effects:?}");
            app.engine.loading = None;
            say(&mut app, "/models");
            update(&mut app, AppEvent::Models(Vec::new()));
        }
    }
}
