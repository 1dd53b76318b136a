//! `/compact`: asks the model for a summary and begins a new conversation with it, which names the one it continues. The
//! old conversation stays as it is, on the screen until the summary is there and on disk for ever.

use super::{Effect, Store, files, note, turns};
use crate::chat::{Conversation, Role};
use crate::protocol::{Command, StopReason, TextKind, TurnReport};
use crate::ui::effect::Summary;
use crate::ui::feed::LocalKind;
use crate::ui::numbers;
use crate::ui::state::{App, Level};

/// The request for a summary, which also begins the new conversation.
pub const QUESTION: &str = "Sum up our conversation so far, so that we can go on from the summary alone. Keep names, \
    numbers, decisions, open questions, and what I asked you to remember. Use at most 300 words.";
/// Ending of a title.
const CONTINUED: &str = ", continued";
/// Tokens of the question and of a short summary: with less room, none is asked for.
const LEAST_TOKENS: usize = 160;
/// What to do without room.
const SHORTEN: &str = "/undo takes the last turn back, then /compact again";

/// Most tokens of a summary.
pub fn max_tokens(context: usize) -> usize {
    (context / 8).clamp(128, 1024)
}

/// Asks for a summary (/compact).
pub fn begin(app: &mut App) -> Vec<Effect> {
    if turns::refuse_busy(app) {
        return Vec::new();
    }
    let Some(info) = &app.engine.info else {
        app.say(Level::Info, "no model is loaded; /model NAME loads one");
        return Vec::new();
    };
    if !app.chat.path().iter().any(|m| m.role == Role::Assistant) {
        app.say(Level::Info, "nothing to sum up yet: no answer so far");
    } else if app.tokens() + LEAST_TOKENS > info.context {
        let text = format!("no room for a summary: {} tokens are used; {SHORTEN}", numbers::context_use(app));
        app.say(Level::Warning, text);
    } else {
        app.engine.compacting = Some(String::new());
        return vec![Effect::Compact];
    }
    Vec::new()
}

/// Collects the summary.
pub fn streamed(app: &mut App, kind: TextKind, text: &str) {
    if let (Some(summary), TextKind::Answer) = (&mut app.engine.compacting, kind) {
        summary.push_str(text);
    }
}

/// Leaves the conversation for the new one, or says why there is no summary.
pub fn done(app: &mut App, report: TurnReport) -> Vec<Effect> {
    let Some(text) = app.engine.compacting.take() else { return Vec::new() };
    let detail = || report.detail.clone().unwrap_or_else(|| "the context is full".to_owned());
    let why = match report.stop_reason {
        StopReason::End | StopReason::MaxTokens if !text.trim().is_empty() => {
            return vec![Effect::Store(Store::Compact(Box::new(Summary { text, report })))];
        }
        StopReason::End | StopReason::MaxTokens => "the model wrote no summary".to_owned(),
        StopReason::Cancelled => "stopped".to_owned(),
        StopReason::ContextFull => format!("no room for a summary: {}; {SHORTEN}", detail()),
        StopReason::CacheFull => {
            format!("no room for a summary: {}; /set kv_limit raises the limit, or {SHORTEN}", detail())
        }
        StopReason::Error => detail(),
    };
    failed(app, &why)
}

/// Says why there is no summary. Messages that wait stay until the user sends them.
pub fn failed(app: &mut App, why: &str) -> Vec<Effect> {
    app.engine.compacting = None;
    let level = if why == "stopped" { Level::Info } else { Level::Warning };
    app.say(level, format!("{why}; the conversation stays as it was"));
    Vec::new()
}

/// Shows the new conversation, whose first turn is the summary. `continues`: the old session, if it is saved.
pub fn began(
    app: &mut App,
    id: String,
    date: jiff::civil::DateTime,
    continues: Option<String>,
    summary: Box<Summary>,
) -> Vec<Effect> {
    let Summary { text, report } = *summary;
    let title = app.chat.title_or_first_line();
    let mut chat = Conversation::new(app.chat.system().map(str::to_owned));
    chat.set_continues(continues.clone());
    chat.rename(&format!("{}{CONTINUED}", title.trim_end_matches(CONTINUED)));
    chat.push_user(QUESTION);
    let turn = chat.begin_reply(false, None);
    chat.append(turn, TextKind::Answer, &text);
    chat.finish(TurnReport { turn, in_context: true, ..report });
    // Messages that were sent meanwhile go to the new conversation.
    app.resuming = true;
    files::show(app, chat);
    app.resuming = false;
    (app.session.id, app.date) = (Some(id), date);
    let old = continues.map_or(String::new(), |id| format!("; /resume {id} opens the old one"));
    note(app, LocalKind::Note, format!("a new conversation goes on from this summary{old}"));
    let mut effects = vec![Effect::Engine(Command::Clear), Effect::Store(Store::Sync)];
    effects.extend(turns::send_next(app));
    effects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, FORK_TURN};
    use crate::ui::event::AppEvent;
    use crate::ui::testing::*;
    use crate::ui::update::{take_changes, update};
    use crossterm::event::KeyCode;
    use std::sync::Arc;

    fn text(app: &mut App, text: &str) {
        engine(app, Event::Text { turn: FORK_TURN, kind: TextKind::Answer, text: text.into() });
    }

    fn end(app: &mut App, stop_reason: StopReason) -> Vec<Effect> {
        engine(app, Event::TurnDone(Box::new(report(FORK_TURN, stop_reason))))
    }

    #[test]
    fn a_summary_begins_a_conversation_that_names_the_old_one() {
        let mut app = app(100, 30, 8, 4);
        turn(&mut app, "the code is seven", "hm", "Noted.");
        assert!(matches!(say(&mut app, "/compact")[..], [Effect::Compact]));
        text(&mut app, "The code is ");
        assert!(screen(&mut app).contains("writing a summary: 3 words (Esc stops)"), "{}", screen(&mut app));
        say(&mut app, "go on");
        text(&mut app, "seven.");
        let effects = end(&mut app, StopReason::End);
        let [Effect::Store(Store::Compact(summary))] = &effects[..] else { panic!("{effects:?}") };
        let (id, date) = ("new".to_owned(), jiff::civil::DateTime::default());
        take_changes(&mut app);
        let summary = summary.clone();
        let effects = update(&mut app, AppEvent::Compacted { id, date, continues: Some("old".into()), summary });
        assert!(matches!(
            effects[..],
            [Effect::Engine(Command::Clear), Effect::Store(Store::Sync), Effect::Generate { turn: 2 }, ..]
        ));
        assert_eq!((app.chat.continues(), app.chat.title()), (Some("old"), Some("the code is seven, continued")));
        let path: Vec<&str> = app.chat.path().iter().map(|m| &*m.text).collect();
        assert_eq!(path, [QUESTION, "The code is seven.", "go on", ""]);
        assert!(screen(&mut app).contains("/resume old opens the old one"));
    }

    #[test]
    fn what_stops_a_summary_leaves_the_conversation_and_says_what_to_do() {
        let mut app = app(100, 30, 8, 4);
        assert!(say(&mut app, "/compact").is_empty() && screen(&mut app).contains("nothing to sum up yet"));
        turn(&mut app, "taken back", "hm", "Gone.");
        say(&mut app, "/undo");
        assert!(say(&mut app, "/compact").is_empty() && screen(&mut app).contains("nothing to sum up yet"));
        turn(&mut app, "the code is seven", "hm", "Noted.");
        let said = |app: &mut App| app.notice.take().expect("a line").text;
        for (reason, words) in [
            (StopReason::Cancelled, "stopped; the conversation stays"),
            (StopReason::ContextFull, "no room for a summary: the context is full; /undo takes"),
            (StopReason::CacheFull, "/set kv_limit raises the limit, or /undo"),
            (StopReason::End, "the model wrote no summary"),
        ] {
            say(&mut app, "/compact");
            assert!(app.is_busy());
            if reason == StopReason::Cancelled {
                text(&mut app, "The");
                let effects = press(&mut app, KeyCode::Esc);
                assert!(matches!(effects[..], [Effect::Engine(Command::Cancel)]));
            }
            assert!(end(&mut app, reason).is_empty() && !app.is_busy());
            let line = said(&mut app);
            assert!(line.contains(words), "{line}");
            assert_eq!(app.chat.path().len(), 2);
        }
        // Not sent yet, or not rendered.
        say(&mut app, "/compact");
        update(&mut app, AppEvent::Withdrawn { turn: FORK_TURN });
        assert!(!app.is_busy() && said(&mut app).starts_with("stopped"));
        say(&mut app, "/compact");
        update(&mut app, AppEvent::GenerateFailed { turn: FORK_TURN, error: "bad template".into() });
        assert!(!app.is_busy() && said(&mut app).starts_with("bad template"));
    }

    #[test]
    fn a_context_nearly_full_offers_a_summary_in_one_line() {
        let mut app = app(100, 30, 8, 4);
        app.panel.hidden = true;
        turn(&mut app, "q", "hm", "Fine.");
        let fill = |app: &mut App, tokens| update(app, AppEvent::Snapshot(Arc::new(snapshot(tokens, 8, 4))));
        fill(&mut app, 7_300);
        assert!(!screen(&mut app).contains("/compact"));
        fill(&mut app, 7_400);
        assert!(screen(&mut app).contains("the context is 90 % full; /compact sums it up"));
        // No room for the summary itself: nothing is asked.
        fill(&mut app, 8_100);
        assert!(say(&mut app, "/compact").is_empty());
        assert!(screen(&mut app).contains("no room for a summary: 8,100/8,192 tokens are used; /undo"));
    }
}
