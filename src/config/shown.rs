//! Every setting with its value and what set it.

use super::Dirs;
use super::environment::env_name;
use super::layer::{Sources, place_of_key};
use super::settings::Layer;
use super::settings::Origin;
use anyhow::Result;
use clap::Args;

/// One setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub key: &'static str,
    /// As a config file has it; in words where the default is not a fixed value.
    pub value: String,
    /// `--kv`, `DMSCHAT_KV`, `FILE:LINE` of the profile or the config file, or `default`.
    pub source: String,
}

/// The source of values that nothing sets.
pub const DEFAULT: &str = "default";

/// All settings in the order of the page docs/config.md.
pub fn shown(origin: &Origin) -> Result<Vec<Shown>> {
    let sources = Sources::read(&Dirs::find()?, origin)?;
    Ok(merged(&origin.flags, &sources))
}

fn merged(flags: &Layer, sources: &Sources) -> Vec<Shown> {
    let Sources { env, profile, file, profile_path, path } = sources;
    let [env, profile, file] = [env, profile, file].map(Layer::entries);
    let values = flags.entries().into_iter().zip(env).zip(profile.into_iter().zip(file));
    let one = |(((key, flag, default), (_, env, _)), ((_, profile, _), (_, file, _)))| {
        let (value, source) = match (flag, env, profile, file) {
            (Some(value), ..) => (value, flag_name(key)),
            (_, Some(value), ..) => (value, env_name(key)),
            (_, _, Some(value), _) => (value, place_of_key(profile_path, key)),
            (.., Some(value)) => (value, place_of_key(path, key)),
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
        let profile = dir.path().join("work.toml");
        std::fs::write(&profile, "top_p = 0.8\ntop_k = 9\n").unwrap();
        let layer = Layer::from_file(&profile).unwrap().unwrap();
        let sources = Sources { env, profile: layer, file, profile_path: profile.clone(), path: path.clone() };
        let all = merged(&flags, &sources);
        let of = |key| all.iter().find(|s| s.key == key).map(|s| (s.value.as_str(), s.source.as_str())).unwrap();
        assert_eq!(of("weight_cache"), ("\"off\"", "--no-weight-cache"));
        assert_eq!(of("seed"), ("7", "DMSCHAT_SEED"));
        assert_eq!(of("kv"), ("\"fp8\"", format!("{}:3", path.display()).as_str()));
        assert_eq!(of("top_p"), ("0.8", format!("{}:1", profile.display()).as_str()));
        assert_eq!((of("top_k").0, of("min_p")), ("9", ("the model's", DEFAULT)));
    }
}
