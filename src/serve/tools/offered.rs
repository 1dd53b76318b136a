//! Tools and calls as OpenAI's chat completions have them in a request.

use super::format::{Format, Tool};
use super::known::format_of;
use super::parser::Parser;
use crate::chat::template::GivenCall;
use crate::serve::fields::{Fields, kind};
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use serde_json::{Value, json};
use std::sync::Arc;

/// Most tools of a request.
const MOST: usize = 512;
/// Longest name of a tool.
const NAME_BYTES: usize = 256;

/// The tools of a request.
#[derive(Clone)]
pub struct Offered {
    pub format: &'static dyn Format,
    pub tools: Arc<[Tool]>,
    /// As templates take them: OpenAI's form.
    pub json: Value,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

impl Offered {
    /// A parser of one answer.
    pub fn parser(&self) -> Parser {
        Parser::new(self.format, Arc::clone(&self.tools))
    }

    /// Of tools in OpenAI's form, each with its place in the request. `None` where there are none.
    /// Fails for a model whose template takes none.
    pub fn new(given: Vec<(String, Value)>, parallel: bool, shared: &Shared) -> Result<Option<Self>, Refusal> {
        if given.is_empty() {
            return Ok(None);
        }
        if given.len() > MOST {
            let message = format!("there are {} tools, and there may be {MOST}", given.len());
            return Err(Refusal::field("tools", message));
        }
        let format = format_of(&shared.info.template).ok_or_else(|| {
            let message = format!("the template of {} has no tools; leave out tools", shared.info.identity.name);
            Refusal::unsupported("tools", message)
        })?;
        let mut tools: Vec<Tool> = Vec::with_capacity(given.len());
        let mut json = Vec::with_capacity(given.len());
        for (at, tool) in given {
            let function = &tool["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if name.is_empty()
                || name.len() > NAME_BYTES
                || name.contains(|c: char| c.is_whitespace() || c.is_control())
            {
                let message = format!("{at}: its name has to be a word of 1 to {NAME_BYTES} bytes");
                return Err(Refusal::field(at, message));
            }
            if tools.iter().any(|known| known.name == name) {
                return Err(Refusal::field(&at, format!("{at}: there are two tools of the name {name:?}")));
            }
            if !(function["parameters"].is_object() || function["parameters"].is_null()) {
                let message =
                    format!("{at}: its parameters are {}, expected a JSON schema", kind(&function["parameters"]));
                return Err(Refusal::field(at, message));
            }
            tools.push(Tool { name: name.to_owned(), parameters: function["parameters"].clone() });
            json.push(tool);
        }
        shared.check_length("tools", json.iter().map(|tool| tool.to_string().len()).sum())?;
        Ok(Some(Self { format, tools: tools.into(), json: Value::Array(json), parallel }))
    }
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
pub fn read_tools(fields: &mut Fields, shared: &Shared) -> Result<Option<Offered>, Refusal> {
    let mut given = Vec::new();
    for (index, value) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
        let at = format!("tools[{index}]");
        if value["type"] != "function" || !value["function"].is_object() {
            let message = format!("{at} is not a function, and this server has no other tools");
            return Err(Refusal::unsupported(at, message));
        }
        given.push((at, value));
    }
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let has_tools = !given.is_empty();
    match fields.take("tool_choice") {
        None => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(Value::String(choice)) if choice == "none" => return Ok(None),
        Some(_) if !has_tools => {
            return Err(Refusal::field("tool_choice", "tool_choice demands a call, and there are no tools"));
        }
        Some(_) => return Err(required("tool_choice")),
    }
    Offered::new(given, parallel, shared)
}

/// A call cannot be demanded yet.
pub fn required(name: &str) -> Refusal {
    let message = format!("{name}: this server cannot force a call (expected auto or none)");
    Refusal::unsupported(name, message)
}

/// A call of an assistant's message that stands at `at`.
pub fn read_call(at: &str, value: Value) -> Result<GivenCall, Refusal> {
    let mut fields = Fields::at(at, value)?;
    let within = |refusal: Refusal| refusal.within(at);
    let kind = fields.text("type").map_err(within)?;
    if kind.as_deref().is_some_and(|kind| kind != "function") {
        let message = format!("{at}: calls of the type {:?} are not supported", kind.unwrap_or_default());
        return Err(Refusal::unsupported(format!("{at}.type"), message));
    }
    let id = fields.text("id").map_err(within)?.unwrap_or_default();
    let Some(mut function) = fields.object("function").map_err(within)? else {
        return Err(Refusal::field(format!("{at}.function"), format!("{at} has no function")));
    };
    let Some(name) = function.text("name").map_err(within)? else {
        return Err(Refusal::field(format!("{at}.function.name"), format!("{at} has no name")));
    };
    Ok(GivenCall { id, name, arguments: arguments(function.take("arguments")) })
}

/// Arguments as templates take them: the object that a text has, or the text.
pub fn arguments(given: Option<Value>) -> Value {
    match given {
        None => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(value @ Value::Object(_)) => value,
            _ => Value::String(text),
        },
        Some(value) => value,
    }
}
