//! The types of a tool's parameters, by which the text of a value becomes JSON.

use super::format::Tool;
use serde_json::{Map, Value, json};

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

/// A schema in which references point below `at`.
fn moved(schema: &Value, at: &str) -> Value {
    match schema {
        Value::Array(all) => all.iter().map(|one| moved(one, at)).collect(),
        Value::Object(all) => {
            let member = |(name, value): (&String, &Value)| {
                let target = value.as_str().filter(|_| name == "$ref").and_then(|target| target.strip_prefix('#'));
                (name.clone(), target.map_or_else(|| moved(value, at), |path| json!(format!("{at}{path}"))))
            };
            Value::Object(all.iter().map(member).collect())
        }
        other => other.clone(),
    }
}

/// The schema of a tool's arguments.
pub fn of_arguments(tool: &Tool) -> Value {
    if tool.parameters.is_object() { tool.parameters.clone() } else { json!({ "type": "object", "properties": {} }) }
}

/// The schema of a call of one of these tools, as an object with a name and arguments.
pub fn of_calls(tools: &[&Tool], arguments: &str) -> Value {
    let (mut all, mut each) = (Map::new(), Vec::new());
    for (index, tool) in tools.iter().enumerate() {
        let (name, at) = (format!("tool{index}"), format!("#/$defs/tool{index}"));
        all.insert(name, moved(&of_arguments(tool), &at));
        each.push(json!({
            "type": "object",
            "properties": { "name": { "const": tool.name }, arguments: { "$ref": at } },
            "required": ["name", arguments],
            "additionalProperties": false,
        }));
    }
    json!({ "$defs": all, "anyOf": each })
}

/// The schema of a list of such calls.
pub fn of_list(tools: &[&Tool]) -> Value {
    let mut one = of_calls(tools, "arguments");
    let all = one["$defs"].take();
    json!({ "$defs": all, "type": "array", "minItems": 1, "maxItems": 1, "items": { "anyOf": one["anyOf"] } })
}

/// Whether the value of a parameter may be any text.
pub fn is_text(tool: &Tool, name: &str) -> bool {
    let mut types = Vec::new();
    types_of(&tool.parameters, &tool.parameters["properties"][name], DEPTH, &mut types);
    types.is_empty() || types.contains(&"string")
}

/// The schema of a parameter alone, with what it refers to.
pub fn within(tool: &Tool, schema: &Value) -> String {
    let mut schema = schema.clone();
    for name in ["$defs", "definitions"] {
        if let (Some(all), Some(members)) = (tool.parameters.get(name), schema.as_object_mut()) {
            members.insert(name.to_owned(), all.clone());
        }
    }
    schema.to_string()
}
