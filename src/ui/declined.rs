//! What the built-in model answers where a message is none of its tasks, and how the chat shows it:
//! in full the first time, then in one line that leads to the models that can. The answer itself
//! stays in the conversation and its file as the model gave it.

use super::action::Action;
use super::state::App;
use crate::chat::{Message, Role};

/// The beginning of that answer, and of its end, which names one large model.
const BEGINNING: &str = "That is beyond me: I calculate with whole numbers of a few digits,";
const END: &str = "For more,";

/// Whether a model's text is that answer, as far as it is there.
pub fn is(text: &str) -> bool {
    text.trim_start().starts_with(BEGINNING)
}

/// Whether this may become that answer when there is more of it.
pub fn may_become(text: &str) -> bool {
    BEGINNING.starts_with(text.trim_start())
}

/// How many answers of this conversation up to this one are such answers; `None` if it is none.
pub fn number(app: &App, message: &Message) -> Option<usize> {
    let own = is(&message.text) || message.is_open() && !message.text.is_empty() && may_become(&message.text);
    if message.role != Role::Assistant || !own {
        return None;
    }
    let before = app.chat.path().into_iter().take_while(|other| other.id != message.id);
    Some(1 + before.filter(|other| other.role == Role::Assistant && is(&other.text)).count())
}

/// What is shown in place of such an answer. Never the same twice in a conversation.
pub fn shown(app: &App, message: &Message) -> Option<String> {
    let number = number(app, message)?;
    if number > 1 {
        return Some(again(app, number));
    }
    if !is(&message.text) {
        return None;
    }
    let text = message.text.trim();
    let tasks = text.split(END).next().unwrap_or(text).trim_end();
    if message.is_open() {
        return Some(tasks.to_owned());
    }
    let question = message.parent.and_then(|id| app.chat.get(id)).map_or("", |asked| asked.text.trim());
    let steps = match is_calculation(question) {
        true => format!(" Of `{question}` I can do each step by itself."),
        false => String::new(),
    };
    Some(format!("{tasks}{steps} {}", way(app)))
}

/// Leads to the list of models.
pub fn way(app: &App) -> String {
    let key = key(app);
    match &app.models.best {
        _ if app.models.offline => format!("{key} lists the models on this machine, which need no network."),
        Some(best) => format!("For more, {key} lists real models; {best} suits this machine."),
        None => format!("For more, {key} lists real models."),
    }
}

/// The key of the list of models, or the command where there are no keys.
fn key(app: &App) -> String {
    if app.setup.by_lines { format!("/{}", Action::Models.name()) } else { app.key(Action::Models) }
}

fn again(app: &App, number: usize) -> String {
    let key = key(app);
    match number {
        2 => format!("That is beyond me too; {key} lists models that can."),
        3 => format!("I only do a few small tasks, and this is none of them; {key} opens a real model."),
        4 => format!("A real model would answer this: {key}."),
        n => format!("Still beyond me, {n} times now; {key} lists models that can."),
    }
}

/// Whether a message is a calculation and nothing else.
fn is_calculation(text: &str) -> bool {
    let all = |c: char| c.is_ascii_digit() || " +-*/().=?".contains(c);
    text.chars().all(all) && text.contains(|c: char| c.is_ascii_digit()) && text.contains(['+', '-', '*', '/'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::testing::{app, screen, turn};

    const ANSWER: &str = "That is beyond me: I calculate with whole numbers of a few digits, solve linear equations, sort \
        numbers, follow variables, find a number in a text and remember what you tell me. For more, load a larger model: \
        dmschat --model nvidia/Qwen3-8B-DMS-8x";

    #[test]
    fn a_refusal_is_never_shown_twice_alike_and_leads_to_the_models() {
        let mut app = app(120, 40, 8, 4);
        app.models.best = Some("smollm2 (269 MB)".into());
        let mut all = Vec::new();
        for question in ["2+2*3", "hello", "2+2*3", "write a poem", "2+2*3", "why?", "why?", "why?"] {
            turn(&mut app, question, "", ANSWER);
            let path = app.chat.path();
            let said = shown(&app, path.last().unwrap()).unwrap();
            assert!(said.contains(&app.key(Action::Models)) && !said.contains("nvidia"), "{said}");
            assert!(!all.contains(&said), "{said}");
            all.push(said);
        }
        assert!(all[0].contains("sort numbers") && all[0].contains("Of `2+2*3`") && all[0].contains("smollm2"));
        assert!(all[1..].iter().all(|said| said.len() < 90), "{all:?}");
        assert!(screen(&mut app).contains("8 times now"), "{}", screen(&mut app));
        turn(&mut app, "3+4", "", "3+4 = 7");
        assert_eq!(shown(&app, app.chat.path().last().unwrap()), None);
        app.models.offline = true;
        assert!(way(&app).contains("no network"));
    }
}
