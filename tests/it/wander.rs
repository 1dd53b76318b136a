//! A conversation that is edited, branched and steered at random: after each step the pages, the
//! counts and the log agree, and the log alone makes the same cache.

use crate::harness::{Exchange, Session, prompt_of, spelled};
use crate::tiny::{Form, Rng, Spec, Tiny};
use dmschat::protocol::{
    Command, Dial, Event, Finding, PresenceRequest, Probe, RecallRequest, RestoreRequest, WhenFull,
};
use std::path::Path;

const STEPS: usize = 32;
const PAGE_BYTES: u64 = 16 * 260;

struct Wanderer<'a> {
    s: Session<'a>,
    rng: Rng,
    eviction: bool,
    asked: usize,
    /// How often each kind of step was taken.
    taken: [usize; 12],
}

impl Wanderer<'_> {
    fn step(&mut self) {
        let kind = self.rng.below(12);
        self.taken[kind] += 1;
        let n = self.s.exchanges.len();
        let exchange = if n > 0 { self.rng.below(n) } else { 0 };
        let text = self.s.exchanges.get(exchange).map(|e| e.question.clone());
        match (kind, text) {
            (3, Some(_)) => self.rewind(exchange),
            // The last question again, or another branch from the middle.
            (4, Some(text)) => {
                self.s.exchanges.truncate(exchange);
                self.generate(&text);
            }
            (5, _) => {
                self.eviction = !self.eviction;
                self.s.send(Command::SetEviction(self.eviction));
            }
            (6, Some(text)) => self.s.send(Command::Pin { text, ask: self.rng.chance(4) }),
            (7, text) => self.s.send(Command::Unpin(text.filter(|_| self.rng.chance(2)))),
            (8, _) => {
                let keep = [Dial::More, Dial::Less, Dial::Trained, Dial::Ratio(3.0), Dial::Ratio(200.0)];
                self.s.send(Command::SetDial(keep[self.rng.below(5)]));
            }
            (9, _) => {
                let limit = (self.rng.below(3) > 0).then(|| (16 + self.rng.below(60)) as u64 * PAGE_BYTES);
                self.s.send(Command::SetKvLimit(limit));
            }
            (10, Some(text)) => {
                let (prompt, alone) = (self.s.prompt("repeat"), prompt_of(&[], "repeat"));
                self.s.send(Command::Probe(Probe::Recall(Box::new(RecallRequest {
                    prompt,
                    alone,
                    cue_bytes: text.len() / 2,
                    text,
                    tokens: None,
                }))));
                self.s.wait(|e| matches!(e, Event::Found(Finding::Recalled(_))).then_some(()));
            }
            (11, Some(_)) if self.rng.chance(2) => {
                self.s.send(Command::Rebuild);
                let ended = |e: &Event| {
                    matches!(e, Event::RebuildDone { .. })
                        || matches!(e, Event::Notice(text) if text.starts_with("cannot rebuild"))
                };
                self.s.wait(|e| ended(e).then_some(()));
            }
            (11, _) => {
                let prompt = self.s.prompt("sum up");
                let ask = Box::new(self.s.request(prompt).ask);
                self.s.send(Command::Probe(Probe::Aside { ask, dense: false }));
                self.s.wait(|e| matches!(e, Event::Found(Finding::Said { .. })).then_some(()));
            }
            _ => {
                self.asked += 1;
                let question = format!("question {} {}", self.asked, "of some length ".repeat(self.rng.below(9)));
                self.generate(question.trim());
            }
        }
    }

    fn generate(&mut self, question: &str) {
        let prompt = self.s.prompt(question);
        let request = self.s.request(prompt);
        // Steering in the middle of a turn.
        if self.rng.chance(3) {
            self.eviction = !self.eviction;
            let at = self.rng.below(20);
            self.s.after_steps(at, Command::SetEviction(self.eviction));
        }
        if self.rng.chance(5) {
            let at = self.rng.below(30);
            self.s.after_steps(at, Command::Cancel);
        }
        self.s.send(Command::Generate(Box::new(request)));
        let report = self.s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
        // Commands of steps that did not come.
        self.s.watch.seen().after_step.clear();
        self.eviction = report.eviction;
        self.s.log.truncate(report.log_base);
        self.s.log.extend_from_slice(&report.log);
        if report.in_context {
            let (turn, question) = (report.turn, question.to_owned());
            self.s.exchanges.push(Exchange { turn, question, reply: report.generated });
        }
    }

    fn rewind(&mut self, n: usize) {
        self.s.exchanges.truncate(n);
        let Some((last, before)) = self.s.exchanges.split_last() else { return };
        let mut pieces = prompt_of(before, &last.question);
        pieces.extend(spelled(&last.reply));
        self.s.send(Command::Rewind(pieces));
    }

    /// The pool, the tables, the presence page and the inspector agree.
    fn check(&mut self) {
        let snapshot = self.s.snapshot();
        let tokens = snapshot.tokens;
        self.s.check_figures(&snapshot.kv, tokens);
        let stored = self.s.stored();
        let position = self.rng.below(tokens.max(1));
        self.s.send(Command::Presence(PresenceRequest { position, ..PresenceRequest::default() }));
        let presence = self.s.wait(|e| if let Event::Presence(presence) = e { Some(presence.clone()) } else { None });
        assert_eq!(presence.kept.len(), tokens);
        let mut kept = vec![[0; 2]; tokens];
        let spec = &self.s.tiny.spec;
        let counted: Vec<_> = stored.iter().enumerate().filter(|(layer, _)| !spec.is_local(*layer)).collect();
        assert_eq!(presence.lanes, counted.len() * spec.n_kv_heads);
        for (position, marked) in counted.iter().flat_map(|(_, heads)| heads.iter().flatten()) {
            kept[*position][0] += 1;
            kept[*position][1] += u16::from(*marked);
        }
        let counts = presence.kept.iter().zip(&presence.marked).map(|(&kept, &marked)| [kept, marked]);
        assert!(counts.eq(kept), "presence is what the heads that decide store");
    }

    /// The log alone makes the same cache.
    fn replay(&mut self, folder: &Path) {
        let stored = self.s.stored();
        let log = self.s.log.clone();
        if self.s.snapshot().tokens != self.s.tokens().len() {
            // Rewound: the next turn reports the log.
            return;
        }
        let mut again = session(self.s.tiny, folder, None, self.eviction);
        again.send(Command::Restore(Box::new(RestoreRequest { log, ..Default::default() })));
        again.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
        assert_eq!(again.stored(), stored);
    }
}

fn session<'a>(tiny: &'a Tiny, folder: &Path, when_full: Option<WhenFull>, eviction: bool) -> Session<'a> {
    let mut s = Session::with(tiny, |o| {
        (o.max_seqs, o.max_older, o.checkpoint_bytes) = (9, 4, 1 << 30);
        o.when_full = when_full.unwrap_or_default();
        o.eviction = Some(eviction);
        o.dial_folder = Some(folder.to_owned());
    });
    s.max_tokens = 12;
    s
}

#[test]
fn whatever_is_done_to_a_conversation_its_log_makes_the_same_cache() {
    let mut taken = [0; 12];
    let predictor = Form::Predictor { linear: true, units: 8 };
    let cases = [
        (Form::Borrowed, 1, false, 0),
        (Form::Adapter, 3, false, 0),
        (Form::Plain, 4, false, 0),
        (Form::Borrowed, 5, true, 0),
        (predictor, 6, false, 20),
        (Form::Plain, 7, false, 20),
    ];
    for (form, seed, hybrid, local) in cases {
        let spec = Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, form) };
        let n_layers = if hybrid || local > 0 { 4 } else { 2 };
        let tiny = Tiny::new(Spec { hybrid, local, n_layers, ..spec }, 380 + seed);
        let folder = tempfile::tempdir().unwrap();
        let s = session(&tiny, folder.path(), Some(WhenFull::Window), true);
        let mut w = Wanderer { s, rng: Rng(seed), eviction: true, asked: 0, taken: [0; 12] };
        for step in 0..STEPS {
            w.step();
            w.check();
            // What a fork got of a state shows in what is said after it only.
            if hybrid || step % 8 == 7 {
                w.replay(folder.path());
            }
        }
        w.s.send(Command::Clear);
        assert_eq!(w.s.snapshot().kv.bytes, 0, "pages before are pages after");
        assert_eq!(w.s.watch.seen().pages, (0, 0));
        taken.iter_mut().zip(w.taken).for_each(|(all, n)| *all += n);
    }
    assert!(taken.iter().all(|&n| n > 1), "{taken:?}");
}
