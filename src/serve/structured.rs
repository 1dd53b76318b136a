//! Structured output: turns the schema of a request into a grammar.

use super::fields::Fields;
use super::refusal::Refusal;
use crate::protocol::{Grammar, GrammarPart};
use serde_json::{Value, json};

/// The schema of any object.
pub fn any_object() -> Value {
    json!({ "type": "object" })
}

/// Returns the grammar of JSON by a schema from the field `name`. Fails if the schema is not an
/// object.
pub fn by_schema(name: &str, schema: &Value) -> Result<Grammar, Refusal> {
    if !schema.is_object() {
        return Err(Refusal::field(name, format!("{name}: the schema is not an object")));
    }
    let parts = vec![GrammarPart::Json(schema.to_string())];
    Ok(Grammar { parts, field: name.to_owned(), schemas: Vec::new() })
}

/// Takes a format such as `{"type": "json_schema", "schema": {}}` from the field `name`. The schema
/// may be nested in a member `json_schema`.
pub fn take(name: &str, fields: &mut Fields) -> Result<Option<Grammar>, Refusal> {
    let Some(mut format) = fields.object(name.rsplit('.').next().unwrap_or(name))? else { return Ok(None) };
    let within = |refusal: Refusal| refusal.within(name);
    match format.text("type").map_err(within)?.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => by_schema(name, &any_object()).map(Some),
        Some("json_schema") => {
            let inner = format.object("json_schema").map_err(within)?;
            let schema = inner.unwrap_or(format).take("schema");
            let missing = || Refusal::field(format!("{name}.schema"), format!("{name} has no schema"));
            by_schema(name, &schema.ok_or_else(missing)?).map(Some)
        }
        Some(other) => {
            let message =
                format!("{name}: the type {other:?} is not supported (expected text, json_object or json_schema)");
            Err(Refusal::unsupported(format!("{name}.type"), message))
        }
        None => Err(Refusal::field(format!("{name}.type"), format!("{name} has no type"))),
    }
}
