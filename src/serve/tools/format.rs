//! What a format of calls is.

use crate::protocol::GrammarPart;
use crate::serve::stamp::random_digits;
use serde_json::Value;

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// A call as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub id: String,
    pub call: Call,
}

/// Bytes of arguments in one event of a stream.
const FRAGMENT_BYTES: usize = 512;

/// A call in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// JSON, an object.
    pub arguments: String,
}

/// Arguments in parts of a few hundred bytes.
pub fn fragments(arguments: &str) -> impl Iterator<Item = &str> {
    let mut rest = arguments;
    std::iter::from_fn(move || {
        let end = (FRAGMENT_BYTES..rest.len()).find(|&end| rest.is_char_boundary(end)).unwrap_or(rest.len());
        let (fragment, after) = rest.split_at(end);
        rest = after;
        (!fragment.is_empty()).then_some(fragment)
    })
}

/// The beginning of a text in which calls are looked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes are text. At 0, more text has to arrive first.
    Text(usize),
    /// So many bytes are these calls.
    Calls(usize, Vec<Call>),
    /// All of it may be the beginning of a call, of whose text so many bytes are only marks.
    Open(usize),
}

/// Where a text stands in its answer.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Nothing but white space and calls precedes it.
    pub first: bool,
    /// Nothing follows.
    pub ended: bool,
}

/// The way in which a model writes calls.
pub trait Format: Sync {
    /// The word of `dmslab calls --format`.
    fn name(&self) -> &'static str;

    /// Whether a template has calls of this format.
    fn is_of(&self, template: &str) -> bool;

    /// Literals of the tokens that mark a call.
    fn marks(&self) -> &'static [&'static str];

    /// Reads the beginning of a text. What it finds does not depend on the text that follows later.
    fn step(&self, text: &str, at: At, tools: &[Tool]) -> Step;

    /// What an answer is that has to call one of these tools. `None` where that cannot be said.
    fn grammar(&self, tools: &[&Tool], template: &str) -> Option<Vec<GrammarPart>>;

    /// A new id of a call.
    fn new_id(&self) -> String {
        format!("call_{}", random_digits())
    }

    /// The id of a call as the template takes it.
    fn id_for_template(&self, id: &str) -> String {
        id.to_owned()
    }

    /// Whether the template has the tools in the system message, as a text.
    fn tools_in_system(&self) -> bool {
        false
    }
}
