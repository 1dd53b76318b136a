//! `/model` and `/models`: loading a model, and the list of those on this machine.

use super::pairs;
use super::prelude::*;
use crate::ui::completion::Sources;
use crate::ui::paths::expand_home;
use crate::ui::state::NO_MODEL;
use std::path::Path;

/// The built-in model, cached and known ones, folders and files of earlier conversations, and
/// folders once the beginning of a path is typed.
pub fn known(typed: &str, sources: &Sources) -> Vec<(String, String)> {
    let mut out = pairs(&[("demo", "built in")]);
    out.extend(sources.models.iter().map(|id| (id.clone(), "in the Hugging Face cache".to_owned())));
    out.extend(sources.short.iter().cloned());
    out.extend(sources.used.iter().map(|path| (path.clone(), "used before".to_owned())));
    if !typed.is_empty() {
        out.extend((sources.paths)(typed, true).into_iter().map(|path| (path, "folder".to_owned())));
    }
    out
}

pub fn model(app: &mut App, name: &str) -> Done {
    if name.is_empty() {
        return app.tell(match &app.engine.info {
            Some(i) => format!(
                "{}, {}; /model NAME loads another: demo, a short name (/models lists them), a folder, or ORG/NAME",
                i.identity.name, i.identity.device
            ),
            None => format!("{NO_MODEL}: demo, a short name (/models lists them), a folder, or ORG/NAME"),
        });
    }
    turns::idle(app)?;
    let name = expand_home(Path::new(name)).to_str().unwrap_or(name).to_owned();
    turns::load(app, &name);
    Ok(())
}
