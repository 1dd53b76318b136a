//! Messages of a conversation that another program keeps, with tools, calls and their results.

use super::guard::{Guard, placeholder};
use super::jinja::JinjaMessage;
use serde_json::{Value, json};
use std::sync::Arc;

/// Author of a [`Given`] message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    System,
    User,
    Assistant,
    /// The result of a call.
    Tool,
}

/// A message of a conversation that another program keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    pub author: Author,
    pub text: String,
    /// The thought before an answer; the template decides whether it stays.
    pub reasoning: Option<String>,
    /// The assistant's calls of tools.
    pub calls: Vec<GivenCall>,
    /// The text of an answer with calls as the model wrote it.
    pub as_sampled: Option<String>,
    /// The id of the call whose result this is.
    pub call_id: Option<String>,
    /// The name of the tool whose result this is.
    pub tool_name: Option<String>,
}

/// A call of a tool in a given message.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenCall {
    pub id: String,
    pub name: String,
    /// An object, or a text that is not one.
    pub arguments: Value,
}

impl Given {
    pub fn new(author: Author, text: impl Into<String>) -> Self {
        Self {
            author,
            text: text.into(),
            reasoning: None,
            calls: Vec::new(),
            as_sampled: None,
            call_id: None,
            tool_name: None,
        }
    }
}

type MakeId = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The tools of a conversation, and how the template takes them.
#[derive(Clone, Default)]
pub struct Tools {
    /// In OpenAI's form. Null: no tools.
    pub json: Value,
    /// Literals of the control tokens in calls.
    pub marks: &'static [&'static str],
    /// Whether the template reads the tools from the system message, as text.
    pub in_system: bool,
    /// Converts an id to one that the template accepts.
    pub id: Option<MakeId>,
}

/// Words of schemas that templates compare with, so they stay unguarded. None is a control token.
const NAMES: [&str; 24] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "arguments",
    "array",
    "boolean",
    "default",
    "description",
    "enum",
    "function",
    "id",
    "integer",
    "items",
    "name",
    "null",
    "number",
    "object",
    "oneOf",
    "parameters",
    "properties",
    "required",
    "return",
    "string",
    "type",
];

/// Guards the control literals in all texts of a value.
fn protected(guard: &Guard<'_>, value: &Value) -> Value {
    let text = |text: &str| if NAMES.contains(&text) { text.to_owned() } else { guard.protect(text) };
    match value {
        Value::String(inner) => Value::String(text(inner)),
        Value::Array(all) => all.iter().map(|one| protected(guard, one)).collect(),
        Value::Object(all) => {
            Value::Object(all.iter().map(|(name, value)| (text(name), protected(guard, value))).collect())
        }
        other => other.clone(),
    }
}

impl Tools {
    /// Returns the value of the template's variable `tools`.
    pub(super) fn of_template(&self, guard: &Guard<'_>) -> Option<Value> {
        (!self.json.is_null()).then(|| protected(guard, &self.json))
    }

    /// Adds the tools to the system message where the template reads them there.
    pub(super) fn add_to_system(&self, messages: &mut Vec<JinjaMessage>, guard: &Guard<'_>) {
        let Some(json) = self.of_template(guard).filter(|_| self.in_system) else { return };
        if messages.first().is_none_or(|first| first.role != "system") {
            messages.insert(0, JinjaMessage::new("system", String::new()));
        }
        // Phi's form: the functions without their wrappers.
        let functions: Value = json.as_array().into_iter().flatten().map(|tool| tool["function"].clone()).collect();
        messages[0].tools = Some(functions.to_string());
    }
}

impl Given {
    /// Converts the message, the `index`th, to what templates read.
    pub(super) fn message(&self, index: usize, guard: &Guard<'_>, tools: &Tools, as_sampled: bool) -> JinjaMessage {
        let calls = if as_sampled && self.as_sampled.is_some() { &[] } else { &self.calls[..] };
        let text = || guard.protect(&self.text);
        let (name, content) = match self.author {
            Author::System => ("system", text()),
            Author::User => ("user", text()),
            Author::Tool => ("tool", text()),
            // Templates test whether the content is empty; a placeholder is not.
            Author::Assistant if !calls.is_empty() && self.text.is_empty() => ("assistant", String::new()),
            Author::Assistant => ("assistant", placeholder(index)),
        };
        let id = |id: &str| guard.protect(&tools.id.as_ref().map_or_else(|| id.to_owned(), |make| make(id)));
        let call = |call: &GivenCall| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": id(&call.id), "type": "function", "function": protected(guard, &function) })
        };
        let reasoning = self.reasoning.as_ref().map(|text| guard.protect(text));
        JinjaMessage {
            thinking: reasoning.clone().filter(|_| !calls.is_empty() && self.text.is_empty()),
            reasoning_content: reasoning,
            tool_calls: (!calls.is_empty()).then(|| calls.iter().map(call).collect()),
            tool_call_id: self.call_id.as_ref().map(|text| id(text)),
            name: self.tool_name.as_ref().map(|text| guard.protect(text)),
            ..JinjaMessage::new(name, content)
        }
    }
}
