//! The types of a tool's parameters, by which the text of a value becomes JSON.

use super::format::Tool;
use serde_json::Value;

/// Deepest schema that is looked into.
const DEPTH: usize = 8;

/// Adds the names of the types that a schema allows.
fn types_of<'a>(root: &'a Value, schema: &'a Value, depth: usize, out: &mut Vec<&'a str>) {
    if depth == 0 {
        return;
    }
    match &schema["type"] {
        Value::String(one) => out.push(one),
        Value::Array(all) => out.extend(all.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for value in schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")) {
        out.push(match value {
            Value::String(_) => "string",
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        });
    }
    for name in ["anyOf", "oneOf", "allOf"] {
        schema[name].as_array().into_iter().flatten().for_each(|one| types_of(root, one, depth - 1, out));
    }
    let target = schema["$ref"].as_str().and_then(|at| root.pointer(at.strip_prefix('#')?));
    target.into_iter().for_each(|one| types_of(root, one, depth - 1, out));
}

/// The JSON of a parameter's value that a model has written as text.
pub fn value(tool: Option<&Tool>, name: &str, text: &str) -> Value {
    let mut types = Vec::new();
    if let Some(tool) = tool {
        types_of(&tool.parameters, &tool.parameters["properties"][name], DEPTH, &mut types);
    }
    let allows = |kind: &str| types.contains(&kind);
    let string = || Value::String(text.to_owned());
    let trimmed = text.trim();
    match serde_json::from_str::<Value>(trimmed) {
        Ok(Value::Null) if allows("null") || !allows("string") => Value::Null,
        // Where a text is allowed, everything is one.
        _ if allows("string") => string(),
        Ok(value) => value,
        Err(_) if allows("boolean") && trimmed.eq_ignore_ascii_case("true") => Value::Bool(true),
        Err(_) if allows("boolean") && trimmed.eq_ignore_ascii_case("false") => Value::Bool(false),
        Err(_) if !types.is_empty() && trimmed == "None" => Value::Null,
        Err(_) => string(),
    }
}
