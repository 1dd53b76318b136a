//! Who may ask: keys, and, against web pages that reach for a server on loopback (DNS rebinding and
//! requests of foreign pages), the headers `Host` and `Origin`.

use super::fields::unread;
use super::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

/// The path that needs no key: whether the server is there.
const PUBLIC: &str = "/health";

#[derive(Debug, Default)]
pub struct Access {
    /// Digests of the keys; with none, none is asked for.
    keys: Vec<[u8; 32]>,
    /// Whether the server listens on a loopback address.
    loopback: bool,
    /// Origins of web pages that may ask; `*` is any.
    origins: Vec<String>,
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Whether a name is this machine's own.
fn is_own(host: &str) -> bool {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The name in `NAME`, `NAME:PORT` or `[ADDRESS]:PORT`.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && (name.starts_with('[') || !name.contains(':')) => name,
        _ => authority,
    }
}

impl Access {
    pub fn new(keys: &[String], loopback: bool, origins: Vec<String>) -> Self {
        Self { keys: keys.iter().map(|key| digest(key.as_bytes())).collect(), loopback, origins }
    }

    /// Whether a page of this origin may ask. Programs have schemes of their own, which no page on
    /// the web has.
    pub fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if self.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
            return true;
        }
        match origin.split_once("://") {
            Some(("http" | "https", authority)) => is_own(without_port(authority)),
            Some(_) => true,
            // `null`: a page that hides where it is from.
            None => false,
        }
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let named = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(uri.host());
        match named {
            Some(host) if self.loopback && !is_own(without_port(host)) => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "the Host header names another machine than this one; ask http://localhost or http://127.0.0.1",
            )
            .code("wrong_host")),
            _ => Ok(()),
        }
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match headers.get(header::ORIGIN) {
            Some(origin) if !self.allows_origin(origin) => {
                let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
                let message = format!("pages of {origin} may not ask; --cors {origin} allows it");
                Err(Refusal::new(StatusCode::FORBIDDEN, message).code("wrong_origin"))
            }
            _ => Ok(()),
        }
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
            let (scheme, key) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
        });
        let given = bearer.or(headers.get("x-api-key").map(HeaderValue::as_bytes));
        let refused = |message| Err(Refusal::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"));
        let Some(given) = given.map(digest) else {
            return refused("no key was given; send it as Authorization: Bearer KEY or x-api-key: KEY");
        };
        // The time depends neither on which key matches nor on where one differs.
        let found = self.keys.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(&given));
        if found.into() { Ok(()) } else { refused("the key is not one of this server's") }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        self.check_host(request.uri(), request.headers())?;
        self.check_origin(request.headers())?;
        if request.uri().path() == PUBLIC { Ok(()) } else { self.check_key(request.headers()) }
    }
}

/// Refuses requests that may not be made.
pub async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    match access.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            unread(request).await;
            refusal.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn status(access: &Access, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let checked = access.check(&request.body(Body::empty()).unwrap());
        checked.map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn a_name_of_another_machine_is_refused_on_loopback() {
        let access = Access::new(&[], true, Vec::new());
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.9.9.9", "[::1]", "[::1]:8080", "::1"] {
            assert_eq!(status(&access, "/v1/models", &[("host", host)]), 200, "{host}");
        }
        for host in
            ["evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]:80"]
        {
            assert_eq!(status(&access, "/v1/models", &[("host", host)]), 403, "{host}");
        }
        assert_eq!(status(&Access::default(), "/v1/models", &[("host", "box.example")]), 200);
    }

    #[test]
    fn pages_of_the_web_are_refused_unless_they_are_named() {
        let access = Access::new(&[], true, vec!["https://chat.example".to_owned()]);
        for origin in ["http://localhost:3000", "http://127.0.0.1", "https://chat.example", "app://obsidian.md"] {
            assert_eq!(status(&access, "/v1/models", &[("origin", origin)]), 200, "{origin}");
        }
        for origin in ["https://evil.example", "null", "https://chat.example.evil", "http://localhost.evil"] {
            assert_eq!(status(&access, "/v1/models", &[("origin", origin)]), 403, "{origin}");
        }
        let any = Access::new(&[], true, vec!["*".to_owned()]);
        assert_eq!(status(&any, "/v1/models", &[("origin", "https://evil.example")]), 200);
    }

    #[test]
    fn a_key_is_asked_for_everywhere_but_where_health_is_asked() {
        let access = Access::new(&["secret".to_owned(), "other".to_owned()], false, Vec::new());
        let with = |name, value| status(&access, "/v1/models", &[(name, value)]);
        assert_eq!((with("authorization", "Bearer secret"), with("authorization", "bearer  other ")), (200, 200));
        assert_eq!(with("x-api-key", "other"), 200);
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "Basic secret", "secret", ""] {
            assert_eq!(with("authorization", wrong), 401, "{wrong}");
        }
        assert_eq!((status(&access, "/v1/models", &[]), status(&access, "/health", &[])), (401, 200));
    }
}
