//! Several conversations with one engine: each generates and stores what it does alone.

use crate::harness::{Exchange, STEP, Session, prompt_of};
use crate::spy::{Spy, Watch};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::codec::Codec;
use dmschat::engine::{self, EngineOptions};
use dmschat::protocol::{
    self, Command, EngineHandle, Event, GenerateRequest, LogEntry, RequestId, Response, SamplingParams, StopReason,
    TurnReport,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

fn talker() -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, Form::Borrowed) }, 210)
}

fn options(max_seqs: usize, kv_limit: Option<u64>) -> EngineOptions {
    EngineOptions { max_step: Some(STEP), max_seqs, kv_limit, ..EngineOptions::new(Codec::F32) }
}

/// A question, and a command to send after a number of streamed tokens.
#[derive(Clone)]
struct Ask {
    question: String,
    max_tokens: usize,
    then: Option<(usize, Command)>,
}

fn ask(question: &str, times: usize, max_tokens: usize, then: Option<(usize, Command)>) -> Ask {
    Ask { question: question.repeat(times), max_tokens, then }
}

/// A conversation and its front end.
struct Talk {
    handle: EngineHandle,
    number: u64,
    asks: VecDeque<Ask>,
    exchanges: Vec<Exchange>,
    request: Option<RequestId>,
    streamed: usize,
    /// Assembled from reports.
    log: Vec<LogEntry>,
    /// Each answer's report, and the log after it.
    answers: Vec<(TurnReport, Vec<LogEntry>)>,
}

impl Talk {
    fn new(handle: EngineHandle, number: usize, asks: &[Ask]) -> Self {
        let (asks, number) = (asks.iter().cloned().collect(), number as u64);
        let (exchanges, log, answers) = (Vec::new(), Vec::new(), Vec::new());
        Self { handle, number, asks, exchanges, request: None, streamed: 0, log, answers }
    }

    /// Sends the first question that is left.
    fn ask(&mut self) {
        let ask = &self.asks[0];
        let turn = self.answers.len() as u64 + 1;
        let request = GenerateRequest {
            turn,
            ask: protocol::Ask {
                prompt: prompt_of(&self.exchanges, &ask.question),
                sampling: SamplingParams { temperature: 1.0, top_k: 5, ..Default::default() },
                seed: Some(100 * self.number + turn),
                max_tokens: Some(ask.max_tokens),
                ..protocol::Ask::default()
            },
            pin: None,
            chains: None,
        };
        self.streamed = 0;
        self.request = self.handle.commands.request(Command::Generate(Box::new(request)));
        assert!(self.request.is_some(), "the engine listens");
    }

    /// Handles an event if there is one. Returns true once all questions are answered.
    fn listen(&mut self) -> bool {
        let Ok(Response { conversation, request, event }) = self.handle.events.try_recv() else { return false };
        assert_eq!(conversation, self.handle.conversation());
        match event {
            Event::Ready(_) => self.ask(),
            Event::Text { .. } => {
                assert_eq!(request, self.request);
                self.streamed += 1;
                if let Some((_, command)) = self.asks[0].then.take_if(|(tokens, _)| *tokens == self.streamed) {
                    self.handle.send(command);
                }
            }
            Event::TurnDone(report) => {
                assert_eq!(request, self.request);
                self.log.truncate(report.log_base);
                self.log.extend_from_slice(&report.log);
                // The front end has not closed a finished conversation yet: ask again.
                if report.stop_reason == StopReason::CacheFull {
                    self.ask();
                    return false;
                }
                assert!(report.in_context, "{:?} {:?}", report.stop_reason, report.detail);
                let question = self.asks.pop_front().expect("one was asked").question;
                self.exchanges.push(Exchange { turn: report.turn, question, reply: report.generated.clone() });
                self.answers.push((*report, self.log.clone()));
                if self.asks.is_empty() {
                    return true;
                }
                self.ask();
            }
            Event::Failed(why) | Event::LoadFailed(why) => panic!("{why}"),
            _ => {}
        }
        false
    }
}

type Answers = Vec<(TurnReport, Vec<LogEntry>)>;

/// Runs all conversations at once and closes each when it is done.
fn together(tiny: &Tiny, watch: &Watch, kv_limit: Option<u64>, asks: &[Vec<Ask>]) -> Vec<Answers> {
    let seen = watch.clone();
    let first = engine::spawn(tiny.opener(), move || Ok(Spy::new(&seen)), options(4 * asks.len(), kv_limit)).unwrap();
    let others: Vec<EngineHandle> = asks[1..].iter().map(|_| first.open()).collect();
    let handles = std::iter::once(first).chain(others);
    let mut talks: Vec<Option<Talk>> =
        handles.zip(asks).enumerate().map(|(i, (handle, asks))| Some(Talk::new(handle, i, asks))).collect();
    let mut answers = vec![Vec::new(); asks.len()];
    let deadline = Instant::now() + Duration::from_secs(300);
    while talks.iter().any(Option::is_some) {
        for (talk, answers) in talks.iter_mut().zip(&mut answers) {
            if let Some(done) = talk.take_if(Talk::listen) {
                *answers = done.answers;
            }
        }
        assert!(Instant::now() < deadline, "they do not come to an end");
        std::thread::sleep(Duration::from_micros(50));
    }
    answers
}

/// Runs a conversation alone, with toggles and ends at the same tokens, and compares the results.
fn alone(tiny: &Tiny, number: usize, asks: &[Ask], wanted: &Answers) {
    let watch = Watch::default();
    let seen = watch.clone();
    let handle = engine::spawn(tiny.opener(), move || Ok(Spy::new(&seen)), options(4, None)).unwrap();
    let commands = handle.commands.clone();
    let asks: Vec<Ask> = asks
        .iter()
        .zip(wanted)
        .map(|(ask, (report, _))| Ask { max_tokens: report.generated.len(), then: None, ..ask.clone() })
        .collect();
    let mut talk = Talk::new(handle, number, &asks);
    let mut from = 0;
    for (wanted, log) in wanted {
        for i in (from..log.len()).filter(|&i| matches!(log[i], LogEntry::Toggle { .. })) {
            let LogEntry::Toggle { eviction } = log[i] else { unreachable!() };
            let at = log[..i].iter().filter(|e| matches!(e, LogEntry::Token(_))).count();
            let prompt = wanted.prompt_tokens - 1;
            if at <= wanted.reused_tokens {
                talk.handle.send(Command::SetEviction(eviction));
                continue;
            }
            assert!(at >= prompt, "toggles come while it answers");
            let steps = (prompt - wanted.reused_tokens).div_ceil(STEP) + at - prompt;
            let mut seen = watch.seen();
            let before = seen.steps.len();
            seen.commands = Some(commands.clone());
            seen.after_step.entry(before + steps).or_default().push(Command::SetEviction(eviction));
        }
        if !talk.answers.is_empty() {
            talk.ask();
        }
        let n = talk.answers.len();
        let held = talk.asks.split_off(1);
        let deadline = Instant::now() + Duration::from_secs(300);
        while talk.answers.len() == n {
            talk.listen();
            assert!(Instant::now() < deadline, "it does not come to an end");
            std::thread::sleep(Duration::from_micros(50));
        }
        talk.asks = held;
        let (got, its_log) = &talk.answers[n];
        let what = format!("conversation {number}, turn {}", wanted.turn);
        assert_eq!(got.generated, wanted.generated, "{what}");
        assert_eq!((its_log, got.pending), (log, wanted.pending), "{what}");
        assert_eq!((&got.kv.live, got.eviction), (&wanted.kv.live, wanted.eviction), "{what}");
        from = log.len();
    }
    watch.seen().commands = None;
}

#[test]
fn four_conversations_say_and_store_what_each_does_alone() {
    let tiny = talker();
    let asks = [
        vec![ask("a question ", 4, 40, None), ask("another ", 2, 30, None)],
        vec![
            ask("a longer question ", 9, 60, Some((5, Command::SetEviction(false)))),
            ask("go on ", 3, 60, Some((4, Command::SetEviction(true)))),
        ],
        vec![ask("tell me ", 1, 400, Some((6, Command::Cancel))), ask("and then ", 5, 30, None)],
        vec![ask("a long story, ", 20, 20, None), ask("short", 1, 50, Some((3, Command::SetEviction(false))))],
    ];
    // On a busy machine one may be done before another begins, or before its command arrives.
    // Repeat until all four were in one decode step and both toggles came in time.
    let mut answers = Vec::new();
    let met = (0..10).any(|_| {
        let watch = Watch::default();
        answers = together(&tiny, &watch, None, &asks);
        let toggles = answers[1][1].1.iter().filter(|e| matches!(e, LogEntry::Toggle { .. })).count();
        watch.seen().most_sequences == 4 && toggles == 2
    });
    assert!(met, "never were four in one decode step with both toggles");
    assert_eq!(answers[2][0].0.stop_reason, StopReason::Cancelled);
    for (number, (asks, answers)) in asks.iter().zip(&answers).enumerate() {
        alone(&tiny, number, asks, answers);
    }
}

/// The harness compares what each says and stores with the reference.
#[test]
fn a_conversation_that_begins_as_another_shares_what_that_was_fed() {
    let tiny = talker();
    let mut first = Session::with(&tiny, |o| o.max_seqs = 8);
    let question = "a question of some forty characters or so";
    let alone = first.ask(question);
    let mut second = first.open();
    let shared = second.ask(question);
    assert_eq!(shared.reused_tokens, shared.prompt_tokens - 1);
    assert_eq!((&shared.generated, &shared.log, shared.kv.live), (&alone.generated, &alone.log, alone.kv.live));
    // Under another setting the same tokens make another cache.
    second.send(Command::Clear);
    second.toggle(false);
    (second.log, second.exchanges) = (Vec::new(), Vec::new());
    assert_eq!(second.ask(question).reused_tokens, 0);
}

#[test]
fn conversations_that_do_not_fit_together_wait_for_each_other() {
    let tiny = talker();
    let asks: Vec<Vec<Ask>> =
        (0..4).map(|i| vec![ask("a question ", 3 + i, 150, Some((20, Command::SetEviction(i % 2 == 0))))]).collect();
    let watch = Watch::default();
    let free = together(&tiny, &watch, None, &asks);
    let pages = |r: &TurnReport| r.kv.live.iter().flatten().map(|&n| (n as usize).div_ceil(16)).sum::<usize>();
    let largest = free.iter().map(|answers| pages(&answers[0].0)).max().unwrap();
    let kv = &free[0][0].0.kv;
    let (limit, page_bytes) = (largest * 5 / 2, 16 * kv.live_bytes / kv.live_slots);

    // Whether they meet depends on when their requests arrive: on a busy machine one may end before
    // the next begins.
    let mut preempted = false;
    for _ in 0..10 {
        let watch = Watch::default();
        let answers = together(&tiny, &watch, Some(limit as u64 * page_bytes), &asks);
        let needed: usize = answers.iter().map(|a| a[0].0.prompt_tokens + a[0].0.generated.len() - 1).sum();
        preempted = watch.seen().steps.iter().sum::<usize>() > needed;
        assert!(watch.seen().peak_pages <= limit);
        for (number, (asks, answers)) in asks.iter().zip(&answers).enumerate() {
            alone(&tiny, number, asks, answers);
        }
        if preempted {
            break;
        }
    }
    assert!(preempted, "no conversation had to make room for another");
}
