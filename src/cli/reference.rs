//! The model that a session file names: writes its reference and finds it again. Opens no connection.

use super::download;
use crate::chat::session::Stamp;
use crate::checkpoint::hub::cache;
use crate::checkpoint::hub::{Hub, MAIN};
use crate::checkpoint::{self, ModelRef};
use crate::config::{Adapter, Settings};
use crate::protocol::ModelReference;
use std::path::Path;

/// The reference of the model in the settings; `None` if its path is not UTF-8.
pub fn of(settings: &Settings) -> Option<ModelReference> {
    let absolute = |path: &Path| std::path::absolute(path).ok()?.to_str().map(str::to_owned);
    let (model, revision) = match ModelRef::parse(&settings.model).ok()? {
        ModelRef::BuiltIn => (settings.model.clone(), None),
        ModelRef::Folder(path) => (absolute(&checkpoint::full_path(&path))?, None),
        ModelRef::Hub { id, revision } => {
            let folder = Hub::from_env().ok()?.repo(&id).snapshot(revision.as_deref().unwrap_or(MAIN)).ok()?;
            let commit = folder.and_then(|f| Some(f.file_name()?.to_str()?.to_owned()));
            (id, commit.or(revision))
        }
    };
    let adapter = match &settings.adapter {
        Adapter::Auto => "auto".to_owned(),
        Adapter::None => "none".to_owned(),
        Adapter::File(path) => absolute(path)?,
    };
    Some(ModelReference { model, revision, adapter })
}

/// Finds the model of a conversation, or says why it is missing. If the commit of a hub model is not in the cache, its
/// current commit is used. Older session files have a name and no reference.
pub fn find(stamp: &Stamp) -> Result<ModelReference, String> {
    let unknown = || ModelReference { model: stamp.name.clone(), revision: None, adapter: "auto".to_owned() };
    let wanted = stamp.reference.clone().unwrap_or_else(unknown);
    if !matches!(&*wanted.adapter, "auto" | "none") && !Path::new(&wanted.adapter).is_file() {
        return Err(format!("its adapter file {} does not exist", wanted.adapter));
    }
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
        ModelRef::Folder(path) => Err(format!("{} is not a model folder or a GGUF file", path.display())),
        ModelRef::Hub { id, .. } => match download::missing(name).map_err(|e| format!("{e:#}"))? {
            None => Ok(()),
            Some(_) => Err(format!("{id} is not in the Hugging Face cache")),
        },
    }
}

/// The settings that load `reference`. An adapter on the command line takes precedence.
pub fn settings(reference: &ModelReference, settings: &Settings, adapter_given: bool) -> Settings {
    let mut settings = settings.clone();
    settings.model = reference.name();
    if !adapter_given {
        settings.adapter = match &*reference.adapter {
            "auto" => Adapter::Auto,
            "none" => Adapter::None,
            file => Adapter::File(file.into()),
        };
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(name: &str, reference: Option<ModelReference>) -> Stamp {
        let digest = String::new();
        Stamp {
            name: name.to_owned(),
            reference,
            model_fingerprint: digest.clone(),
            tokenizer_fingerprint: digest,
            device: "cpu".to_owned(),
            weights: None,
        }
    }

    #[test]
    fn a_model_is_found_again_or_said_to_be_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let reference = |model: &str, adapter: &str| {
            Some(ModelReference { model: model.to_owned(), revision: None, adapter: adapter.to_owned() })
        };
        assert_eq!(find(&stamp("demo", None)).unwrap().model, "demo");
        let gone = find(&stamp("x", reference(path, "auto"))).unwrap_err();
        assert_eq!(gone, format!("{path} is not a model folder or a GGUF file"));
        for file in ["config.json", "model.safetensors"] {
            std::fs::write(folder.path().join(file), "{}").unwrap();
        }
        assert_eq!(find(&stamp("x", reference(path, "none"))).unwrap().name(), path);
        let gone = find(&stamp("x", reference(path, "/nowhere/a.safetensors"))).unwrap_err();
        assert_eq!(gone, "its adapter file /nowhere/a.safetensors does not exist");
        assert!(find(&stamp("x", reference("/nowhere/model", "auto"))).unwrap_err().contains("/nowhere/model"));
    }
}
