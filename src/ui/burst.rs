//! Detects pastes without bracketed paste: keys that arrive faster than anyone types. An Enter
//! among them is a newline; an Enter after a single fast line is held for a moment, because the
//! next key decides. Pure: the caller gives times in milliseconds.

use std::collections::VecDeque;

/// Keys closer than this come from a machine, on the average of a few.
const FAST_MS: u64 = 8;
/// How many keys that average is taken over.
const KEYS: usize = 6;
/// How long an Enter is held at the end of one fast line, and while a paste of several lines runs.
const HOLD_MS: u64 = 60;
const PASTE_HOLD_MS: u64 = 300;
/// Keys this long after the last line of a paste may still belong to it (a slow line, a busy
/// machine).
const GAP_MS: u64 = 1_500;

/// Meaning of an Enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enter {
    Send,
    Newline,
    /// Ask again with [`Burst::due`] after [`Burst::hold_ms`].
    Wait,
}

#[derive(Clone, Debug, Default)]
pub struct Burst {
    /// When the last keys came, the newest last.
    keys: VecDeque<u64>,
    /// Newlines that the running paste had so far.
    newlines: usize,
    held_enter: Option<u64>,
    /// The Enter of a paste that came last, until another key comes.
    line_end: Option<u64>,
}

impl Burst {
    /// A key that types text arrives. True when a held Enter turned out to be a newline, to be
    /// inserted before that text.
    pub fn typed(&mut self, at: u64) -> bool {
        self.line_end = None;
        let newline = self.held_enter.take().is_some();
        if newline {
            self.newlines += 1;
        } else if self.gap(at) > GAP_MS {
            self.newlines = 0;
        }
        self.came(at);
        newline
    }

    /// Text of many keys arrives at once, with so many newlines. As for [`Burst::typed`].
    pub fn typed_many(&mut self, at: u64, newlines: usize) -> bool {
        let newline = self.typed(at);
        self.newlines += newlines;
        (0..KEYS).for_each(|_| self.came(at));
        newline
    }

    /// Enter arrives; [`Burst::typed`] is to be asked first when one is held already.
    pub fn enter(&mut self, at: u64) -> Enter {
        let fast = self.is_fast(at);
        let pasting = self.newlines > 0 && self.gap(at) <= GAP_MS;
        self.came(at);
        self.line_end = (pasting || fast).then_some(at);
        if pasting && fast {
            self.newlines += 1;
            Enter::Newline
        } else if pasting || fast {
            self.held_enter = Some(at);
            Enter::Wait
        } else {
            self.newlines = 0;
            Enter::Send
        }
    }

    /// A line feed arrives, once: true if it ends the same line as the Enter before it (CR LF),
    /// which was a newline then.
    pub fn ends_line(&mut self, at: u64) -> bool {
        self.line_end.take().is_some_and(|enter| at.saturating_sub(enter) <= HOLD_MS)
    }

    /// How long the held Enter waits for a key that follows; `None` when none is held.
    pub fn hold_ms(&self) -> Option<u64> {
        self.held_enter.map(|_| if self.newlines > 0 { PASTE_HOLD_MS } else { HOLD_MS })
    }

    /// When the held Enter is due.
    pub fn due_at(&self) -> Option<u64> {
        Some(self.held_enter? + self.hold_ms()?)
    }

    /// True once when a held Enter was the last key after all: send.
    pub fn due(&mut self, now: u64) -> bool {
        let hold = self.hold_ms().unwrap_or(0);
        let due = self.held_enter.is_some_and(|at| now >= at + hold);
        if due {
            self.held_enter = None;
            self.newlines = 0;
        }
        due
    }

    /// Keys are coming in faster than anyone types.
    pub fn is_fast(&self, at: u64) -> bool {
        let average = |n: usize| {
            let from = self.keys.len().checked_sub(n).and_then(|i| self.keys.get(i));
            from.is_some_and(|from| at.saturating_sub(*from) <= n as u64 * FAST_MS)
        };
        average(1) || (3..=KEYS).any(average)
    }

    fn came(&mut self, at: u64) {
        self.keys.push_back(at);
        if self.keys.len() > KEYS {
            self.keys.pop_front();
        }
    }

    fn gap(&self, at: u64) -> u64 {
        self.keys.back().map_or(u64::MAX, |last| at.saturating_sub(*last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sends_and_a_paste_does_not() {
        let mut b = Burst::default();
        for at in [0, 90, 200, 260] {
            b.typed(at);
        }
        assert_eq!(b.enter(330), Enter::Send);

        // A paste of three lines with an empty one, at 1 ms a key, ending in a newline.
        let mut b = Burst::default();
        b.typed(1000);
        assert_eq!(b.enter(1001), Enter::Wait);
        assert!(b.typed(1002));
        assert_eq!(b.enter(1002), Enter::Newline);
        assert!(!b.typed(1003));
        // The machine was busy: held, and decided by what follows.
        assert_eq!(b.enter(1400), Enter::Wait);
        assert!(!b.due(1500));
        assert!(b.typed(1600));
        assert_eq!(b.enter(1601), Enter::Newline);
        assert!(!b.due(9000));
        assert_eq!(b.enter(9000), Enter::Send);
    }

    #[test]
    fn keys_that_came_together_are_a_paste_that_goes_on() {
        let mut b = Burst::default();
        assert!(!b.typed_many(0, 3));
        assert_eq!(b.enter(1), Enter::Newline);
        // One line: its Enter is held, and what follows decides.
        let mut b = Burst::default();
        assert!(!b.typed_many(0, 0));
        assert_eq!(b.enter(1), Enter::Wait);
        assert!(b.typed_many(30, 0));
    }

    #[test]
    fn a_line_feed_behind_an_enter_is_no_second_newline() {
        let mut b = Burst::default();
        b.typed(0);
        assert_eq!(b.enter(1), Enter::Wait);
        // The held Enter becomes a newline, and so does the next one at once; an empty line has
        // both of its own.
        assert!(b.ends_line(2) && b.typed(2));
        assert!(!b.typed(3));
        assert_eq!(b.enter(4), Enter::Newline);
        assert!(b.ends_line(4) && !b.ends_line(4));
        // Enter of a person, then Ctrl+J.
        assert_eq!((b.enter(9_000), b.ends_line(9_001)), (Enter::Send, false));
    }

    #[test]
    fn one_fast_line_is_sent_after_the_hold() {
        let mut b = Burst::default();
        for at in [0, 1, 2, 30, 31] {
            assert!(!b.typed(at));
        }
        assert_eq!(b.enter(40), Enter::Wait);
        let hold = b.hold_ms().unwrap();
        assert!(!b.due(39 + hold));
        assert!(b.due(40 + hold));
        assert!(!b.due(40 + hold));
        // A person who sends a paste waits a moment longer.
        assert!(!b.typed(1000));
        assert_eq!(b.enter(1001), Enter::Wait);
        assert!(b.typed(1002));
        assert_eq!(b.enter(2000), Enter::Wait);
        assert!(b.due(2000 + PASTE_HOLD_MS));
    }
}
