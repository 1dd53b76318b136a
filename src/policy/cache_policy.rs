//! The policy of a cache: which slots live.

use super::budget::Budget;
use super::dense;
use super::dmc::Dmc;
use super::dms::{Dms, Shift};
use super::h2o::H2o;
use super::kind::PolicyKind;
use super::merge::Merging;
use super::pool::Pool;
use super::quest::Quest;
use super::scored::Scored;
use super::slot::{LaneSlots, Placement, SlotMeta};
use super::tova::Tova;
use super::trimkv::TrimKv;
use super::window::Window;

/// Policy of a cache, fixed when a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Nothing is ever dropped.
    Dense,
    Dms(Dms),
    Window(Window),
    Tova(Tova),
    H2o(H2o),
    TrimKv(TrimKv),
    Quest(Quest),
    Pool(Pool),
    Dmc(Dmc),
}

/// Policy that a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trained {
    Dms(Dms),
    Dmc(Dmc),
    /// Attention that sees only the given number of newest tokens.
    Window(usize),
    /// Retention gates, for this many slots of a lane.
    Gates(usize),
}

impl Trained {
    pub(super) fn dms(self) -> Option<Dms> {
        if let Trained::Dms(rule) = self { Some(rule) } else { None }
    }

    pub(super) fn dmc(self) -> Option<Dmc> {
        if let Trained::Dmc(dmc) = self { Some(dmc) } else { None }
    }

    /// The budget of retention gates.
    pub(super) fn gated(self) -> Option<Budget> {
        if let Trained::Gates(slots) = self { Some(Budget::Slots(slots)) } else { None }
    }
}

impl Policy {
    /// Policy of attention that sees only the newest `tokens`, as its model was trained.
    pub fn of_window(tokens: usize) -> Self {
        Policy::Window(Window::of_model(tokens))
    }

    pub fn kind(&self) -> PolicyKind {
        match self {
            Policy::Dense => PolicyKind::Dense,
            Policy::Dms(_) => PolicyKind::Dms,
            Policy::Window(_) => PolicyKind::Window,
            Policy::Tova(_) => PolicyKind::Tova,
            Policy::H2o(_) => PolicyKind::H2o,
            Policy::TrimKv(_) => PolicyKind::TrimKv,
            Policy::Quest(Quest { dms: None, .. }) => PolicyKind::Quest,
            Policy::Quest(_) => PolicyKind::DmsQuest,
            Policy::Pool(_) => PolicyKind::Pool,
            Policy::Dmc(_) => PolicyKind::Dmc,
        }
    }

    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Slots that a lane stores, or that a query reads under [`Quest`]; `None` if they are not
    /// bounded.
    pub fn budget(&self) -> Option<Budget> {
        match self {
            Policy::Dense | Policy::Dms(_) | Policy::Dmc(_) => None,
            Policy::Window(window) => Some(Budget::Slots(window.budget)),
            Policy::Tova(tova) => Some(tova.budget),
            Policy::H2o(h2o) => Some(h2o.budget),
            Policy::TrimKv(trimkv) => Some(trimkv.budget),
            Policy::Quest(quest) => Some(quest.budget),
            Policy::Pool(pool) => Some(Budget::of_ratio(pool.every as f32)),
        }
    }

    /// The rule by which tokens are marked when they arrive and their slots are reused; `None` for
    /// policies without marks.
    pub fn rule(&self) -> Option<Dms> {
        match self {
            Policy::Dms(rule) => Some(*rule),
            Policy::Window(window) => Some(window.rule()),
            Policy::Quest(quest) => quest.dms,
            Policy::Pool(_) | Policy::Dmc(_) => Some(Merging::RULE),
            Policy::Dense | Policy::Tova(_) | Policy::H2o(_) | Policy::TrimKv(_) => None,
        }
    }

    /// Which tokens share a slot, where some do.
    pub fn merging(&self) -> Option<Merging> {
        match self {
            Policy::Pool(pool) => Some(Merging::Pool(*pool)),
            Policy::Dmc(dmc) => Some(Merging::Learned(*dmc)),
            _ => None,
        }
    }

    /// The rule of [`Self::rule`] if a mark drops a token that attention could still see. Only then
    /// can tokens be pinned.
    pub fn dropping(&self) -> Option<Dms> {
        self.rule().filter(|_| self.merging().is_none() && self.models_window().is_none())
    }

    /// Whether rows that leave a lane can be kept in [`Far`](super::Far) pages: they leave whole,
    /// in an order that does not depend on attention.
    pub fn keeps_far(&self) -> bool {
        self.dropping().is_some() && self.quest().is_none()
    }

    /// A message for the user who asks for far pages that the policy does not have.
    pub fn far_refusal(&self) -> Option<String> {
        let why = match self {
            _ if self.keeps_far() => return None,
            Policy::Dense => "it drops nothing".to_owned(),
            _ if self.models_window().is_some() => "only the model's own window drops tokens".to_owned(),
            _ => "it works with dms and window".to_owned(),
        };
        Some(format!("--far does nothing with policy {}: {why}", self.name()))
    }

    /// Number of newest tokens that the model's attention sees, if the policy does nothing else.
    pub fn models_window(&self) -> Option<usize> {
        if let Policy::Window(window) = self { window.is_of_model().then_some(window.budget) } else { None }
    }

    /// The rule by which scores drop tokens; `None` where they do not.
    pub fn scored(&self) -> Option<Scored> {
        match self {
            Policy::Tova(tova) => Some(tova.rule()),
            Policy::H2o(h2o) => Some(h2o.rule()),
            Policy::TrimKv(trimkv) => Some(trimkv.rule()),
            _ => None,
        }
    }

    /// Rule for the pages that a query reads, where it does not read everything.
    pub fn quest(&self) -> Option<Quest> {
        match self {
            Policy::Quest(quest) => Some(*quest),
            _ => None,
        }
    }

    /// Whether tokens ever leave the cache or share a slot.
    pub fn evicts(&self) -> bool {
        self.rule().is_some() || self.scored().is_some()
    }

    /// Whether the kept share is learned: its ratio is expected and not certain.
    pub fn is_learned(&self) -> bool {
        matches!(self, Policy::Dms(_) | Policy::Dmc(_) | Policy::Quest(Quest { dms: Some(_), .. }))
    }

    /// Expected compression ratio of `tokens` tokens, relative to a dense cache. `trained`: the
    /// ratio of the model's training.
    pub fn expected_ratio(&self, tokens: usize, trained: Option<f64>) -> f64 {
        let ratio = match self {
            _ if self.is_learned() => trained,
            Policy::Pool(pool) => Some(pool.every as f64),
            _ if self.evicts() => self.budget().map(|budget| tokens as f64 / budget.at(tokens) as f64),
            _ => None,
        };
        ratio.unwrap_or(1.0).max(1.0)
    }

    /// A message for the user where reading prompts is slow.
    pub fn slow_prefill(&self) -> Option<String> {
        let name = self.scored().map(|_| self.name())?;
        Some(format!("policy {name} reads prompts token by token, which is slow"))
    }

    /// Whether attention adds to the counter of reads. Otherwise a token reads the slots that are
    /// stored after its step.
    pub fn attention_counts_reads(&self) -> bool {
        self.scored().is_some() || self.quest().is_some()
    }

    /// The same policy with the dial of a sequence: see [`Dms::dial`]. A policy that does not use
    /// the model's decisions has no dial.
    pub fn with_dial(self, dial: f32) -> Self {
        match self {
            Policy::Dms(rule) => Policy::Dms(Dms { dial, ..rule }),
            Policy::Quest(quest) => Policy::Quest(Quest { dms: quest.dms.map(|rule| Dms { dial, ..rule }), ..quest }),
            _ => self,
        }
    }

    /// The decision of every token, where it is not the model's.
    pub fn constant_decision(&self) -> Option<f32> {
        match self {
            Policy::Window(_) => Some(Window::DECISION),
            _ => None,
        }
    }

    /// Whether the model's decisions about dropping tokens are used.
    pub fn uses_decisions(&self) -> bool {
        self.dropping().is_some() && self.constant_decision().is_none() || self.is_gated()
    }

    /// Whether decisions are those of retention gates.
    pub fn is_gated(&self) -> bool {
        self.scored().is_some_and(|rule| rule.uses_decisions())
    }

    /// Whether tokens can be attended to before they are placed. They cannot if only attention
    /// determines what a token replaces, reads, or is merged with.
    pub fn stages(&self) -> bool {
        self.scored().is_none() && self.quest().is_none() && self.merging().is_none()
    }

    /// Entries of a lane's ring, which maps the newest tokens to their slots; 0 where the policy
    /// needs none.
    pub fn ring_len(&self) -> usize {
        self.rule().map_or(0, |rule| rule.ring_len())
    }

    /// Whether compaction drops a slot of a sequence of `n` tokens: [`Dms::drops`]. A dense cache
    /// drops marked slots, which only [`crate::backend::Pages::rate_slots`] creates.
    pub fn drops(&self, n: usize, meta: SlotMeta, threshold: usize) -> bool {
        self.rule().map_or(meta.marked() && meta.position() + 1 < n, |rule| rule.drops(n, meta, threshold))
    }

    /// Whether the newest token is always in a lane's last slot: tokens are appended, or merged
    /// into that slot.
    pub(super) fn appends(&self) -> bool {
        self.scored().is_none() && (self.rule().is_none() || self.merging().is_some())
    }

    /// Whether the first decision of a step marks the newest stored token.
    pub fn marks_stored(&self) -> bool {
        self.rule().is_some_and(|rule| rule.shift == Shift::Previous)
    }

    /// Maximum existing pages of a lane that `n` tokens write to: the newest token's page, if it is
    /// marked or merged with; the page of each overwritten slot; and the page appended to.
    /// `owns_newest`: the first of these is not counted.
    pub fn most_written(&self, n: usize, owns_newest: bool) -> usize {
        let newest = usize::from(!owns_newest);
        match self.rule() {
            _ if self.appends() => newest,
            Some(rule) => n.min(rule.ring_len()) + 1 + if self.marks_stored() { newest } else { 0 },
            None => n,
        }
    }

    /// Stores token `n` of a lane and returns where. This sequential form defines how a step places
    /// tokens. Policies with scores place by [`Scored::place`].
    pub fn store(&self, lane: &mut impl LaneSlots, n: usize, decision: f32, eviction: bool) -> (usize, Placement) {
        debug_assert!(self.scored().is_none(), "policy {} places by scores", self.name());
        match self.rule() {
            Some(rule) => rule.store(lane, n, decision, eviction),
            None => (dense::store(lane, n), Placement::Append),
        }
    }
}

impl PolicyKind {
    pub fn with(self, budget: Budget) -> PolicyRequest {
        PolicyRequest { kind: self, budget: Some(budget) }
    }
}

/// A policy that a user asks for; by default the model's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyRequest {
    pub kind: PolicyKind,
    /// `None`: [`PolicyKind::default_budget`].
    pub budget: Option<Budget>,
}

impl From<PolicyKind> for PolicyRequest {
    fn from(kind: PolicyKind) -> Self {
        Self { kind, budget: None }
    }
}

impl PolicyRequest {
    pub fn budget(self) -> Option<Budget> {
        self.budget.or(self.kind.default_budget())
    }

    /// The window of a model whose attention sees the newest `tokens`: its own, or a shorter one.
    pub(super) fn within(self, tokens: usize) -> Option<Window> {
        match (self.kind, self.budget()) {
            (PolicyKind::Auto, _) => Some(Window::of_model(tokens)),
            (PolicyKind::Window, Some(budget)) if budget.at(0) < tokens => Some(Window::new(budget.at(0))),
            (PolicyKind::Window, _) => Some(Window::of_model(tokens)),
            _ => None,
        }
    }

    /// The policy of a model that was trained for `trained`. `None` if DMS, DMC or retention gates
    /// are asked of a model without them, or if a model with a sliding window cannot have the
    /// policy. The budget is one that [`PolicyKind::budget_refusal`] allows.
    pub fn resolve(self, trained: Option<Trained>) -> Option<Policy> {
        if let Some(Trained::Window(tokens)) = trained {
            return self.within(tokens).map(Policy::Window);
        }
        let (dms, dmc) = (trained.and_then(Trained::dms), trained.and_then(Trained::dmc));
        let gated = trained.and_then(Trained::gated).map(|budget| TrimKv { budget: self.budget.unwrap_or(budget) });
        let budget = self.budget().unwrap_or(Budget::Slots(0));
        match self.kind {
            PolicyKind::Auto => {
                dms.map(Policy::Dms).or(dmc.map(Policy::Dmc)).or(gated.map(Policy::TrimKv)).or(Some(Policy::Dense))
            }
            PolicyKind::Dense => Some(Policy::Dense),
            PolicyKind::Dms => dms.map(Policy::Dms),
            PolicyKind::Window => Some(Policy::Window(Window::new(budget.at(0)))),
            PolicyKind::Tova => Some(Policy::Tova(Tova { budget })),
            PolicyKind::H2o => Some(Policy::H2o(H2o { budget })),
            PolicyKind::TrimKv => gated.map(Policy::TrimKv),
            PolicyKind::Quest => Some(Policy::Quest(Quest { budget, dms: None })),
            PolicyKind::DmsQuest => dms.map(|rule| Policy::Quest(Quest { budget, dms: Some(rule) })),
            PolicyKind::Pool => Some(Policy::Pool(Pool { every: budget.ratio() as usize })),
            PolicyKind::Dmc => dmc.map(Policy::Dmc),
        }
    }
}
