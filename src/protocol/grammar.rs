//! What an answer has to be: texts, JSON by a schema, and tokens that mark calls.

/// A grammar as a sequence of parts. It does not hold in a thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar(pub Vec<GrammarPart>);

/// A part of a [`Grammar`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarPart {
    /// The literal of a control token, or this text where the vocabulary has no such token.
    Mark(String),
    Text(String),
    /// JSON by a schema, which is JSON, too.
    Json(String),
    /// Any text up to this one, which ends it.
    Until(String),
    /// One of several sequences.
    Either(Vec<Vec<GrammarPart>>),
}

/// Begins the detail of a turn that was refused because of its grammar.
pub const GRAMMAR_REFUSED: &str = "the schema cannot be followed";
