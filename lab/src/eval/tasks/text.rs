//! A number named in prose (RULER's needle in a haystack with several keys), and facts that are
//! asked for later.

use super::super::problem::{Goal, Problem};
use super::super::rng::Rng;
use super::fill;
use super::words::{self, list};

/// Tokens of a sentence with the built-in model's tokenizer, on average.
const SENTENCE_TOKENS: f64 = 13.5;

const KINDS: [&str; 4] = ["code for", "number of", "password for", "pin for"];
const NEEDLES: [&str; 3] = ["The {k} {o} is {n}.", "Remember: the {k} {o} is {n}.", "Note that the {k} {o} is {n}."];
const ASK: [&str; 6] = [
    "{t}\nWhat is the {s}?",
    "What is the {s} in this text?\n{t}",
    "{t}\n\nFind the {s}.",
    "Read this text and tell me the {s}.\n{t}",
    "{t}\nTell me the {s}.",
    "{t}\nCan you tell me the {s}?",
];
/// Subset of [`ASK`] that a model with other training understands too.
const OTHERS: usize = 3;

/// One sentence of plain prose.
fn sentence(rng: &mut Rng) -> String {
    let mut word = |words: &'static str| rng.text(&list(words));
    let (a, b) = (word(words::ADJECTIVES), word(words::ADJECTIVES));
    let (n, m, o) = (word(words::NOUNS), word(words::NOUNS), word(words::NOUNS));
    let (v, g, p) = (word(words::VERBS), word(words::MOVES), word(words::PREPOSITIONS));
    let (who, city) = (word(words::NAMES), word(words::CITIES));
    let time = rng.text(&words::TIMES);
    let text = match rng.below(7) {
        0 => format!("the {a} {n} {v} the {m} {time}"),
        1 => format!("{who} {v} a {a} {n} {p} the {m}"),
        2 => format!("the {n} and the {m} {g} {p} the {a} {o}"),
        3 => format!("{time} {who} {g} to {city} with a {n}"),
        4 => format!("it was a {a} and {b} {n}, and {who} {v} it"),
        5 => format!("no {n} is as {a} as the {m} that {who} {v}"),
        _ => format!("there were {} {a} {n}s {p} the {m}", rng.between(2, 99)),
    };
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |c| format!("{}{}.", c.to_uppercase(), letters.as_str()))
}

/// A text of about this many tokens with a named number and `others` more. Returns the text, the
/// name and the number.
fn haystack(rng: &mut Rng, tokens: usize, others: usize) -> (String, String, String, String) {
    let count = ((tokens as f64 / SENTENCE_TOKENS) as usize).max(2);
    let mut sentences: Vec<String> = (0..count).map(|_| sentence(rng)).collect();
    let kind = rng.text(&KINDS);
    let owners = rng.sample(&words::OWNERS, others + 1);
    let mut asked = None;
    for (i, owner) in owners.iter().enumerate() {
        let digits = rng.between(3, 6) as u32;
        let number = rng.between(10i64.pow(digits - 1), 10i64.pow(digits) - 1).to_string();
        let needle = fill(rng.text(&NEEDLES), &[("k", kind), ("o", owner), ("n", &number)]);
        sentences.insert(rng.below(sentences.len() + 1), needle.clone());
        if i == 0 {
            asked = Some((format!("{kind} {owner}"), number, needle.trim_end_matches('.').to_owned()));
        }
    }
    let (subject, number, quote) = asked.unwrap_or_default();
    (sentences.join(" "), subject, number, quote)
}

pub fn needle(rng: &mut Rng, tokens: usize) -> Problem {
    let (text, subject, number, _) = haystack(rng, tokens, 3);
    let question = fill(rng.text(&ASK[..OTHERS]), &[("s", &subject), ("t", &text)]);
    Problem::ask(&[], question, Goal::Value(number))
}

/// A turn that has nothing to do with the question after it: (user, reasoning, answer) of a needle
/// in about `tokens` tokens.
pub fn other_turn(rng: &mut Rng, tokens: usize) -> [String; 3] {
    let (text, subject, number, quote) = haystack(rng, tokens, 1);
    let user = fill(rng.text(&ASK), &[("s", &subject), ("t", &text)]);
    [user, format!("I look for the {subject}.\nThe text says: {quote}"), format!("The {subject} is {number}")]
}

/// Facts: (the noun of the reasoning, how it is stated, how it is repeated, questions).
type Fact = (&'static str, &'static str, &'static str, [&'static str; 2]);
const FACTS: [Fact; 8] = [
    ("name", "My name is {x}.", "Your name is {x}", ["What is my name?", "Do you remember my name?"]),
    ("number", "My number is {x}.", "The number is {x}", ["What is my number?", "Tell me my number."]),
    ("code", "My code is {x}.", "Your code is {x}", ["What is my code?", "Can you tell me my code?"]),
    ("city", "I live in {x}.", "You live in {x}", ["Where do I live?", "What is my city?"]),
    ("dog", "My dog is called {x}.", "Your dog is called {x}", ["What is my dog called?", "What is my dog's name?"]),
    ("cat", "My cat is called {x}.", "Your cat is called {x}", ["What is my cat called?", "What is my cat's name?"]),
    (
        "colour",
        "My favourite colour is {x}.",
        "Your favourite colour is {x}",
        ["What is my favourite colour?", "Tell me my favourite colour."],
    ),
    ("pin", "My pin is {x}.", "Your pin is {x}", ["What is my pin?", "Do you still know my pin?"]),
];

fn value_of(rng: &mut Rng, kind: &str) -> String {
    match kind {
        "number" | "code" => rng.between(1000, 999_999).to_string(),
        "pin" => rng.between(1000, 9999).to_string(),
        "city" => rng.text(&list(words::CITIES)).to_owned(),
        "colour" => rng.text(&list(words::COLOURS)).to_owned(),
        _ => rng.text(&list(words::NAMES)).to_owned(),
    }
}

/// Three facts, a turn each; three turns of other things; a question for one of the facts.
pub fn recall(rng: &mut Rng, tokens: usize) -> Problem {
    let facts = rng.sample(&FACTS, 3);
    let mut turns = Vec::new();
    let mut values = Vec::new();
    for (kind, told, repeated, _) in &facts {
        let value = value_of(rng, kind);
        let answer = match *kind {
            "name" => format!("Nice to meet you, {value}!"),
            _ => format!("I will remember it. {}", fill(repeated, &[("x", &value)])),
        };
        turns.push([fill(told, &[("x", &value)]), format!("The user tells me the {kind}: {value}"), answer]);
        values.push(value);
    }
    turns.extend((0..3).map(|_| other_turn(rng, tokens / 3)));
    let asked = rng.below(facts.len());
    let question = rng.text(&facts[asked].3).to_owned();
    Problem::ask(&turns, question, Goal::Ends(values.swap_remove(asked)))
}

#[cfg(test)]
mod tests {
    use super::super::TASKS;
    use super::*;

    /// The needle is found by searching the text for the subject of the question.
    #[test]
    fn a_needle_is_in_its_text_once() {
        for i in 0..50 {
            let problem = TASKS[0].problem(11, i);
            let text = &problem.messages[0].content;
            let Goal::Value(number) = &problem.goal else { panic!() };
            let question =
                text.lines().find(|l| l.len() < 100 && (l.contains("What is") || l.contains("Find"))).unwrap();
            let from = question.find("the ").unwrap() + 4;
            let subject = question[from..].trim_end_matches(['?', '.']).trim_end_matches(" in this text");
            let named = format!("he {subject} is ");
            let at = text.find(&named).unwrap_or_else(|| panic!("{subject}: {question}")) + named.len();
            let digits: String = text[at..].chars().take_while(char::is_ascii_digit).collect();
            assert_eq!((&digits, text.matches(&named).count()), (number, 1));
            assert!((600..1500).contains(&(text.len() / 4)), "{}", text.len());
        }
    }

    #[test]
    fn a_fact_is_told_once_and_before_other_turns() {
        for i in 0..50 {
            let problem = recall(&mut Rng::new(5, "recall", i), 700);
            let Goal::Ends(value) = &problem.goal else { panic!() };
            assert_eq!(problem.messages.len(), 13);
            let users: Vec<&str> = problem.messages.iter().filter(|m| m.role == "user").map(|m| &*m.content).collect();
            let question = users[6];
            let told = users[..3].iter().filter(|text| text.trim_end_matches('.').ends_with(&**value)).count();
            assert!(told >= 1, "{question} {value} {users:?}");
        }
    }
}
