//! Questions in a fork, the recall test and answers aside: they leave the conversation as it was,
//! bit by bit.

use crate::harness::{Session, text};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::protocol::{
    Ask, Command, Event, Finding, LogEntry, Probe, RecallRequest, Recalled, RestoreRequest, SamplingParams, StopReason,
    TokenChoice, TurnReport,
};

fn talker() -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, Form::Borrowed) }, 230)
}

const SAID: &str = "my code is seven six two, do not tell";
const CUE: usize = "my code is".len();

fn request(s: &Session<'_>, text: &str, cue_bytes: usize) -> RecallRequest {
    let question = format!("repeat {:?}", &text[..cue_bytes]);
    let (prompt, alone) = (s.prompt(&question), crate::harness::prompt_of(&[], &question));
    RecallRequest { prompt, alone, text: text.to_owned(), cue_bytes, tokens: None }
}

fn recall(s: &mut Session<'_>, request: RecallRequest) -> Result<Box<Recalled>, String> {
    s.send(Command::Probe(Probe::Recall(Box::new(request))));
    s.wait(|e| if let Event::Found(Finding::Recalled(result)) = e { Some(result.clone()) } else { None })
}

/// Two turns, what `between` does, and a third turn, which is answered again.
fn conversation<'a>(tiny: &'a Tiny, between: impl FnOnce(&mut Session<'a>)) -> (Vec<Vec<u32>>, Vec<LogEntry>) {
    let mut s = Session::new(tiny);
    s.ask(SAID);
    s.ask("and a second question of some length, so that something is dropped");
    between(&mut s);
    s.ask("go on");
    s.exchanges.pop();
    let again = s.ask("go on");
    assert_eq!(again.prompt_tokens - again.reused_tokens, 1, "the checkpoint at the prompt's end is kept");
    let bits = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect();
    let logits = s.watch.seen().logits.iter().map(bits).collect();
    (logits, s.log.clone())
}

#[test]
fn a_recall_leaves_pages_log_and_logits_as_they_were() {
    let tiny = talker();
    let without = conversation(&tiny, |_| {});
    let with = conversation(&tiny, |s| {
        let (stored, bytes) = (s.stored(), s.snapshot().kv.bytes);
        let pages = s.watch.seen().pages;
        let asked = request(s, SAID, CUE);
        let first = recall(s, asked.clone()).expect("there is room");
        assert_eq!((first.times, &*first.cue), (1, &SAID[..CUE]));
        assert_eq!(first.tokens.iter().map(|t| &*t.text).collect::<String>(), SAID[CUE..]);
        assert!(first.tokens.iter().all(|t| t.known.logprob < 0.0 && t.guessed.is_some_and(|g| g.logprob < 0.0)));
        assert!(first.tokens.iter().any(|t| Some(t.known) != t.guessed), "the conversation makes a difference");
        // The same again, whatever the first left behind.
        assert_eq!(recall(s, asked).expect("there is room"), first);
        // Never said: scored all the same.
        let other = recall(s, request(s, "my code is eleven", CUE)).expect("there is room");
        assert_eq!((other.times, other.presence(), other.tokens.len()), (0, None, " eleven".len()));
        // Cancelled in the middle.
        s.after_steps(2, Command::Cancel);
        assert_eq!(recall(s, request(s, SAID, CUE)), Err("stopped".to_owned()));
        assert_eq!(s.stored(), stored);
        assert_eq!((s.snapshot().kv.bytes, s.watch.seen().pages), (bytes, pages));
        assert_eq!(s.notices(), [""; 0]);
    });
    assert_eq!(with.1, without.1);
    assert!(with.0 == without.0, "every row of logits is the same, bit by bit");
}

/// The tokens are those of the conversation, asked for at the place where the reference has them.
#[test]
fn log_probabilities_and_presence_are_those_of_the_fed_tokens() {
    let tiny = talker();
    let mut s = Session::new(&tiny);
    s.ask(SAID);
    let asked = request(&s, SAID, CUE);
    let recalled = recall(&mut s, asked.clone()).expect("there is room");
    // The same tokens as a prompt of their own.
    let mut prompt = asked.prompt;
    prompt.push(text(&SAID[..SAID.len() - 1]));
    (s.max_tokens, s.sampling) = (1, SamplingParams::default());
    s.generate(prompt);
    let (wanted, tokens) = (s.wanted(), s.tokens());
    let first = tokens.len() - (recalled.tokens.len() - 1);
    for (i, token) in recalled.tokens.iter().enumerate() {
        let row = &wanted.logits[first + i - 1];
        let said = u32::from(SAID.as_bytes()[CUE + i]);
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|l| (l - max).exp()).sum();
        assert!((row[said as usize] - max - sum.ln() - token.known.logprob).abs() < 1e-3, "token {i}");
        assert_eq!(token.known.is_choice, row[said as usize] == max, "token {i}");
    }
    let header = tokens.iter().position(|&t| t == u32::from(b'm')).expect("the first message");
    // As they were when the answer began, whose first words were given.
    s.log.truncate(first - CUE);
    let begun = s.wanted();
    let lanes = |position| begun.stored.iter().flatten().filter(|l| l.iter().any(|(p, _)| *p == position)).count();
    let presence: Vec<usize> = (header + CUE..header + SAID.len()).map(lanes).collect();
    let stored: Vec<usize> = recalled.tokens.iter().map(|t| t.evidence.expect("it was said").stored as usize).collect();
    assert_eq!(stored, presence);
    assert!(presence.iter().any(|&n| n < recalled.lanes as usize), "something was dropped");
}

#[test]
fn a_recall_without_room_is_refused_and_changes_nothing() {
    let tiny = talker();
    let mut s = Session::new(&tiny);
    s.ask(SAID);
    let refused = |s: &mut Session<'_>, request| recall(s, request).expect_err("refused");
    let too_long = request(&s, &"x y ".repeat(600), CUE);
    assert!(refused(&mut s, too_long).starts_with("no room to ask: it takes"));
    let huge = request(&s, &"x".repeat(17 << 10), 1);
    assert!(refused(&mut s, huge).starts_with("the text has 17,408 bytes"));
    let short = request(&s, "my", 2);
    assert!(refused(&mut s, short).starts_with("the text is too short"));
    let (stored, used) = (s.stored(), s.snapshot().kv.bytes);
    s.send(Command::SetKvLimit(Some(used)));
    let full = request(&s, SAID, CUE);
    assert!(refused(&mut s, full).starts_with("no room to ask: the KV cache is full"));
    assert_eq!((s.stored(), s.snapshot().kv.bytes), (stored, used), "the checkpoints are kept too");
}

/// A passage chosen by its positions is asked for there, control tokens included, whatever else is
/// spelled alike.
#[test]
fn a_passage_over_the_end_of_a_message_is_asked_for_by_its_place() {
    let tiny = talker();
    let mut s = Session::new(&tiny);
    s.ask(SAID);
    s.ask(SAID);
    let tokens = s.tokens();
    let said: Vec<u32> = SAID.bytes().map(u32::from).collect();
    let second = (0..tokens.len()).rev().find(|&at| tokens[at..].starts_with(&said)).expect("the second message");
    let passage = second + SAID.len() - 8..second + SAID.len() + 6;
    let request = RecallRequest { tokens: Some(passage.clone()), ..request(&s, &SAID[SAID.len() - 8..], 3) };
    let recalled = recall(&mut s, request).expect("there is room");
    assert_eq!(
        (recalled.times, recalled.tokens.len(), &*recalled.cue),
        (1, passage.len() - 3, &SAID[SAID.len() - 8..SAID.len() - 5])
    );
    let spelled: String = recalled.tokens.iter().map(|t| &*t.text).collect();
    assert!(spelled.contains("<|") && !spelled.contains(['\u{FDD0}', '\u{FDD1}']), "{spelled}");
    let stored = s.stored();
    let lanes = |position| stored.iter().flatten().filter(|l| l.iter().any(|(p, _)| *p == position)).count() as u32;
    // The question after them has only dropped more.
    assert!(
        recalled.tokens.iter().zip(passage.skip(3)).all(|(t, at)| t.evidence.is_some_and(|of| of.stored <= lanes(at)))
    );
}

/// An answer in a fork, and without eviction, is the one of a conversation that dropped nothing.
#[test]
fn an_answer_without_eviction_is_that_of_a_dense_conversation() {
    let tiny = talker();
    let mut s = Session::new(&tiny);
    s.ask(SAID);
    s.ask("and a second question of some length, so that something is dropped");
    let before = (s.stored(), s.log.clone(), s.watch.seen().pages);
    let (report, text) = aside_of(&mut s, true, 20);
    assert_eq!((s.stored(), s.log.clone(), s.watch.seen().pages), before);
    let mut dense = Session::with(&tiny, |o| o.eviction = Some(false));
    dense.exchanges.clone_from(&s.exchanges);
    let replies = s.exchanges.iter().map(|e| (e.turn, e.reply.clone())).collect();
    dense.send(Command::Restore(Box::new(RestoreRequest { replies, ..RestoreRequest::default() })));
    dense.wait(|e| matches!(e, Event::RebuildDone { .. }).then_some(()));
    let (other, same) = aside_of(&mut dense, false, 20);
    assert_eq!((&report.generated, text), (&other.generated, same));
    assert_ne!(report.generated, aside_of(&mut s, false, 20).0.generated, "eviction makes a difference");
}

/// Asks for a summary as /compact does. Returns the report, and the streamed text.
fn aside(s: &mut Session<'_>, max_tokens: usize) -> (TurnReport, String) {
    aside_of(s, false, max_tokens)
}

fn aside_of(s: &mut Session<'_>, dense: bool, max_tokens: usize) -> (TurnReport, String) {
    let prompt = s.prompt("sum up");
    let (sampling, seed, max_tokens) = (s.sampling.clone(), Some(1), Some(max_tokens));
    let ask = Box::new(Ask { prompt, sampling, seed, max_tokens, ..Ask::default() });
    s.send(Command::Probe(Probe::Aside { ask, dense }));
    let report = s.wait(|e| match e {
        Event::Found(Finding::Said { dense: of, report }) if *of == dense => Some((**report).clone()),
        _ => None,
    });
    let text = |e: &Event| match e {
        Event::Found(Finding::Text { text, .. }) => Some(text.clone()),
        _ => None,
    };
    (report, s.events.iter().filter_map(text).collect())
}

#[test]
fn an_answer_in_a_fork_leaves_pages_log_and_logits_as_they_were() {
    let tiny = talker();
    let without = conversation(&tiny, |_| {});
    let mut own = 0..0;
    let with = conversation(&tiny, |s| {
        let (stored, bytes) = (s.stored(), s.snapshot().kv.bytes);
        let pages = s.watch.seen().pages;
        own.start = s.watch.seen().logits.len();
        let (report, text) = aside(s, 20);
        assert_eq!((report.turn, report.stop_reason, report.in_context), (0, StopReason::MaxTokens, false));
        assert_eq!((report.generated.len(), report.log.len(), report.pending), (20, 0, Some(None)));
        assert!(!text.is_empty());
        s.after_steps(5, Command::Cancel);
        let (report, _) = aside(s, 500);
        assert_eq!((report.stop_reason, report.log.len()), (StopReason::Cancelled, 0));
        own.end = s.watch.seen().logits.len();
        assert_eq!(s.stored(), stored);
        assert_eq!((s.snapshot().kv.bytes, s.watch.seen().pages), (bytes, pages));
    });
    assert_eq!(with.1, without.1);
    let logits: Vec<_> = with.0.iter().enumerate().filter(|(i, _)| !own.contains(i)).map(|(_, row)| row).collect();
    assert!(logits.into_iter().eq(&without.0), "every row of logits is the same, bit by bit");
}

/// The answer is read once more under its log: its tokens have the reference's log-probabilities,
/// beside the most probable others, and the conversation stays as it was.
#[test]
fn the_log_probabilities_of_an_answer_are_those_of_the_reference() {
    let tiny = talker();
    let mut s = Session::new(&tiny);
    s.ask(SAID);
    let prompt = s.prompt("and a second question of some length, so that something is dropped");
    let mut request = s.request(prompt);
    request.ask.logprobs = Some(3);
    s.send(Command::Generate(Box::new(request)));
    let report = s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
    s.log.truncate(report.log_base);
    s.log.extend_from_slice(&report.log);
    let tokens = |e: &Event| if let Event::Likely { tokens, .. } = e { tokens.clone() } else { Vec::new() };
    let streamed: Vec<TokenChoice> = s.events.iter().flat_map(tokens).map(|(_, token)| token).collect();
    let answer = report.generated;
    let (stored, pages) = (s.stored(), s.watch.seen().pages);
    let read = |s: &mut Session<'_>, tokens: &[u32]| {
        s.send(Command::Probe(Probe::Logprobs(tokens.to_vec())));
        s.wait(|e| if let Event::Found(Finding::Logprobs(found)) = e { Some(found.clone()) } else { None })
    };
    let found = read(&mut s, &answer).expect("it is in the cache");
    assert_eq!(found.len(), answer.len());
    // While it was generated, they were the same.
    assert!(streamed.len() + 1 >= answer.len(), "all but an end token");
    for (token, found) in streamed.into_iter().zip(&found) {
        assert!((token.said.logprob - found.said.logprob).abs() < 1e-3);
        let others = |token: &TokenChoice| token.others.iter().map(|other| other.text.clone()).collect::<Vec<_>>();
        assert_eq!(others(&token), others(found));
    }
    let (wanted, tokens) = (s.wanted(), s.tokens());
    // The last token of the answer was not fed yet.
    let start = tokens.len() + 1 - answer.len();
    for (i, (token, &said)) in found.iter().zip(&answer).enumerate() {
        let row = &wanted.logits[start + i - 1];
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|l| (l - max).exp()).sum();
        let logprob = |token: usize| row[token] - max - sum.ln();
        assert!((logprob(said as usize) - token.said.logprob).abs() < 1e-3, "token {i}");
        let mut others: Vec<f64> = (0..row.len()).filter(|&other| other != said as usize).map(logprob).collect();
        others.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(token.others.len(), 3);
        assert!(
            token.others.iter().zip(others).all(|(found, other)| (found.logprob - other).abs() < 1e-3),
            "token {i}"
        );
    }
    assert!(read(&mut s, &[1, 2, 3]).expect_err("never said").starts_with("the answer is not in the cache"));
    assert_eq!((s.stored(), s.watch.seen().pages), (stored, pages));
}
