//! `dmschat [chat]`: opens the chat in the terminal.

use super::args::Common;
use super::output::{self, as_wrong_use, wrong_use};
use crate::chat::session::Store;
use crate::config::Settings;
use crate::ui::effect::Which;
use crate::ui::models::Given;
use crate::ui::{self, ExitKind, Resume, UiOptions};
use anyhow::{Result, anyhow};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn run(settings: &Settings, common: &Common) -> Result<u8> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(wrong_use("the chat needs a terminal; use -p TEXT to ask one question"));
    }
    if common.json {
        return Err(wrong_use("--json needs -p TEXT"));
    }
    super::devices::check_for_chat(settings)?;
    let resume = match (&common.resume, common.continue_) {
        (Some(Some(name)), _) => Resume::Open(Which::Named(name.clone())),
        (Some(None), _) => Resume::Choose,
        (None, true) => Resume::Open(Which::Newest),
        (None, false) => Resume::New,
    };
    let flags = common.layer();
    let options = UiOptions {
        settings: settings.clone(),
        resume,
        no_session: common.no_session,
        model_given: flags.model.is_some(),
        given: Given { adapter: flags.adapter.is_some(), policy: flags.names_policy() },
        models: Arc::new(super::local_models::Local),
        train: {
            let config = common.config.clone();
            Box::new(move |settings, estimate| super::training::start(settings, config.as_deref(), estimate))
        },
    };
    // A failed download may succeed next time, so it is not wrong use.
    let download_failed = Arc::new(AtomicBool::new(false));
    let failed = download_failed.clone();
    let load = Box::new(move |settings: &Settings| super::spawn::engine(settings, 0, failed.clone()));
    let (exit, saved) = ui::prepare(options, load).map_err(as_wrong_use)?.run()?;
    match exit {
        ExitKind::Quit => {
            if let Some(id) = saved {
                let newest = Store::new(settings.dirs.sessions()).newest().is_ok_and(|newest| newest == id);
                let flags = if newest { "--continue".to_owned() } else { format!("--resume {id}") };
                output::out(&format!("dmschat {flags} continues this conversation\n"))?;
            }
            Ok(0)
        }
        ExitKind::Signal(number) => Ok(128 + number as u8),
        ExitKind::NotSaved(why) => Err(anyhow!(why)),
        ExitKind::NotLoaded(why) if download_failed.load(Ordering::Relaxed) => Err(anyhow!(why)),
        ExitKind::NotLoaded(why) => Err(wrong_use(why)),
    }
}
