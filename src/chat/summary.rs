//! Carries a conversation whose context is full over into a new one: a summary, checked against
//! what the user said, or the user's own words.

use std::collections::BTreeSet;

/// Advice about a full context, the same in every place that gives it.
pub const WAY_OUT: &str = "/undo takes the last turn back, /compact continues in a new conversation";

/// Fewest words of a summary.
const MIN_WORDS: usize = 20;
/// Messages of more bytes are pastes: a summary need not repeat their names and numbers.
const PASTE_BYTES: usize = 400;
/// Heads the messages that a summary does not cover.
const OWN_WORDS: &str = "In the user's own words:";

/// Returns the names and numbers that a message tells, in lower case: words with a digit, and words
/// with a capital that do not begin a sentence. Questions tell nothing.
fn facts(message: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    if message.len() > PASTE_BYTES {
        return out;
    }
    for sentence in message.split_inclusive(['.', '!', '?', '\n']).filter(|s| !s.trim_end().ends_with('?')) {
        for (at, word) in words(sentence).enumerate() {
            let is_name = at > 0 && word.chars().count() > 1 && word.starts_with(char::is_uppercase);
            if is_name || word.contains(|c: char| c.is_ascii_digit()) {
                out.insert(word.to_lowercase());
            }
        }
    }
    out
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// Checks a summary of the messages of the user in `covered`. Returns it with the messages appended
/// whose names or numbers it lacks, and with the messages of `after`, which it does not cover, as
/// far as `bytes` allows. An error says why the summary is refused: it is too short, or lacks more
/// than half of the names and numbers.
pub fn checked(summary: &str, covered: &[&str], after: &[&str], bytes: usize) -> Result<String, String> {
    let summary = summary.trim();
    let n = words(summary).count();
    if n < MIN_WORDS {
        return Err(format!("the summary has {n} words, fewer than {MIN_WORDS}"));
    }
    let kept: BTreeSet<String> = words(summary).map(str::to_lowercase).collect();
    let lacks = |message: &str| facts(message).iter().any(|fact| !kept.contains(fact));
    let all: BTreeSet<String> = covered.iter().flat_map(|message| facts(message)).collect();
    let lost: Vec<&str> = all.difference(&kept).map(String::as_str).collect();
    if 2 * lost.len() > all.len() {
        let shown = lost[..lost.len().min(4)].join(", ");
        return Err(format!("the summary lost {} of {} names and numbers ({shown})", lost.len(), all.len()));
    }
    let own: Vec<&str> = covered.iter().copied().filter(|m| lacks(m)).chain(after.iter().copied()).collect();
    Ok(match own.is_empty() {
        true => summary.to_owned(),
        false => format!("{summary}\n\n{}", own_words(&own, bytes).0),
    })
}

/// Lists messages in the user's own words, as far as they fit in `bytes`, and states how many do
/// not. Returns their number too.
pub fn own_words(messages: &[&str], bytes: usize) -> (String, usize) {
    let sizes: Vec<usize> = messages.iter().map(|message| message.len() + 3).collect();
    let kept = that_fit(&sizes, bytes);
    let mut out = OWN_WORDS.to_owned();
    for (message, _) in messages.iter().zip(&kept).filter(|(_, kept)| **kept) {
        out += &format!("\n- {}", message.trim().replace('\n', "\n  "));
    }
    let left = kept.iter().filter(|kept| !**kept).count();
    match left_out(left) {
        Some(line) => (format!("{out}\n({line})"), left),
        None => (out, 0),
    }
}

/// Says how many messages were too long to be taken over.
fn left_out(n: usize) -> Option<String> {
    let what = if n == 1 { "1 long message is" } else { &format!("{n} long messages are") };
    (n > 0).then(|| format!("{what} left out: there is no room for more"))
}

/// Which items of these sizes are kept within a total: the largest go first, and of equals the
/// oldest.
pub fn that_fit(sizes: &[usize], total: usize) -> Vec<bool> {
    let mut kept = vec![true; sizes.len()];
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(sizes[at]));
    let mut sum: usize = sizes.iter().sum();
    for at in order {
        if sum <= total {
            break;
        }
        sum -= sizes[at];
        kept[at] = false;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "The user is called Ada and lives in Lyon with a dog. We talked about the budget of the trip in \
        May, which is 1200 euros, and about trains.";

    #[test]
    fn names_and_numbers_that_are_told_count_and_those_of_questions_and_pastes_do_not() {
        let of = |text: &str| facts(text).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(of("My name is Ada. Remember: the code is 48213, for Bob's door."), "48213 ada bob");
        assert_eq!(of("Is Paris larger than Rome? What is 7 times 8?"), "");
        assert_eq!(of("I think I am right."), "");
        assert_eq!(of(&"Item 17 of Ada.\n".repeat(40)), "");
    }

    #[test]
    fn a_summary_that_is_short_or_lost_most_facts_is_refused() {
        let told = ["My name is Ada.", "I live in Lyon.", "The budget is 1200 euros."];
        assert_eq!(checked(GOOD, &told, &[], 1000).as_deref(), Ok(GOOD));
        let short = checked("The conversation so 91", &told, &[], 1000).unwrap_err();
        assert_eq!(short, "the summary has 4 words, fewer than 20");
        let empty = "This was a friendly talk about many things that the user likes, and about some others that we \
            may come back to later on, perhaps.";
        let lost = checked(empty, &told, &[], 1000).unwrap_err();
        assert_eq!(lost, "the summary lost 3 of 3 names and numbers (1200, ada, lyon)");
        assert!(checked(empty, &["hello there"], &[], 1000).is_ok(), "nothing was told");
    }

    #[test]
    fn what_a_summary_lacks_follows_in_the_users_words() {
        let told = ["My name is Ada.", "I live in Lyon.", "The budget is 1200 euros.", "My dog is called Rex."];
        let text = checked(GOOD, &told, &["Add 5 to it."], 1000).unwrap();
        assert_eq!(text, format!("{GOOD}\n\n{OWN_WORDS}\n- My dog is called Rex.\n- Add 5 to it."));
    }

    #[test]
    fn the_longest_messages_are_left_out_with_a_line_that_says_so() {
        let long = "x".repeat(90);
        let text = own_words(&["My name is Ada.", &long, "The code is 5."], 60);
        let left_out = "(1 long message is left out: there is no room for more)";
        assert_eq!(text, (format!("{OWN_WORDS}\n- My name is Ada.\n- The code is 5.\n{left_out}"), 1));
        assert_eq!(that_fit(&[5, 5, 5], 10), [false, true, true]);
    }
}
