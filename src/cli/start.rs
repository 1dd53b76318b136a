//! The settings that a command starts with.

use super::args;
use super::naming;
use super::output;
use crate::config::Settings;
use crate::ui::theme::Themes;
use anyhow::{Context, Result};

/// Like [`settings`], without notices.
pub(super) fn quiet_settings(common: &args::Common) -> Result<Settings> {
    let mut settings = Settings::load(&common.origin()).map_err(output::as_wrong_use)?;
    settings.model = naming::full_name(&settings.model);
    Ok(settings)
}

/// The settings of a command line, the environment and the config file.
pub fn settings(common: &args::Common) -> Result<Settings> {
    let settings = quiet_settings(common)?;
    Settings::unknown_variables().iter().for_each(|line| output::notice(line));
    Ok(settings)
}

/// Fails if the theme of the settings cannot be loaded. The error says what names it.
pub(super) fn check_theme(settings: &Settings) -> Result<()> {
    let Some(theme) = &settings.theme else { return Ok(()) };
    let themes = Themes { folder: Some(settings.dirs.themes()), ..Themes::default() };
    themes.load(theme).map(|_| ()).with_context(|| settings.theme_set_by.clone())
}
