//! JSON schemas of tools: the types by which a value written as text becomes JSON, and the schemas
//! of calls for grammars.

use super::format::Tool;
use serde_json::{Map, Value, json};

/// Maximum depth of alternatives and references that are followed.
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

/// Converts a parameter's value that the model wrote as text to JSON.
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
        // Where strings are allowed, any text is one.
        _ if allows("string") => string(),
        Ok(value) => value,
        Err(_) if allows("boolean") && trimmed.eq_ignore_ascii_case("true") => Value::Bool(true),
        Err(_) if allows("boolean") && trimmed.eq_ignore_ascii_case("false") => Value::Bool(false),
        Err(_) if !types.is_empty() && trimmed == "None" => Value::Null,
        Err(_) => string(),
    }
}

/// Returns a schema whose local references are prefixed by `at`, where it is moved to.
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

/// Returns the schema of a tool's arguments.
pub fn of_arguments(tool: &Tool) -> Value {
    if tool.parameters.is_object() { tool.parameters.clone() } else { json!({ "type": "object", "properties": {} }) }
}

/// Returns the schema of a call of one of these tools: an object with a name and arguments.
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

/// Returns the schema of an array of one such call.
pub fn of_list(tools: &[&Tool]) -> Value {
    let mut one = of_calls(tools, "arguments");
    let all = one["$defs"].take();
    json!({ "$defs": all, "type": "array", "minItems": 1, "maxItems": 1, "items": { "anyOf": one["anyOf"] } })
}

/// Whether a parameter may be a string, which is then written as it is, without quotes.
pub fn is_text(tool: &Tool, name: &str) -> bool {
    let mut types = Vec::new();
    types_of(&tool.parameters, &tool.parameters["properties"][name], DEPTH, &mut types);
    types.is_empty() || types.contains(&"string")
}

/// Returns the schema of one parameter, with the definitions that it may refer to.
pub fn within(tool: &Tool, schema: &Value) -> String {
    let mut schema = schema.clone();
    for name in ["$defs", "definitions"] {
        if let (Some(all), Some(members)) = (tool.parameters.get(name), schema.as_object_mut()) {
            members.insert(name.to_owned(), all.clone());
        }
    }
    schema.to_string()
}
