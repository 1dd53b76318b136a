//! How much of each message the cache still holds: the presence of its tokens, found by its text in
//! the text as it was fed.

use crate::protocol::Presence;
use crate::protocol::number::or_zero;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Most stretches of all messages together.
const MAX_STRETCHES: usize = 1024;

/// How much of a message the cache holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Retention {
    /// Id of the message; `None` (null) is the system prompt.
    pub message: Option<u64>,
    /// Tokens of its text.
    pub tokens: usize,
    /// Mean share of the KV heads that store its tokens, from 0 to 1.
    #[serde(deserialize_with = "or_zero")]
    pub share: f64,
    /// Its text in stretches: bytes, and the percentage of the KV heads that store its tokens. What
    /// follows the last one was not fed.
    pub stretches: Vec<(usize, u8)>,
    /// Mean percentages of the KV heads that have its tokens far: that read them, and that do not.
    /// `None` where none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<[u8; 2]>,
}

impl Retention {
    /// Says that a message is not in the context any more.
    fn gone(message: Option<u64>) -> Self {
        Self { message, ..Self::default() }
    }

    /// Says how much of it is far, after what says how much is stored.
    pub fn far_words(&self) -> String {
        let words = |[read, unread]: [u8; 2]| format!(", {read} % far and read, {unread} % far and not read");
        self.far.map_or_else(String::new, words)
    }

    fn is_gone(&self) -> bool {
        self.tokens == 0
    }
}

/// Entries of `now` that differ from the known entries. Otherwise a long conversation would be
/// recorded again with each of its turns.
pub fn changes(known: &[&Retention], mut now: Vec<Retention>) -> Vec<Retention> {
    let known: HashMap<Option<u64>, &Retention> = known.iter().map(|r| (r.message, *r)).collect();
    let still: HashSet<Option<u64>> = now.iter().map(|r| r.message).collect();
    now.retain(|r| known.get(&r.message) != Some(&r));
    now.extend(known.into_keys().filter(|message| !still.contains(message)).map(Retention::gone));
    now
}

/// The newest entry of each message, in the order of messages, from the changes of turns in order.
pub fn merged<'a>(turns: impl Iterator<Item = &'a [Retention]>) -> Vec<&'a Retention> {
    let newest: BTreeMap<Option<u64>, &Retention> = turns.flatten().map(|r| (r.message, r)).collect();
    newest.into_values().filter(|r| !r.is_gone()).collect()
}

/// Finds messages, by id, in the text as it was fed; `None` is the system prompt. A message's think
/// block, if there is one, is passed over. Messages that a template changed have no entry.
pub fn of_messages(presence: &Presence, texts: &[(Option<u64>, Option<&str>, &str)]) -> Vec<Retention> {
    let per_stretch = presence.ends.len().div_ceil(MAX_STRETCHES).max(1);
    let (mut out, mut from) = (Vec::new(), 0);
    for (n, &(message, thoughts, text)) in texts.iter().enumerate() {
        let is_last = n + 1 == texts.len();
        // The answer is often said there for the first time.
        if let Some(passed) = thoughts.and_then(|thoughts| find(&presence.text, from, thoughts.trim(), false)) {
            from = passed.end;
        }
        let Some(found) = find(&presence.text, from, text.trim(), is_last) else { continue };
        from = found.end;
        let lead = text.len() - text.trim_start().len();
        out.push(retention(presence, message, found, lead, per_stretch));
    }
    out
}

/// The bytes of `text` in `fed` from `from` on, as a whole word; of the last message as much as
/// ends `fed`.
fn find(fed: &str, from: usize, text: &str, is_last: bool) -> Option<Range<usize>> {
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let begins = |at: usize| !(is_word(fed[..at].chars().next_back()) && is_word(text.chars().next()));
    let ends = |at: usize| !(is_word(fed[at..].chars().next()) && is_word(text.chars().next_back()));
    if text.is_empty() {
        return None;
    }
    let mut found = fed[from..].match_indices(text).map(|(at, _)| from + at..from + at + text.len());
    let whole = found.find(|range| begins(range.start) && ends(range.end));
    if whole.is_some() || !is_last {
        return whole;
    }
    let most = text.len().min(fed.len() - from);
    let begins_it = |n: &usize| text.is_char_boundary(*n) && fed.ends_with(&text[..*n]) && begins(fed.len() - n);
    (1..=most).rev().find(begins_it).map(|n| fed.len() - n..fed.len())
}

/// Retention of the text at `found`, which begins after `lead` bytes of the message.
fn retention(
    presence: &Presence,
    message: Option<u64>,
    found: Range<usize>,
    lead: usize,
    per_stretch: usize,
) -> Retention {
    let end = |token: usize| presence.ends.get(token).map_or(0, |&end| end as usize);
    let first = presence.ends.partition_point(|&end| end as usize <= found.start);
    let last = presence.ends.partition_point(|&end| (end as usize) < found.end).min(presence.ends.len() - 1);
    let mut stretches: Vec<(usize, u8)> = Vec::new();
    let (mut at, mut total, mut token) = (found.start, 0.0, first);
    while token <= last {
        let next = (token + per_stretch).min(last + 1);
        let sum: f64 = (token..next).map(|t| presence.share(t)).sum();
        let percent = (100.0 * sum / (next - token) as f64).round() as u8;
        let bytes = end(next - 1).min(found.end).saturating_sub(at) + if token == first { lead } else { 0 };
        match stretches.last_mut() {
            Some((length, same)) if *same == percent => *length += bytes,
            _ => stretches.push((bytes, percent)),
        }
        (at, total, token) = (end(next - 1).min(found.end), total + sum, next);
    }
    let tokens = last + 1 - first;
    let lanes = |counts: &[u16]| counts.get(first..=last).map_or(0, |c| c.iter().map(|&n| u64::from(n)).sum::<u64>());
    let (far, near, all) = (lanes(&presence.far), lanes(&presence.near), (tokens * presence.lanes).max(1) as f64);
    let percents = [near, far - near.min(far)].map(|lanes| (100.0 * lanes as f64 / all).round() as u8);
    let share = (1000.0 * total / tokens as f64).round() / 1000.0;
    Retention { message, tokens, share, stretches, far: (far > 0).then_some(percents) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens, each kept by the given number of four heads.
    fn fed(tokens: &[(&str, u16)]) -> Presence {
        let mut presence = Presence { lanes: 4, ..Presence::default() };
        for (text, kept) in tokens {
            presence.text += text;
            presence.ends.push(presence.text.len() as u32);
            presence.kept.push(*kept);
        }
        presence
    }

    #[test]
    fn messages_are_found_in_the_text_as_fed() {
        let tokens = [
            ("<|im_start|>", 4),
            ("user", 0),
            ("\n", 0),
            ("a", 1),
            ("<|im_end|>", 0),
            ("\n", 0),
            ("<|im_start|>", 4),
            ("assistant", 0),
            ("\n", 0),
            ("\u{65e5}\u{672c}", 0),
            ("</think>", 0),
            ("\u{65e5}", 2),
            ("", 2),
            ("\u{672c}", 4),
            ("!", 4),
            ("<|im_end|>", 0),
            ("go", 4),
            (" o", 0),
        ];
        let presence = fed(&tokens);
        let said = [
            (None, None, "absent"),
            (Some(1), None, "a"),
            (Some(2), Some("\u{65e5}\u{672c}"), "\n\u{65e5}\u{672c}!\n"),
            (Some(3), None, "nowhere"),
            (Some(4), None, "go on"),
        ];
        let found = of_messages(&presence, &said);
        let of = |id, tokens, share, stretches: &[(usize, u8)]| Retention {
            message: Some(id),
            tokens,
            share,
            stretches: stretches.to_vec(),
            far: None,
        };
        assert_eq!(found[0], of(1, 1, 0.25, &[(1, 25)]));
        assert_eq!(found[1], of(2, 4, 0.75, &[(4, 50), (4, 100)]));
        // The last token was sampled, and not fed.
        assert_eq!(found[2], of(4, 2, 0.5, &[(2, 100), (2, 0)]));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn turns_have_what_they_changed() {
        let of = |message, share| Retention { message, tokens: 9, share, stretches: vec![(3, 50)], far: None };
        let turns = [
            vec![of(None, 1.0), of(Some(1), 1.0)],
            vec![of(None, 1.0), of(Some(1), 0.5), of(Some(2), 1.0)],
            vec![of(Some(1), 0.5), of(Some(2), 0.5), of(Some(3), 1.0)],
            vec![of(None, 0.2), of(Some(3), 1.0)],
        ];
        let mut recorded: Vec<Vec<Retention>> = Vec::new();
        for now in &turns {
            let changed = changes(&merged(recorded.iter().map(|r| &r[..])), now.clone());
            recorded.push(changed);
            assert_eq!(merged(recorded.iter().map(|r| &r[..])), now.iter().collect::<Vec<_>>());
        }
        assert_eq!(recorded.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 3, 3]);
        // Files of older versions have all of it with each turn.
        assert_eq!(merged(turns[..2].iter().map(|r| &r[..])), turns[1].iter().collect::<Vec<_>>());
    }

    #[test]
    fn long_conversations_have_a_bounded_number_of_stretches() {
        let words: Vec<String> = (0..20_000).map(|n| format!(" {n}")).collect();
        let tokens: Vec<(&str, u16)> = words.iter().enumerate().map(|(i, w)| (w.as_str(), (i % 5) as u16)).collect();
        let presence = fed(&tokens);
        let text = words.concat();
        let found = of_messages(&presence, &[(Some(1), None, &text)]);
        assert!(found[0].stretches.len() <= MAX_STRETCHES && found[0].tokens == 20_000);
        assert_eq!(found[0].stretches.iter().map(|s| s.0).sum::<usize>(), text.len());
    }
}
