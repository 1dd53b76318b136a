//! The text of a web page that a person has named in a message. Beside the hub the only room that
//! opens connections, and only for such a page.
//!
//! Addresses are checked when they are connected to, at every redirect: a name that resolves to
//! this machine or to a local network is refused. The one exception is an address that the person
//! has typed as a number. Proxies are not used, because they would resolve names themselves.

mod address;
mod entities;
mod text;

use address::is_public;
use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::config::Config;
use ureq::http::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use ureq::http::{HeaderName, Response, Uri};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body, Error};

/// Largest page that is read.
const MAX_BYTES: usize = 4 << 20;
/// Largest text that is made of it.
pub const MAX_TEXT: usize = 256 << 10;
const MAX_REDIRECTS: usize = 8;
const CONNECT: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(20);
/// How long a page may take in all.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest URL.
const MAX_URL: usize = 8 << 10;

/// A page as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it was found, after redirects.
    pub url: String,
    pub title: String,
    pub text: String,
    /// The text is longer than [`MAX_TEXT`], and ends there.
    pub cut: bool,
}

/// Whether a word is the URL of a page.
pub fn is_url(word: &str) -> bool {
    let begins = |scheme: &str| word.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    ["http://", "https://"].into_iter().any(|scheme| begins(scheme) && word.len() > scheme.len())
}

/// Reads a page. The error is one line without the URL. `stop` ends it early.
pub fn fetch(url: &str, stop: &AtomicBool) -> Result<Page, String> {
    let mut uri = parsed(url)?;
    let typed = literal(&uri);
    let agent = agent(typed);
    let until = Instant::now() + LIMIT;
    for _ in 0..=MAX_REDIRECTS {
        let mut answer = agent.get(uri.clone()).header("accept", "text/html, text/*;q=0.9").call().map_err(said)?;
        if !answer.status().is_redirection() {
            return read(&uri, &mut answer, until, stop);
        }
        let to = header(&answer, LOCATION);
        let next = target(&uri, &to).ok_or("it redirects to no page")?;
        let next = parsed(&next).map_err(|why| format!("it redirects: {why}"))?;
        if uri.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
            return Err("it redirects to a page without encryption, which is refused".to_owned());
        }
        uri = next;
        if stop.load(Ordering::Relaxed) || Instant::now() > until {
            return Err("stopped".to_owned());
        }
    }
    Err("it redirects without end".to_owned())
}

/// A URL that may be asked for: http or https, a host, no user.
fn parsed(url: &str) -> Result<Uri, String> {
    let wrong = |why: &str| Err(why.to_owned());
    if url.len() > MAX_URL {
        return wrong("the URL is too long");
    }
    if !is_url(url) {
        return wrong("the URL is neither http nor https");
    }
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let url = format!("{}://{rest}", scheme.to_ascii_lowercase());
    // Characters that a URL writes as percent codes.
    let ascii: String = url
        .split('#')
        .next()
        .unwrap_or_default()
        .bytes()
        .map(|b| match b {
            b if b.is_ascii_graphic() => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect();
    let Ok(uri) = ascii.parse::<Uri>() else { return wrong("the URL is not valid") };
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            wrong("the URL names a user, which is refused")
        }
        (Some("http" | "https"), Some(authority)) if !authority.host().is_empty() => Ok(uri),
        _ => wrong("the URL is neither http nor https"),
    }
}

/// The address that a URL has in place of a name.
fn literal(uri: &Uri) -> Option<IpAddr> {
    uri.host()?.trim_matches(['[', ']']).parse().ok()
}

/// The URL that a redirect leads to.
fn target(from: &Uri, to: &str) -> Option<String> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    Some(match to {
        "" => return None,
        _ if to.split(['/', '?', '#']).next().is_some_and(|begin| begin.contains(':')) => to.to_owned(),
        _ if to.starts_with("//") => format!("{scheme}:{to}"),
        _ if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
        _ if to.starts_with('?') => format!("{scheme}://{authority}{}{to}", from.path()),
        _ => format!("{scheme}://{authority}{folder}/{to}"),
    })
}

fn agent(typed: Option<IpAddr>) -> Agent {
    let config = Agent::config_builder()
        .max_redirects(0)
        .http_status_as_error(false)
        .proxy(None)
        .timeout_global(Some(LIMIT))
        .timeout_resolve(Some(CONNECT))
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .user_agent(concat!("dmschat/", env!("CARGO_PKG_VERSION")));
    Agent::with_parts(config.build(), DefaultConnector::default(), Checked { typed, inner: DefaultResolver::default() })
}

/// Resolves names, and refuses addresses that are not public. What it returns is what is connected
/// to, so that no second look-up can differ.
#[derive(Debug)]
struct Checked {
    /// The address that the person has typed.
    typed: Option<IpAddr>,
    inner: DefaultResolver,
}

impl Resolver for Checked {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let is_typed = |address: IpAddr| self.typed == Some(address) && literal(uri) == Some(address);
        match found.iter().map(|socket| socket.ip()).find(|address| !is_public(*address) && !is_typed(*address)) {
            None => Ok(found),
            Some(address) => Err(Error::Io(io::Error::new(io::ErrorKind::PermissionDenied, refusal(uri, address)))),
        }
    }
}

fn refusal(uri: &Uri, address: IpAddr) -> String {
    let host = uri.host().unwrap_or_default();
    let where_ = if host.trim_matches(['[', ']']) == address.to_string() {
        host.to_owned()
    } else {
        format!("{host} is {address}, which")
    };
    format!("{where_} is not a public address; only an address that you type as a number is asked then")
}

fn header(answer: &Response<Body>, name: HeaderName) -> String {
    answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// Reads the body of an answer as text.
fn read(uri: &Uri, answer: &mut Response<Body>, until: Instant, stop: &AtomicBool) -> Result<Page, String> {
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("the server answers {}", status.as_u16()));
    }
    let encoding = header(answer, CONTENT_ENCODING);
    if !matches!(encoding.to_ascii_lowercase().as_str(), "" | "identity") {
        return Err("the server compresses it unasked".to_owned());
    }
    let kind = header(answer, CONTENT_TYPE).to_ascii_lowercase();
    if !is_text(&kind) {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        return Err(format!("it is {kind}, not text"));
    }
    let bytes = body(answer, until, stop)?;
    if bytes.contains(&0) {
        return Err("it is binary, not text".to_owned());
    }
    let source = decoded(bytes, &kind);
    let html = kind.contains("html") || (kind.is_empty() && source.trim_start().starts_with('<'));
    let (title, mut text) = match html {
        true => text::of_html(&source),
        false => (String::new(), plain(&source)),
    };
    if text.trim().is_empty() {
        return Err("it has no text (a script may write it in a browser)".to_owned());
    }
    let cut = text.len() > MAX_TEXT;
    if cut {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    Ok(Page { url: uri.to_string(), title, text, cut })
}

/// Whether a content type is text. A page without one is looked at.
fn is_text(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let others = ["json", "xml", "javascript", "yaml", "toml", "sh", "x-ndjson", "rtf"];
    let named = |kind: &str| others.iter().any(|end| kind.ends_with(end));
    kind.is_empty() || kind.starts_with("text/") || kind.strip_prefix("application/").is_some_and(named)
}

fn body(answer: &mut Response<Body>, until: Instant, stop: &AtomicBool) -> Result<Vec<u8>, String> {
    let mut reader = answer.body_mut().as_reader();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(format!("the connection was cut: {e}")),
        }
        if bytes.len() > MAX_BYTES {
            return Err(format!("it is larger than {} MiB, the limit for pages", MAX_BYTES >> 20));
        }
        if stop.load(Ordering::Relaxed) || Instant::now() > until {
            return Err("the server answers too slowly".to_owned());
        }
    }
}

/// Bytes as text: UTF-8, or Latin-1 if the type says so and it is not UTF-8.
fn decoded(bytes: Vec<u8>, kind: &str) -> String {
    let latin = kind.contains("8859-1") || kind.contains("windows-1252");
    match String::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text),
        Err(error) if latin => error.as_bytes().iter().map(|byte| entities::latin(*byte)).collect(),
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// Text without characters that control a terminal.
fn plain(source: &str) -> String {
    let text = source.replace("\r\n", "\n");
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// An error of the connection in one line.
fn said(error: Error) -> String {
    match error {
        Error::Io(e) if e.kind() == io::ErrorKind::PermissionDenied => e.to_string(),
        Error::HostNotFound => "the host is not found; check the name and your network".to_owned(),
        Error::Timeout(_) => "the server does not answer".to_owned(),
        Error::Io(e) if e.to_string().contains("lookup") => {
            "the host is not found; check the name and your network".to_owned()
        }
        other => format!("{other}"),
    }
}

#[cfg(test)]
mod tests;
