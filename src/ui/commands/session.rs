//! Conversations and their files: `/new`, `/resume`, `/rename`, `/delete`, `/export`, `/save`,
//! `/quit`.

use super::prelude::*;
use crate::ui::update::files;
use std::path::PathBuf;

pub fn new(app: &mut App, _: &str) -> Done {
    turns::idle(app)?;
    app.store(Store::Close);
    Ok(())
}

pub fn quit(app: &mut App, _: &str) -> Done {
    app.emit(Effect::Quit);
    Ok(())
}

pub fn resume(app: &mut App, name: &str) -> Done {
    turns::idle(app)?;
    match name {
        "" => app.store(Store::List),
        name => files::open(app, Which::Named(name.to_owned())),
    }
    Ok(())
}

pub fn rename(app: &mut App, title: &str) -> Done {
    if title.is_empty() {
        return Err(Refusal::Takes);
    }
    app.chat.rename(title);
    app.info("renamed");
    app.store(Store::Sync);
    Ok(())
}

/// Adds tags, or takes off those that begin with a minus.
pub fn tag(app: &mut App, names: &str) -> Done {
    let mut tags = app.chat.tags().clone();
    for name in names.split_whitespace() {
        match name.strip_prefix('-') {
            Some(gone) if !tags.remove(gone) => {
                return Err(Refusal::Wrong(format!("/tag: this conversation has no tag {:?}", clean_line(gone))));
            }
            Some(_) => {}
            None => drop(tags.add(name).map_err(|why| Refusal::Wrong(format!("/tag: {why}")))?),
        }
    }
    let shown = tags.shown();
    if tags != *app.chat.tags() {
        app.chat.set_tags(tags);
        app.store(Store::Sync);
    }
    app.tell(if shown.is_empty() { "no tags".to_owned() } else { format!("tags:{shown}") })
}

/// Asks before the open conversation is deleted.
pub fn delete(app: &mut App, _: &str) -> Done {
    if app.chat.turns() == 0 || app.setup.no_session {
        return Err("this conversation has no file".into());
    }
    app.ask("Delete this conversation's file and begin a new one?", |app| {
        if turns::idle(app).is_ok() {
            // Its cache is not written once more.
            app.send(Engine::KeepCache(None));
            app.store(Store::DeleteCurrent);
        }
    });
    Ok(())
}

pub fn save(app: &mut App, file: &str) -> Done {
    answered(app)?;
    app.store(Store::Save { path: (!file.is_empty()).then(|| PathBuf::from(file)), overwrite: false });
    Ok(())
}

pub fn export(app: &mut App, file: &str) -> Done {
    if !(file.ends_with(".md") || file.ends_with(".jsonl")) {
        return Err(Refusal::Takes);
    }
    answered(app)?;
    app.store(Store::Export { path: PathBuf::from(file), overwrite: false });
    Ok(())
}

fn answered(app: &App) -> Done {
    if app.chat.turns() == 0 { Err("nothing to save yet, no answer so far".into()) } else { Ok(()) }
}
