//! Refusals: the status, and the error in OpenAI's form.

use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Seconds after which a client that was sent away may ask again.
const RETRY_AFTER_S: u64 = 5;

/// Most characters of a message. Messages name values of the request, which may be long.
const MOST_CHARS: usize = 2000;

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Further members of the error.
    pub more: Vec<(&'static str, Value)>,
}

impl Refusal {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MOST_CHARS) {
            message.truncate(end);
            message.push_str("...");
        }
        Self { status, message, param: None, code: None, more: Vec::new() }
    }

    /// A request that is wrong in itself.
    pub fn wrong(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field with a value that cannot be taken.
    pub fn field(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(name.into()), code: Some("invalid_value"), ..Self::wrong(message) }
    }

    /// A field with an effect that this server does not have.
    pub fn unsupported(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(name, message) }
    }

    /// The server failed, not the request.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The server takes no more requests for now.
    pub fn busy(message: impl Into<String>) -> Self {
        Self { code: Some("overloaded"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// A prompt of (at least) so many tokens, which the context does not hold.
    pub fn too_long(message: impl Into<String>, param: &str, tokens: usize, context: usize) -> Self {
        let more = vec![("n_prompt_tokens", json!(tokens)), ("n_ctx", json!(context))];
        Self { more, ..Self::field(param, message).code("context_length_exceeded") }
    }

    pub fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The same of a part of the body.
    pub fn within(self, at: &str) -> Self {
        let param = self.param.map(|param| format!("{at}.{param}"));
        Self { message: format!("{at}: {}", self.message), param, ..self }
    }

    /// The kind of error by OpenAI's names.
    pub fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body of the response; also an event of a stream that has begun.
    pub fn json(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        });
        for (name, value) in &self.more {
            error[*name] = value.clone();
        }
        json!({ "error": error })
    }
}

impl Refusal {
    /// A response with this status and body. It carries the refusal, for an API whose errors have
    /// another form.
    pub fn response(self, status: StatusCode, body: Value) -> Response {
        let mut response = (status, axum::Json(body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, body) = (self.status, self.json());
        self.response(status, body)
    }
}
