//! The body of a request: read within bounds, and its fields taken one by one. `null` is a field
//! that is not there, and a field that nobody takes passes.

use super::refusal::Refusal;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use serde_json::{Map, Value};
use std::time::Duration;

/// Most bytes of a body: more than the text of any context.
const MAX_BYTES: usize = 32 << 20;
/// Longest time without a byte of a body, and longest time for all of it.
const IDLE: Duration = Duration::from_secs(10);
const WHOLE: Duration = Duration::from_secs(120);

/// Most bytes, and longest time, of a body that nobody reads.
const MOST_UNREAD: usize = 4 << 20;
const UNREAD: Duration = Duration::from_secs(5);

/// The fields of a JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Map<String, Value>);

/// Reads the body of a request as a JSON object.
pub async fn read(request: Request) -> Result<Fields, Refusal> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > MAX_BYTES) {
        return Err(too_long());
    }
    let late = || Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body of the request did not arrive in time");
    let bytes = tokio::time::timeout(WHOLE, bytes(request.into_body(), late)).await.map_err(|_| late())??;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(Fields(fields)),
        Ok(_) => Err(Refusal::wrong("the body is JSON, but not an object")),
        Err(error) => Err(Refusal::wrong(format!("the body is not JSON: {error}"))),
    }
}

fn too_long() -> Refusal {
    let message = format!("the body has more than {} MiB", MAX_BYTES >> 20);
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

async fn bytes(body: Body, late: impl Fn() -> Refusal) -> Result<Vec<u8>, Refusal> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(part) = tokio::time::timeout(IDLE, stream.next()).await.map_err(|_| late())? {
        let part = part.map_err(|error| Refusal::wrong(format!("the body cannot be read: {error}")))?;
        if bytes.len() + part.len() > MAX_BYTES {
            return Err(too_long());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// Reads what a client still sends of a request that is refused whatever its body has, and forgets
/// it. A connection is closed behind an unread body, and the client would find that instead of the
/// answer.
pub async fn unread(request: Request) {
    let mut stream = request.into_body().into_data_stream();
    let mut left = MOST_UNREAD;
    let all = async {
        while let Some(Ok(part)) = stream.next().await
            && part.len() <= left
        {
            left -= part.len();
        }
    };
    // Whoever sends slowly finds the connection closed.
    let _ = tokio::time::timeout(UNREAD, all).await;
}

/// The kind of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A number of the field `name` that is at least 1.
pub fn from_one(name: &str, n: i64) -> Result<usize, Refusal> {
    let wrong = || Refusal::field(name, format!("{name} is {n}, expected a whole number from 1"));
    usize::try_from(n).ok().filter(|n| *n >= 1).ok_or_else(wrong)
}

fn wrong_kind(name: &str, value: &Value, wanted: &str) -> Refusal {
    Refusal::field(name, format!("{name} is {}, expected {wanted}", kind(value)))
}

impl Fields {
    /// The fields of a value that stands at `at`, which has to be an object.
    pub fn at(at: &str, value: Value) -> Result<Self, Refusal> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            other => Err(wrong_kind(at, &other, "an object")),
        }
    }

    /// The fields that are there.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().filter(|(_, value)| !value.is_null())
    }

    /// Names of the fields that were not taken.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    fn taken<T>(&mut self, name: &str, wanted: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong_kind(name, &value, wanted))
    }

    pub fn bool(&mut self, name: &str) -> Result<Option<bool>, Refusal> {
        self.taken(name, "true or false", Value::as_bool)
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        self.taken(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub fn number(&mut self, name: &str) -> Result<Option<f64>, Refusal> {
        self.taken(name, "a number", Value::as_f64)
    }

    /// A whole number.
    pub fn whole(&mut self, name: &str) -> Result<Option<i64>, Refusal> {
        let whole = |value: &Value| {
            let float = value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15);
            value.as_i64().or(float.map(|x| x as i64))
        };
        self.taken(name, "a whole number", whole)
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, Refusal> {
        self.taken(name, "an object", |value| value.as_object().cloned().map(Fields))
    }

    pub fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(value) => Err(wrong_kind(name, &value, "an array")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn a_body_that_is_no_object_is_refused_with_its_status() {
        async fn status(body: Body) -> u16 {
            read(Request::new(body)).await.map_or_else(|refusal| refusal.status.as_u16(), |_| 200)
        }
        assert_eq!(status("{}".into()).await, 200);
        for wrong in ["", "[]", "{", "7", "{\"a\":1}x", "\u{feff}{}"] {
            assert_eq!(status(wrong.into()).await, 400, "{wrong:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(status(format!("{{\"a\":{deep}").into()).await, 400);
        assert_eq!(status(vec![b' '; MAX_BYTES + 1].into()).await, 413);
    }

    #[test]
    fn fields_have_their_kind_and_null_is_none() {
        let Value::Object(map) = json!({ "a": null, "n": 3.0, "f": 1.5, "s": "x", "b": "true" }) else { panic!() };
        let mut fields = Fields(map);
        assert_eq!((fields.bool("a"), fields.text("none")), (Ok(None), Ok(None)));
        assert_eq!((fields.whole("n"), fields.text("s")), (Ok(Some(3)), Ok(Some("x".to_owned()))));
        let refused = fields.whole("f").unwrap_err();
        assert_eq!(
            (refused.param.as_deref(), &*refused.message),
            (Some("f"), "f is a number, expected a whole number")
        );
        assert!(fields.bool("b").is_err());
    }
}
