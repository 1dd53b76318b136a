//! Drafts: a step with drafts gives the tokens of single steps and leaves the cache in the same
//! state, whatever is tried.

use crate::harness::Session;
use crate::rule::codec_data;
use crate::tiny::{END, Form, Spec, Tiny};
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::checkpoint::eagle;
use dmschat::codec::Codec;
use dmschat::engine::{Decode, Draft, Drafter, Drafts, EngineOptions, Lookup, Runner, Verify};
use dmschat::policy::{PolicyKind, PolicyRequest};
use dmschat::protocol::{
    Ask, ChainsRequest, Command, Event, Finding, KvStats, LogEntry, MAX_DRAFTS, Probe, SamplingParams, StopReason,
    Token, TurnReport,
};

/// Numbers that look random (an LCG of Knuth's).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

const ROWS: usize = MAX_DRAFTS + 1;
const CONTEXT: usize = 400;

fn runner(tiny: &Tiny, codec: Codec, policy: PolicyRequest) -> Runner<Cpu> {
    let drafts = Drafts { rows: ROWS, ..Drafts::default() };
    let options = EngineOptions {
        max_step: Some(16),
        context: Some(CONTEXT),
        max_seqs: 6,
        policy,
        drafts,
        codec_data: codec_data(codec, tiny),
        ..EngineOptions::new(codec)
    };
    Runner::new(Cpu::new(1), &tiny.checkpoint(), &options, |_, _| true).unwrap()
}

/// Contents of a cache for a sequence, and all of its counters.
fn state(runner: &Runner<Cpu>, seq: SeqId) -> impl PartialEq + std::fmt::Debug + use<> {
    let g = *runner.cache.geometry();
    let b = runner.backend();
    let lane = |layer, head| runner.cache.slot_metas(b, seq, layer, head);
    let lanes: Vec<_> =
        (0..g.n_layers).flat_map(|l| (0..g.n_kv_heads).map(move |h| (l, h))).map(|(l, h)| lane(l, h)).collect();
    (lanes, runner.cache.stats(b, seq), runner.cache.pool_stats(b).used_pages)
}

/// The bytes of a sequence in every layer.
fn image(runner: &mut Runner<Cpu>, seq: SeqId) -> Vec<Vec<u8>> {
    let layers = runner.head(seq).1.len();
    let mut export = |layer| {
        let mut bytes = Vec::new();
        runner.export_layer(seq, layer, &mut bytes);
        bytes
    };
    (0..layers).map(&mut export).collect()
}

/// A conversation in two runners: one decodes single tokens, the other one steps with drafts.
struct Pair<'a> {
    plain: &'a mut Runner<Cpu>,
    drafted: &'a mut Runner<Cpu>,
    seqs: [SeqId; 2],
    pending: Token,
    seed: u64,
    params: SamplingParams,
}

impl Pair<'_> {
    fn both<R: PartialEq + std::fmt::Debug>(&mut self, mut act: impl FnMut(&mut Runner<Cpu>, SeqId) -> R) {
        let results = (act(self.plain, self.seqs[0]), act(self.drafted, self.seqs[1]));
        assert_eq!(results.0, results.1);
    }

    /// The next `n` tokens, one step each.
    fn next(&mut self, n: usize) -> Vec<Token> {
        let mut tokens = Vec::new();
        for _ in 0..n {
            let token = tokens.last().copied().unwrap_or(self.pending);
            let row = Decode { seq: self.seqs[0], token, sampling: &self.params, seed: self.seed };
            tokens.push(self.plain.decode(&[row]).unwrap()[0]);
        }
        tokens
    }

    /// A step with `tried` drafts, of which the first `right` are correct, and of whose rows
    /// `taken` are accepted.
    fn round(&mut self, random: &mut Random, vocab: usize, tried: usize, right: usize, taken: usize) {
        let wanted = self.next(taken);
        let mut drafts: Vec<Token> = (0..tried).map(|_| random.below(vocab) as Token).collect();
        let known = right.min(wanted.len());
        drafts[..known].copy_from_slice(&wanted[..known]);
        if known < tried.min(wanted.len()) {
            drafts[known] = (wanted[known] + 1) % vocab as Token;
        }
        let decode = Decode { seq: self.seqs[1], token: self.pending, sampling: &self.params, seed: self.seed };
        let rows = self.drafted.verify(&[Verify { decode, drafts: &drafts }]).unwrap().remove(0);
        assert_eq!(rows.len(), 1 + tried);
        let sampled: Vec<Token> = rows[..taken].iter().map(|row| *row.as_ref().unwrap()).collect();
        assert_eq!(sampled, wanted);
        (0..taken).for_each(|_| self.drafted.accept(self.seqs[1]));
        self.drafted.commit();
        self.pending = wanted[taken - 1];
    }
}

/// 10,000 steps whose drafts are all right, all wrong or partly right, between all other changes of
/// a cache.
#[test]
fn ten_thousand_rounds_leave_what_single_steps_leave() {
    let request = |kind| PolicyRequest { kind, ..PolicyRequest::default() };
    let auto = request(PolicyKind::Auto);
    let cases = [
        (Form::Borrowed, false, Codec::F32, auto),
        (Form::Adapter, false, Codec::Int8, auto),
        (Form::Metadata, false, Codec::Bf16, auto),
        (Form::Predictor { linear: true, units: 8 }, false, Codec::K8V4, auto),
        (Form::Plain, false, Codec::Fp8, request(PolicyKind::Window)),
        (Form::Plain, false, Codec::Csr16, auto),
        (Form::Plain, true, Codec::F32, auto),
        (Form::Predictor { linear: false, units: 4 }, true, Codec::Bf16, auto),
    ];
    let rounds = 10_000 / cases.len();
    for (number, (form, hybrid, codec, policy)) in cases.into_iter().enumerate() {
        let tiny = Tiny::new(Spec { hybrid, context: CONTEXT, ..Spec::new(true, form) }, 3);
        let policy = PolicyRequest {
            budget: (policy.kind == PolicyKind::Window).then(|| "24".parse().unwrap()).or(policy.budget),
            ..policy
        };
        let (mut plain, mut drafted) = (runner(&tiny, codec, policy), runner(&tiny, codec, policy));
        let (mut random, vocab) = (Random(number as u64), tiny.spec.vocab);
        let mut done = 0;
        while done < rounds {
            let seqs = [plain.create(true).unwrap(), drafted.create(true).unwrap()];
            let params = SamplingParams {
                temperature: [0.0, 1.0][random.below(2)],
                top_k: [0, 5][random.below(2)] as u32,
                repetition_penalty: [1.0, 1.3][random.below(2)],
                ..SamplingParams::default()
            };
            let mut pair =
                Pair { plain: &mut plain, drafted: &mut drafted, seqs, pending: 5, seed: done as u64, params };
            // A prompt of none to a few tokens: the first step may be the sequence's first.
            let prompt: Vec<Token> = (0..random.below(12)).map(|_| random.below(vocab) as Token).collect();
            if !prompt.is_empty() {
                pair.both(|runner, seq| runner.feed(seq, &prompt).unwrap());
            }
            while pair.plain.cache.len(seqs[0]) + ROWS < CONTEXT && done < rounds {
                let tried = random.below(ROWS);
                let right = [0, tried, random.below(tried + 1)][random.below(3)];
                let taken = if random.below(8) == 0 { 1 + random.below(right + 1) } else { right + 1 };
                pair.round(&mut random, vocab, tried, right, taken);
                pair.both(|runner, seq| state(runner, seq));
                done += 1;
                let (on, at) = (random.below(2) == 0, random.below(pair.plain.cache.len(seqs[0])));
                match random.below(40) {
                    0 => pair.both(|runner, seq| runner.set_eviction(seq, on).unwrap()),
                    1 => pair.both(|runner, seq| runner.pin(seq, at..at + 9).unwrap()),
                    2 => pair.both(|runner, seq| runner.unpin(seq, at..at + 30).unwrap()),
                    3 => pair.both(|runner, seq| runner.set_dial(seq, at as f32 / 100.0)),
                    4 => pair.both(|runner, seq| runner.forget(seq, 900).unwrap()),
                    5 => pair.both(|runner, seq| runner.drop_positions(seq, at..at + 5).unwrap()),
                    6 => pair.both(|runner, seq| runner.feed(seq, &[7, 8, 9]).unwrap()),
                    7 => {
                        // A fork continues in its place, while the other holds the pages that they
                        // share.
                        let forks =
                            [pair.plain.fork(pair.seqs[0]), pair.drafted.fork(pair.seqs[1])].map(Result::unwrap);
                        let kept = std::mem::replace(&mut pair.seqs, forks);
                        let tried = random.below(ROWS);
                        pair.round(&mut random, vocab, tried, tried, tried + 1);
                        pair.both(|runner, seq| state(runner, seq));
                        pair.both(image);
                        let used = std::mem::replace(&mut pair.seqs, kept);
                        pair.plain.release(used[0]);
                        pair.drafted.release(used[1]);
                        pair.both(|runner, seq| state(runner, seq));
                        // The pending token is the fork's.
                    }
                    _ => {}
                }
            }
            pair.both(image);
            let seqs = pair.seqs;
            plain.release(seqs[0]);
            drafted.release(seqs[1]);
            assert_eq!(drafted.cache.pool_stats(drafted.backend()).used_pages, 0);
        }
        drafted.cache.audit(drafted.backend()).unwrap();
    }
}

/// Sequences of one step are kept apart, and rejected rows leave nothing.
#[test]
fn several_sequences_are_tried_in_one_step() {
    let tiny = Tiny::new(Spec { context: CONTEXT, ..Spec::new(true, Form::Borrowed) }, 3);
    let policy = PolicyRequest::default();
    let (mut plain, mut drafted) = (runner(&tiny, Codec::F32, policy), runner(&tiny, Codec::F32, policy));
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let seqs = [(); 3].map(|()| drafted.create(true).unwrap());
    let alone = [(); 3].map(|()| plain.create(true).unwrap());
    for (i, (&a, &b)) in seqs.iter().zip(&alone).enumerate() {
        let prompt: Vec<Token> = (0..8 + 3 * i as Token).collect();
        drafted.feed(a, &prompt).unwrap();
        plain.feed(b, &prompt).unwrap();
    }
    let row = |seq, i: usize| Decode { seq, token: 1 + i as Token, sampling: &params, seed: i as u64 };
    // What follows each, from single steps.
    let mut wanted = Vec::new();
    for (i, &seq) in alone.iter().enumerate() {
        let first = plain.decode(&[row(seq, i)]).unwrap()[0];
        wanted.push(first);
    }
    let right = [wanted[1], 9, 9, 9];
    let before = state(&drafted, seqs[2]);
    let batch = [
        Verify { decode: row(seqs[0], 0), drafts: &[] },
        Verify { decode: row(seqs[1], 1), drafts: &right },
        Verify { decode: row(seqs[2], 2), drafts: &[3, 4] },
    ];
    let rows = drafted.verify(&batch).unwrap();
    let firsts: Vec<Token> = rows.iter().map(|rows| *rows[0].as_ref().unwrap()).collect();
    assert_eq!(firsts, wanted);
    let second = plain.decode(&[Decode { token: wanted[1], ..row(alone[1], 1) }]).unwrap()[0];
    assert_eq!(*rows[1][1].as_ref().unwrap(), second);
    [seqs[0], seqs[1], seqs[1]].into_iter().for_each(|seq| drafted.accept(seq));
    drafted.commit();
    assert_eq!(state(&drafted, seqs[2]), before, "none of its rows was accepted");
    for i in [0, 1] {
        assert_eq!(image(&mut drafted, seqs[i]), image(&mut plain, alone[i]));
    }
}

#[test]
fn policies_that_attention_carries_out_have_no_drafts() {
    let tiny = Tiny::new(Spec::new(true, Form::Plain), 3);
    for (kind, rows) in [("tova", 0), ("h2o", 0), ("pool", 0), ("window", ROWS), ("dense", ROWS)] {
        let policy = PolicyRequest { kind: kind.parse().unwrap(), ..PolicyRequest::default() };
        assert_eq!(runner(&tiny, Codec::F32, policy).most_rows(), rows, "{kind}");
    }
}

/// A drafter that is right, wrong, repeats itself, or proposes ends of turns, by turns.
struct Wild {
    tokens: Vec<Token>,
    lookup: Lookup,
}

impl Drafter for Wild {
    fn follow(&mut self, log: &[LogEntry], pending: Token) {
        self.lookup.follow(log, pending);
        self.tokens = log.iter().filter_map(|e| if let LogEntry::Token(t) = e { Some(*t) } else { None }).collect();
        self.tokens.push(pending);
    }

    fn propose(&self, most: usize) -> Draft {
        let n = self.tokens.len();
        let random = &mut Random(n as u64);
        match random.below(4) {
            // More than it may.
            0 => Draft { tokens: vec![b'a'.into(); most + 9], class: 0 },
            1 => Draft { tokens: (0..most).map(|_| random.below(260) as Token).collect(), class: 3 },
            // A speaker says the letters a to h and spaces: some guesses are right.
            2 => Draft { tokens: (0..most.min(3)).map(|_| (b'a' + random.below(8) as u8).into()).collect(), class: 1 },
            _ => self.lookup.propose(most),
        }
    }
}

fn wild() -> Box<dyn Drafter> {
    Box::new(Wild { tokens: Vec::new(), lookup: Lookup::default() })
}

fn only_lookup() -> Box<dyn Drafter> {
    Box::new(Lookup::default())
}

fn speaker() -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, ends: true, context: 1024, ..Spec::new(true, Form::Borrowed) }, 321)
}

/// A session whose answers try what [`Wild`] proposes, or nothing.
fn session(tiny: &Tiny, drafts: bool) -> Session<'_> {
    let rows = if drafts { ROWS } else { 0 };
    let mut s = Session::with(tiny, |o| options(o, rows));
    s.max_tokens = 60;
    s
}

fn options(o: &mut EngineOptions, rows: usize) {
    o.drafts = Drafts { rows, drafter: wild, gated: false };
    (o.max_seqs, o.max_older, o.checkpoint_bytes) = (10, 4, 1 << 20);
}

fn ask(s: &mut Session, question: &str, drafts: bool, chains: Option<ChainsRequest>) -> (TurnReport, String) {
    let prompt = s.prompt(question);
    let mut request = s.request(prompt);
    request.ask.drafts = if drafts { MAX_DRAFTS } else { 0 };
    request.ask.max_think = Some(7);
    request.ask.logprobs = Some(2);
    request.chains = chains;
    s.send(Command::Generate(Box::new(request)));
    let report = s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
    s.log.truncate(report.log_base);
    s.log.extend_from_slice(&report.log);
    let text = s.events.iter().filter_map(|e| match e {
        Event::Text { text, .. } => Some(text.clone()),
        Event::Likely { chain, tokens, .. } if chain.is_none() => Some(format!("{tokens:?}")),
        _ => None,
    });
    let text = text.collect();
    if report.in_context {
        let (turn, reply) = (report.turn, report.generated.clone());
        s.exchanges.push(crate::harness::Exchange { turn, question: question.to_owned(), reply });
    }
    (report, text)
}

/// An answer without times, the work of drafts, and the peak pages of several chains, which depend
/// on how far each chain is.
fn facts(report: &TurnReport) -> impl PartialEq + std::fmt::Debug + use<> {
    let kv = KvStats { peak_shared: None, ..report.kv.clone() };
    (
        (report.generated.clone(), report.log_base, report.log.clone(), report.pending, report.stop_reason),
        (kv, report.answer_tokens, report.reasoning_tokens, report.thought_closed_at, report.repeats_at),
        report.chains.as_ref().map(|chains| (chains.votes.clone(), chains.winner, chains.dense_reads)),
    )
}

/// Conversations with toggles, pins, a dial, undo, chains and a full context are the same with
/// drafts and without.
#[test]
fn conversations_do_not_depend_on_drafts() {
    let tiny = speaker();
    let (rounds, accepted) = are_equal(session(&tiny, true), session(&tiny, false));
    assert!(rounds > 100 && accepted > 50, "{rounds} rounds, {accepted} drafts accepted");
}

/// As above, where a head guesses.
#[test]
fn conversations_do_not_depend_on_a_head() {
    let tiny = speaker();
    let mut drafted = with_head(&tiny, |o| options(o, 6));
    drafted.max_tokens = 60;
    let (rounds, accepted) = are_equal(drafted, session(&tiny, false));
    assert!(rounds > 300 && accepted > 30, "{rounds} rounds, {accepted} drafts accepted");
}

/// A session with the drafts of a random head.
fn with_head(tiny: &Tiny, change: impl FnOnce(&mut EngineOptions)) -> Session<'_> {
    let folder = tempfile::tempdir().unwrap();
    crate::heads::write_random(folder.path(), tiny.spec.hidden, tiny.spec.vocab, 16);
    let (open, head) = (tiny.opener(), eagle::named(folder.path(), tiny.spec.n_layers).unwrap());
    let opened = move || {
        let _folder = folder;
        let mut checkpoint = open()?;
        checkpoint.set_draft_head(head)?;
        Ok(checkpoint)
    };
    Session::opened(tiny, opened, change)
}

/// If memory runs out, a running probe is released first. Then the draft head lends its memory, and
/// gets it back when there is room. Each of these is reported.
#[test]
fn a_full_cache_borrows_a_draft_heads_memory_after_a_probes() {
    let tiny = speaker();
    let mut s = with_head(&tiny, |o| {
        options(o, 6);
        o.kv_limit = Some(60 * 16 * 260);
    });
    let mut beside = s.open();
    beside.wait(|e| matches!(e, Event::Ready(_)).then_some(()));
    s.toggle(false);
    let prompt = beside.prompt("a question");
    let (sampling, logit_bias) = (s.sampling.clone(), vec![(END as Token, -100.0)]);
    let aside = Ask { prompt, sampling, logit_bias, seed: Some(1), max_tokens: Some(900), ..Ask::default() };
    beside.send(Command::Probe(Probe::Aside { ask: Box::new(aside), dense: true }));
    beside.wait(|e| matches!(e, Event::Found(Finding::Text { .. })).then_some(()));
    let (full, _) = ask(&mut s, &"a long story, ".repeat(40), false, None);
    assert!(full.in_context && full.kv.bytes > 60 * 16 * 260, "{:?}", full.detail);
    let info = |wanted: &'static str| {
        move |e: &Event| matches!(e, Event::Info(text) if text.starts_with(wanted)).then_some(())
    };
    beside.wait(info("no drafts for now: the cache needs the draft head's"));
    let given_up = |e: &Event| match e {
        Event::Found(Finding::Said { report, .. }) => Some(report.stop_reason),
        _ => None,
    };
    assert_eq!(beside.events.iter().find_map(given_up), Some(StopReason::CacheFull), "the probe ended before");
    assert!(s.events.iter().any(|e| info("no drafts for now")(e).is_some()));
    s.exchanges.clear();
    s.send(Command::Clear);
    s.wait(info("drafts are back"));
    beside.wait(info("drafts are back"));
    let (report, _) = ask(&mut s, "a question", true, None);
    assert!(report.draft.is_some_and(|draft| draft.rounds > 0), "{:?}", report.draft);
}

/// Like the test above, with the model's own layer for multi-token prediction, after layers that
/// carry a state.
#[test]
fn conversations_do_not_depend_on_multi_token_prediction() {
    let form = Form::Predictor { linear: false, units: 4 };
    let spec =
        Spec { hybrid: true, mtp: true, tied: false, speaks: true, ends: true, context: 1024, ..Spec::new(true, form) };
    let tiny = Tiny::new(spec, 321);
    let open = tiny.opener();
    let opened = move || {
        let mut checkpoint = open()?;
        checkpoint.find_draft_head()?;
        Ok(checkpoint)
    };
    let mut drafted = Session::opened(&tiny, opened, |o| options(o, 6));
    drafted.max_tokens = 60;
    let (rounds, accepted) = are_equal(drafted, session(&tiny, false));
    assert!(rounds > 300 && accepted > 30, "{rounds} rounds, {accepted} drafts accepted");
}

/// Holds the same conversation in two sessions, and returns steps with drafts and accepted ones of
/// the first.
fn are_equal<'a>(mut drafted: Session<'a>, mut plain: Session<'a>) -> (u64, u64) {
    let (mut rounds, mut accepted) = (0, 0);
    assert!(drafted.info.most_drafts > 0 && plain.info.most_drafts == 0);
    let (mut full, mut twins) = (false, 0);
    for turn in 0..40 {
        let chains = (turn % 9 == 4).then_some(ChainsRequest {
            width: Some(3),
            early_stop: false,
            checked: false,
            may_equal: false,
        });
        let question = format!("question {turn}, and some more words");
        let (a, said) = ask(&mut drafted, &question, true, chains);
        let (b, wanted) = ask(&mut plain, &question, false, chains);
        assert_eq!((facts(&a), said), (facts(&b), wanted), "turn {turn}");
        assert!(b.draft.is_none());
        if let Some(draft) = a.draft {
            (rounds, accepted) = (rounds + draft.rounds, accepted + draft.accepted);
            assert!(draft.tokens as usize == a.generated.len() || chains.is_some(), "turn {turn}: {draft:?}");
        }
        full |= a.stop_reason == StopReason::ContextFull;
        assert_eq!(drafted.stored(), plain.stored(), "turn {turn}");
        assert_eq!(a.twin, b.twin, "turn {turn}");
        twins += usize::from(a.twin.is_some());
        for s in [&mut drafted, &mut plain] {
            match turn % 7 {
                1 => drop(s.toggle(turn % 2 == 0)),
                2 => s.send(Command::PinTokens { tokens: 5..25, pin: true }),
                3 => s.send(Command::PinTokens { tokens: 0..15, pin: false }),
                4 => {
                    s.send(Command::SetTwin(turn < 20));
                    s.wait(|e| matches!(e, Event::TwinSet { .. }).then_some(()));
                }
                5 => {
                    s.exchanges.pop();
                    let exchanges = s.exchanges.clone();
                    let mut rendering = crate::harness::prompt_of(&exchanges, "");
                    rendering.truncate(rendering.len().saturating_sub(7));
                    s.send(Command::Rewind(rendering));
                }
                _ => {}
            }
            if full {
                s.exchanges.clear();
                s.send(Command::Clear);
            }
        }
        full = false;
    }
    assert!(twins > 5, "{twins} answers had a twin");
    (rounds, accepted)
}

/// An answer that is asked for again is tried from the one that it replaces, which the context no
/// longer has. Nor does another answer depend on it.
#[test]
fn a_replaced_answer_is_tried_again() {
    let tiny = speaker();
    let start = |drafter, rows| {
        let mut s = Session::with(&tiny, |o| {
            options(o, rows);
            o.drafts.drafter = drafter;
        });
        s.max_tokens = 60;
        s
    };
    let mut with = start(Drafts::default().drafter, ROWS);
    let mut lookup = start(only_lookup, ROWS);
    let mut plain = start(wild, 0);
    let (mut tokens, mut accepted) = (0, [0, 0]);
    for turn in 0..6 {
        let questions = [format!("question {turn}, and some words"), format!("question {turn}: and some words")];
        // Asked, asked again with the same seed and with another one, and edited.
        for (n, (question, again)) in [(0, false), (0, true), (0, false), (1, false)].into_iter().enumerate() {
            let chains = (n == 2).then_some(ChainsRequest {
                width: Some(3),
                early_stop: false,
                checked: false,
                may_equal: false,
            });
            let answers = [&mut with, &mut lookup, &mut plain].map(|s| {
                if n > 0 {
                    s.exchanges.pop();
                }
                s.turns -= u64::from(again);
                let drafts = s.info.most_drafts > 0;
                let answer = ask(s, &questions[question], drafts, chains);
                (answer, s.stored())
            });
            let facts =
                answers.each_ref().map(|((report, text), stored)| (facts(report), text.clone(), stored.clone()));
            assert!(facts[0] == facts[2] && facts[1] == facts[2], "turn {turn}, {n}");
            if again {
                tokens += answers[2].0.0.generated.len() as u64;
                for (accepted, ((report, _), _)) in accepted.iter_mut().zip(&answers) {
                    *accepted += report.draft.map_or(0, |draft| draft.accepted);
                }
            }
        }
    }
    assert!(10 * accepted[0] > 7 * tokens && 2 * accepted[1] < accepted[0], "{accepted:?} of {tokens}");
}
