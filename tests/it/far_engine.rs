//! Far pages in conversations: choices are entries of the log, so drafts, chunks, undo, chains and
//! resumed sessions give the same text.

use crate::harness::{Exchange, Session};
use crate::kept::written;
use crate::steering::ask;
use crate::tiny::{Form, Spec, Tiny};
use dmschat::codec::Codec;
use dmschat::engine::{Drafts, EngineOptions, FarOptions, Lookup};
use dmschat::policy::{Far, PolicyKind};
use dmschat::protocol::{
    CacheFile, ChainsRequest, Command, Event, FarStats, GenerateRequest, LogEntry, RestoreRequest, TurnReport,
};
use std::path::{Path, PathBuf};

fn talker(seed: u64) -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 2048, ..Spec::new(true, Form::Borrowed) }, seed)
}

/// Talkers that evict by their own decisions, by a predictor, beside gated delta nets and beside
/// local layers.
fn talkers(seed: u64) -> [Tiny; 4] {
    let predictor = Form::Predictor { linear: true, units: 8 };
    let own = Spec { tied: false, speaks: true, context: 2048, ..Spec::new(true, Form::Borrowed) };
    let predicted = Spec { tied: false, speaks: true, context: 2048, ..Spec::new(true, predictor) };
    let hybrid = Spec { hybrid: true, n_layers: 4, ..predicted.clone() };
    let local = Spec { local: 40, n_layers: 3, ..predicted.clone() };
    [own, predicted, hybrid, local].map(|spec| Tiny::new(spec, seed))
}

const PAGES: usize = 1;

fn far(options: &mut EngineOptions) {
    options.far = Some(FarOptions { rule: Far { pages: PAGES }, limit_bytes: u64::MAX });
}

fn question() -> String {
    "a long story, ".repeat(30)
}

fn answered(s: &mut Session, request: GenerateRequest) -> TurnReport {
    s.send(Command::Generate(Box::new(request)));
    s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None })
}

/// The logits of every token that was sampled.
fn logits(s: &Session) -> Vec<Vec<f32>> {
    s.watch.seen().logits.clone()
}

/// Numbers of tokens before each choice, and who chose.
fn choices(log: &[LogEntry]) -> Vec<(usize, u16)> {
    let mut tokens = 0;
    let mut found = Vec::new();
    for entry in log {
        match *entry {
            LogEntry::Token(_) => tokens += 1,
            LogEntry::Choose { choose } => found.push((tokens, choose)),
            _ => {}
        }
    }
    found
}

#[test]
fn choices_follow_from_the_tokens_alone() {
    let tiny = Tiny::new(Spec { tied: false, speaks: true, context: 4096, ..Spec::new(true, Form::Borrowed) }, 700);
    let question = || question().repeat(6);
    let mut s = Session::with(&tiny, far);
    s.max_tokens = 60;
    let report = ask(&mut s, &question());
    let prompt = report.prompt_tokens - 1;
    let wanted = (1..).map(|i| Far::PROMPT_BLOCK * i).take_while(|at| *at < prompt).chain([prompt]).map(|at| (at, 32));
    let answer = (1..).map(|i| prompt + 16 * i).take_while(|at| *at < prompt + 60).map(|at| (at, 16));
    assert_eq!(choices(&s.log), wanted.chain(answer).collect::<Vec<_>>());
    assert!(prompt > Far::PROMPT_BLOCK && report.generated.len() == 60);
    let stats = report.kv.far.expect("rows are kept");
    assert!(stats.rows > 32 * 5 && stats.near < stats.rows && stats.bytes > 0 && stats.dropped == 0, "{stats:?}");
    let presence = report.presence.as_ref().expect("it was read");
    let most = (choices(&s.log).len() * presence.lanes * PAGES) as u64;
    assert!(stats.fetched > 0 && stats.fetched <= most, "{stats:?}, at most {most} fetched");
    let by_head = &stats.fetched_by_head;
    assert_eq!(by_head.iter().flatten().map(|&pages| u64::from(pages)).sum::<u64>(), stats.fetched);
    assert!(by_head.iter().map(Vec::len).eq(report.kv.live.iter().map(Vec::len)), "{by_head:?}");
    let sum = |counts: &[u16]| counts.iter().map(|&lanes| u64::from(lanes)).sum::<u64>();
    assert_eq!([sum(&presence.far), sum(&presence.near)], [stats.rows, stats.near]);
    let lanes = presence.kept.iter().zip(&presence.far).map(|(kept, far)| usize::from(kept + far));
    assert!(lanes.into_iter().all(|lanes| lanes == presence.lanes), "each head has each token near or far");
    // Chunks of other sizes.
    let mut other = Session::with(&tiny, |o| {
        far(o);
        o.max_step = Some(200);
    });
    other.max_tokens = 60;
    let again = ask(&mut other, &question());
    assert!(other.log == s.log && again.generated == report.generated && logits(&other) == logits(&s));
    assert_eq!(again.kv.far, Some(stats));
    // A chunk that is longer than a block is one, and its log gives the same state in other steps.
    let mut long = Session::in_chunks(&tiny, Far::PROMPT_BLOCK + 16, |o| {
        far(o);
        o.max_step = Some(4096);
    });
    long.max_tokens = 50;
    ask(&mut long, &question());
    let ends = [Far::PROMPT_BLOCK + 16, prompt].map(|at| (at, 32));
    let in_prompt: Vec<_> = choices(&long.log).into_iter().filter(|choice| choice.1 == 32).collect();
    assert_eq!(in_prompt, ends[usize::from(prompt <= Far::PROMPT_BLOCK + 16)..], "{prompt} tokens");
    assert!(long.watch.seen().steps.contains(&(Far::PROMPT_BLOCK + 16)));
    let mut replayed = resumed(&tiny, (&long.log, &long.exchanges), None, far);
    let wanted = ask(&mut long, "and then?");
    assert_eq!(ask(&mut replayed, "and then?").generated, wanted.generated);
    assert_eq!(replayed.log, long.log);
    // The pages matter.
    let mut gone = Session::with(&tiny, |_| {});
    gone.max_tokens = 60;
    let without = ask(&mut gone, &question());
    assert!(choices(&gone.log).is_empty() && without.kv.far.is_none() && logits(&gone) != logits(&s));
    assert_eq!(without.kv.live.len(), report.kv.live.len());
}

/// Also where the tier is full: how many tokens a step has depends on times.
#[test]
fn drafts_change_neither_text_nor_choices() {
    let run = |tiny: &Tiny, limit_bytes: u64, drafts: bool| {
        let mut s = Session::with(tiny, |o| {
            o.far = Some(FarOptions { rule: Far { pages: PAGES }, limit_bytes });
            if drafts {
                o.drafts = Drafts { rows: 16, drafter: || Box::new(Lookup::default()), gated: false };
            }
        });
        (s.max_tokens, s.sampling.top_k, s.sampling.temperature) = (150, 2, 0.2);
        let mut reports: Vec<TurnReport> = Vec::new();
        for _ in 0..2 {
            let prompt = s.prompt(&question());
            let mut request = s.request(prompt);
            request.ask.drafts = if drafts { 15 } else { 0 };
            let report = answered(&mut s, request);
            s.log.truncate(report.log_base);
            s.log.extend_from_slice(&report.log);
            reports.push(report);
        }
        let far: Vec<_> = reports.iter().map(|report| report.kv.far.clone()).collect();
        let tried = reports.iter().filter_map(|report| report.draft).map(|draft| draft.accepted).sum::<u64>();
        (reports.into_iter().map(|report| report.generated).collect::<Vec<_>>(), s.log.clone(), far, tried)
    };
    let cases = talkers(701).map(|tiny| (tiny, u64::MAX)).into_iter().chain([(talker(701), 60_000)]);
    for (tiny, limit) in cases {
        let (plain, drafted) = (run(&tiny, limit, false), run(&tiny, limit, true));
        assert!(drafted.3 > 20, "{:?}: {} drafts were right", tiny.spec, drafted.3);
        let drops = plain.1.iter().any(|entry| matches!(entry, LogEntry::DropFar { .. }));
        assert_eq!(drops, limit < u64::MAX);
        assert_eq!((plain.0, plain.1, plain.2), (drafted.0, drafted.1, drafted.2), "limit {limit}");
    }
}

/// Undo and regenerate go back to the far pages that there were; a session without its cache is
/// replayed to the same state.
#[test]
fn going_back_and_resuming_give_the_same_answers() {
    talkers(702).iter().for_each(goes_back_and_resumes);
}

fn goes_back_and_resumes(tiny: &Tiny) {
    let mut s = Session::with(tiny, |o| {
        far(o);
        (o.max_older, o.checkpoint_bytes) = (5, 1 << 30);
    });
    s.max_tokens = 50;
    ask(&mut s, &question());
    let (log, exchanges) = (s.log.clone(), s.exchanges.clone());
    let first = ask(&mut s, "and then?");
    let seen = logits(&s);
    let answer = &seen[seen.len() - first.generated.len()..];
    // Again, from the end of the prompt.
    (s.exchanges, s.turns) = (exchanges.clone(), 1);
    let again = ask(&mut s, "and then?");
    let seen = logits(&s);
    assert_eq!(again.generated, first.generated);
    // The choice at the prompt's end is not made again.
    let kept =
        |report: &TurnReport| report.kv.far.clone().map(|far| FarStats { fetched: 0, fetched_by_head: vec![], ..far });
    assert!(seen[seen.len() - again.generated.len()..] == *answer && kept(&again) == kept(&first));
    // From the log.
    let mut other = resumed(tiny, (&log, &exchanges), None, |o| {
        far(o);
        o.max_step = Some(33);
    });
    let resumed = ask(&mut other, "and then?");
    let seen = logits(&other);
    assert!(resumed.generated == first.generated && seen[seen.len() - resumed.generated.len()..] == *answer);
    assert_eq!((&resumed.kv.far, other.log.len()), (&first.kv.far, s.log.len()));
}

/// Another engine that goes on with this conversation, from its log or its saved cache.
fn resumed<'a>(
    tiny: &'a Tiny,
    (log, exchanges): (&[LogEntry], &[Exchange]),
    cache: Option<PathBuf>,
    change: impl FnOnce(&mut EngineOptions),
) -> Session<'a> {
    let replies: Vec<_> = exchanges.iter().map(|e| (e.turn, e.reply.clone())).collect();
    let pending = replies.last().and_then(|(_, ids)| ids.last().copied());
    let mut s = Session::with(tiny, change);
    (s.log, s.exchanges, s.turns, s.max_tokens) = (log.to_vec(), exchanges.to_vec(), exchanges.len() as u64, 50);
    s.send(Command::Restore(Box::new(RestoreRequest { log: log.to_vec(), replies, pending, cache })));
    let cancelled = s.wait(|e| if let Event::RebuildDone { cancelled, .. } = e { Some(*cancelled) } else { None });
    assert!(!cancelled);
    s
}

/// A saved cache is what a replay of the log gives, to the next logits and on, and only under the
/// settings of far pages that it was saved with.
#[test]
fn a_saved_cache_has_the_far_rows_of_a_replay() {
    let codecs = [Codec::Int8, Codec::F32, Codec::Bf16, Codec::Fp8];
    let cases = talkers(708).into_iter().zip(codecs).chain([(talker(708), Codec::K8V4)]);
    for (tiny, codec) in cases {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.cache");
        let with = |pages: Option<usize>| {
            move |o: &mut EngineOptions| {
                o.codec = codec;
                o.far = pages.map(|pages| FarOptions { rule: Far { pages }, limit_bytes: u64::MAX });
            }
        };
        let mut s = Session::with(&tiny, with(Some(PAGES)));
        s.max_tokens = 50;
        s.send(Command::KeepCache(Some(CacheFile { path: path.clone(), limit_bytes: 1 << 30, has_log: false })));
        ask(&mut s, &question());
        s.toggle(false);
        ask(&mut s, "and then?");
        s.toggle(true);
        ask(&mut s, &question());
        let tokens = s.tokens().len();
        assert_eq!(written(&path, tokens), tokens);
        let (log, exchanges) = (s.log.clone(), s.exchanges.clone());
        let resume = |cache: Option<&Path>, pages| {
            let s = resumed(&tiny, (&log, &exchanges), cache.map(Path::to_owned), with(pages));
            let fed: usize = s.watch.seen().steps.iter().sum();
            (s, fed)
        };
        let ((mut replayed, fed), (mut loaded, of_loaded)) =
            (resume(None, Some(PAGES)), resume(Some(&path), Some(PAGES)));
        assert_eq!((fed, of_loaded, loaded.notices()), (tokens, 0, vec![]), "{codec:?}: nothing is fed");
        let stats = s.snapshot().kv.far.clone().expect("rows are kept");
        assert!(stats.near < stats.rows, "{stats:?}");
        for s in [&mut replayed, &mut loaded] {
            let kv = s.snapshot().kv.clone();
            let found = kv.far.expect("rows are kept");
            assert_eq!((found.rows, found.near, found.dropped), (stats.rows, stats.near, stats.dropped), "{codec:?}");
            assert!(found.fetched == 0 && found.fetched_by_head.len() == kv.live.len(), "{codec:?}: {found:?}");
        }
        let answers = [&mut s, &mut replayed, &mut loaded].map(|s| {
            let report = ask(s, &question());
            let seen = logits(s);
            let answer = seen[seen.len() - report.generated.len()..].to_vec();
            (report.generated, answer, report.kv.far.expect("rows are kept"), s.log.clone())
        });
        assert!(answers[0] == answers[1] && answers[1] == answers[2], "{codec:?}");
        let cases = [(None, "with --far and --far-pages 1"), (Some(PAGES + 1), "with --far and --far-pages 1")];
        for (pages, why) in cases {
            let (mut other, fed) = resume(Some(&path), pages);
            let said = other.notices().join("\n");
            assert!(fed == tokens && said.contains(&format!("it was saved {why}; recomputing")), "{said}");
            assert_eq!(other.snapshot().tokens, tokens);
        }
    }
}

/// Far rows of a saved cache come after the conversation has gone on. Whatever becomes of their
/// file, answers are those of a replay.
#[test]
fn far_rows_of_a_file_come_late_or_the_log_is_replayed() {
    let tiny = talker(710);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.cache");
    let mut s = Session::with(&tiny, far);
    s.max_tokens = 50;
    s.send(Command::KeepCache(Some(CacheFile { path: path.clone(), limit_bytes: 1 << 30, has_log: false })));
    ask(&mut s, &question());
    ask(&mut s, "and then?");
    let tokens = s.tokens().len();
    assert_eq!(written(&path, tokens), tokens);
    let (log, exchanges, whole) = (s.log.clone(), s.exchanges.clone(), std::fs::read(&path).expect("a file"));
    let go_on = |s: &mut Session, switches: bool| {
        if switches {
            s.toggle(false);
            s.toggle(true);
        }
        let report = ask(s, &question());
        let seen = logits(s);
        let answer = seen[seen.len() - report.generated.len()..].to_vec();
        let far = report.kv.far.clone().map(|far| FarStats { fetched: 0, fetched_by_head: vec![], ..far });
        (report.generated, answer, far, s.log.clone())
    };
    for switches in [false, true] {
        let wanted = go_on(&mut resumed(&tiny, (&log, &exchanges), None, far), switches);
        for (is_damaged, waits) in [(false, true), (true, true), (true, false)] {
            let mut bytes = whole.clone();
            *bytes.last_mut().expect("a checksum of far rows") ^= u8::from(is_damaged);
            std::fs::write(&path, bytes).expect("a file");
            let mut s = resumed(&tiny, (&log, &exchanges), Some(path.clone()), far);
            // An open file can be read.
            std::fs::remove_file(&path).expect("the file");
            if is_damaged && waits {
                s.wait(|e| matches!(e, Event::RebuildDone { .. }).then_some(()));
                let why = format!("not used: it is damaged (the checksum of a layer); recomputing {tokens} tokens");
                assert!(s.notices().iter().any(|text| text.contains(&why)), "{:?}", s.notices());
                assert_eq!(s.watch.seen().steps.iter().sum::<usize>(), tokens);
            }
            assert!(go_on(&mut s, switches) == wanted, "switches: {switches}, damaged: {is_damaged}, waits: {waits}");
        }
    }
}

/// Another conversation shares what a prompt fed before the choice at its end, and is what it would
/// be alone.
#[test]
fn conversations_share_the_beginning_of_a_prompt() {
    let tiny = talker(709);
    let open = || {
        let mut s = Session::with(&tiny, |o| {
            far(o);
            o.max_seqs = 8;
        });
        s.max_tokens = 50;
        s
    };
    let mut first = open();
    let before = ask(&mut first, &question());
    let mut longer = first.open();
    (longer.exchanges, longer.turns) = (first.exchanges.clone(), 1);
    let shared = ask(&mut longer, "and then?");
    assert_eq!(shared.reused_tokens, before.prompt_tokens - 1);
    let mut alone = open();
    (alone.exchanges, alone.turns) = (first.exchanges.clone(), 1);
    let wanted = ask(&mut alone, "and then?");
    assert_eq!(wanted.reused_tokens, 0);
    let stats = wanted.kv.far.clone().expect("rows are kept");
    assert!(stats.near < stats.rows && shared.kv.far == wanted.kv.far, "{:?} instead of {stats:?}", shared.kv.far);
    let answer = |s: &Session| logits(s)[logits(s).len() - wanted.generated.len()..].to_vec();
    assert!(shared.generated == wanted.generated && longer.log == alone.log && answer(&longer) == answer(&alone));
    // The same prompt goes on from the choice itself.
    let mut same = first.open();
    let again = ask(&mut same, &question());
    assert_eq!((again.reused_tokens, &again.generated), (before.prompt_tokens - 1, &before.generated));
    assert!(same.log == first.log);
}

#[test]
fn the_first_of_several_chains_is_the_ordinary_answer() {
    let tiny = talker(703);
    let mut one = Session::with(&tiny, far);
    one.max_tokens = 50;
    let single = ask(&mut one, &question());
    let mut s = Session::with(&tiny, |o| {
        far(o);
        o.max_seqs = 12;
    });
    s.max_tokens = 50;
    let prompt = s.prompt(&question());
    let chains = Some(ChainsRequest { width: Some(3), early_stop: false, checked: false, may_equal: false });
    let request = GenerateRequest { chains, ..s.request(prompt) };
    let report = answered(&mut s, request);
    let chains = report.chains.expect("several answered").chains;
    assert_eq!(chains.len(), 3);
    let text: String =
        one.events.iter().filter_map(|e| if let Event::Text { text, .. } = e { Some(&**text) } else { None }).collect();
    assert_eq!(chains[0].tokens, single.generated.len());
    assert_eq!(chains[0].answer, text);
}

/// Each head has each token in a slot or far, so that both add up to the dense cache only where the
/// figures are of the same sequences.
#[test]
fn figures_of_far_rows_are_of_the_mean_chain_too() {
    let tiny = talker(707);
    let mut s = Session::with(&tiny, |o| {
        far(o);
        o.max_seqs = 12;
    });
    s.max_tokens = 400;
    // A busy machine may look only when the answer has ended, and asks again.
    let look = |_| {
        let prompt = s.prompt(&question());
        let chains = Some(ChainsRequest { width: Some(3), early_stop: false, checked: false, may_equal: false });
        let request = GenerateRequest { chains, ..s.request(prompt) };
        s.events.clear();
        s.send(Command::Generate(Box::new(request)));
        while !s.events.iter().any(|e| matches!(e, Event::TurnDone(_))) {
            // The snapshot has the figures published between two steps.
            assert!(s.handle.send(Command::SetKvLimit(None)));
            let now = s.snapshot();
            if now.chains.iter().filter(|chain| chain.tokens > 64).count() == 3 {
                return Some(now);
            }
        }
        None
    };
    let now = (0..20).find_map(look).expect("a look while all chains speak");
    let lanes: usize = now.kv.live.iter().map(Vec::len).sum();
    let all = now.kv.live_slots + now.kv.far.clone().expect("rows are kept").rows;
    // Means are rounded, in each lane.
    assert!(all.abs_diff(now.kv.dense_slots) <= 2 * lanes as u64, "{:?}", now.kv);
}

/// Where the tier is full, the oldest pages go, as entries of the log, and that is said once.
#[test]
fn a_full_tier_drops_its_oldest_pages() {
    let tiny = talker(704);
    let limit = 60_000;
    let small = |o: &mut EngineOptions| o.far = Some(FarOptions { rule: Far { pages: PAGES }, limit_bytes: limit });
    let mut s = Session::with(&tiny, small);
    s.max_tokens = 80;
    let mut said = 0;
    for _ in 0..3 {
        let report = ask(&mut s, &question());
        said += s.notices().iter().filter(|text| text.contains("far")).count();
        let stats = report.kv.far.expect("rows are kept");
        assert!(stats.bytes <= limit + limit / 2, "{stats:?}");
    }
    let stats = s.snapshot().kv.far.clone().expect("rows are kept");
    assert!(stats.dropped > 0 && said == 1, "{stats:?}, said {said} times: {:?}", s.notices());
    assert!(s.log.iter().any(|entry| matches!(entry, LogEntry::DropFar { .. })));
    // Another engine with more room replays the same.
    let mut other = Session::with(&tiny, far);
    let request = RestoreRequest { log: s.log.clone(), replies: Vec::new(), pending: None, cache: None };
    other.send(Command::Restore(Box::new(request)));
    other.wait(|e| matches!(e, Event::RebuildDone { .. }).then_some(()));
    let replayed = other.snapshot().kv.far.clone().expect("rows are kept");
    assert_eq!((replayed.rows, replayed.near, replayed.dropped), (stats.rows, stats.near, stats.dropped));
}

/// Policies whose rows do not leave whole have no far pages, and local layers have none.
#[test]
fn who_has_no_far_pages_says_so() {
    let tiny = talker(705);
    for kind in [PolicyKind::Dense, PolicyKind::H2o, PolicyKind::Pool] {
        let mut s = Session::with(&tiny, |o| {
            far(o);
            o.policy = kind.into();
        });
        let report = ask(&mut s, "a question");
        assert!(report.kv.far.is_none() && choices(&s.log).is_empty(), "{kind}");
        let all = s.notices().join("\n");
        assert!(all.contains(&format!("--far does nothing with policy {kind}")), "{all}");
    }
    let local = Tiny::new(
        Spec { local: 40, n_layers: 3, context: 1024, ..Spec::new(true, Form::Predictor { linear: true, units: 0 }) },
        706,
    );
    let mut s = Session::with(&local, far);
    ask(&mut s, &question());
    let far = s.snapshot().kv.far.clone().expect("rows are kept");
    let lanes = s.stored().iter().enumerate().filter(|(layer, _)| !local.spec.is_local(*layer)).count();
    let most = lanes * local.spec.n_kv_heads * s.tokens().len();
    assert!(far.rows > 0 && far.rows < most as u64, "{far:?}");
}
