//! `/recall TEXT`: asks the model for a text of the conversation and shows how much of it it still
//! knows.

use super::command::refused;
use super::prelude::*;
use crate::protocol::Recalled;
use std::ops::Range;

/// Most words that the question gives away.
const MAX_CUE_WORDS: usize = 8;

/// Asks for a text, or for the chosen message.
pub fn run(app: &mut App, text: &str) -> Done {
    let chosen = app.feed.selected.filter(|_| text.is_empty()).and_then(|id| app.chat.get(id));
    let chosen = chosen.map(|message| message.shown().trim().to_owned());
    begin(app, chosen.as_deref().unwrap_or(text), None)
}

/// Asks for the text at these positions, for the memory page. False after a notice.
pub fn ask_on_page(app: &mut App, text: &str, tokens: Range<usize>) -> bool {
    let Err(why) = begin(app, text, Some(tokens)) else { return true };
    refused(app, "recall", why);
    false
}

fn begin(app: &mut App, text: &str, tokens: Option<Range<usize>>) -> Done {
    turns::idle(app)?;
    if text.is_empty() {
        let key = app.key(Action::SelectOlder);
        let how = "quote the conversation from where the passage starts, or choose a message with";
        return Err(Refusal::Wrong(format!("/recall TEXT: {how} {key}")));
    }
    app.model()?;
    if app.chat.context_path().is_empty() {
        return Err("nothing was said yet".into());
    }
    app.engine.recalling = true;
    app.emit(Effect::Recall { text: text.to_owned(), tokens });
    Ok(())
}

/// Bytes of a text that the question gives away: a third of its words, enough to find it by. Of a
/// text without spaces a third of the characters. Nothing from the first control token on.
pub fn cue_bytes(text: &str) -> usize {
    let text = text.find("<|").filter(|&at| at > 0).map_or(text, |at| &text[..at]);
    let mut ends = Vec::new();
    for word in text.split_whitespace() {
        let at = ends.last().copied().unwrap_or(0);
        ends.push(at + text[at..].find(word).unwrap_or(0) + word.len());
    }
    match ends.len() {
        0 | 1 => text.char_indices().nth(text.chars().count().div_ceil(3)).map_or(text.len(), |(at, _)| at),
        n => ends[(n / 3).clamp((n / 2).min(3), MAX_CUE_WORDS) - 1],
    }
}

/// The question for a text. It names the first words only.
pub fn question(text: &str) -> String {
    format!("Repeat word for word the text above that begins with \"{}\".", &text[..cue_bytes(text)])
}

/// Shows the result in the conversation, or why there is none.
pub fn answered(app: &mut App, result: Result<Box<Recalled>, String>) {
    match result {
        Err(why) if why == "stopped" => app.info("/recall: stopped"),
        Err(why) => super::command::failed(app, "recall", &why),
        Ok(recalled) => {
            let words = summary(&recalled);
            let local = Local { recalled: Some(recalled), ..Local::new(app.chat.head(), LocalKind::Note, words) };
            app.feed.push_result(&app.chat, local);
        }
    }
}

/// The result in two lines.
pub fn summary(recalled: &Recalled) -> String {
    let (known, all) = (recalled.remembered(), plural(recalled.tokens.len() as u64, "token"));
    let mut first = match recalled.times {
        0 => format!("recall: this text was not said in this conversation; the model would guess {known} of {all}"),
        _ => format!("recall: remembers {known} of {all}"),
    };
    if let Some(guessed) = recalled.guessed() {
        first += &format!(" ({guessed} without the conversation)");
    }
    if recalled.times > 1 {
        first += &format!("; it was said {} times", recalled.times);
    }
    let (with, without) = recalled.mean_logprobs();
    let mut second = format!("mean log-probability {with:.2}");
    if let Some(without) = without {
        second += &format!(", {without:.2} without");
    }
    if let Some([stored, read, unread]) = recalled.presence().map(|shares| shares.map(|share| share * 100.0)) {
        second += &format!("; {stored:.0} % of the heads store it");
        if read + unread > 0.0 {
            let gone = (100.0 - stored - read - unread).max(0.0);
            second += &format!(", {read:.0} % read it far, {unread:.0} % have it far unread, {gone:.0} % lost it");
        }
    }
    format!("{first}\n{second}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Command as Engine, Event, Evidence, Finding, Guess, RecalledToken};
    use crate::ui::testing::*;

    #[test]
    fn a_question_gives_the_first_words_away_and_no_others() {
        let cue = |text: &'static str| &text[..cue_bytes(text)];
        assert_eq!(cue("two words"), "two");
        assert_eq!(cue("the code is seven four"), "the code");
        assert_eq!(cue("one  two three\nfour five six seven"), "one  two three");
        assert_eq!(cue("a b c d e f g h i j k l m n o p q r s t u v w x y z"), "a b c d e f g h");
        assert_eq!((cue("日本語の"), cue("x"), cue("")), ("日本", "x", ""));
        assert!(question("the code is seven").contains("\"the code\"") && !question("a b c d").contains('c'));
    }

    fn recalled() -> Box<Recalled> {
        let token = |text: &str, known: f64, guessed: f64, stored| RecalledToken {
            text: text.into(),
            known: Guess { logprob: known, is_choice: known > -0.7 },
            guessed: Some(Guess { logprob: guessed, is_choice: guessed > -0.7 }),
            evidence: Some(Evidence { stored, ..Evidence::default() }),
        };
        let tokens = vec![
            token(" is", -0.01, -0.2, 4),
            token(" seven", -0.1, -6.0, 24),
            token(" four", -0.5, -7.0, 32),
            token(" two", -3.0, -7.5, 1),
        ];
        Box::new(Recalled { times: 1, cue: "the code".into(), lanes: 32, tokens })
    }

    #[test]
    fn a_recall_is_asked_shown_and_never_part_of_the_conversation() {
        for (name, depth, theme) in [("recall", Depth::Rgb, "dark"), ("recall_ascii", Depth::Ascii, "ascii")] {
            let mut app = loaded(100, 24, depth, theme, model(8, 4));
            turn(&mut app, "the code is seven four two", "hm", "Noted.");
            let context = app.chat.context_path().len();
            let effects = say(&mut app, "/recall the code is seven four two");
            assert!(
                matches!(&effects[..], [Effect::Recall { text, tokens: None }] if text == "the code is seven four two")
            );
            assert!(app.is_busy() && screen(&mut app).contains("asking for the text (Esc stops)"));
            // A message sent meanwhile waits.
            assert!(say(&mut app, "next").is_empty() && app.queue.len() == 1);
            app.queue.clear();
            let effects = press(&mut app, KeyCode::Esc);
            assert!(effects.iter().any(|e| matches!(e, Effect::Engine(Engine::Cancel))));
            engine(&mut app, Event::Found(Finding::Recalled(Ok(recalled()))));
            assert!(!app.is_busy());
            assert_eq!((app.chat.context_path().len(), app.chat.take_changes().len()), (context, 1));
            insta::assert_snapshot!(name, screen(&mut app));
        }
    }

    #[test]
    fn the_summary_says_where_the_evidence_was() {
        let mut recalled = recalled();
        assert!(summary(&recalled).ends_with("; 48 % of the heads store it"));
        for token in &mut recalled.tokens {
            token.evidence = Some(Evidence { stored: 8, read: 16, unread: 4 });
        }
        let far = "; 25 % of the heads store it, 50 % read it far, 12 % have it far unread, 12 % lost it";
        assert!(summary(&recalled).ends_with(far), "{}", summary(&recalled));
    }

    #[test]
    fn what_cannot_be_recalled_is_said_in_one_line() {
        let mut app = app(80, 24, 8, 4);
        let said = |app: &mut App, text: &str| {
            assert!(say(app, text).is_empty() && !app.engine.recalling);
            app.notice.take().expect("a line").text
        };
        assert!(said(&mut app, "/recall").starts_with("/recall TEXT: quote the conversation"));
        app.input.set("");
        assert!(said(&mut app, "/recall the code").starts_with("/recall: nothing was said yet"));
        app.input.set("");
        turn(&mut app, "q", "hm", "Fine.");
        say(&mut app, "/recall the code");
        engine(&mut app, Event::Found(Finding::Recalled(Err("no room to ask: the KV cache is full".into()))));
        assert!(!app.is_busy() && app.notice.take().unwrap().text == "/recall: no room to ask: the KV cache is full");
        app.input.set("");
        say(&mut app, "another");
        assert!(said(&mut app, "/recall the code").starts_with("the answer is still running"));
    }
}
