//! Streamed text as it is shown: without the newlines around it, which models write between a
//! thought and an answer.

/// Streams a text without its leading and trailing newlines.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    begun: bool,
    /// Newlines that are shown only if text follows.
    held: String,
}

impl Shown {
    /// Takes the next part and returns what is shown of the text so far and was not returned yet.
    pub fn push(&mut self, text: &str) -> String {
        let text = if self.begun { text } else { text.trim_start_matches('\n') };
        let body = text.trim_end_matches('\n');
        let mut shown = String::new();
        if !body.is_empty() {
            self.begun = true;
            shown = std::mem::take(&mut self.held) + body;
        }
        if self.begun {
            self.held.push_str(&text[body.len()..]);
        }
        shown
    }

    /// Whether any of it was shown.
    pub fn has_begun(&self) -> bool {
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newlines_around_a_text_are_not_shown_in_any_parts() {
        for text in ["\n\nab\n\nc \n", "a", "\n\n", "", "a\n", "\n a"] {
            for size in 1..=text.len().max(1) {
                let (mut shown, mut all) = (Shown::default(), String::new());
                for part in text.as_bytes().chunks(size) {
                    all += &shown.push(std::str::from_utf8(part).unwrap());
                }
                assert_eq!(all, text.trim_matches('\n'), "{text:?} by {size}");
                assert_eq!(shown.has_begun(), !all.is_empty());
            }
        }
    }
}
