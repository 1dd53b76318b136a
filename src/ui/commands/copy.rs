//! `/copy`: messages as their source text, byte for byte.

use super::prelude::*;
use crate::chat::Role;
use crate::ui::markdown;

pub fn run(app: &mut App, argument: &str) -> Done {
    let path = app.chat.path();
    let answers: Vec<&str> = path.iter().rev().filter(|m| m.role == Role::Assistant).map(|m| m.shown()).collect();
    let (text, what) = match argument {
        "all" => {
            let who = |role| if role == Role::User { "User" } else { "Assistant" };
            let messages = path.iter().map(|m| format!("## {}\n\n{}\n", who(m.role), m.shown()));
            (messages.collect::<Vec<_>>().join("\n"), "conversation".to_owned())
        }
        "code" => {
            let code = answers.iter().find_map(|answer| markdown::code_blocks(answer).pop());
            (code.ok_or("there is no code block in the answers")?, "code".to_owned())
        }
        "" => {
            let message = app.target().filter(|m| !m.shown().is_empty()).ok_or("nothing was said yet")?;
            let what = if message.role == Role::User { "message" } else { "answer" };
            (message.shown().to_owned(), what.to_owned())
        }
        argument => match argument.strip_prefix("answer ") {
            Some(n) => {
                let n = number(n)?;
                let all = plural(answers.len() as u64, "answer");
                let none = || Refusal::Wrong(format!("/copy: no answer {n} from the end; this conversation has {all}"));
                ((*answers.get(n - 1).ok_or_else(none)?).to_owned(), format!("answer {n} from the end"))
            }
            None => {
                let n = number(argument)?;
                let blocks = markdown::code_blocks(app.target().map_or("", |message| message.shown()));
                let all = plural(blocks.len() as u64, "code block");
                let none = || Refusal::Wrong(format!("/copy: no code block {n}; this answer has {all}"));
                (blocks.into_iter().nth(n - 1).ok_or_else(none)?, format!("code block {n}"))
            }
        },
    };
    app.emit(Effect::Copy { text, what });
    Ok(())
}

fn number(text: &str) -> Result<usize, Refusal> {
    text.trim().parse().ok().filter(|n| *n > 0).ok_or(Refusal::Takes)
}
