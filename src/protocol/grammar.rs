//! The grammar of an answer: texts, JSON by a schema, and tokens that mark tool calls.

/// A grammar: a sequence of parts. It does not apply to a thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar(pub Vec<GrammarPart>);

/// A part of a [`Grammar`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarPart {
    /// The control token with this literal, or the text if the vocabulary has no such token.
    Mark(String),
    Text(String),
    /// JSON that follows a schema. Holds the text of the schema.
    Json(String),
    /// Any text up to and including the first occurrence of this one.
    Until(String),
    /// One of several sequences.
    Either(Vec<Vec<GrammarPart>>),
}

/// Start of the detail of a turn that was refused because of its grammar.
pub const GRAMMAR_REFUSED: &str = "the schema cannot be followed";
