//! `dmschat serve`: starts the engine and the server on it.

use super::args::ServeArgs;
use super::client::{self, Started};
use super::interrupts::{Interrupts, Kills};
use super::output::{self, wrong_use};
use crate::config::Settings;
use crate::regular_file;
use crate::serve::{self, Access, Admission, Bound, Defaults, Options};
use anyhow::{Context, Result, anyhow};
use std::path::Path;

/// Longest file of keys.
const KEYS_BYTES: u64 = 1 << 20;
/// Most requests that are answered at once.
const MOST_SLOTS: usize = 256;
/// Most requests that wait.
const MOST_QUEUE: usize = 100_000;

pub fn run(settings: &Settings, args: &ServeArgs) -> Result<u8> {
    if settings.server.is_some() {
        return Err(wrong_use("--server is for a chat and -p: a server has a model of its own"));
    }
    if !(1..=MOST_SLOTS).contains(&args.slots) {
        return Err(wrong_use(format!("--slots {}: expected 1 to {MOST_SLOTS}", args.slots)));
    }
    if args.queue > MOST_QUEUE {
        return Err(wrong_use(format!("--queue {}: expected 0 to {MOST_QUEUE}", args.queue)));
    }
    let keys = args.api_key_file.as_deref().map(keys).transpose()?.unwrap_or_default();
    // Before the model is loaded, which may take minutes.
    let bound = Bound::new(&args.host, args.port).map_err(|why| anyhow!("--host {}: {why}", args.host))?;
    let (address, loopback) = (bound.address, bound.is_loopback());
    if !loopback && keys.is_empty() && !args.no_key {
        return Err(wrong_use(format!(
            "--host {} is reached from other machines; protect it by --api-key-file FILE, or allow anybody by --no-key",
            args.host
        )));
    }
    let Started { runtime, handle, interrupts, info } = client::start(settings, args.slots)?;
    let defaults = Defaults {
        sampling: settings.sampling.over(&info.default_sampling),
        seed: settings.seed,
        max_tokens: settings.max_tokens,
        max_think: info.max_think(settings.max_think),
        think: settings.think,
        drafts: info.most_drafts,
        system: settings.system.clone(),
    };
    output::notice(&format!(
        "{} at http://{address}/v1 (context {}, {} at once); Ctrl+C ends it",
        info.identity.name, info.context, args.slots
    ));
    let options = Options {
        info,
        defaults,
        access: Access::new(&keys, loopback, args.cors.clone()),
        admission: Admission::new(args.slots, args.queue),
        log: Box::new(output::notice),
    };
    runtime.block_on(async {
        let ends = Ends { interrupts, kills: Kills::new().context("cannot listen for signals")? };
        serve::serve(bound, handle, options, ends).await.map_err(|why| anyhow!(why))
    })?;
    Ok(output::OK)
}

/// Signals that end the server: the first lets answers end, the second does not.
struct Ends {
    interrupts: Interrupts,
    kills: Kills,
}

impl serve::Ends for Ends {
    async fn next(&mut self) {
        tokio::select! {
            () = self.interrupts.next() => {}
            _ = self.kills.next() => {}
        }
    }
}

/// Reads keys: one a line, without comments.
pub fn keys(path: &Path) -> Result<Vec<String>> {
    let named = || format!("--api-key-file {}", path.display());
    let bytes = regular_file::read(path, KEYS_BYTES).with_context(named).map_err(output::as_wrong_use)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong_use(format!("{}: it is not UTF-8", named())))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    match keys.is_empty() {
        true => Err(wrong_use(format!("{}: it has no key; write one a line", named()))),
        false => Ok(keys),
    }
}
