//! Canonical text of a rendered conversation: one string, and back. Two conversations have the same
//! canonical text exactly if they encode to the same tokens, so that the engine compares prefixes
//! of it. Control literals are enclosed in the noncharacters U+FDD0 and U+FDD1, which are removed
//! from texts.

use crate::protocol::Piece;

/// Opens a control literal.
pub const OPEN: char = '\u{FDD0}';
/// Closes a control literal.
pub const CLOSE: char = '\u{FDD1}';

/// Returns the canonical text. Replies are replaced by their pieces.
pub fn flatten(pieces: &[Piece]) -> String {
    let mut out = String::new();
    for piece in normalise(pieces) {
        match piece {
            Piece::Control(literal) => out.extend([OPEN.to_string(), literal, CLOSE.to_string()]),
            Piece::Text(text) => out.push_str(&text),
            Piece::Reply { .. } => unreachable!("normalise flattens replies"),
        }
    }
    out
}

/// Splits a canonical text into pieces. An unclosed or empty literal is text.
pub fn unflatten(flat: &str) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut rest = flat;
    while let Some(start) = rest.find(OPEN) {
        push_text(&mut out, &rest[..start]);
        rest = &rest[start + OPEN.len_utf8()..];
        // A second OPEN before the CLOSE means that the first is unclosed.
        match rest.find([OPEN, CLOSE]) {
            Some(end) if end > 0 && rest[end..].starts_with(CLOSE) => {
                out.push(Piece::Control(rest[..end].to_owned()));
                rest = &rest[end + CLOSE.len_utf8()..];
            }
            _ => {}
        }
    }
    push_text(&mut out, rest);
    out
}

/// The pieces with replies replaced by their content, adjacent texts joined, and sentinels removed.
pub(super) fn normalise(pieces: &[Piece]) -> Vec<Piece> {
    let mut out = Vec::new();
    collect(pieces, &mut out);
    out
}

fn collect(pieces: &[Piece], out: &mut Vec<Piece>) {
    for piece in pieces {
        match piece {
            Piece::Control(literal) => out.push(Piece::Control(literal.replace([OPEN, CLOSE], ""))),
            Piece::Text(text) => push_text(out, text),
            Piece::Reply { pieces, .. } => collect(pieces, out),
        }
    }
}

fn push_text(out: &mut Vec<Piece>, text: &str) {
    let text = text.replace([OPEN, CLOSE], "");
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Text(before)) => before.push_str(&text),
        _ => out.push(Piece::Text(text)),
    }
}
