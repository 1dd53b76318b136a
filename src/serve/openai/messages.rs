//! Messages of a chat, as many clients spell them.

use crate::chat::template::{Author, Given, GivenCall};
use crate::serve::fields::{Fields, kind};
use crate::serve::prompt::check_count;
use crate::serve::refusal::Refusal;
use crate::serve::tools::read_call;
use serde_json::Value;

/// Reads the messages. System messages at the beginning become one, because many templates take one
/// only.
pub fn read(given: Vec<Value>) -> Result<Vec<Given>, Refusal> {
    check_count(given.len())?;
    let read = |(index, value)| read_one(&format!("messages[{index}]"), value);
    Ok(join_systems(given.into_iter().enumerate().map(read).collect::<Result<_, _>>()?))
}

/// System messages that follow each other become one.
pub fn join_systems(given: Vec<Given>) -> Vec<Given> {
    let mut messages: Vec<Given> = Vec::with_capacity(given.len());
    for message in given {
        match messages.last_mut() {
            Some(before) if messages_are_system(before, &message) => {
                before.text = format!("{}\n\n{}", before.text, message.text);
            }
            _ => messages.push(message),
        }
    }
    messages
}

/// Whether both are messages of the system.
fn messages_are_system(a: &Given, b: &Given) -> bool {
    a.author == Author::System && b.author == Author::System
}

/// Reads the message that stands at `at`.
pub fn read_one(at: &str, value: Value) -> Result<Given, Refusal> {
    let mut fields = Fields::at(at, value)?;
    let within = |refusal: Refusal| refusal.within(at);
    let role = fields.text("role").map_err(within)?;
    let author = match role.as_deref() {
        Some("system" | "developer") => Author::System,
        Some("user") => Author::User,
        Some("assistant") => Author::Assistant,
        Some("tool" | "function") => Author::Tool,
        Some(role) => {
            let message = format!("{at}: {role:?} is not a role (expected system, developer, user, assistant or tool)");
            return Err(Refusal::field(format!("{at}.role"), message));
        }
        None => return Err(Refusal::field(format!("{at}.role"), format!("{at} has no role"))),
    };
    let calls = calls(at, author, &mut fields)?;
    for name in ["function_call", "audio"] {
        let has_one = fields.take(name).is_some_and(|value| value.as_array().is_none_or(|all| !all.is_empty()));
        if has_one {
            let message = format!("{at}: {name} is not supported by this server");
            return Err(Refusal::unsupported(format!("{at}.{name}"), message));
        }
    }
    let reasoning = match fields.text("reasoning_content").map_err(within)? {
        Some(text) => Some(text),
        None => fields.text("reasoning").map_err(within)?,
    };
    let text = content(&format!("{at}.content"), fields.take("content"))?;
    let reasoning = reasoning.filter(|text| author == Author::Assistant && !text.trim().is_empty());
    let mut of_tool = |name| Ok::<_, Refusal>(fields.text(name).map_err(within)?.filter(|_| author == Author::Tool));
    let (call_id, tool_name) = (of_tool("tool_call_id")?, of_tool("name")?);
    Ok(Given { reasoning, calls, call_id, tool_name, ..Given::new(author, text) })
}

/// The calls of an assistant's message.
fn calls(at: &str, author: Author, fields: &mut Fields) -> Result<Vec<GivenCall>, Refusal> {
    let given = fields.array("tool_calls").map_err(|refusal| refusal.within(at))?.unwrap_or_default();
    if author != Author::Assistant && !given.is_empty() {
        let message = format!("{at}: only an assistant has tool_calls");
        return Err(Refusal::field(format!("{at}.tool_calls"), message));
    }
    let read = |(index, value)| read_call(&format!("{at}.tool_calls[{index}]"), value);
    given.into_iter().enumerate().map(read).collect()
}

/// The text of a content: a string, or an array of parts.
fn content(at: &str, value: Option<Value>) -> Result<String, Refusal> {
    let parts = match value {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(other) => {
            let message = format!("{at} is {}, expected a string or an array of parts", kind(&other));
            return Err(Refusal::field(at, message));
        }
    };
    let mut all = String::new();
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str(), &part) {
            (Some("text" | "input_text" | "output_text"), Some(text), _) => all.push_str(text),
            (_, _, Value::String(text)) => all.push_str(text),
            (Some(kind), ..) if kind != "text" => {
                let message =
                    format!("{at}: parts of the type {kind:?} are not supported by this server, which reads text");
                return Err(Refusal::unsupported(at, message));
            }
            _ => return Err(Refusal::field(at, format!("{at} has a part without a type and a text"))),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn given(value: Value) -> Result<Vec<(Author, String)>, Refusal> {
        let Value::Array(all) = value else { panic!() };
        Ok(read(all)?.into_iter().map(|message| (message.author, message.text)).collect())
    }

    #[test]
    fn content_may_be_null_absent_or_parts_and_roles_have_several_names() {
        let messages = json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "system", "content": [{ "type": "text", "text": "Be " }, { "type": "text", "text": "kind." }] },
            { "role": "user", "content": null, "name": "eve" },
            { "role": "assistant", "tool_calls": [], "tool_call_id": null },
            { "role": "system", "content": "" },
        ]);
        let wanted = [
            (Author::System, "Be brief.\n\nBe kind."),
            (Author::User, ""),
            (Author::Assistant, ""),
            (Author::System, ""),
        ];
        assert_eq!(given(messages).unwrap(), wanted.map(|(author, text)| (author, text.to_owned())));
    }

    #[test]
    fn a_thought_belongs_to_an_answer() {
        let said = |role: &str, name: &str| {
            let message = json!([{ "role": role, name: "ponder", "content": "x" }]);
            let Value::Array(all) = message else { panic!() };
            read(all).unwrap().remove(0).reasoning
        };
        assert_eq!(said("assistant", "reasoning_content").as_deref(), Some("ponder"));
        assert_eq!(said("assistant", "reasoning").as_deref(), Some("ponder"));
        assert_eq!(said("user", "reasoning_content"), None);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_place() {
        for (messages, param, part) in [
            (json!([]), "messages", "is empty"),
            (json!(["hi"]), "messages[0]", "a string"),
            (json!([{ "content": "x" }]), "messages[0].role", "no role"),
            (json!([{ "role": "user" }, { "role": "king", "content": "x" }]), "messages[1].role", "\"king\""),
            (json!([{ "role": "user", "tool_calls": [{}] }]), "messages[0].tool_calls", "only an assistant"),
            (
                json!([{ "role": "assistant", "tool_calls": [{}] }]),
                "messages[0].tool_calls[0].function",
                "has no function",
            ),
            (json!([{ "role": "user", "content": 7 }]), "messages[0].content", "a number"),
            (json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "messages[0].content", "image_url"),
            (json!([{ "role": "user", "content": [{}] }]), "messages[0].content", "without a type"),
            (json!([{ "role": 7 }]), "messages[0].role", "expected a string"),
        ] {
            let refused = given(messages.clone()).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param), "{messages}");
            assert!(refused.message.contains(part), "{}", refused.message);
        }
    }
}
