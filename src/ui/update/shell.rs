//! Commands of the shell in messages: `!ls`. The first one of a session is confirmed, and so is
//! every one that was not typed here key by key.

use super::turns;
use crate::system::children::Children;
use crate::ui::action::Action;
use crate::ui::attach::Job;
use crate::ui::effect::Effect;
use crate::ui::folded::is_mark;
use crate::ui::shell::{Running, parse};
use crate::ui::state::App;
use crate::ui::text::{clean_line, truncate};

/// Runs the command of the input, after a question where one is needed. The input stays until then.
pub fn submit(app: &mut App) {
    let text = app.input.expanded().into_owned();
    let Some((command, _)) = parse(&text) else { return };
    if app.shell.running.is_some() {
        let stop = app.key(Action::Stop);
        return app.error(format!("a command is running; {stop} stops it"));
    }
    if app.input.text().lines().next().is_some_and(|line| line.contains(is_mark)) {
        let fold = app.key(Action::Fold);
        return app.error(format!("a command has to be visible; {fold} opens the folded text"));
    }
    let known = app.is_by_hand() || app.shell.allowed.contains(command);
    if app.shell.confirmed && known {
        return begin(app, text);
    }
    let rest = match app.shell.confirmed {
        true => "It was not typed here.",
        false => "Later commands that you type here run at once.",
    };
    let question = format!("Run in the shell: {}\nIts output is sent as your message. {rest}", clean_line(command));
    app.ask(question, |app| begin(app, text));
}

fn begin(app: &mut App, text: String) {
    let Some((command, question)) = parse(&text) else { return };
    if *app.input.expanded() == *text {
        app.input.take();
    }
    app.history.push(&text);
    let shell = &mut app.shell;
    shell.confirmed = true;
    shell.allowed.insert(command.to_owned());
    shell.last_id += 1;
    let (id, children) = (shell.last_id, Children::default());
    let job = Job::new(command, children.runner());
    let (command, question) = (command.to_owned(), question.to_owned());
    shell.running = Some(Running { id, command, text, question, since_ms: app.now_ms, children });
    app.emit(Effect::Run { id, job });
}

/// Sends the output of a command, or gives the command back.
pub fn ran(app: &mut App, id: u64, result: Result<String, String>) {
    let Some(run) = app.shell.running.take_if(|run| run.id == id) else { return };
    match result {
        Ok(output) => {
            let gap = if run.question.is_empty() { "" } else { "\n\n" };
            if !turns::ask_text(app, format!("{output}{gap}{}", run.question)) {
                turns::give_back(app, &run.text);
            }
        }
        Err(why) => {
            let place = turns::give_back(app, &run.text);
            app.error(format!("not sent{place}: {why}; !! begins a message with !"));
        }
    }
}

/// Stops the command that runs, and gives it back. False if none does.
pub fn stop(app: &mut App) -> bool {
    let Some(run) = app.shell.running.take() else { return false };
    let place = turns::give_back(app, &run.text);
    app.info(format!("stopped{place}: {}", truncate(&clean_line(&run.command), 60)));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::testing::*;

    fn runs(effects: &[Effect]) -> bool {
        effects.iter().any(|e| matches!(e, Effect::Run { .. }))
    }

    /// Answers the question that is open, once keys are no longer taken for typed text.
    fn answer(app: &mut App, key: char) -> Vec<Effect> {
        app.now_ms += 1_000;
        press(app, KeyCode::Char(key))
    }

    fn typed(app: &mut App, text: &str) -> Vec<Effect> {
        for c in text.chars() {
            app.now_ms += 100;
            press(app, KeyCode::Char(c));
        }
        app.now_ms += 1_000;
        press(app, KeyCode::Enter)
    }

    #[test]
    fn the_first_command_is_confirmed_and_what_was_not_typed_always() {
        let mut app = app(100, 24, 8, 4);
        assert!(!runs(&typed(&mut app, "!ls")));
        assert!(screen(&mut app).contains("Run in the shell: ls"), "{}", screen(&mut app));
        assert!(!runs(&answer(&mut app, 'n')) && app.input.text() == "!ls");
        app.now_ms += 2_000;
        press(&mut app, KeyCode::Enter);
        assert!(runs(&answer(&mut app, 'y')) && app.input.is_empty());
        assert!(screen(&mut app).contains("running ls: 0 s (Esc stops)"), "{}", screen(&mut app));
        assert!(sent(&update(&mut app, AppEvent::Ran { id: 1, result: Ok("$ ls\n```\na\n```".into()) })));
        assert_eq!(app.chat.path()[0].text, "$ ls\n```\na\n```");
        end(&mut app, crate::protocol::StopReason::End);
        app.now_ms += 2_000;
        // It belongs to the conversation, and ends with it.
        assert!(runs(&typed(&mut app, "!date")));
        update(&mut app, AppEvent::NewConversation(Default::default()));
        assert!(!sent(&update(&mut app, AppEvent::Ran { id: 2, result: Ok("x".into()) })));
        assert!(runs(&typed(&mut app, "!cat x")));
        // One at a time; Esc stops it, and the late result is nobody's.
        assert!(!runs(&typed(&mut app, "!b")) && notice(&app).contains("a command is running"));
        app.input.set("");
        press(&mut app, KeyCode::Esc);
        assert_eq!((app.input.text(), notice(&app)), ("!cat x", "stopped: cat x"));
        assert!(!sent(&update(&mut app, AppEvent::Ran { id: 3, result: Ok("x".into()) })));
        // Pasted, recalled or given back: it is shown and asked for, unless it has run.
        for (text, asks) in [("!rm x", true), ("!cat x", false)] {
            app.input.set("");
            update(&mut app, AppEvent::Paste(text.into()));
            app.now_ms += 1_000;
            assert_eq!(runs(&press(&mut app, KeyCode::Enter)), !asks, "{text}");
            assert_eq!(app.overlay::<crate::ui::overlay::question::Question>().is_some(), asks);
            answer(&mut app, 'n');
            app.now_ms += 2_000;
        }
        // Typed after a paste is not typed by hand.
        app.shell.running = None;
        app.input.set("");
        update(&mut app, AppEvent::Paste("!rm ".into()));
        assert!(!runs(&typed(&mut app, "y")));
        answer(&mut app, 'n');
        app.now_ms += 2_000;
        app.input.set("");
        update(&mut app, AppEvent::Paste(format!("!{}", "x".repeat(3_000))));
        app.now_ms += 1_000;
        press(&mut app, KeyCode::Enter);
        assert!(app.input.is_empty() || notice(&app).contains("has to be visible") || !app.overlays.is_empty());
    }

    #[test]
    fn a_command_that_cannot_run_comes_back_and_two_marks_are_one() {
        let mut app = app(100, 24, 8, 4);
        typed(&mut app, "!nosuch");
        answer(&mut app, 'y');
        update(&mut app, AppEvent::Ran { id: 1, result: Err("the command cannot be run: nosuch".into()) });
        assert!(app.input.text() == "!nosuch" && notice(&app).contains("!! begins a message with !"));
        app.input.set("");
        app.now_ms += 2_000;
        assert!(sent(&typed(&mut app, "!!hello")));
        assert_eq!(app.chat.path()[0].text, "!hello");
    }
}
