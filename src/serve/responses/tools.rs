//! Reads the tools of a request in the form of Responses.

use crate::serve::fields::Fields;
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use crate::serve::tools::{Offered, read_choice};
use serde_json::{Map, Value, json};

/// Takes `tools`, `tool_choice` and `parallel_tool_calls`, and copies them to the response.
pub fn take(
    fields: &mut Fields,
    shared: &Shared,
    response: &mut Map<String, Value>,
) -> Result<Option<Offered>, Refusal> {
    let given = fields.array("tools")?.unwrap_or_default();
    let mut tools = Vec::with_capacity(given.len());
    for (index, value) in given.iter().enumerate() {
        let at = format!("tools[{index}]");
        if value["type"] != "function" {
            let message = format!("{at} is not a function, and this server has no other tools");
            return Err(Refusal::unsupported(at, message));
        }
        let mut function = Map::new();
        for name in ["name", "description", "parameters"] {
            function
                .extend(value.get(name).filter(|value| !value.is_null()).map(|value| (name.to_owned(), value.clone())));
        }
        tools.push((at, json!({ "type": "function", "function": function })));
    }
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let choice = fields.take("tool_choice");
    response.insert("tools".to_owned(), json!(given));
    response.insert("parallel_tool_calls".to_owned(), json!(parallel));
    response.extend(choice.clone().map(|choice| ("tool_choice".to_owned(), choice)));
    Offered::new(tools, "parameters", &read_choice(choice)?, parallel, shared)
}
