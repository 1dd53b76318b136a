//! Everything a key can do, with the name that keymap files use and the words that /help shows.

macro_rules! actions {
    ($($variant:ident $group:ident $name:literal $help:literal),* $(,)?) => {
        /// What a key does. The same action may mean less where there is nothing to act on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action { $($variant),* }

        impl Action {
            /// All actions in the order that help shows them.
            pub const ALL: &'static [Action] = &[$(Action::$variant),*];

            /// The name in keymap files.
            pub fn name(self) -> &'static str {
                match self { $(Action::$variant => $name),* }
            }

            /// What it does, in words.
            pub fn help(self) -> &'static str {
                match self { $(Action::$variant => $help),* }
            }

            pub fn group(self) -> Group {
                match self { $(Action::$variant => Group::$group),* }
            }
        }
    };
}

/// The table of the keymap file that an action stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Chat,
    Edit,
}

actions! {
    Send Chat "send" "send the message (a \\ before it makes a newline)",
    Newline Chat "newline" "new line",
    Stop Chat "stop" "take back a queued message, stop the answer, close what is open",
    Interrupt Chat "interrupt" "stop the answer, else clear the draft, else quit at the second press",
    QuitWhenEmpty Chat "quit-when-empty" "quit when the input is empty, else delete forward",
    Complete Chat "complete" "complete a command",
    HistoryOlder Chat "history-older" "up a row; at the top: the message sent before",
    HistoryNewer Chat "history-newer" "down a row; at the bottom: the message sent after",
    SearchHistory Chat "search-history" "search what was sent",
    Find Chat "find" "find in the conversation (with text in the input: a character right)",
    ExternalEditor Chat "external-editor" "edit the input in $EDITOR",
    PageUp Chat "page-up" "scroll back a page",
    PageDown Chat "page-down" "scroll on a page",
    LineUp Chat "line-up" "scroll back a line (or the wheel)",
    LineDown Chat "line-down" "scroll on a line (or the wheel)",
    ToStart Chat "to-start" "to the start of the conversation (Home, when the input is empty)",
    ToEnd Chat "to-end" "to the end, and follow (End, when scrolled back)",
    SelectOlder Chat "select-older" "choose the message before, for fold and copy",
    SelectNewer Chat "select-newer" "choose the message after",
    BranchOlder Chat "branch-older" "the version before of an edited or regenerated turn",
    BranchNewer Chat "branch-newer" "the version after",
    Help Chat "help" "this help",
    Panel Chat "panel" "show or hide the cache panel",
    Inspect Chat "inspect" "the cache on the whole screen: what is remembered of the conversation, and a page of heads",
    Eviction Chat "eviction" "switch eviction on or off",
    Fold Chat "fold" "open or fold the thoughts of the chosen message, or a folded paste (or a click)",
    FoldAll Chat "fold-all" "open or fold all thoughts",
    Sessions Chat "sessions" "saved conversations",
    Copy Chat "copy" "copy the chosen message, or the last answer",
    Mouse Chat "mouse" "give the mouse to the terminal, or take it back",
    Redraw Chat "redraw" "redraw the screen",
    Suspend Chat "suspend" "to the shell; fg comes back",
    Left Edit "left" "a character left",
    Right Edit "right" "a character right",
    WordLeft Edit "word-left" "a word left",
    WordRight Edit "word-right" "a word right",
    LineStart Edit "line-start" "start of the line",
    LineEnd Edit "line-end" "end of the line",
    Backspace Edit "backspace" "delete the character before the caret",
    Delete Edit "delete" "delete the character after it",
    DeleteWord Edit "delete-word" "delete the word before",
    DeleteWordForward Edit "delete-word-forward" "delete the word after",
    KillToStart Edit "kill-to-start" "delete to the start of the line",
    KillToEnd Edit "kill-to-end" "delete to the end of the line",
    Yank Edit "yank" "put back what was deleted last",
    Undo Edit "undo" "undo",
    Redo Edit "redo" "redo",
}
