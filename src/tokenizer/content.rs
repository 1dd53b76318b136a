//! The tokenizer that encodes prompts. Its control tokens are spelled as in canonical text
//! ([`super::flat`]), which no one can type. Everything else comes from tokenizer.json, so that
//! normalizers, stripped white space, prefixes at the beginning and words of a fine-tune act as in
//! the whole text.

use super::flat::{CLOSE, OPEN};
use crate::protocol::Token;
use serde_json::Value;
use std::collections::HashMap;
use tokenizers::{
    AddedToken, AddedVocabulary, Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper,
    PostProcessorWrapper, Result, Tokenizer,
};

/// An empty control literal. It separates what stands before and after it, and gives no token.
pub const CUT: &str = "\u{FDD0}\u{FDD1}";
/// Begins a second spelling of each literal, where [`Content::retries`].
pub const SECOND: &str = "\u{FDD0}\u{FDD0}";

/// Elements of HTML that vocabularies have as words (Gemma's).
const HTML: &[&str] = &[
    "a",
    "b",
    "blockquote",
    "br",
    "caption",
    "code",
    "div",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "i",
    "img",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
    "u",
    "ul",
];

/// Whether an added token steers the model, so that no one may type it: it is special, or spelled
/// as a tag. Other added tokens are words, as if the vocabulary had them.
pub fn is_control(token: &AddedToken) -> bool {
    let text = token.content.trim();
    let within = |open: char, close: char| {
        let name = text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        name.filter(|name| name.contains(|c: char| c.is_alphanumeric()))
    };
    let is_html = |name: &str| HTML.contains(&name.trim_matches('/'));
    token.special
        || within('<', '>').is_some_and(|name| !is_html(name))
        || within('[', ']').is_some()
        || ["<|", "|>", "<\u{FF5C}", "\u{FF5C}>"].iter().any(|sign| text.contains(sign))
}

/// The tokenizer without the normalizer that prepends a prefix to a text (Llama 2's); `None` if it
/// has none.
pub fn without_prefix(whole: &Tokenizer) -> anyhow::Result<Option<Tokenizer>> {
    let is_prefix = |normalizer: &Value| normalizer["type"] == "Prepend";
    let normalizer = serde_json::to_value(whole.get_normalizer())?;
    let all = normalizer["normalizers"].as_array();
    let bare = if is_prefix(&normalizer) {
        None
    } else if all.is_some_and(|all| all.iter().any(is_prefix)) {
        let rest: Vec<&Value> = all.into_iter().flatten().filter(|normalizer| !is_prefix(normalizer)).collect();
        let sequence = serde_json::json!({"type": "Sequence", "normalizers": rest});
        Some(serde_json::from_value::<NormalizerWrapper>(sequence)?)
    } else {
        return Ok(None);
    };
    let mut tokenizer = whole.clone();
    tokenizer.with_normalizer(bare).map_err(|e| anyhow::anyhow!("tokenizer.json: {e}"))?;
    Ok(Some(tokenizer))
}

pub struct Content {
    pub tokenizer: Tokenizer,
    /// The crate numbers added tokens itself. By its number: the token's id, or none for [`CUT`].
    ids: HashMap<Token, Option<Token>>,
    /// Control tokens are looked for in normalized text, where a normalizer that prepends a prefix
    /// hides them from the crate. The second spelling is looked for in the text as it is.
    pub retries: bool,
    /// The token that BPE writes for characters that the vocabulary does not have.
    pub unknown: Option<Token>,
}

impl Content {
    /// `added`: tokens of the model's vocabulary. `last`: the ordinary token with the largest id,
    /// if ids have gaps, so that it is not the number of tokens less one.
    pub fn new(whole: &Tokenizer, added: &HashMap<Token, AddedToken>, last: Option<(&str, Token)>) -> Result<Self> {
        let mut tokenizer = whole.clone();
        tokenizer.with_added_vocabulary(AddedVocabulary::new());
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let retries = tokenizer.get_normalizer().is_some() && added.values().any(|t| t.normalized && is_control(t));
        let mut tokens: Vec<(Option<Token>, AddedToken)> = vec![(None, AddedToken::from(CUT, false).normalized(false))];
        tokens.extend(added.iter().map(|(&id, token)| {
            let content = match is_control(token) {
                true => format!("{OPEN}{}{CLOSE}", token.content),
                false => token.content.clone(),
            };
            (Some(id), AddedToken { content, special: false, ..token.clone() })
        }));
        if retries {
            let second = |(id, token): &(Option<Token>, AddedToken)| {
                let content = token.content.strip_prefix(OPEN).map(|rest| format!("{SECOND}{rest}"))?;
                Some((*id, AddedToken { content, normalized: false, ..token.clone() }))
            };
            tokens.extend(tokens.iter().filter_map(second).collect::<Vec<_>>());
        }
        if let Some((spelling, id)) = last {
            // The crate numbers on from the largest id that is added. The anchor is a word, or else
            // special, and special tokens are not looked for in texts.
            let word = tokens.iter().find(|(of, token)| *of == Some(id) && token.content == spelling);
            let anchor = word.map_or_else(|| AddedToken::from(spelling, true), |(_, token)| token.clone());
            tokenizer.add_tokens([anchor])?;
            tokenizer.set_encode_special_tokens(true);
        }
        tokenizer.add_tokens(tokens.iter().map(|(_, token)| token.clone()))?;
        let number = |token: &AddedToken| tokenizer.token_to_id(&token.content);
        let ids = tokens.iter().filter_map(|(id, token)| Some((number(token)?, *id))).collect();
        let unknown = match whole.get_model() {
            ModelWrapper::BPE(bpe) => bpe.get_unk_token().as_ref().and_then(|token| bpe.token_to_id(token)),
            _ => None,
        };
        Ok(Self { tokenizer, ids, retries, unknown })
    }

    /// The text as BPE reads it.
    pub fn normalized(&self, text: &str) -> anyhow::Result<String> {
        super::guard::guarded("normalizing text", || {
            let mut out = NormalizedString::from(text);
            self.tokenizer.get_normalizer().map_or(Ok(()), |normalizer| normalizer.normalize(&mut out))?;
            Ok(out.get().to_owned())
        })
    }

    /// The id of an added token, by the crate's number. Outer `None`: it is an ordinary token.
    pub fn added(&self, number: Token) -> Option<Option<Token>> {
        self.ids.get(&number).copied()
    }
}
