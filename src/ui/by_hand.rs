//! Whether the text in the input was typed here, key by key. Text that was pasted, recalled or
//! given back may be somebody else's: what it asks to run or to fetch is confirmed first.

use super::state::App;

impl App {
    /// Whether nothing but keys made the text of the input.
    pub fn is_by_hand(&self) -> bool {
        self.input.is_empty() || self.typed_revision == Some(self.input.revision())
    }

    /// Changes the input by what the person does with keys.
    pub fn by_hand(&mut self, change: impl FnOnce(&mut Self)) {
        let was = self.is_by_hand();
        change(self);
        if was {
            self.typed_revision = Some(self.input.revision());
        }
    }
}
