//! What both forms of a shown session are made of.

use crate::chat::retention::Retention;
use crate::chat::session::{Loaded, Policies, Policy};
use crate::chat::{Message, Role};
use crate::ui::text::{clean_line, plural};

/// A part of a message's text, and the percentage of the heads that store it; `None` where it was
/// not fed.
pub(super) type Stretch<'a> = (&'a str, Option<u8>);

/// The text of a message in stretches, without surrounding newlines.
pub(super) fn stretches<'a>(text: &'a str, kept: Option<&Retention>) -> Vec<Stretch<'a>> {
    let (mut out, mut rest) = (Vec::new(), text.trim_end_matches('\n'));
    for &(bytes, percent) in kept.into_iter().flat_map(|r| &r.stretches) {
        // A cut is always between two characters.
        let mut at = bytes.min(rest.len());
        while !rest.is_char_boundary(at) {
            at -= 1;
        }
        let (part, after) = rest.split_at(at);
        out.push((part, Some(percent.min(100))));
        rest = after;
    }
    out.push((rest, None));
    if let Some(first) = out.iter_mut().find(|(part, _)| !part.trim_start_matches('\n').is_empty()) {
        first.0 = first.0.trim_start_matches('\n');
    }
    out.retain(|(part, _)| !part.is_empty());
    out
}

/// The messages to show: the system prompt and the active path, with what the cache held of each.
pub(super) fn messages(loaded: &Loaded) -> Vec<(&'static str, &str, Option<&Message>, Option<&Retention>)> {
    let chat = &loaded.conversation;
    let retention = chat.retention();
    let kept = |id| retention.iter().copied().find(|r| r.message == id);
    let system = chat.system().map(|text| ("system", text, None, kept(None)));
    let role = |m: &Message| if m.role == Role::User { "user" } else { "assistant" };
    let path = chat.path().into_iter().map(|m| (role(m), m.text.as_str(), Some(m), kept(Some(m.id))));
    system.into_iter().chain(path).collect()
}

/// The cache's policies in the turns of the active path.
pub(super) struct PathPolicies {
    /// Over all turns, as far as the file says.
    pub(super) turns: Policies,
    /// The policy of the last turn, which left the cache as it is shown.
    pub(super) last: Option<Policy>,
    /// Their names in order, each change once.
    pub(super) names: Vec<String>,
}

impl PathPolicies {
    pub(super) fn of(loaded: &Loaded) -> Self {
        let turns = loaded.policies();
        let path = loaded.conversation.path().into_iter();
        let of_path: Vec<Option<&Policy>> = path.filter_map(|m| Some(turns.get(&m.turn?))).collect();
        let last = of_path.last().copied().flatten().cloned();
        let mut names: Vec<String> = of_path.into_iter().map(name).collect();
        names.dedup();
        Self { turns, last, names }
    }

    /// Whether the last turn's policy merges tokens.
    pub(super) fn merge(&self) -> bool {
        self.last.as_ref().is_some_and(|policy| policy.policy.merges())
    }

    /// The role of a message, with the policy of its turn where that changed in the conversation.
    pub(super) fn role(&self, role: &str, message: Option<&Message>) -> String {
        match message.and_then(|m| m.turn).filter(|_| self.names.len() > 1) {
            Some(turn) => format!("{role} (policy {})", name(self.turns.get(&turn))),
            None => role.to_owned(),
        }
    }
}

pub(super) fn name(policy: Option<&Policy>) -> String {
    policy.map_or_else(|| "not recorded".to_owned(), |policy| clean_line(&policy.name()))
}

/// What to know about a conversation under a policy that merges tokens: a slot is at its newest
/// token, so that the others count in no head although their means are in it.
pub(super) const MERGED: &str =
    "tokens are merged into slots: a slot is shown at its newest token, and it holds those before it too";

/// `82 % of 41 tokens remembered`
pub(super) fn remembered(kept: Option<&Retention>, merges: bool) -> String {
    kept.map_or("not in the cache".to_owned(), |r| {
        let percent = 100.0 * r.share.clamp(0.0, 1.0);
        if merges {
            return format!("{} in {percent:.0} % as many slots", plural(r.tokens as u64, "token"));
        }
        format!("{percent:.0} % of {} remembered{}", plural(r.tokens as u64, "token"), r.far_words())
    })
}
