//! JSON schemas of tools: the types by which a value written as text becomes JSON, and the schemas
//! of calls for grammars.

use super::format::Tool;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Maximum depth of alternatives and references that are followed.
const DEPTH: usize = 8;

/// The names of the types that a schema allows.
struct Types<'a> {
    root: &'a Value,
    /// Schemas that were looked into: references may lead to one along many ways.
    seen: HashSet<*const Value>,
    names: HashSet<&'a str>,
}

impl<'a> Types<'a> {
    /// Those of a parameter.
    fn of(tool: &'a Tool, name: &str) -> HashSet<&'a str> {
        let mut types = Types { root: &tool.parameters, seen: HashSet::new(), names: HashSet::new() };
        types.add(&tool.parameters["properties"][name], DEPTH);
        types.names
    }

    fn add(&mut self, schema: &'a Value, depth: usize) {
        if depth == 0 || !self.seen.insert(schema) {
            return;
        }
        match &schema["type"] {
            Value::String(one) => self.names.extend([one.as_str()]),
            Value::Array(all) => self.names.extend(all.iter().filter_map(Value::as_str)),
            _ => {}
        }
        let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
        for value in values {
            self.names.insert(type_of(value));
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            schema[name].as_array().into_iter().flatten().for_each(|one| self.add(one, depth - 1));
        }
        let root = self.root;
        let target = schema["$ref"].as_str().and_then(|at| root.pointer(at.strip_prefix('#')?));
        target.into_iter().for_each(|one| self.add(one, depth - 1));
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Converts a parameter's value that the model wrote as text to JSON.
pub fn value(tool: Option<&Tool>, name: &str, text: &str) -> Value {
    let types = tool.map(|tool| Types::of(tool, name)).unwrap_or_default();
    let allows = |kind: &str| types.contains(kind);
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
    let types = Types::of(tool, name);
    types.is_empty() || types.contains("string")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_that_lead_to_each_other_are_looked_into_once() {
        let all = ["a", "b", "c"].map(|name| json!({ "$ref": format!("#/properties/{name}") }));
        let each = json!({ "anyOf": all.iter().cycle().take(3000).collect::<Vec<_>>() });
        let mut parameters = json!({ "properties": { "a": each, "b": each, "c": each } });
        let tool = |parameters: &Value| Tool { name: "f".into(), parameters: parameters.clone() };
        assert!(is_text(&tool(&parameters), "a"), "nothing says its type");
        parameters["properties"]["c"] = json!({ "type": ["integer", "null"] });
        assert!(!is_text(&tool(&parameters), "a"));
        assert_eq!(value(Some(&tool(&parameters)), "a", "7"), json!(7));
        parameters["properties"]["b"] = json!({ "enum": ["x"] });
        assert!(is_text(&tool(&parameters), "a"));
    }
}
