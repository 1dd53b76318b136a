//! What a name of a model stands for: a short name of the catalogue, or as [`ModelRef`] has it.
//! Opens no connection.

use crate::catalogue::Catalogue;
use crate::checkpoint::ModelRef;
use crate::config::Dirs;
use anyhow::{Result, anyhow};

/// The catalogue with the user's copy in the config folder.
pub fn catalogue() -> Catalogue {
    Dirs::find().map_or_else(|_| Catalogue::built_in(), |dirs| Catalogue::load(&dirs.config))
}

/// The model that a text names: as [`ModelRef::parse`], or by a short name of the catalogue. An
/// error suggests similar names.
pub fn parse(text: &str) -> Result<ModelRef> {
    if let Some(model) = ModelRef::recognize(text) {
        return Ok(model);
    }
    let catalogue = catalogue();
    match catalogue.find(text) {
        Some(entry) => ModelRef::parse(&entry.model),
        None => ModelRef::parse_beside(text, &catalogue.names()).map_err(|why| match catalogue.problems.first() {
            Some(problem) => anyhow!("{why:#}; {problem}"),
            None => why,
        }),
    }
}

/// The name that a short name or an address stands for; any other text as it is.
pub fn full_name(text: &str) -> String {
    match ModelRef::recognize(text) {
        Some(ModelRef::Hub(model)) => model.full_name(),
        Some(_) => text.to_owned(),
        None => catalogue().find(text).map_or_else(|| text.to_owned(), |entry| entry.model.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_stand_for_their_models_and_near_ones_are_suggested() {
        for (text, wanted) in [
            ("qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
            ("SmolLM2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
            ("https://huggingface.co/Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
            ("demo", "demo"),
            ("no-such-model", "no-such-model"),
        ] {
            assert_eq!(full_name(text), wanted, "{text}");
        }
        let refused = |text| parse(text).unwrap_err().to_string();
        assert!(refused("qwen3:40b").contains("did you mean qwen3:4b"), "{}", refused("qwen3:40b"));
        assert!(refused("smolm2").ends_with("did you mean smollm2?"), "{}", refused("smolm2"));
        assert!(refused("xyzzyx").ends_with("hub id ORG/NAME"), "{}", refused("xyzzyx"));
    }
}
