//! `h2o`: Heavy-Hitter Oracle (arXiv 2306.14048), for any model and without training. Each KV head
//! keeps the newest half of its budget, and of the older tokens those with the most attention since
//! they came.

use super::Budget;
use super::scored::{History, Scope, Scored};

/// Scores include the queries of a prompt, so that early tokens have an advantage. The paper does
/// not cover query groups: the weights of a KV head's query heads are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2o {
    pub budget: Budget,
}

impl H2o {
    pub fn rule(&self) -> Scored {
        Scored { budget: self.budget, scope: Scope::Head, history: History::Sum, keeps_newest: true }
    }
}
