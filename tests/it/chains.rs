//! Several chains that answer one question: each is the ordinary answer with its seed, whatever
//! runs beside it, and only the winner's reply remains of them.

use crate::harness::{Session, check_kv};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::protocol::{ChainEvent, ChainsRequest, Command, Event, MAX_AUTO_WIDTH, StopReason, TurnReport};
use dmschat::protocol::{ChainFigures, ChainState};

const QUESTION: &str = "a question of some forty characters or so";
const WIDTH: usize = 4;
/// Bytes of a page of the model.
const PAGE_BYTES: u64 = 16 * 260;

fn talker() -> Tiny {
    // One of its chains with seed 5 is cut off, and the others end after 9 to 31 tokens.
    talker_of(Form::Borrowed)
}

fn talker_of(form: Form) -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, ends: true, context: 1024, ..Spec::new(true, form) }, 321)
}

fn session(tiny: &Tiny) -> Session<'_> {
    let mut s = Session::with(tiny, |o| o.max_seqs = 4 + WIDTH);
    s.max_tokens = 40;
    s
}

fn width(width: usize) -> ChainsRequest {
    ChainsRequest { width: Some(width), early_stop: false, checked: false, may_equal: false }
}

fn send(s: &mut Session, seed: u64, chains: Option<ChainsRequest>) {
    let prompt = s.prompt(QUESTION);
    let mut request = s.request(prompt);
    (request.ask.seed, request.chains) = (Some(seed), chains);
    s.send(Command::Generate(Box::new(request)));
}

fn wait(s: &mut Session) -> TurnReport {
    s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None })
}

/// Asks and waits for the report, without a comparison with the reference.
fn ask(s: &mut Session, seed: u64, chains: Option<ChainsRequest>) -> TurnReport {
    send(s, seed, chains);
    wait(s)
}

fn streamed(s: &Session) -> String {
    s.events.iter().filter_map(|e| if let Event::Text { text, .. } = e { Some(&**text) } else { None }).collect()
}

/// Texts of the chains.
fn texts(report: &TurnReport) -> Vec<String> {
    let chains = report.chains.as_ref().expect("several chains");
    chains.chains.iter().map(|chain| chain.reasoning.clone() + &chain.answer).collect()
}

fn check_pages(s: &Session) {
    let (counted, named) = s.watch.seen().pages;
    assert_eq!(counted, named, "pages by the pool's count and by the tables");
}

/// While chains answer, the figures describe a mean chain, and the pages of the others have a
/// separate figure.
#[test]
fn figures_are_of_a_mean_chain_and_the_others_are_counted_by_name() {
    figures_are_of_a_mean_chain(&talker());
    let predictor = talker_of(Form::Predictor { linear: true, units: 8 }).spec;
    figures_are_of_a_mean_chain(&Tiny::new(Spec { local: 20, n_layers: 3, ..predictor }, 321));
}

fn figures_are_of_a_mean_chain(tiny: &Tiny) {
    let mut s = session(tiny);
    s.max_tokens = 400;
    // An answer takes milliseconds: a busy machine may look only when it has ended, and asks again.
    let look = |_| {
        send(&mut s, 5, Some(width(WIDTH)));
        while !s.events.iter().any(|e| matches!(e, Event::TurnDone(_))) {
            // It has the figures published between two steps.
            assert!(s.handle.send(Command::SetKvLimit(None)));
            let snapshot = s.snapshot();
            // One that has ended is not among those of the mean.
            let speaks = |chain: &&ChainFigures| chain.state == ChainState::Running && chain.tokens > 2;
            if snapshot.chains.iter().filter(speaks).count() == WIDTH {
                return Some(snapshot);
            }
        }
        None
    };
    let snapshot = (0..100).find_map(look).expect("a look while all chains speak");
    let page_bytes = (16 * s.info.slot_bytes) as u64;
    check_kv(&snapshot.kv, s.info.slot_bytes as u64);
    assert_eq!(snapshot.kv.tokens(), snapshot.tokens as u64);
    let said = snapshot.chains.iter().map(|chain| chain.tokens).sum::<usize>() as f64 / WIDTH as f64;
    let own = snapshot.kv.bytes - snapshot.checkpoint_bytes - snapshot.twin_bytes - snapshot.chain_bytes;
    let lanes = (s.info.n_layers * s.info.n_kv_heads) as u64;
    assert!((snapshot.kv.live_bytes..=snapshot.kv.live_bytes + lanes * page_bytes).contains(&own), "{snapshot:?}");
    assert!(snapshot.chain_bytes >= page_bytes, "{snapshot:?}");
    let prompt_tokens = wait(&mut s).prompt_tokens as f64;
    // Figures of the mean chain: its prompt, and its tokens except the newest one.
    assert!((snapshot.tokens as f64 - (prompt_tokens + said - 1.0)).abs() <= 1.0, "{prompt_tokens}: {snapshot:?}");
    assert_eq!(s.snapshot().chain_bytes, 0);
}

#[test]
fn each_chain_is_the_ordinary_answer_with_its_seed() {
    each_chain_is_the_ordinary_answer(&talker());
    each_chain_is_the_ordinary_answer(&talker_of(Form::Predictor { linear: true, units: 8 }));
}

fn each_chain_is_the_ordinary_answer(tiny: &Tiny) {
    let mut s = session(tiny);
    let report = ask(&mut s, 5, Some(width(WIDTH)));
    let chains = report.chains.clone().expect("several chains");
    assert_eq!((chains.chains.len(), chains.chains[0].seed, chains.winner), (WIDTH, 5, 0), "{:?}", s.notices());
    let tokens: Vec<usize> = chains.chains.iter().map(|chain| chain.tokens).collect();
    assert!(tokens.iter().all(|&n| n > 3) && tokens.iter().any(|&n| n != tokens[0]), "{tokens:?}");
    assert!(chains.chains.iter().any(|chain| chain.stop_reason == StopReason::End));
    assert_eq!(streamed(&s), texts(&report)[0]);
    let prefilled: usize = s.watch.seen().steps.iter().filter(|&&tokens| tokens > WIDTH).sum();
    assert!(prefilled < report.prompt_tokens, "the winner's fork is kept: {prefilled}");
    let mut reads = 0.0;
    for (number, (chain, text)) in chains.chains.iter().zip(texts(&report)).enumerate() {
        let mut alone = session(tiny);
        let ordinary = ask(&mut alone, chain.seed, None);
        assert_eq!((streamed(&alone), ordinary.generated.len()), (text, chain.tokens), "chain {number}");
        assert_eq!((ordinary.kv.reads, ordinary.stop_reason), (chain.reads, chain.stop_reason), "chain {number}");
        reads += ordinary.kv.reads;
        if number == chains.winner {
            assert_eq!((&ordinary.generated, &ordinary.log), (&report.generated, &report.log));
            assert_eq!(alone.stored(), s.stored());
            let kv = |report: &TurnReport| (report.kv.live.clone(), report.kv.bytes);
            assert_eq!(kv(&ordinary), kv(&report), "nothing is left of the others");
        }
    }
    assert!((report.kv.reads - reads).abs() < 1e-6);
    assert_eq!(ask(&mut session(tiny), 5, None).kv.peak_shared, None);
    // The next question continues from the winner's reply.
    assert!(ask(&mut s, 6, None).in_context);
}

#[test]
fn one_chain_is_the_ordinary_answer() {
    let tiny = talker();
    let (mut one, mut ordinary) = (session(&tiny), session(&tiny));
    let reports = [ask(&mut one, 5, Some(width(1))), ask(&mut ordinary, 5, None)];
    assert_eq!(reports[0].generated, reports[1].generated);
    assert_eq!((streamed(&one), one.stored()), (streamed(&ordinary), ordinary.stored()));
    assert_eq!((&reports[0].chains, &reports[0].kv, &reports[0].log), (&None, &reports[1].kv, &reports[1].log));
}

#[test]
fn chains_of_a_greedy_model_sample() {
    let tiny = talker();
    let mut s = session(&tiny);
    for seed in [5, 6] {
        let prompt = s.prompt(QUESTION);
        let mut request = s.request(prompt);
        (request.ask.seed, request.chains) = (Some(seed), Some(width(WIDTH)));
        request.ask.sampling.temperature = 0.0;
        s.send(Command::Generate(Box::new(request)));
        let report = wait(&mut s);
        let mut texts = texts(&report);
        texts.dedup();
        assert!(texts.len() > 1, "{texts:?}");
        assert_eq!(report.sampling.temperature, 1.0);
        // Once, and not as something wrong.
        let said = s.events.iter().any(|e| matches!(e, Event::Info(text) if text.contains("temperature 1")));
        assert_eq!((said, s.notices().len()), (seed == 5, 0), "{:?}", s.notices());
        s.events.clear();
    }
}

#[test]
fn a_width_of_its_own_choice_has_a_limit_and_one_without_room_is_refused_at_once() {
    let tiny = talker();
    let wide = |kv_limit| Session::with(&tiny, move |o| (o.max_seqs, o.kv_limit) = (100, kv_limit));
    let mut s = wide(None);
    s.max_tokens = 2;
    let auto = ChainsRequest { width: None, ..width(1) };
    assert_eq!(ask(&mut s, 5, Some(auto)).chains.expect("several chains").chains.len(), MAX_AUTO_WIDTH);

    let mut s = wide(Some(20 * PAGE_BYTES));
    s.max_tokens = 40;
    let report = ask(&mut s, 5, Some(width(80)));
    assert_eq!((report.stop_reason, report.in_context), (StopReason::CacheFull, false));
    assert!(report.detail.as_ref().is_some_and(|why| why.contains("of 80 chains at a time")), "{:?}", report.detail);
    assert!(s.notices().is_empty() && report.log.is_empty(), "{:?}", s.notices());
    check_pages(&s);
}

#[test]
fn reads_are_the_host_s_sums_over_chains_toggles_and_batches() {
    let tiny = talker();
    let mut s = session(&tiny);
    let lanes = (s.info.n_layers * s.info.n_kv_heads) as f64;
    let mut before = 0;
    for (turn, chains) in [None, Some(width(WIDTH)), None, Some(width(2))].into_iter().enumerate() {
        if turn == 2 {
            s.after_steps(8, Command::SetEviction(false));
        }
        let report = ask(&mut s, turn as u64, chains);
        let counted = s.watch.seen().decode_reads;
        assert_eq!((report.kv.reads * lanes).round() as u64, counted - before, "turn {turn}");
        assert!(report.kv.peak_slots >= report.kv.live_slots as f64 / lanes);
        before = counted;
    }
}

/// The pool counts each page once, whoever holds it.
#[test]
fn shared_memory_is_the_most_that_the_pool_held() {
    let tiny = talker();
    // With 20 pages a chain waits and is replayed.
    for room in [None, Some(20)] {
        let mut s = session(&tiny);
        s.watch.seen().room_pages = room;
        let report = ask(&mut s, 5, Some(width(WIDTH)));
        let lanes = (s.info.n_layers * s.info.n_kv_heads) as f64;
        let pages = s.watch.seen().peak_pages;
        assert_eq!(report.kv.peak_shared, Some((pages * s.info.page_slots) as f64 / lanes), "{room:?}");
        assert_eq!(pages > 20, room.is_none(), "{pages}");
    }
}

#[test]
fn a_cancel_at_any_step_keeps_what_has_voted_and_leaves_no_page() {
    let tiny = talker();
    let whole = texts(&ask(&mut session(&tiny), 5, Some(width(WIDTH))));
    for steps in 0.. {
        let mut s = session(&tiny);
        s.after_steps(steps, Command::Cancel);
        send(&mut s, 5, Some(width(WIDTH)));
        if steps == 0 {
            s.watch.seen().after_step.clear();
            assert!(s.handle.send(Command::Cancel));
        }
        let report = wait(&mut s);
        check_pages(&s);
        match &report.chains {
            None => assert!(!report.in_context && report.stop_reason == StopReason::Cancelled),
            Some(chains) => {
                assert!(report.in_context);
                let cut = chains.chains.iter().any(|chain| chain.stop_reason == StopReason::Cancelled);
                assert_eq!((chains.stopped, report.stop_reason == StopReason::Cancelled), (cut, cut));
                let prefix = |(cut, whole): (&String, &String)| whole.starts_with(&**cut);
                assert!(texts(&report).iter().zip(&whole).all(prefix));
                let voted = |n: usize| chains.chains[n].extracted.is_some();
                assert!(voted(chains.winner) || !(0..WIDTH).any(voted), "the winner has voted if one has");
            }
        }
        let uncut = report.chains.as_ref().is_some_and(|_| texts(&report) == whole);
        let next = ask(&mut s, 6, None);
        assert!(next.in_context, "{:?}", next.detail);
        s.send(Command::Clear);
        s.snapshot();
        check_pages(&s);
        assert_eq!(s.watch.seen().pages.0, 0);
        if uncut && steps > 40 {
            break;
        }
    }
}

#[test]
fn chains_that_do_not_fit_together_wait_and_say_the_same() {
    let tiny = talker();
    let mut roomy = session(&tiny);
    let whole = ask(&mut roomy, 5, Some(width(WIDTH)));
    let most = roomy.watch.seen().peak_pages;
    let one = {
        let mut alone = session(&tiny);
        let longest = whole.chains.as_ref().and_then(|c| c.chains.iter().max_by_key(|c| c.tokens)).expect("a chain");
        ask(&mut alone, longest.seed, None);
        alone.watch.seen().peak_pages
    };
    let mut waited = false;
    for room in (4..=most).step_by(2) {
        let mut s = session(&tiny);
        s.watch.seen().room_pages = Some(room);
        let report = ask(&mut s, 5, Some(width(WIDTH)));
        check_pages(&s);
        assert!(s.watch.seen().peak_pages <= room);
        let Some(chains) = &report.chains else {
            assert!(room < one && report.stop_reason == StopReason::CacheFull, "{room}: {:?}", report.detail);
            continue;
        };
        let full = |c: &dmschat::protocol::ChainReport| c.stop_reason == StopReason::CacheFull;
        if chains.chains.iter().any(full) {
            assert!(room <= 2 * one, "{room} of {one}");
        } else {
            assert_eq!(texts(&report), texts(&whole), "{room} pages");
            assert_eq!(report.log, whole.log);
            waited |= s.watch.seen().steps.len() > roomy.watch.seen().steps.len();
        }
    }
    assert!(waited);
}

/// Steps of forks need less than is reserved for them, so a waiting chain must not be admitted
/// again and again.
#[test]
fn chains_within_a_limit_end_and_say_the_same() {
    let tiny = talker();
    let whole = texts(&ask(&mut session(&tiny), 5, Some(width(WIDTH))));
    let (mut same, mut told) = (0, 0);
    for pages in (8..40).step_by(2) {
        let mut s = Session::with(&tiny, |o| {
            (o.max_seqs, o.kv_limit) = (4 + WIDTH, Some(pages * PAGE_BYTES));
        });
        s.max_tokens = 40;
        let report = ask(&mut s, 5, Some(width(WIDTH)));
        check_pages(&s);
        let ended = |c: &dmschat::protocol::ChainReport| c.stop_reason != StopReason::CacheFull;
        if report.chains.as_ref().is_some_and(|chains| chains.chains.iter().all(ended)) {
            assert_eq!(texts(&report), whole, "{pages} pages");
            same += 1;
        }
        told += usize::from(s.notices().iter().any(|n| n.contains("chains at a time")));
    }
    assert!(same > 3 && told > 0, "{same} {told}");
}

#[test]
fn chains_have_no_twin_and_the_next_answer_has_one() {
    let tiny = talker();
    let mut s = Session::with(&tiny, |o| o.max_seqs = 6 + WIDTH);
    s.max_tokens = 40;
    s.send(Command::SetTwin(true));
    let report = ask(&mut s, 5, Some(width(WIDTH)));
    assert!(s.notices().iter().any(|n| n.contains("no twin")) && report.twin.is_none());
    assert!(ask(&mut s, 5, None).twin.is_some());
}

#[test]
fn a_checker_s_choice_wins_and_until_then_the_chains_wait() {
    let tiny = talker();
    let mut s = session(&tiny);
    send(&mut s, 5, Some(ChainsRequest { early_stop: true, checked: true, ..width(WIDTH) }));
    for _ in 0..WIDTH {
        s.wait(|e| matches!(e, Event::Chain { event: ChainEvent::Ended { .. }, .. }).then_some(()));
    }
    let done = |e: &Event| matches!(e, Event::TurnDone(_));
    assert!(!s.events.iter().any(done));
    assert!(s.handle.send(Command::Elect(Some(2))) && s.handle.send(Command::Elect(None)));
    let report = wait(&mut s);
    let chains = report.chains.clone().expect("several chains");
    assert_eq!((chains.winner, chains.checked), (2, true));
    let mut alone = session(&tiny);
    assert_eq!(ask(&mut alone, chains.chains[2].seed, None).generated, report.generated);
    assert_eq!(alone.stored(), s.stored());
    // Without a right one, the vote decides; a chain that is not there is none.
    for choice in [None, Some(99)] {
        let mut s = session(&tiny);
        send(&mut s, 5, Some(ChainsRequest { checked: true, ..width(WIDTH) }));
        s.wait(|e| matches!(e, Event::Chain { event: ChainEvent::Ended { .. }, .. }).then_some(()));
        assert!(s.handle.send(Command::Elect(choice)));
        assert!(!wait(&mut s).chains.expect("several chains").checked);
    }
}
