//! The input of a request: a string, or items, and the conversation that they are.

use crate::chat::template::{Author, Given, GivenCall};
use crate::serve::fields::{Fields, kind};
use crate::serve::openai::{join_systems, read_message};
use crate::serve::prompt::check_count;
use crate::serve::refusal::Refusal;
use crate::serve::stamp::random_digits;
use crate::serve::tools::arguments;
use serde_json::{Value, json};

/// Takes `input` as items, each with a type and an id.
pub fn items(fields: &mut Fields) -> Result<Vec<Value>, Refusal> {
    let items = match fields.take("input") {
        None => return Err(Refusal::field("input", "input is missing")),
        Some(Value::String(text)) => vec![json!({ "role": "user", "content": text })],
        Some(Value::Array(items)) => items,
        Some(other) => {
            let message = format!("input is {}, expected a string or an array of items", kind(&other));
            return Err(Refusal::field("input", message));
        }
    };
    check_count(items.len()).map_err(|refusal| Refusal { param: Some("input".to_owned()), ..refusal })?;
    items.into_iter().enumerate().map(|(index, item)| complete(&format!("input[{index}]"), item)).collect()
}

/// An item with its type and an id. A message's text becomes a part.
fn complete(at: &str, mut item: Value) -> Result<Value, Refusal> {
    if !item.is_object() {
        return Err(Refusal::field(at, format!("{at} is {}, expected an object", kind(&item))));
    }
    if item["type"].is_null() && !item["role"].is_null() {
        item["type"] = json!("message");
    }
    let prefix = match item["type"].as_str() {
        Some("message") => "msg",
        Some("reasoning") => "rs",
        Some("function_call") => "fc",
        Some("function_call_output") => "fco",
        Some(name) => {
            let message = format!("{at}: items of the type {name:?} are not supported by this server");
            return Err(Refusal::unsupported(format!("{at}.type"), message));
        }
        None => return Err(Refusal::field(format!("{at}.type"), format!("{at} has neither a type nor a role"))),
    };
    if item["type"] == "message" {
        // Check now, so that nothing invalid is stored.
        read_message(at, item.clone())?;
        let part = if item["role"] == "assistant" { "output_text" } else { "input_text" };
        if let Some(text) = item["content"].as_str() {
            item["content"] = json!([{ "type": part, "text": text }]);
        }
        if item["status"].is_null() {
            item["status"] = json!("completed");
        }
    }
    // Check now, so that nothing invalid is stored.
    if let Some(message) = of_tool(at, &item) {
        message?;
    }
    if !item["id"].is_string() {
        item["id"] = json!(format!("{prefix}_{}", random_digits()));
    }
    Ok(item)
}

/// Converts a call, or the result of one, to a message. `None` for other items.
fn of_tool(at: &str, item: &Value) -> Option<Result<Given, Refusal>> {
    let text = |name: &str| {
        let missing = || Refusal::field(format!("{at}.{name}"), format!("{at} has no {name}"));
        item[name].as_str().map(str::to_owned).ok_or_else(missing)
    };
    let call = || {
        let arguments = arguments(Some(item["arguments"].clone()).filter(|given| !given.is_null()));
        let call = GivenCall { id: text("call_id")?, name: text("name")?, arguments };
        Ok(Given { calls: vec![call], ..Given::new(Author::Assistant, "") })
    };
    let result = || {
        let said = json!({ "role": "tool", "content": item["output"], "tool_call_id": text("call_id")? });
        read_message(at, said)
    };
    match item["type"].as_str() {
        Some("function_call") => Some(call()),
        Some("function_call_output") => Some(result()),
        _ => None,
    }
}

/// The text of a thought, which an item has as its content, as we sent it to clients that keep only
/// what is encrypted, or as a summary.
fn thought(item: &Value) -> Option<String> {
    let parts = |name: &str| {
        let texts = item[name].as_array()?.iter().filter_map(|part| part["text"].as_str());
        Some(texts.collect::<Vec<_>>().join("\n\n")).filter(|text| !text.is_empty())
    };
    let encrypted = || item["encrypted_content"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    parts("content").or_else(encrypted).or_else(|| parts("summary"))
}

/// The messages that the items are. A thought belongs to the message of the assistant behind it.
pub fn messages<'a>(instructions: Option<&str>, items: impl Iterator<Item = &'a Value>) -> Result<Vec<Given>, Refusal> {
    let system = |text: &str| Given::new(Author::System, text);
    let mut all: Vec<Given> = instructions.filter(|text| !text.is_empty()).map(system).into_iter().collect();
    let mut reasoning = None;
    for item in items {
        if item["type"] == "reasoning" {
            reasoning = thought(item);
            continue;
        }
        let mut message = of_tool("input", item).unwrap_or_else(|| read_message("input", item.clone()))?;
        let thought = reasoning.take();
        // Calls join the assistant's message before them.
        let before = all.last_mut().filter(|before| before.author == Author::Assistant);
        if let (Some(before), false, None) = (before, message.calls.is_empty(), &thought) {
            before.calls.extend(message.calls);
            continue;
        }
        if message.author == Author::Assistant {
            message.reasoning = thought.or(message.reasoning);
        }
        all.push(message);
    }
    check_count(all.len())?;
    Ok(join_systems(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: Value) -> Result<Vec<Value>, Refusal> {
        items(&mut Fields::at("body", json!({ "input": input }))?)
    }

    #[test]
    fn a_string_is_a_message_and_a_thought_belongs_to_the_answer_behind_it() {
        let one = read(json!("hi")).unwrap();
        assert_eq!(
            (&one[0]["type"], &one[0]["role"], one[0]["id"].is_string()),
            (&json!("message"), &json!("user"), true)
        );
        let items = read(json!([
            { "role": "developer", "content": "Be brief." },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "ponder" }] },
            { "type": "message", "role": "assistant", "id": "msg_1", "content": [{ "type": "output_text", "text": "b" }] },
            { "type": "reasoning", "summary": [], "encrypted_content": "more" },
            { "role": "assistant", "content": "c" },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "lost" }] },
            { "role": "user", "content": "d" },
        ]));
        let items = items.unwrap();
        assert_eq!(items[3]["id"], "msg_1");
        let said = |author, text: &str| Given::new(author, text);
        let thought = |text: &str, reasoning: &str| Given {
            reasoning: Some(reasoning.to_owned()),
            ..said(Author::Assistant, text)
        };
        let wanted = [
            said(Author::System, "Be kind.\n\nBe brief."),
            said(Author::User, "a"),
            thought("b", "ponder"),
            thought("c", "more"),
            said(Author::User, "d"),
        ];
        assert_eq!(messages(Some("Be kind."), items.iter()).unwrap(), wanted);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_place() {
        for (input, param, part) in [
            (json!(null), "input", "missing"),
            (json!(7), "input", "a number"),
            (json!([]), "input", "is empty"),
            (json!(["x"]), "input[0]", "a string"),
            (json!([{}]), "input[0].type", "neither"),
            (json!([{ "role": "king", "content": "x" }]), "input[0].role", "\"king\""),
            (json!([{ "type": "function_call_output", "output": "x" }]), "input[0].call_id", "no call_id"),
            (json!([{ "type": "web_search_call" }]), "input[0].type", "not supported"),
            (json!([{ "type": "item_reference", "id": "x" }]), "input[0].type", "not supported"),
            (json!([{ "role": "user", "content": [{ "type": "input_image" }] }]), "input[0].content", "input_image"),
        ] {
            let refused = read(input.clone()).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param), "{input}");
            assert!(refused.message.contains(part), "{}", refused.message);
        }
    }
}
