//! Tool calls in the text of an answer: the format in which a model writes them, and a parser that
//! finds them while the text arrives.
//!
//! | file | owns |
//! | --- | --- |
//! | `format`, `known` | the trait of a format; the list of formats, and the choice by template |
//! | `parser` | the text that is held back, and its bounds |
//! | `json`, `arguments` | JSON values at the start of a text; arguments that are sent while they arrive |
//! | `schema` | types and schemas of parameters |
//! | `hermes`, `xml`, `llama`, `mistral`, `granite`, `phi`, `harmony` | one format each |
//! | `offered`, `said` | the fields of a request; texts of sampled answers, by the ids of calls |
//!
//! Until a call is complete and valid, it may turn out to be text, and a client that has been sent
//! half of a call cannot give it back. So a stream is sent a call from the place on at which it is
//! taken for one whatever follows: its name is a tool's, and an object begins its arguments. What
//! is sent whole is sent when it is complete: answers that are not streamed, and calls whose
//! arguments are not JSON.

mod arguments;
mod format;
mod gemma;
mod granite;
mod harmony;
mod hermes;
mod json;
mod known;
mod llama;
mod mistral;
mod offered;
mod parser;
mod phi;
mod said;
mod schema;
mod xml;

pub use format::{Call, Sent, Tool, fragments};
pub use known::{FORMATS, format_of};
pub use offered::{Choice, Offered, arguments, read_call, read_choice, read_tools};
pub use parser::{Heard, Parser};
pub use said::Said;
