//! Names of models on the hub, and addresses of its pages as such names: people copy them from a
//! browser, or from another program's command line.

use std::borrow::Cow;

/// The built-in model's name.
pub const DEMO: &str = "demo";

/// The default revision.
pub const MAIN: &str = "main";

/// A model of the hub: `ORG/NAME[:GGUF][@REVISION]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    pub id: String,
    /// The end of the name of one of its GGUF files, such as `Q4_K_M`; `None` for safetensors.
    pub gguf: Option<String>,
    pub revision: Option<String>,
}

impl HubModel {
    /// Its name without the revision.
    pub fn name(&self) -> String {
        match &self.gguf {
            Some(gguf) => format!("{}:{gguf}", self.id),
            None => self.id.clone(),
        }
    }

    /// Its name with the revision, if it has one.
    pub fn full_name(&self) -> String {
        let at = self.revision.as_ref().map(|revision| format!("@{revision}")).unwrap_or_default();
        self.name() + &at
    }

    /// The revision, by default the newest.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }
}

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

/// Whether this can be a branch, a tag, a commit, or a reference such as `refs/pr/1`.
pub(super) fn is_revision(text: &str) -> bool {
    text.len() <= 200 && text.split('/').all(|part| is_plain(part) && !part.ends_with(".lock"))
}

/// Whether this is safe as a name in a path and in a URL.
pub(super) fn is_plain(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    plain && !text.is_empty() && !text.starts_with('.') && !text.contains("..")
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
