//! Grammars over a model's tokens: which tokens may follow in an answer that must be JSON by a
//! schema, or a tool call. Wraps llguidance and bounds its memory and time.
//!
//! There is one [`Compiler`] per vocabulary, and one [`Constraint`] per answer.

mod lark;
mod vocabulary;

use crate::protocol::{Grammar, GrammarError, GrammarPart, Piece, Token};
use crate::tokenizer::Tokenizer;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use toktrie::TokTrie;

/// Compiles grammars for the tokens of a model.
pub struct Compiler {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
    /// Tokens that end an answer.
    eos: Arc<[Token]>,
    /// Number of logits.
    vocab: usize,
}

/// A bit for each token of the vocabulary, in words of 32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(Vec<u32>);

impl Mask {
    fn none(vocab: usize) -> Self {
        Self(vec![0; vocab.div_ceil(32)])
    }

    /// The tokens of a vocabulary for which this is true.
    pub fn of(vocab: usize, has: impl Fn(Token) -> bool) -> Self {
        let mut mask = Self::none(vocab);
        (0..vocab as Token).filter(|&token| has(token)).for_each(|token| mask.set(token, true));
        mask
    }

    pub fn words(&self) -> &[u32] {
        &self.0
    }

    pub fn has(&self, token: Token) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Allows or forbids a token of the vocabulary.
    pub fn set(&mut self, token: Token, allowed: bool) {
        let bit = 1 << (token % 32);
        let word = &mut self.0[token as usize / 32];
        *word = if allowed { *word | bit } else { *word & !bit };
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The token, if it is the only one.
    fn only(&self) -> Option<Token> {
        let mut words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        let (at, word) = words.next().filter(|(_, word)| word.is_power_of_two())?;
        words.next().is_none().then(|| 32 * at as Token + word.trailing_zeros())
    }
}

/// The state of one answer under a grammar.
pub struct Constraint {
    matcher: Matcher,
    tokenizer: Arc<Tokenizer>,
    eos: Arc<[Token]>,
    vocab: usize,
}

fn limits() -> ParserLimits {
    ParserLimits {
        // About 1 to 2 kB each.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Returns the first line of an error.
fn line(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().chars().take(400).collect()
}

impl Compiler {
    /// `vocab`: number of logits. Takes a few tenths of a second for large vocabularies.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab: usize, eos: &[Token]) -> Result<Self, String> {
        let environment = vocabulary::environment(&tokenizer, vocab, eos)?;
        let mut factory = ParserFactory::new_simple(&environment).map_err(line)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory, tokenizer, eos: eos.into(), vocab })
    }

    /// Fails if the grammar is too large, or has a schema with an unsupported keyword. The error
    /// names the field of the first schema that fails alone.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        self.compile_parts(&grammar.parts).map_err(|why| {
            let alone = |(field, schema): &(String, String)| {
                let why = self.compile_parts(&[GrammarPart::Json(schema.clone())]).err()?;
                Some(GrammarError::Schema { field: field.clone(), why })
            };
            grammar.schemas.iter().find_map(alone).unwrap_or_else(|| grammar.refused(why))
        })
    }

    fn compile_parts(&self, parts: &[GrammarPart]) -> Result<Constraint, String> {
        let text = lark::written(parts, &self.tokenizer)?;
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(text)).map_err(line)?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(line(error));
        }
        // A warning names a part of the schema that would not be enforced.
        match matcher.grammar_warnings().first() {
            Some(warning) => Err(line(warning)),
            None => {
                let (tokenizer, eos) = (Arc::clone(&self.tokenizer), Arc::clone(&self.eos));
                Ok(Constraint { matcher, tokenizer, eos, vocab: self.vocab })
            }
        }
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Self {
        self.with(self.matcher.deep_clone())
    }
}

impl Constraint {
    fn with(&self, matcher: Matcher) -> Self {
        let (tokenizer, eos) = (Arc::clone(&self.tokenizer), Arc::clone(&self.eos));
        Self { matcher, tokenizer, eos, vocab: self.vocab }
    }

    /// A copy to try tokens on. It shares the lexer's caches.
    fn trial(&self) -> Self {
        self.with(self.matcher.clone())
    }

    /// Returns the tokens that may follow each of the first `drafts`, as far as the grammar allows
    /// them. `mask`: the tokens that may follow now.
    pub fn ahead(&self, mask: &Mask, drafts: &[Token]) -> Vec<Mask> {
        let mut masks: Vec<Mask> = Vec::new();
        let mut trial = self.trial();
        for &draft in drafts {
            let is_allowed = masks.last().unwrap_or(mask).has(draft) && !self.eos.contains(&draft);
            match trial.push(draft).and_then(|()| trial.allowed()) {
                Ok(next) if is_allowed => masks.push(next),
                _ => break,
            }
        }
        masks
    }

    /// Returns tokens of the text that the grammar demands next, if it leaves no choice. They are a
    /// guess: the same text may be written in other tokens. `mask`: the tokens that may follow now.
    pub fn forced(&self, mask: &Mask) -> Vec<Token> {
        let mut trial = self.trial();
        let only = mask.only().filter(|token| !self.eos.contains(token));
        if only.is_some_and(|only| trial.push(only).is_err()) {
            return Vec::new();
        }
        let bytes = trial.matcher.compute_ff_bytes();
        // Up to a token that is not text, and to the last whole character.
        let text = bytes.split(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER).next().unwrap_or_default();
        let text = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let pieces = [Piece::Text(text.to_owned())];
        let encoded = self.tokenizer.encode_unless(&pieces, true, &AtomicBool::new(false)).ok().flatten();
        let mut tokens = encoded.unwrap_or_default();
        // The last one may be longer, with what follows the text.
        tokens.pop();
        only.into_iter().chain(tokens).collect()
    }

    /// Returns a bit for each token that may follow. Fails if no token may.
    pub fn allowed(&mut self) -> Result<Mask, String> {
        let mut mask = Mask::none(self.vocab);
        let mut ends = true;
        // Otherwise, the answer is complete.
        if !self.matcher.is_stopped() || self.matcher.is_error() {
            let allowed = self.matcher.compute_mask().map_err(line)?;
            ends = self.eos.iter().any(|&token| allowed.is_allowed(token));
            let (words, rest) = (mask.0.iter_mut().zip(allowed.as_slice()), self.vocab % 32);
            words.for_each(|(to, from)| *to = *from);
            if let Some(last) = mask.0.last_mut().filter(|_| rest > 0) {
                *last &= (1 << rest) - 1;
            }
        }
        self.eos.iter().filter(|&&token| (token as usize) < self.vocab).for_each(|&token| mask.set(token, ends));
        match mask.is_empty() {
            true => Err("no token continues it".to_owned()),
            false => Ok(mask),
        }
    }

    /// Appends a token of the answer. Fails if the grammar does not allow it.
    pub fn push(&mut self, token: Token) -> Result<(), String> {
        if self.eos.contains(&token) || (self.matcher.is_stopped() && !self.matcher.is_error()) {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::GrammarPart;
    use serde_json::{Value, json};

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/tokenizer/tokenizer.json");
    const VOCAB: usize = 405;
    const EOS: Token = 402;

    fn compiler() -> Compiler {
        let tokenizer = Tokenizer::new(&std::fs::read(FILE).unwrap(), 1000).unwrap();
        Compiler::new(Arc::new(tokenizer), VOCAB, &[EOS]).unwrap()
    }

    fn grammar(parts: Vec<GrammarPart>) -> Grammar {
        Grammar { parts, field: "x".to_owned(), schemas: Vec::new() }
    }

    fn json(schema: Value) -> Grammar {
        grammar(vec![GrammarPart::Json(schema.to_string())])
    }

    /// Whether an answer of these tokens is one of the grammar.
    fn takes(compiler: &Compiler, grammar: &Grammar, text: &str) -> bool {
        let mut constraint = compiler.compile(grammar).unwrap();
        let tokens = compiler.tokenizer.encode_pieces(&crate::tokenizer::unflatten(text)).unwrap();
        tokens.into_iter().chain([EOS]).all(|token| {
            let allowed = constraint.allowed().is_ok_and(|mask| mask.has(token));
            allowed && constraint.push(token).is_ok()
        })
    }

    #[test]
    fn tokens_that_a_schema_does_not_allow_are_forbidden_and_the_end_with_them() {
        let compiler = compiler();
        let schema = json!({ "type": "object", "properties": { "é": { "type": "integer" } }, "required": ["é"] });
        let grammar = json(schema);
        for (text, good) in [
            ("{\"é\": 12}", true),
            ("{ \"é\" : -3 }", true),
            ("{\"é\": 12", false),
            ("{\"é\": 1.5}", false),
            ("{}", false),
            ("{\"é\": 1} x", false),
            ("Sure: {\"é\": 12}", false),
        ] {
            assert_eq!(takes(&compiler, &grammar, text), good, "{text}");
        }
        // White space is bounded, so that an answer ends.
        assert!(!takes(&compiler, &grammar, &format!("{{{}\"é\": 1}}", " ".repeat(41))));
    }

    #[test]
    fn marks_are_tokens_and_texts_are_not() {
        let compiler = compiler();
        let part = |text: &str| GrammarPart::Text(text.to_owned());
        let grammar = grammar(vec![
            GrammarPart::Mark("<think>".to_owned()),
            GrammarPart::Either(vec![vec![part("a"), GrammarPart::Until("</x>\n".to_owned())], vec![part("b")]]),
            GrammarPart::Mark("[END]".to_owned()),
        ]);
        let mark = crate::tokenizer::flatten(&[crate::protocol::Piece::Control("<think>".to_owned())]);
        for (text, good) in [
            (format!("{mark}b[END]"), true),
            (format!("{mark}a any < text\n</x>\n[END]"), true),
            ("<think>b[END]".to_owned(), false),
            (format!("{mark}a any text[END]"), false),
        ] {
            assert_eq!(takes(&compiler, &grammar, &text), good, "{text}");
        }
        // Rows that pad the embedding table have no token.
        let padded = Compiler::new(Arc::clone(&compiler.tokenizer), VOCAB + 40, &[EOS]).unwrap();
        let mask = padded.compile(&grammar).unwrap().allowed().unwrap();
        let allowed = (0..VOCAB as Token + 40).filter(|&token| mask.has(token));
        assert!(allowed.eq(compiler.tokenizer.token_for("<think>")));
    }

    #[test]
    fn what_follows_drafts_is_known_before_they_are_and_a_text_without_a_choice_is_guessed() {
        let compiler = compiler();
        let schema =
            json!({ "type": "object", "properties": { "capital": { "type": "integer" } }, "required": ["capital"] });
        let mut constraint = compiler.compile(&json(schema)).unwrap();
        let encode = |text: &str| compiler.tokenizer.encode_pieces(&[Piece::Text(text.to_owned())]).unwrap();
        let start = constraint.allowed().unwrap();
        // The end is not a draft, and what may not follow ends them.
        let drafts = [encode("{\"capital\": 12}"), vec![EOS]].concat();
        let ahead = constraint.ahead(&start, &drafts);
        assert_eq!(ahead.len() + 1, drafts.len());
        let wrong = [encode("{\"cap"), encode("x\"")].concat();
        assert_eq!(constraint.ahead(&start, &wrong), ahead[..encode("{\"cap").len()]);
        // A vocabulary may have several tokens that begin an object.
        let first = compiler.tokenizer.decode(&constraint.forced(&start)).unwrap();
        assert!("{".starts_with(&first), "{first:?}");
        for (token, mask) in drafts.iter().zip(&ahead) {
            constraint.push(*token).unwrap();
            assert_eq!(constraint.allowed().as_ref(), Ok(mask));
            let said = compiler.tokenizer.decode(&constraint.forced(mask)).unwrap();
            assert!("capital\"".contains(&said), "{said:?}");
        }
        let mut constraint = compiler.compile(&json(json!({ "const": "a longer text" }))).unwrap();
        constraint.push(encode("\"")[0]).unwrap();
        let mask = constraint.allowed().unwrap();
        let said = compiler.tokenizer.decode(&constraint.forced(&mask)).unwrap();
        assert!(said.len() > 6 && "a longer text\"".starts_with(&said), "{said:?}");
    }

    #[test]
    fn what_cannot_be_followed_is_refused_and_costs_little() {
        let compiler = compiler();
        let mut deep = json!({});
        for _ in 0..50 {
            deep = json!({ "items": deep });
        }
        deep = json!({ "anyOf": [deep] });
        for _ in 0..20 {
            deep = json!({ "items": deep });
        }
        let wide = json!({ "enum": (0..60_000).map(|n| format!("{n:08}")).collect::<Vec<_>>() });
        for (schema, part) in [
            (json!({ "type": "nosuch" }), "nosuch"),
            (json!({ "uniqueItems": true, "type": "array" }), "uniqueItems"),
            (json!({ "type": "string", "pattern": "(" }), ""),
            (json!({ "$ref": "https://example.com/x.json" }), "$ref"),
            (deep, "deeper"),
            (wide, "bytes"),
            (json!(false), "nothing fits"),
            (json!(["x".repeat(10_000)]), "expected an object"),
            (json!("x".repeat(10_000)), "neither an object"),
        ] {
            let refused = compiler.compile(&json(schema)).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.starts_with("x: ") && refused.contains(part), "{part}: {refused}");
            assert!(!refused.contains('\n') && refused.len() < 1000, "{part}: {refused}");
        }
        // Of several schemas, the first that fails alone is named.
        let schemas = [json!({}), json!({ "type": "nosuch" }), json!({ "type": 7 })];
        let schemas = schemas.map(|schema| schema.to_string());
        let parts = schemas.iter().map(|schema| GrammarPart::Json(schema.clone())).collect();
        let schemas = ["a", "b", "c"].map(str::to_owned).into_iter().zip(schemas).collect();
        match compiler.compile(&Grammar { schemas, ..grammar(parts) }) {
            Err(GrammarError::Schema { field, .. }) => assert_eq!(field, "b"),
            other => panic!("{:?}", other.err()),
        }
    }
}
