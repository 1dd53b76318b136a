//! The model that a session file names: writes its reference and finds it again. Opens no
//! connection.

use super::download;
use crate::checkpoint::known;
use crate::checkpoint::{self, ModelRef};
use crate::config::{Adapter, Settings};
use crate::hub::Hub;
use crate::hub::cache;
use crate::policy::PolicyRequest;
use crate::protocol::{ModelIdentity, ModelReference};
use crate::regular_file;
use crate::ui::models::Given;
use std::path::Path;

/// The reference of the model in the settings; `None` if its path is not UTF-8.
pub fn of(settings: &Settings) -> Option<ModelReference> {
    let absolute = |path: &Path| std::path::absolute(path).ok()?.to_str().map(str::to_owned);
    let (model, revision) = match ModelRef::parse(&settings.model).ok()? {
        ModelRef::BuiltIn => (settings.model.clone(), None),
        ModelRef::Folder(path) => (absolute(&checkpoint::full_path(&path))?, None),
        ModelRef::Hub(model) => {
            let cached = Hub::from_env().ok()?.repo(&model.id).find(&model).ok()?;
            (model.name(), cached.map(|cached| cached.commit).or(model.revision))
        }
    };
    let adapter = match &settings.adapter {
        Adapter::Auto => "auto".to_owned(),
        Adapter::None => "none".to_owned(),
        Adapter::File(path) if known::hub_model(path).is_some() => path.to_str()?.to_owned(),
        Adapter::File(path) => absolute(path)?,
    };
    let budget = settings.policy_request().budget();
    let Settings { threshold, window, sinks, .. } = *settings;
    Some(ModelReference { model, revision, adapter, policy: Some(settings.policy), budget, threshold, window, sinks })
}

/// Finds the model of a conversation, or says why it is missing. If the commit of a hub model is
/// not in the cache, its current commit is used. Older session files have a name and no reference.
pub fn find(model: &ModelIdentity) -> Result<ModelReference, String> {
    let unknown =
        || ModelReference { model: model.name.clone(), adapter: "auto".to_owned(), ..ModelReference::default() };
    let wanted = model.reference.clone().unwrap_or_else(unknown);
    let adapter = Path::new(&wanted.adapter);
    if !matches!(&*wanted.adapter, "auto" | "none") && !adapter.exists() && known::hub_model(adapter).is_none() {
        return Err(format!("its adapter file {} does not exist", wanted.adapter));
    }
    cache_policy(&wanted)?;
    match here(&wanted.name()) {
        Err(_) if wanted.revision.is_some() && here(&wanted.model).is_ok() => {
            Ok(ModelReference { revision: None, ..wanted })
        }
        found => found.map(|()| wanted),
    }
}

fn here(name: &str) -> Result<(), String> {
    match ModelRef::parse(name).map_err(|e| format!("{e:#}"))? {
        ModelRef::BuiltIn => Ok(()),
        ModelRef::Folder(path) if cache::holds_model(&path) => Ok(()),
        ModelRef::Folder(path) => Err(match regular_file::check(&path) {
            Err(why) if !path.is_dir() => format!("{} is {why}", path.display()),
            _ => format!("{} is not a model folder or a GGUF file", path.display()),
        }),
        ModelRef::Hub(model) => match download::missing(name).map_err(|e| format!("{e:#}"))? {
            None => Ok(()),
            Some(_) => Err(format!("{} is not in the Hugging Face cache", model.name())),
        },
    }
}

/// The cache's policy and budget of a conversation; `None` if its file is of an older version.
fn cache_policy(reference: &ModelReference) -> Result<Option<PolicyRequest>, String> {
    let Some(kind) = reference.policy else { return Ok(None) };
    match reference.budget.and_then(|budget| kind.budget_refusal(budget)) {
        Some(why) => Err(format!("its budget: {why}")),
        None => Ok(Some(PolicyRequest { kind, budget: reference.budget })),
    }
}

/// The settings that load `reference`. What was given on the command line takes precedence.
pub fn settings(reference: &ModelReference, settings: &Settings, given: Given) -> Settings {
    let mut settings = settings.clone();
    settings.model = reference.name();
    if let (false, Ok(Some(policy))) = (given.policy, cache_policy(reference)) {
        (settings.policy, settings.budget) = (policy.kind, policy.budget);
    }
    if !given.adapter {
        settings.adapter = reference.adapter.parse().unwrap_or_default();
        settings.threshold = settings.threshold.or(reference.threshold);
        settings.window = settings.window.or(reference.window);
        settings.sinks = settings.sinks.or(reference.sinks);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::List;
    use crate::policy::{Budget, PolicyKind};

    fn named(name: &str, reference: Option<ModelReference>) -> ModelIdentity {
        ModelIdentity { name: name.to_owned(), reference, ..ModelIdentity::default() }
    }

    #[test]
    fn a_model_is_found_again_or_said_to_be_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let reference = |model: &str, adapter: &str| {
            Some(ModelReference { model: model.to_owned(), adapter: adapter.to_owned(), ..ModelReference::default() })
        };
        assert_eq!(find(&named("demo", None)).unwrap().model, "demo");
        let gone = find(&named("x", reference(path, "auto"))).unwrap_err();
        assert_eq!(gone, format!("{path} is not a model folder or a GGUF file"));
        for file in ["config.json", "model.safetensors"] {
            std::fs::write(folder.path().join(file), "{}").unwrap();
        }
        assert_eq!(find(&named("x", reference(path, "none"))).unwrap().name(), path);
        let gone = find(&named("x", reference(path, "/nowhere/a.safetensors"))).unwrap_err();
        assert_eq!(gone, "its adapter file /nowhere/a.safetensors does not exist");
        assert!(find(&named("x", reference("/nowhere/model", "auto"))).unwrap_err().contains("/nowhere/model"));
        #[cfg(unix)]
        {
            let pipe = folder.path().join("pipe");
            rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
            for (path, what) in [(pipe.to_str().unwrap(), "a named pipe"), ("/dev/zero", "a device")] {
                let why = find(&named("x", reference(path, "auto"))).unwrap_err();
                assert_eq!(why, format!("{path} is not a regular file but {what}"));
            }
        }
    }

    #[test]
    fn a_conversation_takes_up_its_policy_and_budget_unless_flags_name_others() {
        let folder = tempfile::tempdir().unwrap();
        let dirs = crate::config::Dirs {
            config: folder.path().into(),
            data: folder.path().into(),
            cache: folder.path().into(),
        };
        let settings_of = |policy: Option<PolicyKind>, budget| {
            let policy = policy.map(List::of);
            let layer = crate::config::Layer { policy, budget, ..Default::default() };
            Settings::from_layer(dirs.clone(), layer).unwrap()
        };
        let held = settings_of(Some(PolicyKind::Tova), Some(Budget::of_ratio(4.0)));
        let now = settings_of(Some(PolicyKind::Window), None);
        let reference = of(&held).unwrap();
        let text = serde_json::to_string(&reference).unwrap();
        assert!(text.contains(r#""policy":"tova","budget":"4x""#), "{text}");
        let taken_up = settings(&reference, &now, Given::default());
        assert_eq!(taken_up.policy_request(), held.policy_request());
        let kept = settings(&reference, &now, Given { policy: true, ..Given::default() });
        assert_eq!(kept.policy, PolicyKind::Window);
        let older = ModelReference { policy: None, budget: None, ..reference.clone() };
        assert_eq!(settings(&older, &now, Given::default()).policy, PolicyKind::Window);
        // Values of a file are checked as flags are.
        for (policy, budget, why) in [("tova", "12", "page"), ("dense", "4x", "no budget")] {
            let (policy, budget) = (policy.parse().ok(), budget.parse().ok());
            let reference = ModelReference { policy, budget, ..reference.clone() };
            assert!(find(&named("x", Some(reference))).unwrap_err().contains(why), "{why}");
        }
    }
}
