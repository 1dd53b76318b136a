//! Reads settings from the config file and from environment variables.

use super::dirs::Dirs;
use super::environment::{env_name, in_words};
use super::profile;
use super::settings::{Layer, Origin};
use crate::regular_file;
use crate::unicode;
use crate::words::nearest;
use anyhow::{Context, Result, anyhow, bail};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Largest config file.
pub(super) const MAX_BYTES: u64 = 1 << 20;

impl Layer {
    /// Reads a config file; `None` if it does not exist. Errors are one line with file, line and
    /// key.
    pub fn from_file(path: &Path) -> Result<Option<Layer>> {
        Self::read_file(path).map_err(unicode::one_line_error)
    }

    fn read_file(path: &Path) -> Result<Option<Layer>> {
        let text = match regular_file::read(path, MAX_BYTES) {
            Ok(bytes) => {
                String::from_utf8(bytes).ok().with_context(|| format!("{}: not UTF-8 text", path.display()))?
            }
            // A home such as /dev/null belongs to a user without files.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(anyhow!("{}: {e}", path.display())),
        };
        let layer: Layer = toml::from_str(&text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            let message = toml_error(path, &text, at, e.message());
            match e.message().contains("unknown field") {
                true => anyhow!("{message}; dmschat config show lists all keys"),
                false => anyhow!(message),
            }
        })?;
        layer
            .check()
            .map_err(|(key, what)| anyhow!("{}:{}: {key}: {what}", path.display(), line_of_key(&text, key)))?;
        Ok(Some(layer))
    }
}

/// Variables that other code reads.
const OTHER_VARIABLES: [&str; 8] = [
    "DMSCHAT_CONFIG",
    "DMSCHAT_PROFILE",
    "DMSCHAT_CACHE_DIR",
    "DMSCHAT_CONFIG_DIR",
    "DMSCHAT_DATA_DIR",
    "DMSCHAT_CUBLASLT",
    "DMSCHAT_KERNEL_DIR",
    "DMSCHAT_KERNEL_TARGET",
];

/// One line for each unknown name that begins with `DMSCHAT_`, with the most similar known one.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> =
        Layer::KEYS.iter().map(|key| env_name(key)).chain(OTHER_VARIABLES.map(str::to_owned)).collect();
    let mut unknown: Vec<String> = names.filter(|n| n.starts_with("DMSCHAT_") && !known.contains(n)).collect();
    unknown.sort();
    let hint = |name: &str| {
        let near = nearest(name, known.iter().map(String::as_str));
        near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
    };
    unknown.iter().map(|name| format!("{name} is ignored: no such variable{}", hint(name))).collect()
}

/// `FILE:LINE: KEY: message of toml`, in one line.
fn toml_error(path: &Path, text: &str, at: usize, message: &str) -> String {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let source = text.lines().nth(line - 1).unwrap_or("");
    let key = source.split('=').next().unwrap_or("").trim().trim_matches(['[', ']']);
    let message = in_words(message);
    let named = message.contains(&format!("`{key}`")) || key.is_empty();
    let key = if named { String::new() } else { format!("{key}: ") };
    format!("{}:{line}: {key}{message}", path.display())
}

/// The place where a file sets a key: `FILE:LINE`.
pub fn place_of_key(path: &Path, key: &str) -> String {
    let text = regular_file::read_text(path, MAX_BYTES).unwrap_or_default();
    format!("{}:{}", path.display(), line_of_key(&text, key))
}

fn line_of_key(text: &str, key: &str) -> usize {
    let at =
        text.lines().position(|l| l.trim_start().strip_prefix(key).is_some_and(|r| r.trim_start().starts_with('=')));
    at.map_or(1, |n| n + 1)
}

/// The sources of settings, highest first, and the files of the last two.
pub(super) struct Sources {
    pub env: Layer,
    pub profile: Layer,
    pub file: Layer,
    pub profile_path: PathBuf,
    pub path: PathBuf,
}

impl Sources {
    pub fn read(dirs: &Dirs, origin: &Origin) -> Result<Self> {
        let env = Layer::from_env(|name| std::env::var_os(name))?;
        let path = origin.config.clone().unwrap_or_else(|| dirs.config_file());
        let file = match (Layer::from_file(&path)?, &origin.config) {
            (None, Some(path)) => bail!("config file {} does not exist; name one that does", path.display()),
            (file, _) => file.unwrap_or_default(),
        };
        let (profile, profile_path) = match &origin.profile {
            Some(name) => (profile::read(dirs, name)?, profile::file(dirs, name)?),
            None => Default::default(),
        };
        Ok(Self { env, profile, file, profile_path, path })
    }

    /// Where a key is set that no flag sets: `DMSCHAT_KEY`, or `FILE:LINE: key` of the profile or
    /// the config file.
    pub fn place(&self, key: &str) -> String {
        let sets = |layer: &Layer| layer.sets(key);
        match () {
            () if sets(&self.env) => env_name(key),
            () if sets(&self.profile) => format!("{}: {key}", place_of_key(&self.profile_path, key)),
            () => format!("{}: {key}", place_of_key(&self.path, key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ByteSize, List, OnOff};

    fn error_of(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let line = format!("{:#}", Layer::from_file(&path).unwrap_err());
        assert!(!line.contains('\n'), "{line}");
        line.replace(&path.display().to_string(), "F")
    }

    #[test]
    fn an_unknown_variable_is_told_with_the_nearest_one() {
        let names = ["DMSCHAT_TEMPRATURE", "DMSCHAT_KV", "DMSCHAT_CONFIG_DIR", "HOME"].map(str::to_owned);
        let told = super::unknown_variables(names.into_iter());
        assert_eq!(told, ["DMSCHAT_TEMPRATURE is ignored: no such variable; did you mean DMSCHAT_TEMPERATURE?"]);
    }

    #[test]
    fn a_typo_names_file_line_and_key() {
        let line = error_of("model = \"demo\"\ntemprature = 0.5\n");
        let all = "dmschat config show lists all keys";
        assert_eq!(line, format!("F:2: unknown key `temprature`; did you mean `temperature`?; {all}"));
        assert_eq!(error_of("[chat]\n"), format!("F:1: unknown key `chat`; {all}"));
        let line = error_of("\n\ntop_k = \"many\"\n");
        assert!(line.ends_with("F:3: top_k: invalid type: string \"many\", expected a whole number from 0"), "{line}");
        let line = error_of("kv = \"f16\"");
        assert!(line.starts_with("F:1: kv: \"f16\" is not a KV format"), "{line}");
        let line = error_of("seed = 1\n top_p = 1.5");
        assert!(line.starts_with("F:2: top_p: 1.5 is out of range"), "{line}");
        assert!(error_of("model = ").starts_with("F:1: "));
    }

    #[test]
    fn the_documented_example_is_a_config() {
        let page = include_str!("../../docs/config.md");
        let example = page.split("```toml\n").nth(1).and_then(|p| p.split("```").next()).unwrap();
        let layer: Layer = toml::from_str(example).unwrap();
        assert_eq!((layer.check(), layer.kv_limit), (Ok(()), Some(ByteSize(512 << 20))));
        // What is shown of it is a config too.
        let line = |(key, value, _): (&str, Option<String>, String)| Some(format!("{key} = {}\n", value?));
        let shown: String = layer.entries().into_iter().filter_map(line).collect();
        assert_eq!(toml::from_str::<Layer>(&shown).unwrap(), layer, "{shown}");
    }

    #[test]
    fn flags_win_over_environment_over_file() {
        let var = |name: &str| match name {
            "DMSCHAT_MODEL" => Some("env".into()),
            "DMSCHAT_SEED" => Some("7".into()),
            "DMSCHAT_THEME" => Some("".into()),
            _ => None,
        };
        let file: Layer =
            toml::from_str("model = 'file'\nseed = 3\ntheme = 'dark'\neviction = 'off'\nmouse = false").unwrap();
        let flags = Layer { model: Some("flag".into()), ..Layer::default() };
        let all = flags.over(Layer::from_env(var).unwrap()).over(file);
        assert_eq!(all.model.as_deref(), Some("flag"));
        assert_eq!((all.seed, all.theme.as_deref()), (Some(7), Some("dark")));
        assert_eq!((all.eviction, all.mouse), (Some(List::of(OnOff(false))), Some(OnOff(false))));
        let error = Layer::from_env(|n| (n == "DMSCHAT_KV").then(|| "f16".into())).unwrap_err().to_string();
        assert!(error.starts_with("DMSCHAT_KV=f16: ") && error.contains("expected"), "{error}");
        let error = Layer::from_env(|n| (n == "DMSCHAT_SEED").then(|| "x".into())).unwrap_err().to_string();
        assert_eq!(error, "DMSCHAT_SEED=x: expected a whole number from 0");
    }

    #[test]
    fn a_home_that_is_no_folder_has_no_config() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Layer::from_file(&file.path().join("config.toml")).unwrap().is_none());
    }
}
