//! The grammar of an answer: texts, JSON by a schema, and tokens that mark tool calls.

/// A grammar: a sequence of parts. It does not apply to a thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar {
    pub parts: Vec<GrammarPart>,
    /// Field of the request that demands it.
    pub field: String,
    /// Schemas that the parts are made of, each with its own field, which an error names. Empty
    /// where `field` is that of the only one.
    pub schemas: Vec<(String, String)>,
}

impl Grammar {
    /// The error of a grammar that cannot be followed.
    pub fn refused(&self, why: String) -> GrammarError {
        GrammarError::Schema { field: self.field.clone(), why }
    }
}

/// Why there is no answer under a grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarError {
    /// The field with this name has a schema that cannot be followed.
    Schema { field: String, why: String },
    /// No more grammars can be compiled for now.
    Busy,
    /// The compiler failed, not the request.
    Failed,
}

impl std::fmt::Display for GrammarError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Schema { field, why } => write!(f, "{field}: the schema cannot be followed: {why}"),
            Self::Busy => f.write_str("too many schemas are being compiled; try again later"),
            Self::Failed => f.write_str("the compiler of schemas failed"),
        }
    }
}

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
