//! `trimkv`: retention gates (TrimKV, PyPI `trimkv` 0.1.5), for models with trained gates. A gate
//! says of each token how much of it one step leaves, `beta`. Each KV head drops the token of which
//! the least is left, `beta ^ age`.

use super::Budget;
use super::scored::{History, Scope, Scored};

/// A decision is the input of the sigmoid that gives beta. As in the published code, the token that
/// has just come can be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimKv {
    pub budget: Budget,
}

impl TrimKv {
    pub fn rule(&self) -> Scored {
        Scored { budget: self.budget, scope: Scope::Head, history: History::Decision, keeps_newest: false }
    }
}
