//! `/compact`: begins a new conversation that continues this one, which stays as it is, on the
//! screen until then and on disk for ever. The new one begins with a summary by the model, checked
//! against what the user said, or with what the user said.

use super::prelude::*;
use crate::chat::summary::{self, checked, own_words};
use crate::chat::{Conversation, Message, MessageId, Role};
use crate::protocol::{KvStats, StopReason, TextKind, TurnReport};
use crate::ui::effect::{Summary, TakenOver};
use crate::ui::event::NewSession;
use crate::ui::state::{Compacting, Level};
use crate::ui::update::files;

/// The request for a summary, which also begins the new conversation.
pub const QUESTION: &str = "Sum up our conversation so far, so that we can go on from the summary alone. Keep names, \
    numbers, decisions, open questions, and what I asked you to remember. Use at most 300 words.";
/// Begins a new conversation with the user's own words.
const LIST_QUESTION: &str = "Repeat what I said so far, word for word.";
/// Ending of a title.
const CONTINUED: &str = ", continued";
/// Tokens of the request for a summary in any vocabulary.
const QUESTION_TOKENS: usize = 96;
/// Notice about a conversation that was not left.
const KEPT: &str = "kept the old conversation";
/// The way without the model.
const LIST: &str = "/compact list copies your messages";
/// Longest thought that is copied, in bytes.
const MAX_THOUGHT: usize = 200;

/// Most tokens of a summary.
pub fn max_tokens(context: usize) -> usize {
    (context / 8).clamp(128, 1024)
}

/// Asks for a summary, or copies what the user said.
pub fn begin(app: &mut App, argument: &str) -> Done {
    turns::idle(app)?;
    let info = app.model()?;
    let last = app.chat.context_path().into_iter().rev().find(|m| m.role == Role::Assistant).map(|m| m.id);
    let last = last.ok_or("nothing to summarize yet: no answer so far")?;
    // The built-in model cannot summarize.
    let covered = if argument == "list" || info.is_builtin() { None } else { covered(app, last, info.context) };
    let Some(upto) = covered else { return copy(app) };
    app.engine.compacting = Some(Compacting { text: String::new(), upto });
    app.emit(Effect::Compact { upto });
    Ok(())
}

/// The last reply up to which the conversation leaves room for the request and half of the longest
/// summary.
fn covered(app: &App, last: MessageId, context: usize) -> Option<MessageId> {
    let room = context.checked_sub(QUESTION_TOKENS + max_tokens(context) / 2)?;
    if (1..=room).contains(&app.tokens()) {
        return Some(last);
    }
    let path = app.chat.context_path();
    let fits = |report: &TurnReport| report.prompt_tokens + report.reasoning_tokens + report.answer_tokens <= room;
    path.iter().rev().find(|m| m.report.as_ref().is_some_and(|report| fits(report))).map(|m| m.id)
}

/// Bytes of text for which half of the context has room, by what this conversation's text took.
fn room_bytes(app: &App) -> usize {
    let path = app.chat.context_path();
    let bytes: usize = path.iter().map(|m| m.text.len() + m.reasoning.as_ref().map_or(0, String::len)).sum();
    let last = path.iter().rev().find_map(|m| m.report.as_ref());
    let tokens = last.map_or(0, |r| r.prompt_tokens + r.reasoning_tokens + r.answer_tokens).max(app.tokens());
    let bytes_per_token = (bytes as f64 / tokens.max(1) as f64).clamp(0.5, 4.0);
    let context = app.engine.info.as_ref().map_or(0, |info| info.context);
    (context as f64 / 2.0 * bytes_per_token) as usize
}

/// The messages of the user, up to this one and after it.
fn said(app: &App, upto: MessageId) -> (Vec<&str>, Vec<&str>) {
    let path = app.chat.context_path().into_iter();
    let (covered, after): (Vec<&Message>, Vec<&Message>) =
        path.filter(|m| m.role == Role::User).partition(|m| m.id <= upto);
    (covered.into_iter().map(|m| &*m.text).collect(), after.into_iter().map(|m| &*m.text).collect())
}

/// The numbers of a report, without the tokens of its turn, which the new conversation does not
/// have.
fn numbers_of(report: &TurnReport) -> TurnReport {
    TurnReport {
        stop_reason: StopReason::End,
        detail: None,
        generated: Vec::new(),
        log: Vec::new(),
        log_base: 0,
        pending: Some(None),
        stop_text: None,
        thought_closed_at: None,
        repeats_at: None,
        twin: None,
        chains: None,
        ..report.clone()
    }
}

/// Begins a new conversation with what the user said: as a list or, for the built-in model, as
/// turns with short answers, of which it was trained to recall.
fn copy(app: &mut App) -> Done {
    let all = app.chat.path().iter().filter(|m| m.role == Role::User).count();
    let (mut turns, mut why) = (Vec::new(), NO_ROOM);
    if let Some(info) = app.engine.info.as_ref().filter(|info| info.is_builtin()) {
        (turns, why) = short_turns(app, info.context / 2);
    }
    let (mut taken, mut thoughts) = (turns.len(), "long thoughts left out");
    if turns.is_empty() {
        let report = app.chat.context_path().iter().rev().find_map(|m| m.report.as_deref().map(numbers_of));
        let report = report.ok_or("nothing to copy yet: no answer so far")?;
        let said = said(app, MessageId::MAX).0;
        let (answer, left_out) = own_words(&said, room_bytes(app));
        (taken, why, thoughts) = (said.len() - left_out, NO_ROOM, "thoughts left out");
        // The list is not an answer of the model: it has no numbers.
        let report = without_answer(report);
        turns = vec![TakenOver { question: LIST_QUESTION.to_owned(), reasoning: None, answer, report }];
    }
    let what = match all - taken {
        0 => format!("with your messages, word for word; {thoughts}"),
        n => format!("with your messages; {thoughts}; {} left out ({why})", plural(n as u64, "message")),
    };
    app.store(Store::Compact(Box::new(Summary { turns, what })));
    Ok(())
}

/// Why messages are left out.
const NO_ROOM: &str = "no room, or never answered";
const OR_QUESTIONS: &str = "questions, no room, or never answered";

/// A report without an answer and what the cache held of it.
fn without_answer(report: TurnReport) -> TurnReport {
    let kv = KvStats { ratio: None, ..report.kv };
    TurnReport { answer_tokens: 0, reasoning_tokens: 0, decode_tok_s: None, draft: None, kv, ..report }
}

/// The turns in which the user stated something and was answered, without long thoughts, as many as
/// fit in so many tokens; and why others are missing. Questions, which state nothing, are left out.
fn short_turns(app: &App, room: usize) -> (Vec<TakenOver>, &'static str) {
    let path = app.chat.context_path();
    let (mut turns, mut sizes, mut before, mut why) = (Vec::new(), Vec::new(), 0, NO_ROOM);
    for pair in path.windows(2).filter(|pair| pair[0].role == Role::User) {
        let (question, reply) = (pair[0], pair[1]);
        let Some(report) = reply.report.as_deref() else { continue };
        let asked = report.prompt_tokens.saturating_sub(std::mem::replace(
            &mut before,
            report.prompt_tokens + report.reasoning_tokens + report.answer_tokens,
        ));
        if reply.shown().is_empty() {
            continue;
        }
        if question.text.trim_end().ends_with('?') {
            why = OR_QUESTIONS;
            continue;
        }
        let reasoning = reply.reasoning.as_deref().filter(|text| text.len() <= MAX_THOUGHT).map(str::to_owned);
        // In a conversation that was copied itself, the first prompt says less.
        let asked = asked.max(question.text.len() / 4);
        sizes.push(asked + report.answer_tokens + reasoning.as_ref().map_or(0, |_| report.reasoning_tokens));
        let (question, answer, report) = (question.text.clone(), reply.text.clone(), numbers_of(report));
        turns.push(TakenOver { question, reasoning, answer, report });
    }
    let mut kept = summary::that_fit(&sizes, room).into_iter();
    turns.retain(|_| kept.next() == Some(true));
    (turns, why)
}

/// Collects the summary.
pub fn streamed(app: &mut App, kind: TextKind, text: &str) {
    if let (Some(summary), TextKind::Answer) = (&mut app.engine.compacting, kind) {
        summary.text.push_str(text);
    }
}

/// Leaves the conversation for the new one, or says why there is no summary.
pub fn done(app: &mut App, report: TurnReport) {
    let Some(Compacting { text, upto }) = app.engine.compacting.take() else { return };
    let detail = || report.detail.clone().unwrap_or_else(|| "the context is full".to_owned());
    let why = match report.stop_reason {
        StopReason::End | StopReason::MaxTokens | StopReason::ContextFull if !text.trim().is_empty() => {
            let (before, after) = said(app, upto);
            match checked(&text, &before, &after, room_bytes(app)) {
                Ok(answer) => {
                    let turns = vec![TakenOver { question: QUESTION.to_owned(), reasoning: None, answer, report }];
                    let what = "from this summary".to_owned();
                    return app.store(Store::Compact(Box::new(Summary { turns, what })));
                }
                Err(why) => format!("{why}; {KEPT}; {LIST}"),
            }
        }
        StopReason::End | StopReason::MaxTokens => format!("the model wrote no summary; {KEPT}; {LIST}"),
        StopReason::Cancelled => format!("stopped; {KEPT}"),
        StopReason::ContextFull => format!("no room for a summary: {}; {KEPT}; {LIST}", detail()),
        StopReason::CacheFull => {
            format!("no room for a summary: {}; {KEPT}; {LIST}, /set kv_limit raises the limit", detail())
        }
        StopReason::Error => format!("{}; {KEPT}", detail()),
    };
    let level = if report.stop_reason == StopReason::Cancelled { Level::Info } else { Level::Warning };
    app.say(level, why);
}

/// Says why there is no summary. Messages that wait stay until the user sends them.
pub fn failed(app: &mut App, why: &str) {
    app.engine.compacting = None;
    match why {
        "stopped" => app.info(format!("{why}; {KEPT}")),
        why => {
            super::command::give_line_back(app, "compact");
            app.say(Level::Warning, format!("/compact: {why}; {KEPT}"));
        }
    }
}

/// Shows the new conversation, whose first turns are taken over. `continues`: the old session, if
/// it is saved.
pub fn began(app: &mut App, session: NewSession, continues: Option<String>, summary: Summary) {
    let Summary { turns, what } = summary;
    let title = app.chat.title_or_first_line();
    let mut chat = Conversation::new(app.chat.system().map(str::to_owned));
    chat.set_continues(continues.clone());
    chat.rename(&format!("{}{CONTINUED}", title.trim_end_matches(CONTINUED)));
    for TakenOver { question, reasoning, answer, report } in turns {
        chat.push_user(question);
        let turn = chat.begin_reply(reasoning.is_some(), None);
        if let Some(reasoning) = reasoning {
            chat.append(turn, TextKind::Reasoning, &reasoning);
        }
        chat.append(turn, TextKind::Answer, &answer);
        chat.finish(TurnReport { turn, in_context: true, ..report });
    }
    // Messages that were sent meanwhile go to the new conversation.
    app.resuming = true;
    files::show(app, chat);
    app.resuming = false;
    files::began(app, session);
    let old = continues.map_or(String::new(), |id| format!("; /resume {id} opens the old one"));
    app.note(LocalKind::Note, format!("a new conversation continues {what}{old}"));
    app.send(Engine::Clear);
    app.store(Store::Sync);
    turns::send_next(app);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Finding, ModelInfo};
    use crate::ui::event::{AppEvent, Asked};
    use crate::ui::testing::*;

    /// A chat with another model than the built-in one.
    fn chat(context: usize) -> App {
        chat_with(context, false)
    }

    fn chat_with(context: usize, builtin: bool) -> App {
        let mut app = unloaded(100, 30, Depth::Rgb, "dark");
        let mut info = ModelInfo { context, ..model(8, 4) };
        info.template.trusted = builtin;
        ready(&mut app, info);
        app
    }

    fn text(app: &mut App, text: &str) {
        engine(app, Event::Found(Finding::Text { dense: false, kind: TextKind::Answer, text: text.into() }));
    }

    fn end(app: &mut App, stop_reason: StopReason) -> Vec<Effect> {
        engine(app, Event::Found(Finding::Said { dense: false, report: Box::new(report(0, stop_reason)) }))
    }

    fn fill(app: &mut App, tokens: usize) {
        figures(app, snapshot(tokens, 8, 4));
    }

    /// The new conversation's effect.
    fn summary(effects: &[Effect]) -> Box<Summary> {
        let [Effect::Store(Store::Compact(summary))] = effects else { panic!("{effects:?}") };
        summary.clone()
    }

    const GOOD: &str = "The user told the code, which is seven, and asked to remember it. Nothing else was said or decided, \
        and no question is open.";

    #[test]
    fn a_summary_begins_a_conversation_that_names_the_old_one() {
        let mut app = chat(8192);
        turn(&mut app, "the code is seven", "hm", "Noted.");
        assert!(matches!(say(&mut app, "/compact")[..], [Effect::Compact { upto: 2 }]));
        text(&mut app, &GOOD[..12]);
        assert!(screen(&mut app).contains("writing a summary: 3 words (Esc stops)"), "{}", screen(&mut app));
        say(&mut app, "go on");
        text(&mut app, &GOOD[12..]);
        let summary = summary(&end(&mut app, StopReason::End));
        app.chat.take_changes();
        let (session, continues) = (NewSession::default(), Some("old".into()));
        let effects = update(&mut app, AppEvent::Compacted { session, continues, summary });
        assert!(matches!(
            effects[..],
            [Effect::Engine(Engine::Clear), Effect::Store(Store::Sync), Effect::Generate { turn: 2 }, ..]
        ));
        assert_eq!((app.chat.continues(), app.chat.title()), (Some("old"), Some("the code is seven, continued")));
        let path: Vec<&str> = app.chat.path().iter().map(|m| &*m.text).collect();
        assert_eq!(path, [QUESTION, GOOD, "go on", ""]);
        assert!(screen(&mut app).contains("/resume old opens the old one"));
    }

    #[test]
    fn what_stops_a_summary_leaves_the_conversation_and_says_what_to_do() {
        let mut app = chat(8192);
        assert!(say(&mut app, "/compact").is_empty() && screen(&mut app).contains("nothing to summarize yet"));
        turn(&mut app, "taken back", "hm", "Gone.");
        say(&mut app, "/undo");
        assert!(say(&mut app, "/compact").is_empty() && screen(&mut app).contains("nothing to summarize yet"));
        turn(&mut app, "My name is Ada and the code is 762.", "hm", "Noted.");
        let said = |app: &mut App| app.notice.take().expect("a line").text;
        let lost = "A friendly conversation in which the user told something and the model noted it. Nothing else \
            was said, and nothing more is to be done about it.";
        for (reason, summary, words) in [
            (StopReason::Cancelled, "The", "stopped; kept the old conversation"),
            (StopReason::ContextFull, "", "no room for a summary: the context is full; kept"),
            (StopReason::CacheFull, "", "/set kv_limit raises the limit"),
            (StopReason::End, "", "the model wrote no summary"),
            (StopReason::End, "The conversation so 91", "the summary has 4 words, fewer than 20; kept the old"),
            (
                StopReason::End,
                lost,
                "lost 2 of 2 names and numbers (762, ada); kept the old conversation; /compact list",
            ),
        ] {
            say(&mut app, "/compact");
            assert!(app.is_busy());
            text(&mut app, summary);
            if reason == StopReason::Cancelled {
                let effects = press(&mut app, KeyCode::Esc);
                assert!(matches!(effects[..], [Effect::Engine(Engine::Cancel)]));
            }
            assert!(end(&mut app, reason).is_empty() && !app.is_busy());
            let line = said(&mut app);
            assert!(line.contains(words), "{line}");
            assert_eq!(app.chat.path().len(), 2);
        }
        // Not sent yet, or not rendered.
        say(&mut app, "/compact");
        update(&mut app, AppEvent::NotAsked { what: Asked::Aside { dense: false }, why: None });
        assert!(!app.is_busy() && said(&mut app).starts_with("stopped"));
        say(&mut app, "/compact");
        update(&mut app, AppEvent::NotAsked { what: Asked::Aside { dense: false }, why: Some("bad template".into()) });
        assert!(!app.is_busy() && said(&mut app).starts_with("/compact: bad template"));
    }

    #[test]
    fn a_full_context_offers_two_ways_and_a_summary_covers_what_leaves_room() {
        let mut app = chat(8192);
        app.panel.hidden = true;
        turn(&mut app, "My name is Ada.", "hm", "Fine.");
        turn(&mut app, "My dog is called Rex.", "hm", "Fine.");
        fill(&mut app, 7_300);
        assert!(!screen(&mut app).contains("/compact"));
        fill(&mut app, 7_400);
        assert!(screen(&mut app).contains("the context is 90 % full; /compact continues in a new conversation"));
        fill(&mut app, 8_192);
        assert!(screen(&mut app).contains(&format!("context full: {}", summary::WAY_OUT)));
        // The next message says the same, is not glued to the one after it, and leaves no line.
        for question in ["first", "second"] {
            say(&mut app, question);
            refuse(&mut app, "the prompt has 8,216 tokens");
            let line = app.notice.clone().expect("a line").text;
            assert_eq!(line, format!("not sent (Up recalls it): context full: {}", summary::WAY_OUT));
            assert_eq!((app.input.text(), app.history.entries().last().map(String::as_str)), ("", Some(question)));
            assert!(app.feed.locals.is_empty());
        }
        // The last turn's report leaves no room, the first turn's does.
        let long = TurnReport { prompt_tokens: 8_000, ..report(2, StopReason::ContextFull) };
        app.chat.finish(long);
        assert!(matches!(say(&mut app, "/compact")[..], [Effect::Compact { upto: 2 }]));
        text(&mut app, &GOOD.replace("user told", "user Ada told"));
        let answer = summary(&end(&mut app, StopReason::End)).turns[0].answer.clone();
        assert!(answer.ends_with("\n\nIn the user's own words:\n- My dog is called Rex."), "{answer}");
        // No turn leaves room: the user's words go over without the model.
        let mut app = chat(400);
        turn(&mut app, "My name is Ada.", "hm", "Fine.");
        fill(&mut app, 400);
        let copied = summary(&say(&mut app, "/compact"));
        assert_eq!(copied.turns[0].answer, "In the user's own words:\n- My name is Ada.");
        assert_eq!(copied.what, "with your messages, word for word; thoughts left out");
        // Below the list are no numbers of an answer that it is not.
        let (session, continues) = (NewSession::default(), None);
        update(&mut app, AppEvent::Compacted { session, continues, summary: copied });
        let shown = screen(&mut app);
        assert!(shown.contains("My name is Ada.") && !shown.contains("tok/s") && !shown.contains("smaller"), "{shown}");
    }

    #[test]
    fn the_built_in_model_is_not_asked_and_what_the_user_said_is_copied() {
        let mut app = chat_with(400, true);
        turn(&mut app, "My name is Ada.", "Noted: Ada", "Hello Ada.");
        turn(&mut app, "What is my name?", "Ada", "Your name is Ada");
        turn(&mut app, "a long story", "hm", "Fine.");
        turn(&mut app, "The code is 762.", &"on and on ".repeat(100), "Noted.");
        turn(&mut app, "Reach 24.", "on and on", "");
        // What the prompts took: 20 tokens a question, and 900 of the story.
        for (turn, prompt_tokens) in [(1, 20), (2, 80), (3, 1_020), (4, 1_080)] {
            let taken = TurnReport { prompt_tokens, reasoning_tokens: 20, ..report(turn, StopReason::End) };
            app.chat.finish(taken);
        }
        let copied = summary(&say(&mut app, "/compact"));
        let texts: Vec<(&str, Option<&str>, &str)> =
            copied.turns.iter().map(|t| (&*t.question, t.reasoning.as_deref(), &*t.answer)).collect();
        let wanted = [("My name is Ada.", Some("Noted: Ada"), "Hello Ada."), ("The code is 762.", None, "Noted.")];
        assert_eq!(texts, wanted);
        let (session, continues) = (NewSession::default(), Some("old".into()));
        update(&mut app, AppEvent::Compacted { session, continues, summary: copied });
        let line = &app.feed.locals.last().expect("a line").text;
        assert!(
            line.contains(
                "thoughts left out; 3 messages left out (questions, no room, or never answered); /resume old opens"
            ),
            "{line}"
        );
        assert!(!line.contains("word for word"), "{line}");
        assert_eq!(app.chat.turns(), 2);
    }
}
