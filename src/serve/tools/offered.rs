//! Tools, `tool_choice` and calls of a request, in the form of OpenAI's chat completions.

use super::format::{Format, Tool};
use super::known::format_of;
use super::parser::Parser;
use super::schema::of_arguments;
use crate::chat::template::GivenCall;
use crate::protocol::Grammar;
use crate::serve::fields::{Fields, kind};
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum tools of a request.
const MOST: usize = 512;
/// Maximum bytes of a tool's name.
const NAME_BYTES: usize = 256;

/// The tools of a request.
#[derive(Clone)]
pub struct Offered {
    pub format: &'static dyn Format,
    pub tools: Arc<[Tool]>,
    /// The array for the template, in OpenAI's form.
    pub json: Value,
    /// Whether an answer may have several calls.
    pub parallel: bool,
    /// Grammar of the answer where `tool_choice` demands a call.
    pub forced: Option<Grammar>,
}

/// A `tool_choice`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The model decides.
    Auto,
    /// The tools are left out of the prompt.
    None,
    /// The answer must call a tool.
    Required,
    /// The answer must call one of these tools.
    Named(Vec<String>),
}

impl Offered {
    /// Creates the parser of one answer. `streams`: a call is heard from its name on.
    pub fn parser(&self, streams: bool) -> Parser {
        Parser::new(self.format, Arc::clone(&self.tools), streams)
    }

    /// Checks tools in OpenAI's form, each with its place in the request, where its schema is at
    /// `schema_at`. Returns `None` if there are none or `choice` leaves them out. Fails for a model
    /// whose template takes none.
    pub fn new(
        given: Vec<(String, Value)>,
        schema_at: &str,
        choice: &Choice,
        parallel: bool,
        shared: &Shared,
    ) -> Result<Option<Self>, Refusal> {
        match choice {
            Choice::Auto if given.is_empty() => return Ok(None),
            Choice::None => return Ok(None),
            _ if given.is_empty() => {
                return Err(Refusal::field("tool_choice", "tool_choice demands a call, and there are no tools"));
            }
            _ => {}
        }
        if given.len() > MOST {
            let message = format!("there are {} tools, and there may be {MOST}", given.len());
            return Err(Refusal::field("tools", message));
        }
        let format = format_of(&shared.info.template).ok_or_else(|| {
            let message = format!(
                "{} has no tools: its template takes none, or writes calls in an unknown format; leave out tools",
                shared.info.identity.name
            );
            Refusal::unsupported("tools", message)
        })?;
        let mut fields = Vec::with_capacity(given.len());
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
            let field = format!("{at}.{schema_at}");
            if !(function["parameters"].is_object() || function["parameters"].is_null()) {
                let message = format!("{field} is {}, expected a JSON schema", kind(&function["parameters"]));
                return Err(Refusal::field(field, message));
            }
            fields.push(field);
            tools.push(Tool { name: name.to_owned(), parameters: function["parameters"].clone() });
            json.push(tool);
        }
        shared.check_length("tools", json.iter().map(|tool| tool.to_string().len()).sum())?;
        let forced = forced(format, &tools, &fields, choice, shared)?;
        Ok(Some(Self { format, tools: tools.into(), json: Value::Array(json), parallel, forced }))
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
    let choice = read_choice(fields.take("tool_choice"))?;
    Offered::new(given, "function.parameters", &choice, parallel, shared)
}

/// Reads a `tool_choice` in OpenAI's forms.
pub fn read_choice(given: Option<Value>) -> Result<Choice, Refusal> {
    let wrong = || Refusal::field("tool_choice", "tool_choice is none of auto, none, required or a function");
    let Some(given) = given else { return Ok(Choice::Auto) };
    match given.as_str() {
        Some("auto") => return Ok(Choice::Auto),
        Some("none") => return Ok(Choice::None),
        Some("required" | "any") => return Ok(Choice::Required),
        Some(_) => return Err(wrong()),
        None => {}
    }
    let name = |of: &Value| of["function"]["name"].as_str().or(of["name"].as_str()).map(str::to_owned);
    match given["type"].as_str() {
        Some("function") => name(&given).map(|name| Choice::Named(vec![name])).ok_or_else(wrong),
        Some("allowed_tools") => {
            let allowed = if given["allowed_tools"].is_object() { &given["allowed_tools"] } else { &given };
            let names = allowed["tools"].as_array().map(|all| all.iter().filter_map(name).collect::<Vec<_>>());
            match (allowed["mode"].as_str(), names) {
                (Some("required"), Some(names)) if !names.is_empty() => Ok(Choice::Named(names)),
                // With `auto` there is no grammar that could restrict the names.
                (_, Some(_)) => Err(Refusal::unsupported("tool_choice", "allowed_tools need the mode required here")),
                _ => Err(wrong()),
            }
        }
        _ => Err(wrong()),
    }
}

/// Returns the grammar of an answer that must call a tool. `fields`: those of the tools' schemas.
fn forced(
    format: &'static dyn Format,
    tools: &[Tool],
    fields: &[String],
    choice: &Choice,
    shared: &Shared,
) -> Result<Option<Grammar>, Refusal> {
    let chosen: Vec<&Tool> = match choice {
        Choice::Auto | Choice::None => return Ok(None),
        Choice::Required => tools.iter().collect(),
        Choice::Named(names) => {
            let known = |name: &String| tools.iter().any(|tool| tool.name == *name);
            if let Some(name) = names.iter().find(|name| !known(name)) {
                let message = format!("tool_choice: there is no tool of the name {name:?}");
                return Err(Refusal::field("tool_choice", message));
            }
            tools.iter().filter(|tool| names.contains(&tool.name)).collect()
        }
    };
    let template = shared.info.template.source.as_deref().unwrap_or_default();
    let cannot = || Refusal::unsupported("tool_choice", "tool_choice: no call can be forced in this model's format");
    let parts = format.grammar(&chosen, template).ok_or_else(cannot)?;
    let is_chosen = |tool: &Tool| chosen.iter().any(|one| one.name == tool.name);
    let schemas = tools.iter().zip(fields).filter(|(tool, _)| is_chosen(tool));
    let schemas = schemas.map(|(tool, field)| (field.clone(), of_arguments(tool).to_string())).collect();
    Ok(Some(Grammar { parts, field: "tool_choice".to_owned(), schemas }))
}

/// Reads a call of an assistant's message. `at`: its place in the request, for errors.
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

/// Returns arguments for the template: the object that a text parses to, or else the text itself.
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
