//! The conversation of a request: the system prompt and the messages, as strings or as blocks.

use crate::chat::template::{Author, Given, GivenCall};
use crate::serve::fields::{Fields, kind};
use crate::serve::prompt::check_count;
use crate::serve::refusal::Refusal;
use crate::serve::tools::arguments;
use serde_json::{Value, json};

/// Begins a line about the client that a system prompt may begin with. It differs from request to
/// request, and nothing behind it would be found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// Takes `system` and `messages`. Messages of one author that follow each other become one, as in
/// Anthropic's API.
pub fn messages(fields: &mut Fields) -> Result<Vec<Given>, Refusal> {
    let given = fields.array("messages")?.ok_or_else(|| Refusal::field("messages", "messages is missing"))?;
    check_count(given.len())?;
    let mut all: Vec<Given> = Vec::with_capacity(given.len() + 1);
    if let Some(value) = fields.take("system") {
        all.extend(content("system", Author::System, value)?);
    }
    for (index, value) in given.into_iter().enumerate() {
        for message in message(&format!("messages[{index}]"), value)? {
            match all.last_mut() {
                Some(before) if before.author == message.author && message.author != Author::Tool => {
                    append(before, message);
                }
                _ => all.push(message),
            }
        }
    }
    if all.last().is_some_and(|last| last.author == Author::Assistant) {
        let message = "the last message is the assistant's, and this server does not continue one; end with the user's";
        return Err(Refusal::unsupported("messages", message));
    }
    // A system prompt that has nothing to say is none.
    all.retain(|message| message.author != Author::System || !message.text.is_empty());
    Ok(all)
}

/// What stands between two texts: an answer may be split anywhere, other texts are paragraphs.
fn between(author: Author) -> &'static str {
    if author == Author::Assistant { "" } else { "\n\n" }
}

fn append(before: &mut Given, message: Given) {
    let texts = [std::mem::take(&mut before.text), message.text];
    before.text = join(texts, between(before.author));
    before.calls.extend(message.calls);
    let thoughts = before.reasoning.take().into_iter().chain(message.reasoning);
    before.reasoning = Some(join(thoughts, "\n\n")).filter(|thought| !thought.is_empty());
}

fn join(texts: impl IntoIterator<Item = String>, between: &str) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(between)
}

/// Reads one message, or the results of calls followed by a message with the text.
fn message(at: &str, value: Value) -> Result<Vec<Given>, Refusal> {
    let mut fields = Fields::at(at, value)?;
    let author = match fields.text("role").map_err(|refusal| refusal.within(at))?.as_deref() {
        Some("user") => Author::User,
        Some("assistant") => Author::Assistant,
        Some("system") => Author::System,
        Some(role) => {
            let message = format!("{at}: {role:?} is not a role (expected user or assistant)");
            return Err(Refusal::field(format!("{at}.role"), message));
        }
        None => return Err(Refusal::field(format!("{at}.role"), format!("{at} has no role"))),
    };
    let at = format!("{at}.content");
    let value = fields.take("content").ok_or_else(|| Refusal::field(&at, format!("{at} is missing")))?;
    content(&at, author, value)
}

/// The texts of a string or of blocks.
fn content(at: &str, author: Author, value: Value) -> Result<Vec<Given>, Refusal> {
    let blocks = match value {
        Value::String(text) => return Ok(vec![Given::new(author, without_billing(author, text))]),
        Value::Array(blocks) => blocks,
        other => {
            let message = format!("{at} is {}, expected a string or an array of blocks", kind(&other));
            return Err(Refusal::field(at, message));
        }
    };
    let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for (index, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let mut fields = Fields::at(&at, block)?;
        let within = |refusal: Refusal| refusal.within(&at);
        let name = fields.text("type").map_err(within)?;
        let mut text = |name: &str| {
            let text = fields.text(name).map_err(within)?;
            text.ok_or_else(|| Refusal::field(format!("{at}.{name}"), format!("{at} has no {name}")))
        };
        match (name.as_deref(), author) {
            (Some("text"), _) => texts.push(without_billing(author, text("text")?)),
            (Some("thinking"), Author::Assistant) => thoughts.push(text("thinking")?),
            (Some("tool_use"), Author::Assistant) => {
                let (id, name) = (text("id")?, text("name")?);
                calls.push(GivenCall { id, name, arguments: arguments(fields.take("input")) });
            }
            (Some("tool_result"), Author::User) => {
                let id = text("tool_use_id")?;
                let said = fields.take("content").unwrap_or_else(|| json!(""));
                let at = format!("{at}.content");
                let text = join(content(&at, Author::Tool, said)?.into_iter().map(|one| one.text), "");
                results.push(Given { call_id: Some(id), ..Given::new(Author::Tool, text) });
            }
            // A thought that only its own server can read.
            (Some("redacted_thinking"), Author::Assistant) => {}
            (Some(name), _) => {
                let message = format!("{at}: blocks of the type {name:?} are not supported by this server here");
                return Err(Refusal::unsupported(format!("{at}.type"), message));
            }
            (None, _) => return Err(Refusal::field(format!("{at}.type"), format!("{at} has no type"))),
        }
    }
    let reasoning = Some(join(thoughts, "\n\n")).filter(|thought| !thought.trim().is_empty());
    let has_text = !texts.is_empty() || results.is_empty();
    let message = Given { reasoning, calls, ..Given::new(author, join(texts, between(author))) };
    results.extend(has_text.then_some(message));
    Ok(results)
}

/// A system prompt's text without its first line if that is about the client.
fn without_billing(author: Author, text: String) -> String {
    match author == Author::System && text.trim_start().starts_with(BILLING) {
        true => text.trim_start().split_once('\n').map_or_else(String::new, |(_, rest)| rest.to_owned()),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Vec<Given>, Refusal> {
        messages(&mut Fields::at("body", body)?)
    }

    #[test]
    fn strings_and_blocks_are_one_and_what_differs_between_requests_is_left_out() {
        let blocks = |n: u32| {
            json!({
                "system": [
                    { "type": "text", "text": format!("x-anthropic-billing-header: cch={n};") },
                    { "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } },
                    { "type": "text", "text": "Be kind." },
                ],
                "messages": [
                    { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
                    { "role": "assistant", "content": [
                        { "type": "thinking", "thinking": "ponder", "signature": "" },
                        { "type": "redacted_thinking", "data": "xyz" },
                        { "type": "text", "text": "c" },
                        { "type": "text", "text": "d" },
                    ] },
                    { "role": "user", "content": "e" },
                    { "role": "user", "content": [{ "type": "text", "text": "f" }] },
                ],
            })
        };
        let said = |author, text: &str| Given::new(author, text);
        let answer = Given { reasoning: Some("ponder".to_owned()), ..said(Author::Assistant, "cd") };
        let wanted = [
            said(Author::System, "Be brief.\n\nBe kind."),
            said(Author::User, "a\n\nb"),
            answer,
            said(Author::User, "e\n\nf"),
        ];
        assert_eq!(read(blocks(1)).unwrap(), wanted);
        assert_eq!(read(blocks(2)).unwrap(), wanted);
        let string = json!({ "system": "x-anthropic-billing-header: a\nBe brief.", "messages": [{ "role": "user", "content": "x-anthropic-billing-header: b" }] });
        let wanted = [said(Author::System, "Be brief."), said(Author::User, "x-anthropic-billing-header: b")];
        assert_eq!(read(string).unwrap(), wanted);
        let none = json!({ "system": "", "messages": [{ "role": "user", "content": "x" }] });
        assert_eq!(read(none).unwrap(), [said(Author::User, "x")]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_place() {
        let one = |content: Value| json!([{ "role": "user", "content": content }]);
        for (messages, param, part) in [
            (json!(null), "messages", "missing"),
            (json!([]), "messages", "is empty"),
            (json!(["hi"]), "messages[0]", "a string"),
            (json!([{ "content": "x" }]), "messages[0].role", "no role"),
            (json!([{ "role": "tool", "content": "x" }]), "messages[0].role", "\"tool\""),
            (json!([{ "role": "user" }]), "messages[0].content", "missing"),
            (one(json!(7)), "messages[0].content", "a number"),
            (one(json!(["x"])), "messages[0].content[0]", "a string"),
            (one(json!([{ "type": "text" }])), "messages[0].content[0].text", "has no text"),
            (one(json!([{ "text": "x" }])), "messages[0].content[0].type", "has no type"),
            (one(json!([{ "type": "image", "source": {} }])), "messages[0].content[0].type", "\"image\""),
            (one(json!([{ "type": "document", "source": {} }])), "messages[0].content[0].type", "\"document\""),
            (one(json!([{ "type": "tool_result" }])), "messages[0].content[0].tool_use_id", "has no tool_use_id"),
            (one(json!([{ "type": "tool_use", "id": "x" }])), "messages[0].content[0].type", "\"tool_use\""),
            (one(json!([{ "type": "thinking", "thinking": "x" }])), "messages[0].content[0].type", "\"thinking\""),
            (json!([{ "role": "user", "content": "x" }, { "role": "assistant", "content": "y" }]), "messages", "last"),
        ] {
            let refused = read(json!({ "messages": messages })).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param), "{messages}");
            assert!(refused.message.contains(part), "{}", refused.message);
        }
    }
}
