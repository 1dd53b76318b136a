//! Parses addresses of the hub's pages as names of models: people copy them from a browser, or from
//! another program's command line.

use super::{HubModel, MAIN, is_plain, is_revision};
use std::borrow::Cow;

/// Hosts of the hub's pages.
const HOSTS: [&str; 4] = ["huggingface.co", "www.huggingface.co", "hf.co", "hf-mirror.com"];

/// The name that an address stands for: `ORG/NAME[:GGUF][@REVISION]`. Any other text is returned
/// unchanged. `endpoint` is the hub's address in the settings.
pub fn short<'a>(text: &'a str, endpoint: Option<&str>) -> Cow<'a, str> {
    let Some(path) = path(text, endpoint) else { return Cow::Borrowed(text) };
    let path = path.split(['?', '#']).next().unwrap_or(path).trim_matches('/');
    let path = path.strip_prefix("models/").unwrap_or(path);
    let mut parts = path.splitn(5, '/');
    let (Some(org), Some(name)) = (parts.next(), parts.next()) else { return Cow::Borrowed(text) };
    let mut out = format!("{org}/{name}");
    let [kind, revision, file] = [parts.next(), parts.next(), parts.next()];
    let of_files = matches!(kind, Some("tree" | "blob" | "resolve" | "raw"));
    if let Some(file) = file.and_then(|file| file.strip_suffix(".gguf")).filter(|_| of_files && !out.contains(':')) {
        out = format!("{out}:{file}");
    }
    if let Some(revision) = revision.filter(|revision| of_files && *revision != MAIN && !out.contains('@')) {
        out = format!("{out}@{revision}");
    }
    Cow::Owned(out)
}

/// Returns the part of a hub address after the host.
fn path<'a>(text: &'a str, endpoint: Option<&str>) -> Option<&'a str> {
    if let Some(path) = text.strip_prefix("hf://") {
        return Some(path);
    }
    let below = |host: &str| text.strip_prefix(host)?.strip_prefix('/');
    if let Some(path) = endpoint.and_then(below) {
        return Some(path);
    }
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let (host, path) = rest.split_once('/')?;
    let known = HOSTS.iter().any(|known| host.eq_ignore_ascii_case(known));
    (known && ["", "http", "https"].contains(&scheme)).then_some(path)
}

impl HubModel {
    /// Parses `ORG/NAME[:GGUF][@REVISION]`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision.to_owned())),
            None => (text, None),
        };
        let (id, gguf) = match name.split_once(':') {
            Some((id, gguf)) => (id, Some(gguf.to_owned())),
            None => (name, None),
        };
        let sound = is_hub_id(id)
            && revision.as_deref().is_none_or(is_revision)
            && gguf.as_deref().is_none_or(|end| end.is_empty() || is_revision(end));
        sound.then(|| Self { id: id.to_owned(), gguf, revision })
    }
}

pub fn is_hub_id(text: &str) -> bool {
    text.len() <= 200 && text.split_once('/').is_some_and(|(org, name)| is_part(org) && is_part(name))
}

fn is_part(text: &str) -> bool {
    is_plain(text) && !text.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_hub_is_the_model_that_it_shows() {
        for (text, wanted) in [
            ("https://huggingface.co/Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
            ("https://huggingface.co/Qwen/Qwen3-0.6B/", "Qwen/Qwen3-0.6B"),
            ("https://huggingface.co/Qwen/Qwen3-0.6B?library=transformers#x", "Qwen/Qwen3-0.6B"),
            ("http://www.huggingface.co/Qwen/Qwen3-0.6B/tree/main", "Qwen/Qwen3-0.6B"),
            ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/v2", "Qwen/Qwen3-0.6B@v2"),
            ("huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json", "Qwen/Qwen3-0.6B"),
            ("hf.co/org/M-GGUF:Q4_K_M", "org/M-GGUF:Q4_K_M"),
            ("HF.co/org/M-GGUF:Q4_K_M@abc", "org/M-GGUF:Q4_K_M@abc"),
            ("https://huggingface.co/org/M-GGUF/blob/main/M-Q4_K_M.gguf", "org/M-GGUF:M-Q4_K_M"),
            ("https://huggingface.co/org/M-GGUF/resolve/v2/sub/M-Q8_0.gguf?download=true", "org/M-GGUF:sub/M-Q8_0@v2"),
            ("hf://org/name", "org/name"),
            ("hf://models/org/name@v1", "org/name@v1"),
            ("http://localhost:8080/x/org/name", "org/name"),
            // No addresses of models.
            ("org/name", "org/name"),
            ("https://example.com/org/name", "https://example.com/org/name"),
            ("https://huggingface.co/org", "https://huggingface.co/org"),
        ] {
            assert_eq!(short(text, Some("http://localhost:8080/x")), wanted, "{text}");
            let is_model = HubModel::parse(&short(text, Some("http://localhost:8080/x"))).is_some();
            assert_eq!(is_model, !wanted.starts_with("http"), "{text}");
        }
    }
}
