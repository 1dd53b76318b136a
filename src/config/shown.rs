//! Every setting with its value and what set it.

use super::layer::{Layer, env_name, place_of_key};
use super::{Dirs, sources};
use anyhow::Result;
use std::path::Path;

/// One setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub key: &'static str,
    /// As a config file has it; in words where the default is not a fixed value.
    pub value: String,
    /// `--kv`, `DMSCHAT_KV`, `FILE:LINE` or `default`.
    pub source: String,
}

/// The source of values that nothing sets.
pub const DEFAULT: &str = "default";

/// Value where nothing sets a key.
const DEFAULTS: &[(&str, &str)] = &[
    ("model", "\"demo\""),
    ("adapter", "the built-in one for the model"),
    ("device", "\"auto\""),
    ("weights", "\"auto\""),
    ("weight_cache", "\"on\""),
    ("importance", "measured"),
    ("eviction", "\"on\""),
    ("policy", "\"auto\""),
    ("budget", "\"512\" (pool: \"4x\")"),
    ("kv", "\"auto\""),
    ("ctx_size", "the model's, lowered to what fits"),
    ("graph", "\"on\""),
    ("gemm", "\"auto\""),
    ("kv_limit", "none"),
    ("when_full", "\"forget\" for DMS models, else \"stop\""),
    ("pin", "\"none\""),
    ("keep_ratio", "as the model was trained"),
    ("cache_disk", "\"4GiB\""),
    ("checkpoints", "\"256MiB\""),
    ("max_tokens", "the rest of the context"),
    ("max_think", "the model's (demo: 2048)"),
    ("width", "\"1\""),
    ("early_stop", "\"on\""),
    ("temperature", "the model's"),
    ("top_p", "the model's"),
    ("top_k", "the model's"),
    ("min_p", "the model's"),
    ("repetition_penalty", "the model's"),
    ("seed", "random"),
    ("think", "\"on\""),
    ("keep_thinking", "as the model's template does"),
    ("system", "none"),
    ("theme", "\"auto\""),
    ("keys", "keymap.toml beside the config file, if there is one"),
    ("mouse", "\"on\""),
    ("title", "\"on\""),
    ("bell", "\"off\""),
    ("editor", "$VISUAL, then $EDITOR"),
    ("ascii", "\"off\""),
    ("plain", "\"off\""),
];

/// All settings in the order of the page docs/config.md. The arguments are those of [`super::Settings::load`].
pub fn shown(flags: &Layer, config: Option<&Path>) -> Result<Vec<Shown>> {
    let (env, file, path) = sources(&Dirs::find()?, config)?;
    Ok(merged([flags, &env, &file], &path))
}

fn merged(layers: [&Layer; 3], path: &Path) -> Vec<Shown> {
    let [flags, env, file] = layers.map(Layer::entries);
    let values = flags.into_iter().zip(env).zip(file);
    let one = |(((key, flag), (_, env)), (_, file))| {
        let default = || DEFAULTS.iter().find(|(name, _)| *name == key).map_or("none", |(_, value)| value).to_owned();
        let (value, source) = match (flag, env, file) {
            (Some(value), ..) => (value, flag_name(key)),
            (_, Some(value), _) => (value, env_name(key)),
            (_, _, Some(value)) => {
                let place = place_of_key(path, key);
                (value, place.trim_end_matches(&format!(": {key}")).to_owned())
            }
            _ => (default(), DEFAULT.to_owned()),
        };
        Shown { key, value, source }
    };
    values.map(one).collect()
}

/// The flag of a key.
fn flag_name(key: &str) -> String {
    match key {
        "weight_cache" => "--no-weight-cache".to_owned(),
        "graph" => "--no-graph".to_owned(),
        key => format!("--{}", key.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_names_what_set_it() {
        let known: Vec<&str> = DEFAULTS.iter().map(|(key, _)| *key).collect();
        assert_eq!(known, Layer::KEYS, "each key has its default here");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, "seed = 3\n\nkv = 'fp8'\ntop_p = 0.9\n").unwrap();
        let file = Layer::from_file(&path).unwrap().unwrap();
        let env = Layer::from_env(|name| (name == "DMSCHAT_SEED").then(|| "7".into())).unwrap();
        let flags = Layer { weight_cache: Some(crate::config::OnOff(false)), ..Layer::default() };
        let all = merged([&flags, &env, &file], &path);
        let of = |key| all.iter().find(|s| s.key == key).map(|s| (s.value.as_str(), s.source.as_str())).unwrap();
        assert_eq!(of("weight_cache"), ("\"off\"", "--no-weight-cache"));
        assert_eq!(of("seed"), ("7", "DMSCHAT_SEED"));
        assert_eq!(of("kv"), ("\"fp8\"", format!("{}:3", path.display()).as_str()));
        assert_eq!((of("top_p").0, of("min_p")), ("0.9", ("the model's", DEFAULT)));
    }
}
