//! The trait of a tool-call format, and the types of tools and calls.

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

/// A call with the id under which it is sent to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub id: String,
    pub call: Call,
}

/// Bytes of arguments in one event of a stream; up to three more complete a character.
const FRAGMENT_BYTES: usize = 512;

/// A call of a tool in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// A JSON object, spelled as the model wrote it where the format is JSON.
    pub arguments: String,
}

/// Splits arguments into fragments of about [`FRAGMENT_BYTES`].
pub fn fragments(arguments: &str) -> impl Iterator<Item = &str> {
    let mut rest = arguments;
    std::iter::from_fn(move || {
        let end = (FRAGMENT_BYTES..rest.len()).find(|&end| rest.is_char_boundary(end)).unwrap_or(rest.len());
        let (fragment, after) = rest.split_at(end);
        rest = after;
        (!fragment.is_empty()).then_some(fragment)
    })
}

/// Result of reading the start of a text.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The first bytes, this many, are text. 0: undecided until more text arrives.
    Text(usize),
    /// The first bytes, this many, are these calls.
    Calls(usize, Vec<Call>),
    /// The whole text may be an incomplete call. Its first bytes, this many, are only marks.
    Open(usize),
}

/// A call that has begun: whatever follows, it is a call of this tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    pub name: String,
    /// The byte at which its arguments begin, an object in JSON.
    pub start: usize,
}

/// Position of a text in its answer.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Nothing but white space and calls precedes it.
    pub first: bool,
    /// Nothing follows.
    pub ended: bool,
}

/// A format in which models write calls.
pub trait Format: Sync {
    /// Name for `dmslab calls --format`.
    fn name(&self) -> &'static str;

    /// Whether a chat template writes calls in this format.
    fn is_of(&self, template: &str) -> bool;

    /// Literals of the tokens that mark a call.
    fn marks(&self) -> &'static [&'static str];

    /// Reads the start of a text. The result must not change when more text arrives.
    fn step(&self, text: &str, at: At, tools: &[Tool]) -> Step;

    /// Finds the `nth` call of an incomplete text, once its name is a tool's and its arguments have
    /// begun. The result must not change when more text arrives. `None`, too, in a format whose
    /// arguments are not JSON: its calls are sent whole.
    fn begun(&self, _text: &str, _at: At, _tools: &[Tool], _nth: usize) -> Option<Begun> {
        None
    }

    /// Grammar of an answer that must call one of these tools. `None`: the format has none.
    fn grammar(&self, tools: &[&Tool], template: &str) -> Option<Vec<GrammarPart>>;

    /// Creates the id of a call.
    fn new_id(&self) -> String {
        format!("call_{}", random_digits())
    }

    /// Converts the id of a call to one that the template accepts.
    fn id_for_template(&self, id: &str) -> String {
        id.to_owned()
    }

    /// Whether the template accepts an answer with the text of its calls as the model wrote it.
    fn repeats_sampled(&self) -> bool {
        true
    }

    /// Whether the template reads the tools from the system message, as text.
    fn tools_in_system(&self) -> bool {
        false
    }
}
