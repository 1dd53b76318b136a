//! Reads the tools of a request in Anthropic's form.

use crate::serve::fields::Fields;
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use crate::serve::tools::{Choice, Offered};
use serde_json::{Value, json};

/// Takes `tools` and `tool_choice`.
pub fn take(fields: &mut Fields, shared: &Shared) -> Result<Option<Offered>, Refusal> {
    let mut given = Vec::new();
    for (index, value) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
        let at = format!("tools[{index}]");
        let tool = tool(&at, value)?;
        given.push((at, tool));
    }
    let mut choice = fields.object("tool_choice")?.unwrap_or_default();
    let within = |refusal: Refusal| refusal.within("tool_choice");
    let parallel = !choice.bool("disable_parallel_tool_use").map_err(within)?.unwrap_or(false);
    let name = choice.text("name").map_err(within)?;
    let choice = match (choice.text("type").map_err(within)?.as_deref(), name) {
        (None | Some("auto"), _) => Choice::Auto,
        (Some("none"), _) => Choice::None,
        (Some("any"), _) => Choice::Required,
        (Some("tool"), Some(name)) => Choice::Named(vec![name]),
        (Some("tool"), None) => return Err(Refusal::field("tool_choice.name", "tool_choice has no name")),
        (Some(other), _) => {
            let message = format!("tool_choice.type is {other:?}, expected auto, any, tool or none");
            return Err(Refusal::field("tool_choice.type", message));
        }
    };
    Offered::new(given, "input_schema", &choice, parallel, shared)
}

/// Converts a tool to OpenAI's form.
fn tool(at: &str, value: Value) -> Result<Value, Refusal> {
    let mut fields = Fields::at(at, value)?;
    let within = |refusal: Refusal| refusal.within(at);
    if let Some(kind) = fields.text("type").map_err(within)?.filter(|kind| kind != "custom") {
        let message = format!("{at}: tools of the type {kind:?} are not supported by this server");
        return Err(Refusal::unsupported(format!("{at}.type"), message));
    }
    let mut function = json!({ "name": fields.text("name").map_err(within)?.unwrap_or_default() });
    if let Some(description) = fields.text("description").map_err(within)? {
        function["description"] = json!(description);
    }
    if let Some(schema) = fields.take("input_schema") {
        function["parameters"] = schema;
    }
    Ok(json!({ "type": "function", "function": function }))
}
