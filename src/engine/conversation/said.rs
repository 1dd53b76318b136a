//! Reports of an answer's text.

use crate::engine::likely::Waiting;
use crate::engine::think::Said;
use crate::protocol::{ChainEvent, Event, EventSender, TextKind};

/// Sends text of the answer to a turn, or of its chain `chain`, each after the log-probabilities of
/// the tokens that begin in it, if they are reported.
pub(super) fn send(
    events: &EventSender,
    turn: u64,
    chain: Option<usize>,
    mut likely: Option<&mut Waiting>,
    said: Vec<Said>,
) {
    for one in said {
        if let (Some(likely), Said::Text(TextKind::Answer, text)) = (&mut likely, &one) {
            let tokens = likely.take(text.len());
            if !tokens.is_empty() {
                events.event(Event::Likely { turn, chain, tokens });
            }
        }
        match (chain, one) {
            (Some(chain), Said::Text(kind, text)) => {
                events.event(Event::Chain { turn, event: ChainEvent::Text { chain, kind, text } });
            }
            (Some(chain), Said::WasThought) => {
                events.event(Event::Chain { turn, event: ChainEvent::WasThought { chain } });
            }
            (None, one) => events.event(one.event(turn)),
        }
    }
}
