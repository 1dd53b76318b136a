//! Everything a key can do, with the name that keymap files use and the words that /help shows.

macro_rules! actions {
    ($($variant:ident $group:ident $name:literal $help:literal),* $(,)?) => {
        /// Action of a key. The same action may mean less where there is nothing to act on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action { $($variant),* }

        impl Action {
            /// All actions in the order that help shows them.
            pub const ALL: &'static [Action] = &[$(Action::$variant),*];

            /// The name in keymap files.
            pub fn name(self) -> &'static str {
                match self { $(Action::$variant => $name),* }
            }

            /// Description of the action.
            pub fn help(self) -> &'static str {
                match self { $(Action::$variant => $help),* }
            }

            pub fn group(self) -> Group {
                match self { $(Action::$variant => Group::$group),* }
            }
        }
    };
}

impl Action {
    /// Does the same as the command of its name.
    pub fn is_command(self) -> bool {
        use Action::{Copy, Eviction, Find, Help, Models, Panel, Sessions};
        matches!(self, Copy | Eviction | Find | Help | Models | Panel | Sessions)
    }

    /// The action whose name is near this one, if there is one.
    pub fn near(name: &str) -> Option<Action> {
        let near = crate::words::nearest(name, Action::ALL.iter().map(|a| a.name()))?;
        Action::ALL.iter().copied().find(|a| a.name() == near)
    }
}

/// The table of the keymap file that an action belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Chat,
    Edit,
}

impl Group {
    /// The name of the table.
    pub fn name(self) -> &'static str {
        match self {
            Group::Chat => "chat",
            Group::Edit => "edit",
        }
    }
}

actions! {
    Send Chat "send" "send the message (a \\ before it makes a newline)",
    Newline Chat "newline" "new line",
    Stop Chat "stop" "take back a queued message, stop the answer, close a list or page",
    Interrupt Chat "interrupt" "stop the answer, else clear the unsent text, else quit at the second press",
    QuitWhenEmpty Chat "quit-when-empty" "quit when the input is empty, else delete forward",
    Complete Chat "complete" "complete a command or a file name, or try an example",
    HistoryOlder Chat "history-older" "up a row; at the top: the previous message you sent",
    HistoryNewer Chat "history-newer" "down a row; at the bottom: the next message you sent",
    SearchHistory Chat "search-history" "search history; with / the commands in it",
    Find Chat "find" "find in the conversation (with text in the input: move right)",
    ExternalEditor Chat "external-editor" "edit the input in $EDITOR",
    PageUp Chat "page-up" "page up",
    PageDown Chat "page-down" "page down",
    LineUp Chat "line-up" "line up (or the wheel)",
    LineDown Chat "line-down" "line down (or the wheel)",
    ToStart Chat "to-start" "start of the conversation (also line-start, when the input is empty)",
    ToEnd Chat "to-end" "end of the conversation, and follow (also line-end, when scrolled back)",
    SelectOlder Chat "select-older" "choose the previous message, to copy, fold, /pin, /recall or /edit it",
    SelectNewer Chat "select-newer" "choose the next message",
    BranchOlder Chat "branch-older" "previous version of an edited or regenerated turn",
    BranchNewer Chat "branch-newer" "next version",
    Help Chat "help" "this help",
    Panel Chat "panel" "show or hide the cache panel",
    Inspect Chat "inspect" "what the model remembers of the conversation, and a page of heads",
    Eviction Chat "eviction" "switch eviction on or off",
    Fold Chat "fold" "open or fold the thoughts of the chosen message, or a folded paste (or a click)",
    FoldAll Chat "fold-all" "open or fold all thoughts",
    Sessions Chat "sessions" "saved conversations",
    Models Chat "models" "models: those here, and known ones to download",
    Copy Chat "copy" "copy the chosen message, or the last answer",
    Mouse Chat "mouse" "release or capture the mouse",
    Redraw Chat "redraw" "redraw the screen",
    Suspend Chat "suspend" "suspend",
    Left Edit "left" "move left",
    Right Edit "right" "move right",
    WordLeft Edit "word-left" "move a word left",
    WordRight Edit "word-right" "move a word right",
    LineStart Edit "line-start" "start of the line",
    LineEnd Edit "line-end" "end of the line",
    Backspace Edit "backspace" "delete the previous character",
    Delete Edit "delete" "delete the next character",
    DeleteWord Edit "delete-word" "delete the previous word",
    DeleteWordForward Edit "delete-word-forward" "delete the next word",
    KillToStart Edit "kill-to-start" "delete to the start of the line",
    KillToEnd Edit "kill-to-end" "delete to the end of the line",
    Yank Edit "yank" "paste the last deleted text",
    Undo Edit "undo" "undo",
    Redo Edit "redo" "redo",
}
