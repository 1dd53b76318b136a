//! Branches of a conversation: versions of a message, undo, and the way from one to another.

use super::conversation::{Conversation, Message, MessageId, Role};

impl Conversation {
    /// Moves the head to before the user's last message and returns its text for editing. `None` if
    /// there is none.
    pub fn undo(&mut self) -> Option<String> {
        let (parent, text) =
            self.path().iter().rev().find(|m| m.role == Role::User).map(|m| (m.parent, m.text.clone()))?;
        self.set_head(parent);
        Some(text)
    }

    /// The messages with the same parent as `id`, including itself, oldest first.
    pub fn siblings(&self, id: MessageId) -> Vec<MessageId> {
        let Some(message) = self.get(id) else { return Vec::new() };
        self.messages().iter().filter(|m| m.parent == message.parent).map(|m| m.id).collect()
    }

    /// The versions of a message, including itself, oldest first: a question and what replaces it,
    /// or the answers to one question. A question that was undone is not a version of the next one.
    pub fn versions(&self, id: MessageId) -> Vec<MessageId> {
        let first = |mut id: MessageId| {
            // A message replaces an older one.
            while let Some(of) = self.get(id).and_then(|m| m.replaces).filter(|of| *of < id) {
                id = of;
            }
            id
        };
        let is_reply = self.get(id).is_some_and(|m| m.role == Role::Assistant);
        self.siblings(id).into_iter().filter(|other| is_reply || first(*other) == first(id)).collect()
    }

    /// Activates the branch through `id`, down to where it was left: to its newest message, without
    /// turns that were undone. False if `id` is unknown.
    pub fn switch_to(&mut self, id: MessageId) -> bool {
        if self.get(id).is_none() {
            return false;
        }
        let mut at = id;
        let follows = |m: &&Message, at| m.parent == Some(at) && !self.is_undone(m.id);
        while let Some(child) = self.messages().iter().rev().find(|m| follows(m, at)) {
            at = child.id;
        }
        self.set_head(Some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn that was undone comes back only where it is chosen itself.
    #[test]
    fn a_branch_is_entered_where_it_was_left() {
        let mut chat = Conversation::new(None);
        let texts = |chat: &Conversation| chat.path().iter().map(|m| m.text.clone()).collect::<Vec<_>>();
        let ask = |chat: &mut Conversation, question: &str, answer: &str| {
            (chat.push_user(question), chat.push_assistant(answer, None))
        };
        let (first, old) = ask(&mut chat, "one", "a");
        let (undone, _) = ask(&mut chat, "two", "b");
        assert_eq!(chat.undo().as_deref(), Some("two"));
        chat.regenerate();
        let new = chat.push_assistant("c", None);
        assert_eq!(chat.siblings(new), [old, new]);
        assert!(chat.switch_to(old));
        assert_eq!(texts(&chat), ["one", "a"]);
        // The same by an edit, from the other side.
        chat.edit(first, "three").unwrap();
        chat.push_assistant("d", None);
        assert!(chat.switch_to(first));
        assert_eq!(texts(&chat), ["one", "c"]);
        // Chosen itself, it is back, and stays.
        chat.switch_to(undone);
        assert_eq!(texts(&chat), ["one", "a", "two", "b"]);
        chat.switch_to(new);
        chat.switch_to(old);
        assert_eq!(texts(&chat), ["one", "a", "two", "b"]);
    }
}
