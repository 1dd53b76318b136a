//! Where a streaming answer is finished: its blocks before that place are not made again.

/// Where a growing text can be cut so that the text before is finished: after the last blank
/// line outside a fence that a plain, unindented line follows.
pub fn finished_prefix(text: &str) -> usize {
    let mut finished = 0;
    let mut offset = 0;
    let mut fence: Option<(char, usize)> = None;
    let mut blank = false;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let marker = fence_of(trimmed);
        match fence {
            // A fence is closed by its own character, at least as often, with nothing after it.
            Some((of, open)) => {
                let ends = marker.is_some_and(|(c, n)| c == of && n >= open && trimmed.len() == n);
                fence = fence.filter(|_| !ends);
            }
            None => {
                let first = line.chars().next();
                let plain = first.is_some_and(|c| c.is_alphabetic() || c == '#' || c == '*' || c == '`' || c == '(');
                let item = ["* ", "- ", "+ "].iter().any(|m| line.starts_with(m));
                if blank && plain && !item {
                    finished = offset;
                }
                fence = marker;
            }
        }
        blank = trimmed.is_empty();
        offset += line.len();
    }
    finished
}

/// The character and the length of the fence that a line begins with.
fn fence_of(line: &str) -> Option<(char, usize)> {
    let of = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let n = line.chars().take_while(|c| *c == of).count();
    // Backticks after backticks are code within a line.
    (n >= 3 && !(of == '`' && line[n..].contains('`'))).then_some((of, n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::markdown::code_blocks;

    #[test]
    fn a_growing_text_is_cut_where_blocks_are_finished() {
        let text = "One.\n\nTwo.\n\n```\na\n\nb\n```\n\n- item\n\n- item\n\nThree";
        assert_eq!(&text[finished_prefix(text)..], "Three");
        let open = "One.\n\n```\na\n\nb";
        assert_eq!(&open[finished_prefix(open)..], "```\na\n\nb");
        assert_eq!(code_blocks(text), ["a\n\nb\n"]);
    }
}
