//! `dmschat man [SUBCOMMAND]`.

use super::args::Cli;
use super::output;
use anyhow::Result;
use clap::CommandFactory;

pub fn run(name: Option<&str>) -> Result<u8> {
    let mut cli = Cli::command();
    cli.build();
    let command = match name {
        None => cli,
        Some(name) => cli
            .get_subcommands()
            .find(|c| c.get_name() == name && !c.is_hide_set())
            .cloned()
            .ok_or_else(|| output::wrong_use(format!("man: no subcommand {name:?}; see dmschat --help")))?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    output::out(&String::from_utf8_lossy(&page))?;
    Ok(output::OK)
}
