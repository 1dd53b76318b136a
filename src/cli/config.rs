//! `dmschat config ...`: the settings and what set them, and files to edit.

use super::args::{Common, ConfigCommand};
use super::output;
use super::{download, quiet_settings as settings, spawn};
use crate::config::{DEFAULT, Dirs, Settings, Shown, shown};
use crate::engine::default_sampling;
use crate::ui::keymap::Keymap;
use crate::ui::theme::{AUTO, Background, Themes};
use anyhow::Result;
use serde_json::{Value, json};

/// Columns of a value in the list of settings.
const COLUMN: usize = 40;

pub fn run(command: &ConfigCommand, common: &Common) -> Result<u8> {
    match command {
        ConfigCommand::Path => {
            let path = match &common.config {
                Some(path) => path.clone(),
                None => Dirs::find().map_err(output::as_wrong_use)?.config_file(),
            };
            output::out(&output::visible(&format!("{}\n", path.display())))?;
        }
        ConfigCommand::Show => show(common)?,
        ConfigCommand::Keymap => {
            let keymap = {
                let settings = settings(common)?;
                Keymap::load(settings.keymap, settings.keymap_file().as_deref()).map_err(output::as_wrong_use)?
            };
            output::out(&keymap.as_file())?;
        }
        ConfigCommand::Theme { name } => {
            let settings = settings(common)?;
            let name = name.as_deref().or(settings.theme.as_deref()).filter(|name| *name != AUTO);
            let name = name.unwrap_or(Background::Dark.theme());
            let themes = Themes { folder: Some(settings.dirs.themes()), ..Themes::default() };
            let (text, folder) = (themes.file(name).map_err(output::as_wrong_use)?, settings.dirs.themes());
            output::out(&format!(
                "# The theme {name}. Edit it, save it as {}, and choose it by theme = \"NAME\".\n{text}",
                folder.join("NAME.toml").display()
            ))?;
        }
    }
    Ok(output::OK)
}

fn show(common: &Common) -> Result<()> {
    let settings = settings(common)?;
    let mut all = shown(&common.origin()).map_err(output::as_wrong_use)?;
    fill_in_sampling(&mut all, &settings);
    if common.json {
        let one = |Shown { key, value, source }: &Shown| {
            let value: Value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            json!({"key": key, "value": value, "source": source})
        };
        return output::out_json(&all.iter().map(one).collect::<Vec<_>>());
    }
    // A value that is longer than the column has its source on a line of its own.
    let longest = all.iter().map(|s| s.value.chars().count()).filter(|n| *n <= COLUMN).max().unwrap_or(0);
    for Shown { key, value, source } in &all {
        let rest = match value.chars().count() > longest {
            true => format!("\n{:20}{:longest$}", "", ""),
            false => String::new(),
        };
        output::out(&output::visible(&format!("{key:<18}  {value:<longest$}{rest}  {source}\n")))?;
    }
    Ok(())
}

/// Replaces defaults by what the model recommends, if it is on this machine.
fn fill_in_sampling(all: &mut [Shown], settings: &Settings) {
    if !matches!(download::missing(&settings.model), Ok(None)) {
        return;
    }
    let Ok(model) = spawn::open(settings) else { return };
    let sampling = default_sampling(&model.generation);
    for one in all.iter_mut().filter(|one| one.source == DEFAULT) {
        let Some((_, value)) = sampling.values().find(|(name, _)| *name == one.key) else { continue };
        one.value = value.to_string();
        one.source = format!("generation_config.json of {}", settings.model);
    }
}
