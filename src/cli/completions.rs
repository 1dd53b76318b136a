//! `dmschat completions SHELL`.

use super::args::{Cli, Common};
use super::output;
use anyhow::Result;
use clap::{Args, CommandFactory};

pub fn run(shell: clap_complete::Shell) -> Result<u8> {
    let mut script = Vec::new();
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|c| !c.is_hide_set()).cloned();
    let mut command = Common::augment_args(clap::Command::new("dmschat")).subcommands(shown);
    clap_complete::generate(shell, &mut command, "dmschat", &mut script);
    output::out(&String::from_utf8_lossy(&script))?;
    Ok(output::OK)
}
