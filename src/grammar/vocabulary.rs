//! The tokens of a model for llguidance: a trie of their bytes.

use crate::protocol::Token;
use crate::tokenizer::Tokenizer;
use std::sync::Arc;
use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

struct Environment(TokTrie);

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// `false`: llguidance forces no tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// Builds the trie of `vocab` tokens. Fails if no token ends an answer.
pub fn environment(tokenizer: &Tokenizer, vocab: usize, eos: &[Token]) -> Result<TokEnv, String> {
    let end = *eos.first().ok_or("the model has no token that ends an answer")?;
    let word = |token| match tokenizer.bytes_of(token) {
        Some(bytes) => bytes,
        // An id without a token: rows that pad the embedding table. No grammar allows it.
        None if tokenizer.literal(token).is_empty() => Vec::new(),
        // A control token is not text. It is marked by a byte that UTF-8 does not have.
        None => [&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.literal(token).as_bytes()].concat(),
    };
    let words: Vec<Vec<u8>> = (0..vocab as Token).map(word).collect();
    Ok(Arc::new(Environment(TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words))))
}
