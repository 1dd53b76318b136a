//! `dmschat config path`.

use super::args::Common;
use super::output;
use crate::config::Dirs;
use anyhow::Result;

pub fn run(common: &Common) -> Result<u8> {
    let path = match &common.config {
        Some(path) => path.clone(),
        None => Dirs::find().map_err(output::as_wrong_use)?.config_file(),
    };
    output::out(&format!("{}\n", path.display()))?;
    Ok(output::OK)
}
