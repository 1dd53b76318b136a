//! `dmschat serve`: starts the engine and the server on it.

mod screen;

use super::args::ServeArgs;
use super::client::{self, Started};
use super::interrupts::{Interrupts, Kills};
use super::output::{self, wrong_use};
use crate::config::Settings;
use crate::regular_file;
use crate::serve::board::Board;
use crate::serve::{self, Access, Admission, Bound, Defaults, Log, Options};
use crate::system;
use anyhow::{Context, Result, anyhow};
use screen::{Facts, Shown};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

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
    if args.keep_slots && settings.cache_disk == 0 {
        return Err(wrong_use("--keep-slots keeps caches within cache_disk, which is 0"));
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
    let mut started = client::start(settings, args.slots)?;
    if args.keep_slots {
        let folder = settings.dirs.slots(&started.info.identity.model_fingerprint);
        started.keep_slots(args.slots, folder, settings.cache_disk)?;
    }
    let Started { runtime, handle, interrupts, info } = started;
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
    let board = Arc::new(Board::default());
    let facts = Facts {
        model: info.identity.name.clone(),
        address: format!("http://{address}/v1"),
        context: info.context,
        slots: args.slots,
    };
    let mut shown = match has_screen(settings) {
        true => Some(screen::show(facts, Arc::clone(&board))?),
        false => None,
    };
    let options = Options {
        info,
        defaults,
        access: Access::new(&keys, loopback, args.cors.clone()),
        admission: Admission::new(args.slots, args.queue),
        log: log(shown.is_some().then(|| Arc::clone(&board))),
        board,
    };
    let ended = runtime.block_on(async {
        let kills = Kills::new().context("cannot listen for signals")?;
        let ends = Ends { interrupts, kills, screen: shown.as_mut() };
        serve::serve(bound, handle, options, ends).await.map_err(|why| anyhow!(why))
    });
    // The terminal is given back before anything is said.
    drop(shown);
    ended.map(|()| output::OK)
}

/// Whether the server has a screen: it is drawn to stdout, and its keys come from stdin.
fn has_screen(settings: &Settings) -> bool {
    let terminals = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    terminals
        && system::process::is_in_foreground()
        && !settings.plain
        && !std::env::var("TERM").is_ok_and(|term| term == "dumb")
}

/// Writes lines to the screen, if there is one, and to stderr where the screen does not hide it.
fn log(board: Option<Arc<Board>>) -> Log {
    let Some(board) = board else { return Box::new(output::notice) };
    let is_hidden = std::io::stderr().is_terminal();
    Box::new(move |line| {
        if !is_hidden {
            output::notice(line);
        }
        board.say(format!("{}  {line}", jiff::Zoned::now().strftime("%H:%M:%S")));
    })
}

/// Signals and keys that end the server: the first lets answers end, the second does not.
struct Ends<'a> {
    interrupts: Interrupts,
    kills: Kills,
    screen: Option<&'a mut Shown>,
}

impl serve::Ends for Ends<'_> {
    async fn next(&mut self) {
        let key = async {
            match &mut self.screen {
                Some(screen) => screen.next_end().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.interrupts.next() => {}
            _ = self.kills.next() => {}
            () = key => {}
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
