//! Requests to a server.

use super::served;
use crate::protocol::ModelInfo;
use crate::unicode::one_line;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;
use ureq::http::Response;
use ureq::{Agent, Body, Error, RequestBuilder};

const CONNECT: Duration = Duration::from_secs(15);
/// How long a server may say nothing before the head of its answer, and in one that is not
/// streamed.
const PATIENCE: Duration = Duration::from_secs(600);
/// Longest answer that is not streamed, and longest line of one that is.
const MAX_BYTES: u64 = 8 << 20;

/// Where a server is, and which of its models answers.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Such as `http://127.0.0.1:8080/v1`; the `/v1` may be left out.
    pub url: String,
    /// `None`: the first model that it lists.
    pub model: Option<String>,
    /// Sent as `Authorization: Bearer KEY`.
    pub key: Option<String>,
}

pub struct Server {
    agent: Agent,
    /// With `/v1`, without a slash behind it.
    base: String,
    key: Option<String>,
    model: String,
}

impl Server {
    /// Asks which models the server has. The error is one line.
    pub fn connect(remote: &Remote) -> Result<(Self, ModelInfo), String> {
        let base = base(&remote.url)?;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(PATIENCE))
            .build()
            .new_agent();
        let mut server = Self { agent, base, key: remote.key.clone(), model: String::new() };
        let list = server.get("/models").map_err(|why| format!("{}: {why}", server.base))?;
        let entry = served::chosen(&list, remote.model.as_deref()).map_err(|why| format!("{}: {why}", server.base))?;
        server.model = entry["id"].as_str().unwrap_or_default().to_owned();
        // A server without this endpoint has said in its list what is known.
        let props = server.get_at(&server.root(), "/props").unwrap_or_default();
        let info = served::info(&entry, &props, server.name());
        Ok((server, info))
    }

    /// Its address, for messages.
    pub fn name(&self) -> &str {
        &self.base
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    /// Which tokens the cache held at the end of this answer. The error is one line.
    pub fn memory(&self, answer: &str) -> Result<Value, String> {
        self.get(&format!("/dmschat/memory/{answer}"))
    }

    /// The address without `/v1`.
    fn root(&self) -> String {
        self.base.strip_suffix("/v1").unwrap_or(&self.base).to_owned()
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        self.get_at(&self.base, path)
    }

    fn get_at(&self, base: &str, path: &str) -> Result<Value, String> {
        json_of(self.with_key(self.agent.get(format!("{base}{path}"))).call().map_err(said)?)
    }

    fn post(&self, url: &str, body: &Value) -> Result<Response<Body>, String> {
        let request = self.agent.post(url).header("content-type", "application/json");
        self.with_key(request).send(body.to_string()).map_err(said)
    }

    fn with_key<T>(&self, request: RequestBuilder<T>) -> RequestBuilder<T> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Number of tokens of a text, if the server counts them.
    pub fn count_tokens(&self, text: &str) -> Option<usize> {
        let body = json!({ "model": self.model, "content": text, "prompt": text });
        let answer = json_of(self.post(&format!("{}/tokenize", self.root()), &body).ok()?).ok()?;
        answer["tokens"].as_array().map(Vec::len).or_else(|| usize::try_from(answer["count"].as_u64()?).ok())
    }

    /// Asks, and calls `each` with the objects of the answer's stream until it returns false. The
    /// error is one line.
    pub fn stream(&self, body: &Value, mut each: impl FnMut(&Value) -> bool) -> Result<(), String> {
        let answer = self.post(&format!("{}/chat/completions", self.base), body)?;
        if !answer.status().is_success() {
            return json_of(answer).map(drop);
        }
        let mut lines = BufReader::new(answer.into_body().into_reader());
        let mut line = String::new();
        loop {
            line.clear();
            let n =
                (&mut lines).take(MAX_BYTES).read_line(&mut line).map_err(|why| format!("the line broke: {why}"))?;
            if n == 0 {
                return Err("the answer broke off".to_owned());
            }
            if n as u64 == MAX_BYTES {
                return Err("a line of the answer is too long".to_owned());
            }
            // Others are comments, which keep the line open, and names of events.
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                return Ok(());
            }
            let chunk: Value = serde_json::from_str(data).map_err(|why| format!("a chunk is not JSON: {why}"))?;
            if let Some(why) = refusal(&chunk) {
                return Err(why);
            }
            if !each(&chunk) {
                return Ok(());
            }
        }
    }
}

/// The address of an API: http or https, with `/v1` unless it has a path of its own.
fn base(url: &str) -> Result<String, String> {
    let url = url.trim_end_matches('/');
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| format!("{url:?} is no address of a server, such as http://127.0.0.1:8080/v1"))?;
    Ok(if host.contains('/') { url.to_owned() } else { format!("{url}/v1") })
}

/// What an answer's error says in one line, whatever the dialect.
fn refusal(answer: &Value) -> Option<String> {
    let error = answer.get("error").filter(|error| !error.is_null())?;
    let message = error["message"].as_str().or_else(|| error.as_str());
    Some(one_line(&message.map_or_else(|| error.to_string(), str::to_owned)))
}

fn json_of(answer: Response<Body>) -> Result<Value, String> {
    let status = answer.status();
    let mut text = Vec::new();
    let read = answer.into_body().into_reader().take(MAX_BYTES).read_to_end(&mut text);
    read.map_err(|why| format!("the answer broke off: {why}"))?;
    let value: Option<Value> = serde_json::from_slice(&text).ok();
    match value {
        Some(value) if status.is_success() => Ok(value),
        Some(value) => Err(refusal(&value).unwrap_or_else(|| format!("status {status}"))),
        None if status.is_success() => Err("the answer is not JSON; is it the address of an API?".to_owned()),
        None => Err(format!("status {status}")),
    }
}

fn said(error: Error) -> String {
    match error {
        Error::ConnectionFailed | Error::Io(_) | Error::HostNotFound => format!("no server answers there ({error})"),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_their_path_and_others_are_refused() {
        for (url, wanted) in [
            ("http://localhost:8080", "http://localhost:8080/v1"),
            ("http://localhost:8080/", "http://localhost:8080/v1"),
            ("https://a.example/v1/", "https://a.example/v1"),
            ("https://a.example/api/openai", "https://a.example/api/openai"),
        ] {
            assert_eq!(base(url).as_deref(), Ok(wanted));
        }
        for url in ["localhost:8080", "http://", "ftp://a.example"] {
            assert!(base(url).is_err(), "{url}");
        }
    }

    #[test]
    fn errors_are_read_in_every_form() {
        assert_eq!(refusal(&json!({ "error": { "message": "full", "type": "x" } })).as_deref(), Some("full"));
        assert_eq!(refusal(&json!({ "error": "full\nof\r\n it" })).as_deref(), Some("full of it"));
        assert_eq!(refusal(&json!({ "error": null, "choices": [] })), None);
    }
}
