//! What the user wants, whichever key, command or list said so. `update::perform` carries it out.

use super::action::Action;
use super::effect::Which;
use super::state::Confirmed;

#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// What a key means in the chat.
    Act(Action),
    /// Send what stands in the input, as a message or a command.
    Submit,
    /// Open a saved conversation.
    Open(Which),
    /// Give a saved conversation a title.
    Rename { id: String, title: String },
    /// Load a model from the list.
    Load(String),
    /// Read the head that the large panel shows.
    Inspect,
    /// A question was answered with yes.
    Confirmed(Confirmed),
}
