//! A published model whose layers differ, Gemma 3 270M, in a conversation: ten turns with eviction
//! by a predictor that `adapter train` has made for it, with every kind of cache change between
//! them. After each turn every figure matches the stored slots. The model comes from
//! tests/models/fetch.

use crate::harness::check_kv;
use crate::program::{program, said};
use crate::real::fetched;
use dmschat::backend::cpu::Cpu;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::codec::Codec;
use dmschat::engine::{self, EngineOptions};
use dmschat::protocol::{
    Ask, Command, Dial, EngineHandle, Event, Finding, GenerateRequest, LogEntry, Piece, Probe, RestoreRequest,
    SamplingParams, StopReason, TurnReport, WhenFull,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MODEL: &str = "gemma-3-270m.Q4_K_M";
/// Of the published configuration: the window of fifteen layers, and the global ones.
const WINDOW: usize = 512;
const GLOBAL: [usize; 3] = [5, 11, 17];
const TEXT: &str = include_str!("../texts/chat.txt");
/// The text that the predictor is fitted to.
const LEARNED: &str = include_str!("../texts/fidelity.txt");
/// Bytes of the first message, which is longer than the window.
const FIRST: usize = 3 << 10;

/// About `len` bytes of the text from byte `from` on.
fn part(from: usize, len: usize) -> &'static str {
    let boundary = |at: usize| (at..).find(|&at| TEXT.is_char_boundary(at)).expect("the end is one");
    &TEXT[boundary(from)..boundary(from + len)]
}

struct Talk {
    handle: EngineHandle,
    log: Vec<LogEntry>,
    text: String,
    turns: u64,
}

impl Talk {
    fn new(model: PathBuf, predictor: PathBuf, when_full: WhenFull) -> Self {
        let options = EngineOptions { context: Some(4096), when_full, ..EngineOptions::new(Codec::F32) };
        let open = move || Checkpoint::open(&ModelRef::Folder(model), &AdapterChoice::File(predictor));
        let handle = engine::spawn(open, || Ok(Cpu::new(2)), options).unwrap();
        let mut talk = Self { handle, log: Vec::new(), text: String::new(), turns: 0 };
        let info = talk.wait(|e| if let Event::Ready(info) = e { Some(Arc::clone(info)) } else { None });
        let local = (0..info.n_layers).filter(|layer| !GLOBAL.contains(layer));
        assert!(local.clone().all(|layer| info.lanes[layer].window == Some(WINDOW)) && local.count() == 15);
        talk
    }

    fn wait<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            let Ok(response) = self.handle.events.try_recv() else {
                assert!(Instant::now() < deadline, "the engine reports nothing");
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if let Event::LogChanged(change) = &response.event {
                self.log.truncate(change.log_base);
                self.log.extend(&change.log);
            }
            match (pick(&response.event), response.event) {
                (Some(wanted), _) => return wanted,
                (None, Event::LoadFailed(why) | Event::Failed(why) | Event::Refused { why, .. }) => panic!("{why}"),
                (None, _) => {}
            }
        }
    }

    fn send(&mut self, command: Command) {
        assert!(self.handle.send(command), "the engine listens");
    }

    fn request(&mut self, more: &str) -> Ask {
        Ask {
            prompt: vec![Piece::Text(format!("{}{more}", self.text))],
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            seed: Some(1),
            max_tokens: Some(6),
            ..Ask::default()
        }
    }

    /// A turn, whose figures are checked.
    fn say(&mut self, more: &str) -> TurnReport {
        self.turns += 1;
        let ask = self.request(more);
        let request = GenerateRequest { turn: self.turns, ask, pin: None, chains: None };
        self.send(Command::Generate(Box::new(request)));
        let mut answer = String::new();
        let report = self.wait(|e| match e {
            Event::Text { text, .. } => {
                answer += text;
                None
            }
            Event::TurnDone(report) => Some((**report).clone()),
            _ => None,
        });
        assert!(report.in_context, "{:?}", report.detail);
        self.text += &format!("{more}{answer}");
        self.log.truncate(report.log_base);
        self.log.extend_from_slice(&report.log);
        self.check(&report.kv);
        report
    }

    fn tokens(&self) -> usize {
        self.log.iter().filter(|entry| entry.token().is_some()).count()
    }

    fn check(&mut self, kv: &dmschat::protocol::KvStats) {
        let n = self.tokens();
        check_kv(kv, kv.live_bytes / kv.live_slots);
        for layer in 0..18 {
            let wanted = if GLOBAL.contains(&layer) { n } else { n.min(WINDOW) };
            assert_eq!(kv.dense[layer] as usize, wanted, "layer {layer} of {n} tokens");
            let stored = self.stored(layer);
            assert_eq!(kv.live[layer], [stored.len() as u32], "layer {layer} of {n} tokens");
            if wanted == WINDOW {
                assert_eq!(stored, Vec::from_iter(n - WINDOW..n), "layer {layer} of {n} tokens");
            }
        }
    }

    /// Positions in the one KV head of a layer.
    fn stored(&mut self, layer: usize) -> Vec<usize> {
        self.send(Command::Inspect { layer, head: 0 });
        let mut positions = self.wait(|e| match e {
            Event::HeadPositions { layer: of, slots, .. } if *of == layer => {
                Some(slots.iter().map(|slot| slot.position as usize).collect::<Vec<_>>())
            }
            _ => None,
        });
        positions.sort_unstable();
        positions
    }

    /// Share of the tokens beyond the newest ones that the global layers keep.
    fn kept(&mut self) -> f64 {
        let n = self.tokens();
        let kept: usize = GLOBAL.map(|layer| self.stored(layer).len()).iter().sum();
        kept as f64 / (GLOBAL.len() * n) as f64
    }
}

fn trained(model: &Path, home: &tempfile::TempDir) -> PathBuf {
    let (text, out) = (home.path().join("text.txt"), home.path().join("predictor.safetensors"));
    std::fs::write(&text, LEARNED).unwrap();
    let mut command = program(env!("CARGO_BIN_EXE_dmschat"), home);
    command.args(["adapter", "train", "--device", "cpu", "-m"]).arg(model).arg("--text").arg(text);
    let (code, _, stderr) = said(&command.arg("--out").arg(&out).output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    out
}

#[test]
fn ten_turns_have_true_figures_whatever_changes_between_them() {
    let Some(folder) = fetched(MODEL) else { return };
    let model = folder.join("gemma-3-270m-q4_k_m.gguf");
    let home = tempfile::tempdir().unwrap();
    let predictor = trained(&model, &home);
    let mut talk = Talk::new(model.clone(), predictor.clone(), WhenFull::Forget);
    talk.say(part(0, FIRST));
    assert!(talk.tokens() > WINDOW + 100, "{} tokens", talk.tokens());
    let by_default = talk.kept();
    assert!(by_default < 0.9, "the predictor keeps {by_default}");
    // F4, twice.
    talk.send(Command::SetEviction(false));
    talk.say("\nA line while nothing is dropped.\n");
    talk.send(Command::SetEviction(true));
    talk.say("\nA line while something is dropped.\n");
    // /forget: what follows is kept or dropped as the dial says.
    let mut shares = Vec::new();
    for ratio in [1.2, 4.0] {
        talk.send(Command::SetDial(Dial::Ratio(ratio)));
        let set = talk.wait(|e| if let Event::DialSet { ratio, .. } = e { Some(*ratio) } else { None });
        assert!((set / f64::from(ratio) - 1.0).abs() < 0.2, "{ratio} became {set}");
        let (before, held) = (talk.tokens(), talk.kept());
        talk.say(part(FIRST, 1500));
        let n = talk.tokens();
        shares.push((talk.kept() * n as f64 - held * before as f64) / (n - before) as f64);
    }
    assert!(shares[0] > shares[1] + 0.1, "{shares:?}");
    talk.send(Command::SetDial(Dial::Trained));
    talk.wait(|e| matches!(e, Event::DialSet { .. }).then_some(()));
    // The twin and /compare.
    talk.send(Command::SetTwin(true));
    assert_eq!(talk.wait(|e| if let Event::TwinSet { why, .. } = e { Some(why.clone()) } else { None }), None);
    let twin = talk.say("\nA line beside the twin.\n").twin.expect("compared");
    let pages = GLOBAL.len() * talk.tokens().div_ceil(16) + 15 * WINDOW / 16;
    let snapshot = talk.handle.snapshot.borrow().clone().unwrap();
    assert_eq!((twin.bytes, snapshot.twin_bytes), (snapshot.twin_bytes, twin.bytes));
    assert_eq!(twin.bytes as usize % pages, 0, "{} bytes in {pages} pages", twin.bytes);
    talk.send(Command::SetTwin(false));
    let (log, ask) = (talk.log.clone(), Box::new(talk.request("\nA question beside.\n")));
    talk.send(Command::Probe(Probe::Aside { ask, dense: true }));
    talk.wait(|e| matches!(e, Event::Found(Finding::Said { dense: true, .. })).then_some(()));
    assert_eq!(talk.log, log, "/compare changes nothing");
    // The valve: the next turn drops what the heads need least, in the global layers.
    let report = talk.say("\nOne more line.\n");
    talk.send(Command::SetKvLimit(Some(report.kv.live_bytes)));
    let squeezed = talk.say(part(0, 400));
    assert!(squeezed.forgotten_slots > 0 && squeezed.stop_reason != StopReason::CacheFull);
    talk.send(Command::SetKvLimit(None));
    // Undo: the turn is gone, and the next one continues from the state before it.
    let (text, n) = (talk.text.clone(), talk.tokens());
    talk.say("\nA line that is taken back.\n");
    talk.text = text;
    let again = talk.say("\nAnother line in its place.\n");
    assert!(again.reused_tokens >= n.saturating_sub(8), "{} of {n} tokens were reused", again.reused_tokens);
    assert!(talk.turns >= 10);
    // Resumed from the log, in a new engine.
    let mut resumed = Talk::new(model, predictor, WhenFull::Forget);
    resumed.send(Command::Restore(Box::new(RestoreRequest { log: talk.log.clone(), ..Default::default() })));
    resumed.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
    for layer in 0..18 {
        assert_eq!(resumed.stored(layer), talk.stored(layer), "layer {layer}");
    }
}
