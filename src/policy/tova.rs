//! `tova`: Token Omission Via Attention (arXiv 2401.06104), for any model and without training. A
//! layer drops the token to which the newest one attends least. As in the published code, that may
//! be the newest token itself.

use super::Budget;
use super::scored::{History, Scope, Scored};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tova {
    pub budget: Budget,
}

impl Tova {
    pub fn rule(&self) -> Scored {
        Scored { budget: self.budget, scope: Scope::Layer, history: History::Last, keeps_newest: false }
    }
}
