//! The list of formats, and the choice of one by the template of a model.

use super::format::Format;
use super::{gemma, granite, harmony, hermes, llama, mistral, phi, xml};
use crate::protocol::TemplateSpec;

/// All formats. A model has the first one whose [`Format::is_of`] accepts its template.
pub const FORMATS: [&dyn Format; 8] = [
    &harmony::Harmony,
    &gemma::Gemma,
    &xml::Xml,
    &mistral::Mistral,
    &phi::Phi,
    &granite::Granite,
    &hermes::Hermes,
    &llama::Llama,
];

/// Returns the format of a model's calls, if its template takes tools.
pub fn format_of(template: &TemplateSpec) -> Option<&'static dyn Format> {
    let source = template.source.as_deref()?;
    takes_tools(source).then(|| FORMATS.into_iter().find(|format| format.is_of(source)))?
}

/// Whether a template reads a variable or a member `tools`.
fn takes_tools(source: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    // SmolLM3's name.
    source.contains("xml_tools")
        || source.match_indices("tools").any(|(at, word)| {
            let (before, after) = (source[..at].chars().next_back(), source[at + word.len()..].chars().next());
            // `<tools>` is a tag that the template writes.
            !before.is_some_and(|c| is_word(c) || matches!(c, '<' | '/'))
                && !after.is_some_and(|c| is_word(c) || c == '>')
        })
}
