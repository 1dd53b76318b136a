//! The table from keys to actions: the embedded one, changed by the user's `keymap.toml`.

use super::action::{Action, Group};
use crate::config::{KeymapName, in_words};
use crate::regular_file;
use crate::unicode;
use anyhow::{Context, Result, anyhow, bail};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A keymap larger than this is refused.
const MAX_BYTES: u64 = 1 << 20;

/// Keys of the examples, which are not in the keymap.
pub const EXAMPLES: &str = "Alt+1 to Alt+3";
/// The end of errors about actions.
const ALL_ACTIONS: &str = "dmschat config keymap lists all actions";

const EMBEDDED: &str = include_str!("../../assets/keymap.toml");
/// What the keymap `vim` changes.
const VIM: &str = include_str!("../../assets/keymap_vim.toml");

/// The keys that the keymap `vim` has beside its actions, for help.
pub const VIM_KEYS: &[(&str, &str)] = &[
    ("Esc", "from insert to normal mode; there: give up a half command, else as the key that stops"),
    ("i, a, I, A, o, O", "insert: before, behind the character, at the line's start, end, on a new line below, above"),
    ("h, l, w, b, e, W, B, E", "move by characters and words"),
    ("0, ^, $, gg, G, f, t, F, T", "move to an end of the line or the text, line N (NG), a character"),
    ("j, k", "a row down, up; at the end: the next, the previous message you sent"),
    ("d, c, y", "delete, change, copy up to where a move goes; dd, cc, yy: lines; iw, aw: the word"),
    ("x, X, D, C, Y, s, S, r", "delete a character, the one before; d$, c$, yy; cl, cc; replace a character"),
    ("p, P", "paste what was deleted or copied, behind or before"),
    ("u, Ctrl+R", "undo, redo; an insertion is one step"),
    ("a number", "before a command or a move: so many times (3dw, d2w)"),
    (":, /", "begin a command; unsent text is set aside"),
    ("Ctrl+D, Ctrl+U", "scroll the conversation by half a page; with an empty input gg and G to its ends"),
    ("Enter", "send; the next message begins in insert mode"),
    ("in pages and lists", "j, k, gg, G, Ctrl+D, Ctrl+U move, q closes; / types into the field, Esc leaves it"),
];

/// A key with its modifiers, in one spelling for all the ways terminals send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub code: KeyCode,
    pub modifiers: KeyModifiers,
}

impl Key {
    pub fn of(event: &KeyEvent) -> Self {
        Self::normal(event.code, event.modifiers)
    }

    fn normal(code: KeyCode, modifiers: KeyModifiers) -> Self {
        let mut modifiers = modifiers & (KeyModifiers::CONTROL | KeyModifiers::ALT | KeyModifiers::SHIFT);
        let code = match code {
            KeyCode::BackTab => {
                modifiers |= KeyModifiers::SHIFT;
                KeyCode::Tab
            }
            KeyCode::Char(c) => {
                // Shift is in the character already, where there is one for it.
                let lower = c.to_lowercase().next().unwrap_or(c);
                let command = modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
                if !command || lower == c {
                    modifiers -= KeyModifiers::SHIFT;
                }
                KeyCode::Char(if command { lower } else { c })
            }
            code => code,
        };
        Self { code, modifiers }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut modifiers = KeyModifiers::NONE;
        let mut rest = text;
        while let Some((modifier, key)) = rest.split_once('+').filter(|(_, key)| !key.is_empty()) {
            modifiers |= match modifier {
                "ctrl" => KeyModifiers::CONTROL,
                "alt" => KeyModifiers::ALT,
                "shift" => KeyModifiers::SHIFT,
                other => bail!("unknown modifier {other:?} in key {text:?}; modifiers: ctrl, alt, shift"),
            };
            rest = key;
        }
        let named = NAMED.iter().find(|(name, _)| *name == rest).map(|(_, code)| *code);
        let function = || rest.strip_prefix('f')?.parse().ok().filter(|n| (1..=12).contains(n)).map(KeyCode::F);
        let single = || rest.chars().next().filter(|_| rest.chars().count() == 1).map(KeyCode::Char);
        let code = named.or_else(function).or_else(single).ok_or_else(|| anyhow!("unknown key {text:?}"))?;
        Ok(Self::normal(code, modifiers))
    }
}

const NAMED: [(&str, KeyCode); 15] = [
    ("enter", KeyCode::Enter),
    ("esc", KeyCode::Esc),
    ("tab", KeyCode::Tab),
    ("backspace", KeyCode::Backspace),
    ("delete", KeyCode::Delete),
    ("insert", KeyCode::Insert),
    ("up", KeyCode::Up),
    ("down", KeyCode::Down),
    ("left", KeyCode::Left),
    ("right", KeyCode::Right),
    ("home", KeyCode::Home),
    ("end", KeyCode::End),
    ("pageup", KeyCode::PageUp),
    ("pagedown", KeyCode::PageDown),
    ("space", KeyCode::Char(' ')),
];

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawKeymap {
    chat: BTreeMap<String, Vec<String>>,
    edit: BTreeMap<String, Vec<String>>,
}

/// Which key does what.
#[derive(Clone, Debug)]
pub struct Keymap {
    pub name: KeymapName,
    /// The user's file: its text, and its name for errors.
    user: Option<(String, String)>,
    keys: HashMap<Key, Action>,
    /// Per action, its keys as written, for help.
    spelled: HashMap<Action, Vec<String>>,
}

impl Keymap {
    /// The keys of a keymap that ships, with those that `file` changes where it exists. Errors are
    /// one line.
    pub fn load(name: KeymapName, file: Option<&Path>) -> Result<Self> {
        let mut user = None;
        if let Some(file) = file.filter(|f| f.exists()) {
            let text =
                regular_file::read_text(file, MAX_BYTES).with_context(|| format!("keymap {}", file.display()))?;
            user = Some((text, format!("keymap {}", file.display())));
        }
        Self::build(name, user)
    }

    /// The same with another keymap that ships below the user's file.
    pub fn switched(&self, name: KeymapName) -> Result<Self> {
        Self::build(name, self.user.clone())
    }

    fn build(name: KeymapName, user: Option<(String, String)>) -> Result<Self> {
        let mut map = Self { name, user: None, keys: HashMap::new(), spelled: HashMap::new() };
        map.merge(EMBEDDED, "built-in keymap")?;
        if name == KeymapName::Vim {
            map.merge(VIM, "built-in keymap vim")?;
        }
        if let Some((text, source)) = &user {
            map.merge(text, source).map_err(unicode::one_line_error)?;
        }
        Ok(Self { user, ..map })
    }

    /// The input has Vim's modes.
    pub fn is_vim(&self) -> bool {
        self.name == KeymapName::Vim
    }

    pub fn action(&self, key: Key) -> Option<Action> {
        self.keys.get(&key).copied()
    }

    /// The keys of an action as people write them: `Ctrl+J`; empty when it has none.
    pub fn keys_of(&self, action: Action) -> Vec<String> {
        self.spelled.get(&action).map(|keys| keys.iter().map(|k| spell(k)).collect()).unwrap_or_default()
    }

    /// The first key of an action, for texts; without a key the command that does the same, else
    /// the action's name.
    pub fn key_of(&self, action: Action) -> String {
        let command = || action.is_command().then(|| format!("/{}", action.name()));
        let first = self.keys_of(action).into_iter().next();
        first.or_else(command).unwrap_or_else(|| format!("{} (no key)", action.name()))
    }

    /// The same where text is typed: with Vim's keys, a first Esc only ends that.
    pub fn key_while_typing(&self, action: Action) -> String {
        let key = self.key_of(action);
        if self.is_vim() && key == "Esc" { "Esc Esc".to_owned() } else { key }
    }

    /// All actions with their keys, as a keymap file.
    pub fn as_file(&self) -> String {
        let mut out: String = EMBEDDED.lines().take_while(|l| l.starts_with('#')).map(|l| format!("{l}\n")).collect();
        for group in [Group::Chat, Group::Edit] {
            out += &format!("\n[{}]\n", group.name());
            for action in Action::ALL.iter().filter(|a| a.group() == group) {
                let keys = self.spelled.get(action).into_iter().flatten();
                // A string of JSON is one of TOML.
                let keys: Vec<String> = keys.map(|key| serde_json::Value::from(key.as_str()).to_string()).collect();
                let line = format!("{} = [{}]", action.name(), keys.join(", "));
                out += &format!("{line:<55} # {}\n", action.help());
            }
        }
        out
    }

    fn merge(&mut self, text: &str, source: &str) -> Result<()> {
        let line_of = |name: &str| {
            // A key of a table may be quoted.
            let of_name = |l: &str| l.trim_start_matches([' ', '\t', '"', '\'']).starts_with(name);
            text.lines().position(of_name).map_or(1, |n| n + 1)
        };
        let table = toml::from_str::<toml::Table>(text).unwrap_or_default();
        if let Some((name, _)) = table.iter().find(|(_, value)| !value.is_table()) {
            let hint = match Action::near(name) {
                Some(action) => format!("write {} below [{}]", action.name(), action.group().name()),
                None => "keys are below [chat] or [edit]".to_owned(),
            };
            bail!("{source}, line {}: {name:?} is not in a table; {hint}; {ALL_ACTIONS}", line_of(name));
        }
        let raw: RawKeymap = toml::from_str(text).map_err(|e| {
            let line = super::text::line_number(text, e.span().map_or(0, |s| s.start));
            anyhow!("{source}, line {line}: {}", in_words(e.message()))
        })?;
        for (group, table) in [(Group::Chat, raw.chat), (Group::Edit, raw.edit)] {
            for (name, keys) in table {
                let source = format!("{source}, line {}", line_of(&name));
                let mut actions = Action::ALL.iter().filter(|a| a.group() == group);
                let Some(&action) = actions.find(|a| a.name() == name) else {
                    let near =
                        Action::near(&name).map(|a| format!("; did you mean {} in [{}]?", a.name(), a.group().name()));
                    bail!("{source}: unknown action {name:?}{}; {ALL_ACTIONS}", near.unwrap_or_default());
                };
                self.keys.retain(|_, a| *a != action);
                for key in &keys {
                    let key = Key::parse(key).with_context(|| format!("{source}: {name}"))?;
                    self.keys.insert(key, action);
                }
                self.spelled.insert(action, keys);
            }
        }
        Ok(())
    }
}

fn spell(key: &str) -> String {
    let parts = key.split('+').map(|part| match part {
        "pageup" => "PageUp".to_owned(),
        "pagedown" => "PageDown".to_owned(),
        part => part.chars().next().into_iter().flat_map(char::to_uppercase).chain(part.chars().skip(1)).collect(),
    });
    parts.collect::<Vec<String>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_has_a_key_and_no_key_two_actions() {
        let map = Keymap::load(KeymapName::Default, None).unwrap();
        let mut spelled = 0;
        for action in Action::ALL {
            let keys = map.keys_of(*action);
            assert!(!keys.is_empty(), "{action:?}");
            spelled += keys.len();
        }
        assert_eq!(spelled, map.keys.len());
    }

    #[test]
    fn all_spellings_of_a_key_are_one() {
        let map = Keymap::load(KeymapName::Default, None).unwrap();
        let act = |code, modifiers| map.action(Key::of(&KeyEvent::new(code, modifiers)));
        let (ctrl, alt, shift) = (KeyModifiers::CONTROL, KeyModifiers::ALT, KeyModifiers::SHIFT);
        assert_eq!(act(KeyCode::Enter, shift), Some(Action::Newline));
        assert_eq!(act(KeyCode::Enter, alt), Some(Action::Newline));
        assert_eq!(act(KeyCode::Char('j'), ctrl), Some(Action::Newline));
        assert_eq!(act(KeyCode::Char('J'), ctrl), Some(Action::Newline));
        assert_eq!(act(KeyCode::Char('_'), ctrl | shift), Some(Action::Undo));
        assert_eq!(act(KeyCode::Char('A'), shift), None);
        assert_eq!(act(KeyCode::Enter, KeyModifiers::NONE), Some(Action::Send));
        assert_eq!(map.key_of(Action::Newline), "Shift+Enter");
    }

    #[test]
    fn a_users_file_changes_keys_and_faults_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keymap.toml");
        std::fs::write(&file, "[chat]\npanel = [\"ctrl+x\"]\nmouse = []\n").unwrap();
        let map = Keymap::load(KeymapName::Default, Some(&file)).unwrap();
        assert_eq!(map.keys_of(Action::Panel), ["Ctrl+X"]);
        assert_eq!(map.action(Key { code: KeyCode::F(2), modifiers: KeyModifiers::NONE }), None);
        assert!(map.keys_of(Action::Mouse).is_empty());
        // The output is a keymap with the same keys.
        std::fs::write(&file, map.as_file()).unwrap();
        let printed = Keymap::load(KeymapName::Default, Some(&file)).unwrap();
        assert!(printed.keys == map.keys && printed.spelled == map.spelled, "{}", map.as_file());
        for (text, expected) in [
            (
                "[chat]\nfly = []\n",
                "keymap.toml, line 2: unknown action \"fly\"; dmschat config keymap lists all actions",
            ),
            ("[edit]\npannel = []\n", "unknown action \"pannel\"; did you mean panel in [chat]?"),
            ("\nquit = [\"ctrl+q\"]\n", "line 2: \"quit\" is not in a table; write quit-when-empty below [chat]"),
            ("[chat]\nhelp = [\"hyper+x\"]\n", "keymap.toml, line 2: help: unknown modifier \"hyper\""),
            ("[chat]\nhelp = [\"f13\"]\n", "unknown key \"f13\""),
            ("\n[chats]\n", "line 2: unknown key `chats`"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = format!("{:#}", Keymap::load(KeymapName::Default, Some(&file)).unwrap_err());
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }

    /// Esc and a letter right behind it arrive as that letter with Alt.
    #[test]
    fn the_vim_keymap_leaves_letters_with_alt_to_vim() {
        let map = Keymap::load(KeymapName::Vim, None).unwrap();
        let alt = |key: &&Key| {
            key.modifiers == KeyModifiers::ALT && matches!(key.code, KeyCode::Char(c) if c.is_alphabetic())
        };
        assert_eq!(map.keys.keys().filter(alt).collect::<Vec<_>>(), Vec::<&Key>::new());
        assert!(map.is_vim() && !map.switched(KeymapName::Default).unwrap().is_vim());
        assert_eq!(map.key_of(Action::Send), "Enter");
    }
}
