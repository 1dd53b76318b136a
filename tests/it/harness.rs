//! A front end for tests: sends commands to a running engine, assembles the token log from reports
//! and compares all results with the reference.

use crate::merge_reference::run_merged;
use crate::reference::{self, Outcome, Rounding};
use crate::spy::{Spy, Watch};
use crate::tiny::{CONTROL, END, FIRST_CONTROL, Tiny};
use dmschat::checkpoint::Checkpoint;
use dmschat::codec::Codec;
use dmschat::engine::{self, EngineOptions};
use dmschat::policy::PolicyKind;
use dmschat::protocol::{
    Ask, Command, EngineHandle, Event, GenerateRequest, KvStats, LogEntry, ModelInfo, Piece, Response, SamplingParams,
    Snapshot, Token, TurnReport,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens per step, small enough that a prompt takes several.
pub const STEP: usize = 16;

/// A question and the reply to it.
#[derive(Clone)]
pub struct Exchange {
    pub turn: u64,
    pub question: String,
    pub reply: Vec<Token>,
}

pub struct Session<'a> {
    pub tiny: &'a Tiny,
    pub watch: Watch,
    pub handle: EngineHandle,
    pub info: Arc<ModelInfo>,
    /// Assembled from reports and changes between turns.
    pub log: Vec<LogEntry>,
    pub exchanges: Vec<Exchange>,
    /// Events since the last command, except those waited for.
    pub events: Vec<Event>,
    pub sampling: SamplingParams,
    pub max_tokens: usize,
    /// Number of the last turn, which is also its seed.
    pub turns: u64,
}

impl<'a> Session<'a> {
    pub fn new(tiny: &'a Tiny) -> Self {
        Self::with(tiny, |_| {})
    }

    pub fn with(tiny: &'a Tiny, change: impl FnOnce(&mut EngineOptions)) -> Self {
        Self::opened(tiny, tiny.opener(), change)
    }

    /// With what `open` makes of the checkpoint.
    pub fn opened(
        tiny: &'a Tiny,
        open: impl FnOnce() -> anyhow::Result<Checkpoint> + Send + 'static,
        change: impl FnOnce(&mut EngineOptions),
    ) -> Self {
        Self::watched(tiny, Watch::default(), open, change)
    }

    /// With a backend that feeds prompts in chunks of so many tokens.
    pub fn in_chunks(tiny: &'a Tiny, chunk: usize, change: impl FnOnce(&mut EngineOptions)) -> Self {
        let watch = Watch::default();
        watch.seen().chunk_tokens = Some(chunk);
        Self::watched(tiny, watch, tiny.opener(), change)
    }

    fn watched(
        tiny: &'a Tiny,
        watch: Watch,
        open: impl FnOnce() -> anyhow::Result<Checkpoint> + Send + 'static,
        change: impl FnOnce(&mut EngineOptions),
    ) -> Self {
        let mut options = EngineOptions { max_step: Some(STEP), ..EngineOptions::new(Codec::F32) };
        change(&mut options);
        let seen = watch.clone();
        let mut handle = engine::spawn(open, move || Ok(Spy::new(&seen)), options).unwrap();
        watch.seen().commands = Some(handle.commands.clone());
        let mut events = Vec::new();
        let ready = |e: &Event| if let Event::Ready(info) = e { Some(info.clone()) } else { None };
        let info = wait(&mut handle, &mut events, &mut Vec::new(), ready);
        Self {
            tiny,
            watch,
            handle,
            info,
            log: Vec::new(),
            exchanges: Vec::new(),
            events,
            sampling: SamplingParams { temperature: 1.0, top_k: 5, ..Default::default() },
            max_tokens: 30,
            turns: 0,
        }
    }

    /// Another conversation of the same engine.
    pub fn open(&self) -> Self {
        Self {
            tiny: self.tiny,
            watch: self.watch.clone(),
            handle: self.handle.open(),
            info: self.info.clone(),
            log: Vec::new(),
            exchanges: Vec::new(),
            events: Vec::new(),
            sampling: self.sampling.clone(),
            max_tokens: self.max_tokens,
            turns: 0,
        }
    }

    pub fn send(&mut self, command: Command) {
        self.events.clear();
        assert!(self.handle.send(command), "the engine listens");
    }

    /// Sends `command` once `n` more steps have run.
    pub fn after_steps(&self, n: usize, command: Command) {
        let mut seen = self.watch.seen();
        let at = seen.steps.len() + n;
        seen.after_step.entry(at).or_default().push(command);
    }

    /// Waits for an event that `pick` accepts. Others are kept in `events`.
    pub fn wait<T>(&mut self, pick: impl FnMut(&Event) -> Option<T>) -> T {
        wait(&mut self.handle, &mut self.events, &mut self.log, pick)
    }

    pub fn notices(&self) -> Vec<&str> {
        self.events.iter().filter_map(|e| if let Event::Notice(text) = e { Some(&**text) } else { None }).collect()
    }

    /// The conversation so far and one more question, as a ChatML template renders it.
    pub fn prompt(&self, question: &str) -> Vec<Piece> {
        prompt_of(&self.exchanges, question)
    }

    pub fn request(&mut self, prompt: Vec<Piece>) -> GenerateRequest {
        self.turns += 1;
        GenerateRequest {
            turn: self.turns,
            ask: Ask {
                prompt,
                sampling: self.sampling.clone(),
                seed: Some(self.turns),
                max_tokens: Some(self.max_tokens),
                ..Ask::default()
            },
            pin: None,
            chains: None,
        }
    }

    /// Asks, waits for the answer, and updates log and exchanges.
    pub fn ask(&mut self, question: &str) -> TurnReport {
        let prompt = self.prompt(question);
        let report = self.generate(prompt);
        if report.in_context {
            let (turn, reply) = (report.turn, report.generated.clone());
            self.exchanges.push(Exchange { turn, question: question.to_owned(), reply });
        }
        report
    }

    /// Runs and checks one turn on a rendering, without adding an exchange.
    pub fn generate(&mut self, prompt: Vec<Piece>) -> TurnReport {
        let request = self.request(prompt);
        let first = self.watch.seen().logits.len();
        self.send(Command::Generate(Box::new(request)));
        self.finish(first)
    }

    /// Waits for the end of a turn whose first sample has number `first`.
    pub fn finish(&mut self, first: usize) -> TurnReport {
        let report = self.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
        self.log.truncate(report.log_base);
        self.log.extend_from_slice(&report.log);
        self.check(&report, first);
        report
    }

    /// Compares the report with the reference, the pool and the tables.
    fn check(&mut self, report: &TurnReport, first: usize) {
        if self.tiny.spec.hybrid || self.tiny.spec.local > 0 {
            return self.check_figures(&report.kv, self.tokens().len());
        }
        let wanted = self.wanted();
        let logits = self.watch.seen().logits[first..].to_vec();
        if report.in_context {
            assert_eq!(logits.len(), report.generated.len());
            assert_eq!(wanted.logits.len() + 1, report.prompt_tokens + report.generated.len());
            for (i, row) in logits.iter().enumerate() {
                let wanted = &wanted.logits[report.prompt_tokens - 1 + i];
                let worst = row.iter().zip(wanted).map(|(&a, b)| (a as f64 - b).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-4, "turn {}: logits of token {i} differ by {worst}", report.turn);
            }
        }
        let live: Vec<Vec<u32>> = wanted.stored.iter().map(|l| l.iter().map(|h| h.len() as u32).collect()).collect();
        let kv = &report.kv;
        assert_eq!(kv.live, live, "turn {}", report.turn);
        assert_eq!(kv.live_slots, live.iter().flatten().map(|&n| n as u64).sum::<u64>());
        let lanes = live.iter().flatten().count();
        assert_eq!(kv.dense_slots, (wanted.logits.len() * lanes) as u64);
        let slot_bytes = self.info.slot_bytes as u64;
        assert_eq!((kv.live_bytes, kv.dense_bytes), (kv.live_slots * slot_bytes, kv.dense_slots * slot_bytes));
        assert_eq!(kv.ratio, (kv.live_slots > 0).then(|| wanted.ratio()));
        let (counted, named) = self.watch.seen().pages;
        assert_eq!(counted, named, "pages by the pool's count and by the tables");
        assert_eq!(kv.bytes, (counted * self.info.page_slots) as u64 * slot_bytes);
        self.check_stored();
    }

    /// Compares figures of a cache of `n` tokens with the stored slots and with the slots of a
    /// dense cache: all tokens in the layers with attention, and the newest tokens in local layers.
    pub fn check_figures(&mut self, kv: &KvStats, n: usize) {
        let spec = &self.tiny.spec;
        let attention = (0..spec.n_layers).filter(|l| !spec.hybrid || l % 2 == 1);
        let dense: Vec<u32> =
            attention.map(|l| if spec.is_local(l) { n.min(spec.local) as u32 } else { n as u32 }).collect();
        assert_eq!(kv.dense, dense);
        let stored = self.stored();
        let live: Vec<Vec<u32>> = stored.iter().map(|l| l.iter().map(|h| h.len() as u32).collect()).collect();
        assert_eq!(kv.live, live);
        check_kv(kv, self.info.slot_bytes as u64);
        for (layer, heads) in stored.iter().enumerate().filter(|(layer, _)| self.tiny.spec.is_local(*layer)) {
            let newest: Vec<usize> = (n - dense[layer] as usize..n).collect();
            let of = |head: &Vec<(usize, bool)>| head.iter().map(|(position, _)| *position).collect::<Vec<_>>();
            assert!(heads.iter().all(|head| of(head) == newest), "layer {layer} stores its window");
        }
        let (counted, named) = self.watch.seen().pages;
        assert_eq!(counted, named, "pages by the pool's count and by the tables");
    }

    /// Runs the reference on the log. Fails if a decision is too close to the threshold.
    pub fn wanted(&self) -> Outcome {
        let merged = |every| run_merged(self.tiny, &self.log, every, Rounding::None).into();
        let outcome: Outcome = match self.info.policy {
            PolicyKind::Pool => merged(self.info.budget.map(|budget| budget.ratio() as usize)),
            PolicyKind::Dmc => merged(None),
            _ => reference::run(self.tiny, &self.log, Rounding::None),
        };
        assert!(outcome.margin > 1e-3, "a decision of {} is too near to 0: choose another seed", outcome.margin);
        outcome
    }

    /// Checks that exactly the positions and marks of the reference are stored.
    pub fn check_stored(&mut self) {
        let stored = self.stored();
        assert_eq!(stored, self.wanted().stored);
    }

    /// Positions and marks `[n_layers][n_kv_heads]`, as the inspector gets them.
    pub fn stored(&mut self) -> Vec<Vec<Vec<(usize, bool)>>> {
        let (layers, heads) = (self.info.n_layers, self.info.n_kv_heads);
        (0..layers).map(|layer| (0..heads).map(|head| self.inspect(layer, head)).collect()).collect()
    }

    fn inspect(&mut self, layer: usize, head: usize) -> Vec<(usize, bool)> {
        assert!(self.handle.send(Command::Inspect { layer, head }));
        let wanted = (layer, head);
        self.wait(|e| match e {
            Event::HeadPositions { layer, head, slots } if (*layer, *head) == wanted => {
                Some(slots.iter().map(|s| (s.position as usize, s.marked)).collect())
            }
            _ => None,
        })
    }

    /// Switches eviction while the engine is idle.
    pub fn toggle(&mut self, on: bool) -> u64 {
        self.send(Command::SetEviction(on));
        self.wait(|e| match e {
            Event::EvictionSet { on: now, dropped_slots, .. } if *now == on => Some(*dropped_slots),
            _ => None,
        })
    }

    /// The snapshot after the last command.
    pub fn snapshot(&mut self) -> Arc<Snapshot> {
        self.inspect(0, 0);
        self.handle.snapshot.borrow().clone().expect("published when ready")
    }

    /// Tokens of the log.
    pub fn tokens(&self) -> Vec<Token> {
        self.log.iter().filter_map(|e| if let LogEntry::Token(t) = e { Some(*t) } else { None }).collect()
    }
}

/// Runs an ignored test in a separate process, in which writing beyond the file size limit is an
/// error. `prepare` is shell code to run before it, `variable` an environment variable and its
/// value.
#[cfg(unix)]
pub fn run_alone(test: &str, prepare: &str, variable: [&str; 2]) {
    let script = format!("trap '' XFSZ; {prepare}exec \"$0\" --exact {test} --ignored --nocapture");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).arg(std::env::current_exe().unwrap()).env(variable[0], variable[1]);
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Checks that figures agree with each other.
pub fn check_kv(kv: &KvStats, slot_bytes: u64) {
    assert_eq!(kv.live_slots, kv.live.iter().flatten().map(|&n| u64::from(n)).sum::<u64>(), "{kv:?}");
    let dense = kv.live.iter().zip(&kv.dense).map(|(heads, &dense)| heads.len() as u64 * u64::from(dense));
    assert_eq!(kv.dense_slots, dense.sum::<u64>(), "{kv:?}");
    assert_eq!((kv.live_bytes, kv.dense_bytes), (kv.live_slots * slot_bytes, kv.dense_slots * slot_bytes), "{kv:?}");
    assert_eq!(kv.ratio, (kv.live_slots > 0).then(|| kv.dense_slots as f64 / kv.live_slots as f64), "{kv:?}");
    let shares = kv.live.iter().zip(&kv.dense).flat_map(|(heads, dense)| heads.iter().map(move |live| live <= dense));
    assert!(shares.into_iter().all(|fits| fits), "a head holds more than a dense cache: {kv:?}");
}

/// Replaces every `old` in a text by `new`. Fails if there is none, because a test that damages
/// something must do so.
pub fn edited(text: &str, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(text.to_owned(), |text, (old, new)| {
        assert!(text.contains(old), "{old} is not in {text}");
        text.replace(old, new)
    })
}

/// Text and control pieces of generated tokens, which are ASCII bytes here.
pub fn spelled(tokens: &[Token]) -> Vec<Piece> {
    let piece = |&token: &Token| match token {
        0..256 => Piece::Text(char::from(token as u8).to_string()),
        _ => Piece::Control(CONTROL[token as usize - FIRST_CONTROL].to_owned()),
    };
    tokens.iter().map(piece).collect()
}

pub fn control(literal: &str) -> Piece {
    Piece::Control(literal.to_owned())
}

pub fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

pub fn prompt_of(exchanges: &[Exchange], question: &str) -> Vec<Piece> {
    let mut out = Vec::new();
    for exchange in exchanges {
        ask(&mut out, &exchange.question);
        let said = exchange.reply.strip_suffix(&[END as Token]).unwrap_or(&exchange.reply);
        out.push(Piece::Reply { turn: exchange.turn, pieces: spelled(said) });
        out.extend([control("<|im_end|>"), text("\n")]);
    }
    ask(&mut out, question);
    out
}

fn ask(out: &mut Vec<Piece>, question: &str) {
    out.extend([control("<|im_start|>"), text("user\n"), text(question), control("<|im_end|>"), text("\n")]);
    out.extend([control("<|im_start|>"), text("assistant\n")]);
}

fn wait<T>(
    handle: &mut EngineHandle,
    kept: &mut Vec<Event>,
    log: &mut Vec<LogEntry>,
    mut pick: impl FnMut(&Event) -> Option<T>,
) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match handle.events.try_recv() {
            Ok(Response { event, .. }) => {
                if let Event::LogChanged(change) = &event {
                    log.truncate(change.log_base);
                    log.extend(&change.log);
                }
                match (pick(&event), event) {
                    (Some(wanted), _) => return wanted,
                    (None, Event::LoadFailed(why) | Event::Failed(why)) => panic!("{why}"),
                    (None, event) => kept.push(event),
                }
            }
            Err(_) => {
                assert!(Instant::now() < deadline, "the engine says nothing; so far {kept:?}");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // The backend holds a sender too, so that the engine would wait for itself.
        self.watch.seen().commands = None;
    }
}
