//! `/help`: keys and commands.

use super::{Args, Command, Group};
use crate::ui::refusal::Done;
use crate::ui::state::{App, Overlay};

pub const HELP: Command = Command::new(Group::Chat, "help", "[WORDS]", "keys and commands", run).args(Args::TEXT);

/// Shows the rows that contain these words.
fn run(app: &mut App, words: &str) -> Done {
    app.overlays.push(Overlay::Help { query: words.into(), scroll: 0 });
    Ok(())
}
