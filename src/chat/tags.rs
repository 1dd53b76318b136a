//! Tags of a conversation: words to find it by.

use crate::unicode::one_line;

/// Most tags of a conversation, and most characters of one.
const MAX_TAGS: usize = 32;
const MAX_LENGTH: usize = 40;

/// Tags in the order in which they were given, each once in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(Vec<String>);

impl Tags {
    /// The tags of a file; what cannot be one is left out.
    pub fn read(names: Vec<String>) -> Self {
        let mut tags = Self::default();
        for name in names {
            let _ = tags.add(&name);
        }
        tags
    }

    pub fn names(&self) -> &[String] {
        &self.0
    }

    pub fn has(&self, name: &str) -> bool {
        self.at(name).is_some()
    }

    fn at(&self, name: &str) -> Option<usize> {
        let name = name.strip_prefix('#').unwrap_or(name).to_lowercase();
        self.0.iter().position(|tag| tag.to_lowercase() == name)
    }

    /// Adds a tag, with or without its `#`. False if it is there already; an error if it cannot be
    /// one.
    pub fn add(&mut self, name: &str) -> Result<bool, String> {
        let name = name.strip_prefix('#').unwrap_or(name);
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+');
        if name.is_empty() || name.starts_with('-') || !name.chars().all(fits) {
            let shown: String = one_line(name).chars().take(MAX_LENGTH).collect();
            return Err(format!("a tag is one word of letters, digits and - _ . / +, not {shown:?}"));
        }
        if name.chars().count() > MAX_LENGTH {
            return Err(format!("a tag has at most {MAX_LENGTH} characters"));
        }
        if self.has(name) {
            return Ok(false);
        }
        if self.0.len() >= MAX_TAGS {
            return Err(format!("a conversation has at most {MAX_TAGS} tags; /tag -NAME removes one"));
        }
        self.0.push(name.to_owned());
        Ok(true)
    }

    /// Removes a tag; false if there is none of this name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.at(name).map(|at| self.0.remove(at)).is_some()
    }

    /// ` #one #two`; empty without tags.
    pub fn shown(&self) -> String {
        self.0.iter().map(|tag| format!(" #{tag}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_words_each_once_and_few() {
        let mut tags = Tags::default();
        assert_eq!((tags.add("#Work"), tags.add("work"), tags.add("日本")), (Ok(true), Ok(false), Ok(true)));
        assert_eq!(tags.shown(), " #Work #日本");
        for wrong in ["", "#", "two words", "-x", "a\u{1b}[2J", "#a#b", &"x".repeat(41)] {
            assert!(tags.add(wrong).is_err(), "{wrong:?}");
        }
        assert!(tags.remove("WORK") && !tags.remove("work"));
        assert_eq!(Tags::read((0..99).map(|n| format!("t{n}")).collect()).names().len(), MAX_TAGS);
    }
}
