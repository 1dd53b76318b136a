//! HTTP requests to the hub and to where it redirects. Owns two rules: the token is sent to the
//! hub's origin only, and faults that a retry may mend are distinguished from those that it cannot.

use super::environment::{Hub, Token};
use super::progress::{HubError, Observer};
use std::io::{self, Read};
use std::time::{Duration, Instant};
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, LOCATION, RETRY_AFTER};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, Error};

const MAX_REDIRECTS: usize = 8;
const CONNECT: Duration = Duration::from_secs(20);
/// A connection without a byte for that long counts as cut.
const SILENCE: Duration = Duration::from_secs(30);
/// Limit for answers that are not files of the model.
const SMALL_BODY: Duration = Duration::from_secs(120);
/// Longest pause that a server may ask for, and longest pause between two tries.
const LONGEST_ASKED: Duration = Duration::from_secs(300);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Shorter pauses are not reported.
const REPORTED_PAUSE: Duration = Duration::from_secs(2);

impl Hub {
    /// The host of the hub, for messages.
    pub fn host(&self) -> String {
        Origin::of(&self.endpoint).map_or_else(|| self.endpoint.clone(), |o| o.host)
    }
}

/// Scheme, host and port of a URL: what a token is valid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    https: bool,
    pub host: String,
    port: u16,
}

impl Origin {
    /// `None` unless it is an http or https URL with a host.
    pub fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host().filter(|h| !h.is_empty())?.to_lowercase();
        Some(Self { https, host, port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }) })
    }
}

/// Why a request failed.
#[derive(Debug)]
pub enum Fault {
    /// The connection failed or was cut, or the server is busy: a retry may succeed, after the
    /// pause that the server asks for.
    Passing { why: String, asked: Option<Duration> },
    /// The hub refused, with a status and its error code (`RepoNotFound`, `GatedRepo`, ...).
    Refused { status: u16, word: String },
    /// A retry would fail in the same way.
    Lasting(String),
}

pub fn passing(why: impl Into<String>) -> Fault {
    Fault::Passing { why: why.into(), asked: None }
}

pub type Answer = Response<Body>;

pub struct Client {
    agent: Agent,
    hub: Origin,
    token: Option<Token>,
}

impl Client {
    pub fn new(hub: &Hub) -> Self {
        let config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_resolve(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .user_agent(concat!("dmschat/", env!("CARGO_PKG_VERSION")));
        let origin = Origin::of(&hub.endpoint).expect("checked when it was read");
        Self { agent: config.build().new_agent(), hub: origin, token: hub.token.clone() }
    }

    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// GET, following redirects. Returns successful answers only.
    pub fn get(&self, url: &str, headers: &[(&str, String)]) -> Result<Answer, Fault> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let (origin, answer) = self.once(&url, headers, false)?;
            if !answer.status().is_redirection() {
                return self.judged(&origin, answer);
            }
            let next = header(&answer, LOCATION.as_str()).unwrap_or_default();
            url = self.redirected(&url, &origin, next)?;
        }
        Err(Fault::Lasting(format!("{} redirects without end", self.hub.host)))
    }

    /// HEAD of a file. A redirect within the hub (a renamed model) is followed; one to another
    /// origin is the answer.
    pub fn head(&self, url: &str) -> Result<Answer, Fault> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let (origin, answer) = self.once(&url, &[], true)?;
            if answer.status().is_redirection() && header(&answer, "x-linked-etag").is_none() {
                let next = self.redirected(&url, &origin, header(&answer, LOCATION.as_str()).unwrap_or_default())?;
                if Origin::of(&next).as_ref() == Some(&self.hub) {
                    url = next;
                    continue;
                }
            }
            let fine = answer.status().is_redirection();
            return if fine { Ok(answer) } else { self.judged(&origin, answer) };
        }
        Err(Fault::Lasting(format!("{} redirects without end", self.hub.host)))
    }

    /// One request. Adds the token if the URL has the hub's origin.
    fn once(&self, url: &str, headers: &[(&str, String)], head: bool) -> Result<(Origin, Answer), Fault> {
        let bad = || Fault::Lasting(format!("{} redirects to an invalid URL", self.hub.host));
        let origin = Origin::of(url).ok_or_else(bad)?;
        let mut request = if head { self.agent.head(url) } else { self.agent.get(url) };
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(Token(token)) = self.token.as_ref().filter(|_| origin == self.hub) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let answer = request.call().map_err(|error| fault(&origin.host, error))?;
        Ok((origin, answer))
    }

    /// The target of a redirect.
    fn redirected(&self, from: &str, origin: &Origin, to: &str) -> Result<String, Fault> {
        let base: Uri = from.parse().map_err(|_| Fault::Lasting(format!("{}: invalid URL", origin.host)))?;
        let (scheme, authority) = (base.scheme_str().unwrap_or("https"), base.authority().map_or("", |a| a.as_str()));
        let next = match to {
            _ if to.contains("://") => to.to_owned(),
            _ if to.starts_with("//") => format!("{scheme}:{to}"),
            _ if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
            _ => {
                let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{scheme}://{authority}{folder}/{to}")
            }
        };
        match Origin::of(&next) {
            None => Err(Fault::Lasting(format!("{} redirects to an invalid URL", origin.host))),
            Some(next) if origin.https && !next.https => Err(Fault::Lasting(format!(
                "{} redirects to {} without encryption, which is refused",
                origin.host, next.host
            ))),
            Some(_) => Ok(next),
        }
    }

    fn judged(&self, origin: &Origin, answer: Answer) -> Result<Answer, Fault> {
        let status = answer.status().as_u16();
        let asked = header(&answer, RETRY_AFTER.as_str()).and_then(|s| s.trim().parse().ok()).map(Duration::from_secs);
        match status {
            200..=299 | 416 => Ok(answer),
            408 | 425 | 429 | 500..=599 => {
                let why = if status == 429 { "is asked too often".to_owned() } else { format!("answers {status}") };
                Err(Fault::Passing { why: format!("{} {why}", origin.host), asked })
            }
            // A signed URL may have expired; the hub gives a new one.
            _ if *origin != self.hub => Err(passing(format!("{} answers {status}", origin.host))),
            _ => {
                let word = header(&answer, "x-error-code").unwrap_or_default().to_owned();
                Err(Fault::Refused { status, word })
            }
        }
    }
}

/// A header as text.
pub fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// A header as a number.
pub fn number(answer: &Answer, name: &str) -> Option<u64> {
    header(answer, name)?.trim().parse().ok()
}

/// The length of the body, if it is stated.
pub fn length(answer: &Answer) -> Option<u64> {
    number(answer, CONTENT_LENGTH.as_str())
}

/// Reads a small body, within a time limit: a server could send one byte per second for ever.
pub fn body(answer: &mut Answer, host: &str, max_bytes: u64) -> Result<Vec<u8>, Fault> {
    let until = Instant::now() + SMALL_BODY;
    let mut reader = answer.body_mut().with_config().limit(max_bytes).reader();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(cut(host, e)),
        }
        if Instant::now() > until {
            return Err(Fault::Lasting(format!("{host} answers too slowly")));
        }
    }
}

/// Whether an error means that there is no connection, and not that one was cut.
fn no_way(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    let kinds = matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable);
    kinds || error.to_string().contains("lookup")
}

/// The fault that a connection error means. Never names the URL, which may contain a signature.
pub fn fault(host: &str, error: Error) -> Fault {
    match error {
        // Invalid certificates are reported in this way.
        Error::Io(e) if e.kind() == io::ErrorKind::InvalidData => {
            Fault::Lasting(format!("{host}: encrypted connection refused: {e}"))
        }
        Error::Io(e) if no_way(&e) => passing(format!("{host} cannot be reached: {}", plain(&e))),
        Error::Io(e) => passing(format!("{host}: {}", plain(&e))),
        Error::HostNotFound => passing(format!("{host} cannot be reached: host not found; check your network")),
        Error::ConnectionFailed => passing(format!("{host} cannot be reached")),
        Error::Timeout(_) => passing(format!("{host} does not answer")),
        Error::Protocol(_) => passing(format!("{host} does not answer in valid HTTP")),
        Error::Rustls(e) => Fault::Lasting(format!("{host}: encrypted connection refused: {e}")),
        Error::Tls(e) => Fault::Lasting(format!("{host}: encrypted connection refused: {e}")),
        Error::BadUri(_) => Fault::Lasting(format!("{host} redirects to an invalid URL")),
        other => Fault::Lasting(format!("{host}: {other}")),
    }
}

/// A short text for an I/O error of a connection.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
            "the connection was cut".to_owned()
        }
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => "there is no network".to_owned(),
        // Errors of the system's resolver have no kind of their own.
        _ if error.to_string().contains("lookup") => "host not found; check your network".to_owned(),
        _ => error.to_string(),
    }
}

/// The fault that an error while reading a body means: ureq wraps its own errors in I/O errors.
pub fn cut(host: &str, error: io::Error) -> Fault {
    match error.downcast::<Error>() {
        Ok(error) => fault(host, error),
        Err(error) => passing(format!("{host}: {}", plain(&error))),
    }
}

/// Counts attempts and waits between them.
pub struct Retries {
    tries: u32,
    first: Duration,
    failed: u32,
}

impl Retries {
    pub fn new(hub: &Hub, tries: u32) -> Self {
        Self { tries, first: hub.pause, failed: 0 }
    }

    /// Resets the count, after bytes were received.
    pub fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next attempt, or fails after the last.
    pub fn wait(
        &mut self,
        why: &str,
        asked: Option<Duration>,
        observer: &mut (impl Observer + ?Sized),
    ) -> Result<(), HubError> {
        self.failed += 1;
        if self.failed >= self.tries {
            return Err(HubError::Failed(format!("{why} (tried {} times)", self.failed)));
        }
        if let Some(asked) = asked.filter(|a| *a > LONGEST_ASKED) {
            return Err(HubError::Failed(format!("{why}, and asks to come back in {} s", asked.as_secs())));
        }
        let pause = self.first.saturating_mul(1 << (self.failed - 1).min(10)).min(LONGEST_PAUSE);
        let pause = asked.unwrap_or(pause);
        if pause >= REPORTED_PAUSE {
            observer.notice(&format!("{why}; trying again in {} s", pause.as_secs()));
        }
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            pause_unless_stopped(left, observer)?;
        }
        Ok(())
    }
}

/// Sleeps briefly, at most `longest`.
pub fn pause_unless_stopped(longest: Duration, observer: &(impl Observer + ?Sized)) -> Result<(), HubError> {
    if observer.stopped() {
        return Err(HubError::Stopped);
    }
    std::thread::sleep(longest.min(Duration::from_millis(100)));
    Ok(())
}
