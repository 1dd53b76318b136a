//! Every setting with its value and what set it.

use super::environment::env_name;
use super::layer::place_of_key;
use super::settings::Layer;
use super::{Dirs, sources};
use anyhow::Result;
use clap::Args;
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

/// All settings in the order of the page docs/config.md. The arguments are those of
/// [`super::Settings::load`].
pub fn shown(flags: &Layer, config: Option<&Path>) -> Result<Vec<Shown>> {
    let (env, file, path) = sources(&Dirs::find()?, config)?;
    Ok(merged([flags, &env, &file], &path))
}

fn merged(layers: [&Layer; 3], path: &Path) -> Vec<Shown> {
    let [flags, env, file] = layers.map(Layer::entries);
    let values = flags.into_iter().zip(env).zip(file);
    let one = |(((key, flag, default), (_, env, _)), (_, file, _))| {
        let (value, source) = match (flag, env, file) {
            (Some(value), ..) => (value, flag_name(key)),
            (_, Some(value), _) => (value, env_name(key)),
            (_, _, Some(value)) => (value, place_of_key(path, key)),
            _ => (default, DEFAULT.to_owned()),
        };
        Shown { key, value, source }
    };
    values.map(one).collect()
}

/// The flag of a key: `--no-graph` for `graph`.
fn flag_name(key: &str) -> String {
    let flags = Layer::augment_args(clap::Command::new(""));
    let flag = flags.get_arguments().find(|arg| arg.get_id() == key).and_then(|arg| arg.get_long());
    flag.map_or(key.to_owned(), |flag| format!("--{flag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_names_what_set_it() {
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
