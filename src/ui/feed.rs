//! Items of the conversation pane: the messages of the active path and local lines (toggle marks,
//! notes) between them, with their wrapped rows and the scroll position. Knows no widget;
//! `widgets::conversation` makes the rows.

use super::folded::Fold;
use crate::chat::{Conversation, Mark, MessageId};
use crate::protocol::Recalled;
use ratatui::text::Line;
use std::collections::{HashMap, HashSet};

/// A line of the program between messages; never part of the context.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    /// The message it follows.
    pub after: Option<MessageId>,
    /// Byte offset in that message's text, if the line is shown within it.
    pub within: Option<usize>,
    pub kind: LocalKind,
    pub text: String,
    /// The recall test that the line sums up.
    pub recalled: Option<Box<Recalled>>,
}

impl Local {
    pub fn new(after: Option<MessageId>, kind: LocalKind, text: impl Into<String>) -> Self {
        Self { after, within: None, kind, text: text.into(), recalled: None }
    }

    /// The line of a toggle.
    pub fn of_mark(mark: &Mark, text: String) -> Self {
        Self { within: mark.within, ..Self::new(mark.after, LocalKind::Mark, text) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalKind {
    /// A thin line: eviction was switched here.
    Mark,
    Note,
    /// A note whose columns stay as they are.
    Table,
    Warning,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ItemKey {
    Message(MessageId),
    Local(usize),
}

/// Scroll position: the item at the top of the pane and the row within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    pub item: usize,
    pub row: usize,
}

/// The wrapped rows of an item.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Hash of the state that they were made from; they are made again when it changes.
    pub fingerprint: u64,
    pub lines: Vec<Line<'static>>,
    /// Rows that a click opens or folds.
    pub fold_row: Option<usize>,
    /// URLs by the numbers that spans of these rows carry.
    pub links: Vec<String>,
    pub finished: Option<Finished>,
}

/// The part of a streaming answer that will not change: its bytes, rows, links and
/// code blocks.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    pub bytes: usize,
    pub lines: Vec<Line<'static>>,
    pub links: usize,
    pub blocks: usize,
}

#[derive(Default)]
pub struct Feed {
    pub items: Vec<ItemKey>,
    pub locals: Vec<Local>,
    pub rows: HashMap<ItemKey, Rows>,
    /// `None` follows the end.
    pub anchor: Option<Anchor>,
    /// Total rows when following ended.
    seen: usize,
    /// Messages were folded or opened since the last frame: their rows are not new.
    pub refolded: bool,
    /// A result that the next frame scrolls into view.
    reveal: Option<ItemKey>,
    /// Some items have no rows yet: the next frame makes more.
    pub behind: bool,
    /// Height and width of the pane when last drawn.
    pub height: usize,
    pub width: usize,
    /// Think blocks: all open, but for those in `exceptions` (or the other way round).
    all_open: bool,
    exceptions: HashSet<MessageId>,
    /// Pastes and files in messages of the user, as they were folded in the input.
    pub folds: HashMap<MessageId, Vec<Fold>>,
    /// The message chosen for fold and copy.
    pub selected: Option<MessageId>,
    /// Percentage of the heads that remembered each message at the end of the last turn; empty
    /// while the panel is hidden.
    pub remembered: HashMap<MessageId, u8>,
    /// The head and the number of turns that it was made for.
    pub remembered_at: Option<(Option<MessageId>, usize)>,
    /// Messages that are pinned, all or a passage of them, and the number of pinned tokens when
    /// they were asked for.
    pub pinned: HashSet<MessageId>,
    pub pinned_tokens: usize,
    /// Changes when all rows have to be made again (theme).
    pub generation: u64,
}

impl Feed {
    /// Orders the items after the path or the local lines changed.
    pub fn arrange(&mut self, chat: &Conversation) {
        let mut after: HashMap<Option<MessageId>, Vec<usize>> = HashMap::new();
        for (i, local) in self.locals.iter().enumerate() {
            if local.within.is_none() {
                after.entry(local.after).or_default().push(i);
            }
        }
        let mut items = Vec::new();
        let mut take = |id: Option<MessageId>, items: &mut Vec<ItemKey>| {
            items.extend(after.remove(&id).unwrap_or_default().into_iter().map(ItemKey::Local));
        };
        take(None, &mut items);
        for message in chat.path() {
            items.push(ItemKey::Message(message.id));
            take(Some(message.id), &mut items);
        }
        if self.anchor.is_some_and(|a| a.item >= items.len()) {
            self.anchor = None;
        }
        if self.selected.is_some_and(|id| !items.contains(&ItemKey::Message(id))) {
            self.selected = None;
        }
        self.items = items;
    }

    /// Adds a local line after the last message.
    pub fn push_local(&mut self, chat: &Conversation, kind: LocalKind, text: impl Into<String>) {
        self.push(chat, Local::new(chat.head(), kind, text));
    }

    /// Adds a local line.
    pub fn push(&mut self, chat: &Conversation, local: Local) {
        self.locals.push(local);
        self.arrange(chat);
    }

    /// Removes the line of the last toggle, which was taken back, unless others follow it.
    pub fn take_mark_back(&mut self, chat: &Conversation) -> bool {
        let is_last = self.locals.pop_if(|local| local.kind == LocalKind::Mark).is_some();
        if is_last {
            self.rows.remove(&ItemKey::Local(self.locals.len()));
            self.arrange(chat);
        }
        is_last
    }

    /// Adds a local line that the user asked for. The next frame, which makes its rows, scrolls it
    /// into view.
    pub fn push_result(&mut self, chat: &Conversation, local: Local) {
        self.push(chat, local);
        self.reveal = Some(ItemKey::Local(self.locals.len() - 1));
    }

    /// Chooses a message. The next frame, which makes its rows, scrolls it into view.
    pub fn show_message(&mut self, id: MessageId) {
        self.selected = Some(id);
        self.reveal = Some(ItemKey::Message(id));
    }

    /// Scrolls the result that was added last into view, once its rows are made.
    pub fn reveal(&mut self) {
        let Some(key) = self.reveal.take() else { return };
        if let Some(item) = self.items.iter().position(|item| *item == key) {
            self.bring_into_view(item);
        }
    }

    /// Scrolls as little as shows the whole item, or its beginning if it is taller than the pane.
    fn bring_into_view(&mut self, item: usize) {
        let start = self.row_of(item, 0);
        let (end, top) = (start + self.height_of(item), self.top());
        if start < top || end - start > self.height {
            self.go_to(start);
        } else if end > top + self.height {
            self.go_to(end - self.height);
        }
    }

    /// Returns the local lines within a message, in order: byte offset and text.
    pub fn within(&self, id: MessageId) -> impl Iterator<Item = (usize, &str)> {
        let here = self.locals.iter().filter(move |l| l.after == Some(id));
        here.filter_map(|l| Some((l.within?, l.text.as_str())))
    }

    /// Moves lines of removed messages after the last message.
    pub fn reattach(&mut self, chat: &Conversation) {
        for local in &mut self.locals {
            if local.after.is_some_and(|id| chat.get(id).is_none()) {
                (local.after, local.within) = (chat.head(), None);
            }
        }
        self.arrange(chat);
    }

    /// Clears everything for another conversation.
    pub fn clear(&mut self) {
        *self = Feed {
            height: self.height,
            width: self.width,
            generation: self.generation + 1,
            all_open: self.all_open,
            ..Feed::default()
        };
    }

    pub fn is_open(&self, id: MessageId) -> bool {
        self.all_open != self.exceptions.contains(&id)
    }

    pub fn toggle_fold(&mut self, id: MessageId) {
        self.refolded = true;
        if !self.exceptions.remove(&id) {
            self.exceptions.insert(id);
        }
    }

    /// Opens all think blocks, or folds all when any is open.
    pub fn toggle_all(&mut self) {
        self.refolded = true;
        self.all_open = !self.all_open && self.exceptions.is_empty();
        self.exceptions.clear();
    }

    pub fn all_open(&self) -> bool {
        self.all_open
    }

    /// Returns the index of an item's row among all rows.
    pub fn row_of(&self, item: usize, row: usize) -> usize {
        (0..item).map(|i| self.height_of(i)).sum::<usize>() + row
    }

    fn height_of(&self, item: usize) -> usize {
        self.items.get(item).and_then(|k| self.rows.get(k)).map_or(0, |r| r.lines.len())
    }

    /// Rows of all items.
    pub fn total(&self) -> usize {
        self.row_of(self.items.len(), 0)
    }

    /// Returns the index of the first row shown.
    pub fn top(&self) -> usize {
        let bottom_top = self.total().saturating_sub(self.height);
        match self.anchor {
            None => bottom_top,
            Some(a) => {
                let row = a.row.min(self.height_of(a.item).saturating_sub(1));
                self.row_of(a.item, row).min(bottom_top)
            }
        }
    }

    pub fn is_following(&self) -> bool {
        self.anchor.is_none()
    }

    /// Returns the number of rows added since the user scrolled back.
    pub fn unseen(&self) -> usize {
        if self.is_following() { 0 } else { self.total().saturating_sub(self.seen) }
    }

    /// Scrolls by rows. At the end the pane follows again.
    pub fn scroll(&mut self, rows: isize) {
        self.go_to(self.top().saturating_add_signed(rows));
    }

    /// Puts a row at the top of the pane.
    pub fn go_to(&mut self, top: usize) {
        let total = self.total();
        if top + self.height >= total {
            self.anchor = None;
            return;
        }
        if self.is_following() {
            self.seen = total;
        }
        self.anchor = Some(self.locate(top));
    }

    pub fn follow(&mut self) {
        self.anchor = None;
    }

    /// Returns the item of a row, and the row within it.
    pub fn locate(&self, row: usize) -> Anchor {
        let mut left = row;
        for item in 0..self.items.len() {
            let height = self.height_of(item);
            if left < height {
                return Anchor { item, row: left };
            }
            left -= height;
        }
        Anchor { item: self.items.len().saturating_sub(1), row: 0 }
    }

    /// Keeps the scroll position in proportion when an item's rows are made for another width.
    pub fn rescale(&mut self, item: usize, old_height: usize, new_height: usize) {
        if let Some(a) = &mut self.anchor
            && a.item == item
            && old_height > 0
        {
            a.row = a.row * new_height / old_height;
        }
    }

    /// Counts all rows as seen, after a change of width.
    pub fn reset_seen(&mut self) {
        self.seen = self.total();
    }

    /// Adds rows that do not count as new; negative for removed rows.
    pub fn add_seen(&mut self, rows: isize) {
        self.seen = self.seen.saturating_add_signed(rows);
    }

    /// Selects the previous or next message and scrolls to it.
    pub fn select(&mut self, newer: bool) {
        let message = |(i, key): (usize, &ItemKey)| match key {
            ItemKey::Message(id) => Some((i, *id)),
            ItemKey::Local(_) => None,
        };
        let messages: Vec<(usize, MessageId)> = self.items.iter().enumerate().filter_map(message).collect();
        let at = self.selected.and_then(|id| messages.iter().position(|(_, m)| *m == id));
        let next = match (at, newer) {
            (None, true) => None,
            (None, false) => messages.len().checked_sub(1),
            (Some(i), false) => Some(i.saturating_sub(1)),
            (Some(i), true) => Some(i + 1).filter(|i| *i < messages.len()),
        };
        self.selected = next.map(|i| messages[i].1);
        match next.map(|i| messages[i].0) {
            None => self.follow(),
            Some(item) => self.bring_into_view(item),
        }
    }

    /// Returns the message whose think block the fold key toggles: the selected one, else the last
    /// in view.
    pub fn fold_target(&self) -> Option<MessageId> {
        if self.selected.is_some() {
            return self.selected;
        }
        let (first, last) =
            (self.locate(self.top()).item, self.locate(self.top() + self.height.saturating_sub(1)).item);
        let in_view = self.items.get(first..=last).unwrap_or_default().iter().rev();
        let folds = |key: &&ItemKey| self.rows.get(key).is_some_and(|rows| rows.fold_row.is_some());
        in_view.filter(folds).find_map(|key| if let ItemKey::Message(id) = key { Some(*id) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(heights: &[usize]) -> (Feed, Conversation) {
        let mut chat = Conversation::new(None);
        let mut feed = Feed { height: 10, ..Feed::default() };
        for _ in heights {
            chat.push_user("x");
        }
        feed.arrange(&chat);
        for (key, h) in feed.items.clone().into_iter().zip(heights) {
            feed.rows.insert(key, Rows { lines: vec![Line::default(); *h], ..Rows::default() });
        }
        (feed, chat)
    }

    #[test]
    fn scrolled_back_the_place_holds_while_text_grows() {
        let (mut feed, _) = feed(&[8, 8, 8]);
        assert_eq!(feed.top(), 14);
        feed.scroll(-5);
        assert_eq!((feed.top(), feed.unseen()), (9, 0));
        let last = feed.items[2];
        feed.rows.get_mut(&last).unwrap().lines.extend(vec![Line::default(); 7]);
        assert_eq!((feed.top(), feed.unseen()), (9, 7));
        feed.scroll(3);
        assert_eq!(feed.top(), 12);
        feed.scroll(100);
        assert!(feed.is_following());
        feed.scroll(-1000);
        assert_eq!(feed.top(), 0);
        feed.follow();
        assert_eq!(feed.top(), 21);
    }

    #[test]
    fn choosing_brings_a_message_into_view() {
        let (mut feed, _) = feed(&[8, 8, 8]);
        feed.select(false);
        assert_eq!(feed.selected, Some(3));
        feed.select(false);
        feed.select(false);
        feed.select(false);
        assert_eq!((feed.selected, feed.top()), (Some(1), 0));
        for _ in 0..3 {
            feed.select(true);
        }
        assert_eq!(feed.selected, None);
        assert!(feed.is_following());
    }

    #[test]
    fn locals_stand_after_their_message_on_this_path_only() {
        let (mut feed, mut chat) = feed(&[1, 1]);
        feed.push_local(&chat, LocalKind::Note, "after two");
        chat.push_user("three");
        feed.push_local(&chat, LocalKind::Mark, "after three");
        assert_eq!(feed.items.len(), 5);
        assert_eq!(feed.items[2], ItemKey::Local(0));
        chat.set_head(Some(2));
        feed.arrange(&chat);
        assert_eq!(feed.items, [ItemKey::Message(1), ItemKey::Message(2), ItemKey::Local(0)]);
    }

    #[test]
    fn folding_one_and_all() {
        let mut feed = Feed::default();
        feed.toggle_fold(3);
        assert!(feed.is_open(3) && !feed.is_open(4));
        feed.toggle_all();
        assert!(!feed.is_open(3));
        feed.toggle_all();
        assert!(feed.is_open(3) && feed.is_open(4));
    }
}
