//! Intents: what the user asks for, independent of the key, command or list used. `update::perform`
//! carries them out.

use super::action::Action;
use super::effect::Which;
use super::state::Confirmed;
use std::ops::Range;

#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// An action of the keymap.
    Act(Action),
    /// Send the input, as a message or a command.
    Submit,
    /// Open a saved conversation.
    Open(Which),
    /// Give a saved conversation a title.
    Rename { id: String, title: String },
    /// Load a model from the list.
    Load(String),
    /// Read the head that the large panel shows.
    Inspect,
    /// Ask the model for a text of the conversation, which is at these positions.
    Recall { text: String, tokens: Range<usize> },
    /// Pin the tokens at these positions, or take their pins back.
    PinTokens { tokens: Range<usize>, pin: bool },
    /// A question was answered with yes.
    Confirmed(Confirmed),
}
