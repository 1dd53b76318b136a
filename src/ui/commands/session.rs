//! Conversations and their files: `/new`, `/resume`, `/rename`, `/delete`, `/export`, `/save`,
//! `/quit`.

use super::{Args, Command, Group};
use crate::protocol::Command as Engine;
use crate::ui::effect::{Effect, Store, Which};
use crate::ui::refusal::{Done, Refusal};
use crate::ui::state::App;
use crate::ui::update::{files, turns};
use std::path::PathBuf;

pub const NEW: Command =
    Command::new(Group::Chat, "new", "", "begin a new conversation; this one stays saved", |app, _| {
        turns::idle(app)?;
        app.store(Store::Close);
        Ok(())
    })
    .also(&["clear"]);

pub const QUIT: Command = Command::new(Group::Chat, "quit", "", "quit (the conversation is saved)", |app, _| {
    app.emit(Effect::Quit);
    Ok(())
})
.also(&["exit", "bye"]);

pub const RENAME: Command =
    Command::new(Group::Files, "rename", "TITLE", "give this conversation a title", rename).args(Args::text("a title"));

pub const DELETE: Command = Command::new(Group::Files, "delete", "", "delete this conversation's file", delete);

pub const EXPORT: Command =
    Command::new(Group::Files, "export", "FILE", "write the conversation as .md or .jsonl", export)
        .args(Args::text("a file name that ends in .md or .jsonl"));

pub const RESUME: Command =
    Command::new(Group::Hidden, "resume", "[ID]", "open a saved conversation", resume).args(Args::TEXT);

pub const SAVE: Command =
    Command::new(Group::Hidden, "save", "[FILE]", "say where the conversation is saved, or write it to a file", save)
        .args(Args::TEXT);

fn resume(app: &mut App, name: &str) -> Done {
    turns::idle(app)?;
    match name {
        "" => app.store(Store::List),
        name => files::open(app, Which::Named(name.to_owned())),
    }
    Ok(())
}

fn rename(app: &mut App, title: &str) -> Done {
    if title.is_empty() {
        return Err(Refusal::Takes);
    }
    app.chat.rename(title);
    app.info("renamed");
    app.store(Store::Sync);
    Ok(())
}

/// Asks before the open conversation is deleted.
fn delete(app: &mut App, _: &str) -> Done {
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

fn save(app: &mut App, file: &str) -> Done {
    answered(app)?;
    app.store(Store::Save { path: (!file.is_empty()).then(|| PathBuf::from(file)), overwrite: false });
    Ok(())
}

fn export(app: &mut App, file: &str) -> Done {
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
