//! Policies as users name them, a word each.

use super::{Budget, MOST_MEMBERS};
use crate::words::words;

/// The name of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// The model's own: DMS or DMC where it was trained for it, else dense.
    #[default]
    Auto,
    Dense,
    Dms,
    /// The newest tokens and a few attention sinks.
    Window,
    /// Drops what the newest query attends to least.
    Tova,
    /// Keeps the newest tokens and those with the most attention.
    H2o,
    /// Drops what trained gates let decay most.
    TrimKv,
    /// Keeps everything; a query reads the pages that may match it.
    Quest,
    /// Quest over the cache that DMS leaves.
    DmsQuest,
    /// Merges every so many tokens.
    Pool,
    /// Merges what a DMC model decides.
    Dmc,
}

words! { PolicyKind, "a cache policy", {
    Auto = "auto", Dense = "dense", Dms = "dms", Window = "window", Tova = "tova", H2o = "h2o", TrimKv = "trimkv", Quest = "quest",
    DmsQuest = "dms+quest", Pool = "pool", Dmc = "dmc",
} }

/// Fewest slots of a policy that reads or scores whole pages.
const PAGE_SLOTS: usize = 16;

impl PolicyKind {
    /// Whether a budget belongs to the policy.
    pub fn has_budget(self) -> bool {
        !matches!(self, Self::Auto | Self::Dense | Self::Dms | Self::Dmc)
    }

    /// The budget that the policy has unless the user or the model's gates name one.
    pub fn default_budget(self) -> Option<Budget> {
        let budget = if self == Self::Pool { Budget::of_ratio(4.0) } else { Budget::Slots(512) };
        (self.has_budget() && self != Self::TrimKv).then_some(budget)
    }

    /// Why the policy cannot have this budget.
    pub fn budget_refusal(self, budget: Budget) -> Option<String> {
        match (self, budget) {
            (policy, _) if !policy.has_budget() => Some(
                "this policy has no budget; add --policy window, tova, h2o, trimkv, quest or pool, or remove it"
                    .to_owned(),
            ),
            (Self::Pool, Budget::Ratio(units))
                if units.is_multiple_of(Budget::UNIT) && units <= MOST_MEMBERS as u32 * Budget::UNIT =>
            {
                None
            }
            (Self::Pool, _) => {
                Some(format!("policy pool takes a whole ratio from 1x to {MOST_MEMBERS}x, such as --budget 4x"))
            }
            (Self::Window, Budget::Ratio(_)) => Some("policy window takes slots, such as --budget 512".to_owned()),
            (Self::Tova | Self::H2o | Self::TrimKv | Self::Quest | Self::DmsQuest, Budget::Slots(n))
                if n < PAGE_SLOTS =>
            {
                Some(format!("{n} slots are less than a page of the cache, expected at least {PAGE_SLOTS}"))
            }
            _ => None,
        }
    }

    /// Whether what a token reads depends on the step that it comes in, so that conversations
    /// cannot have the policy.
    pub fn reads_pages(self) -> bool {
        matches!(self, Self::Quest | Self::DmsQuest)
    }

    /// Whether tokens share slots.
    pub fn merges(self) -> bool {
        matches!(self, Self::Pool | Self::Dmc)
    }

    /// Whether tokens are neither dropped nor merged.
    pub fn keeps_all(self) -> bool {
        matches!(self, Self::Dense | Self::Quest)
    }

    /// Whether a conversation can change how much is kept.
    pub fn is_steered(self) -> bool {
        self.dial_refusal().is_none()
    }

    /// Why a conversation cannot change how much is kept.
    pub fn dial_refusal(self) -> Option<String> {
        match self {
            Self::Dms => None,
            Self::Dense => Some("the cache keeps everything: its policy is dense".to_owned()),
            Self::Dmc => Some("policy dmc merges as its heads decide; its ratio was fixed in training".to_owned()),
            policy => Some(format!("policy {} keeps as much as --budget says", policy.name())),
        }
    }

    /// Describes a token that nothing marks ahead of time. `gone`: the heads that no longer store
    /// it, such as `3 heads`.
    pub fn fate(self, gone: Option<&str>) -> String {
        match (self, gone) {
            (Self::Pool | Self::Dmc, None) => "the newest token of its slots".to_owned(),
            (Self::Pool | Self::Dmc, Some(gone)) => format!("merged by {gone} into the slot of a later token"),
            (Self::Tova | Self::H2o, None) => "it stays while queries attend to it".to_owned(),
            (Self::Tova | Self::H2o, Some(gone)) => {
                format!("dropped by {gone}, whose queries attended to it least")
            }
            (Self::TrimKv, None) => "it stays while its gate leaves more of it than of others".to_owned(),
            (Self::TrimKv, Some(gone)) => format!("dropped by {gone}, whose gates left the least of it"),
            _ => "a dense cache: it stays while there is memory".to_owned(),
        }
    }
}
