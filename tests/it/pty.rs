//! The chat in a real terminal: the binary in a pty, real keys, and a terminal emulator that reads
//! what it draws.

use crate::fake_hub::{self, Do, Gate};
use crate::hub;
use crate::tiny::{Form, Spec, Tiny};
use portable_pty::{Child, CommandBuilder, MasterPty, NativePtySystem, PtySize, PtySystem};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A limit that only ends a hanging test: everything is waited for as long as it takes, also on a
/// busy machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

pub struct Chat {
    master: Box<dyn MasterPty + Send>,
    writer: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    /// Everything written so far, and the screen it makes.
    seen: Arc<Mutex<(Vec<u8>, vt100::Parser)>>,
}

/// The chat with a home of its own.
fn command(home: &Path, env: &[(&str, &str)], args: &[&str]) -> CommandBuilder {
    program(env!("CARGO_BIN_EXE_dmschat"), home, env, args)
}

fn program(name: &str, home: &Path, env: &[(&str, &str)], args: &[&str]) -> CommandBuilder {
    let mut command = CommandBuilder::new(name);
    command.args(args);
    command.cwd(home);
    command.env_clear();
    command.env("HOME", home);
    command.env("PATH", std::env::var("PATH").unwrap_or_default());
    command.env("DMSCHAT_DATA_DIR", home.join("data"));
    command.env("DMSCHAT_CONFIG_DIR", home.join("config"));
    command.env("TERM", "xterm-256color");
    command.env("COLORTERM", "truecolor");
    for (name, value) in env {
        command.env(name, value);
    }
    command
}

impl Chat {
    pub fn start(home: &Path, columns: u16, rows: u16, env: &[(&str, &str)], args: &[&str]) -> Self {
        Self::run(command(home, env, args), columns, rows)
    }

    /// A shell with job control, which is to start the chat.
    #[cfg(unix)]
    pub fn shell(home: &Path, columns: u16, rows: u16, env: &[(&str, &str)]) -> Self {
        Self::run(program("sh", home, env, &["-i"]), columns, rows)
    }

    fn run(command: CommandBuilder, columns: u16, rows: u16) -> Self {
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        let pair = NativePtySystem::default().openpty(size).unwrap();
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().unwrap();
        let writer = pair.master.take_writer().unwrap();
        // The emulator has a size all the same.
        let (rows, columns) = if rows == 0 { (24, 80) } else { (rows.min(500), columns.min(1000)) };
        let seen = Arc::new(Mutex::new((Vec::new(), vt100::Parser::new(rows, columns, 0))));
        let fill = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                let mut seen = fill.lock().unwrap();
                seen.0.extend_from_slice(&buffer[..n]);
                seen.1.process(&buffer[..n]);
            }
        });
        Self { master: pair.master, writer, child, seen }
    }

    pub fn keys(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).unwrap();
        self.writer.flush().unwrap();
        std::thread::sleep(Duration::from_millis(60));
    }

    /// Answers a question. What is typed right after it appears is still a draft.
    pub fn decide(&mut self, key: &str) {
        std::thread::sleep(Duration::from_millis(600));
        self.keys(key);
    }

    pub fn say(&mut self, line: &str) {
        self.keys(line);
        self.keys("\r");
    }

    pub fn screen(&self) -> String {
        self.seen.lock().unwrap().1.screen().contents()
    }

    pub fn written(&self) -> Vec<u8> {
        self.seen.lock().unwrap().0.clone()
    }

    /// Waits until the screen is as wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(begin.elapsed() < PATIENCE, "waited for {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until nothing has been written for so long.
    pub fn until_quiet(&self, quiet: Duration) {
        let begin = Instant::now();
        let (mut before, mut since) = (self.written().len(), Instant::now());
        while since.elapsed() < quiet {
            assert!(begin.elapsed() < PATIENCE, "it goes on writing:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(20));
            let now = self.written().len();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
    }

    pub fn until_shows(&self, text: &str) -> String {
        self.until(text, |s| s.contains(text))
    }

    /// Waits for its end; the exit code.
    pub fn end(&mut self) -> u32 {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // What it wrote last may still be on its way.
                self.until_quiet(Duration::from_millis(200));
                return status.exit_code();
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Chat {
    /// Kills it and waits until it is gone, with its locks. (`Child::kill` sends SIGHUP first,
    /// which ends the chat normally.)
    pub fn kill(&mut self) {
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), self.child.process_id()) {
            let _ = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The numbers after `L{layer}` on each side of the panel's border: the table of /stats, and the
/// heatmap.
fn rows(screen: &str, layer: usize) -> (Vec<u64>, Vec<u64>) {
    let name = format!("L{layer} ");
    let numbers = |side: &str| -> Vec<u64> {
        match side.trim_start().strip_prefix(&name) {
            Some(cells) => cells.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
            None => Vec::new(),
        }
    };
    let (mut table, mut cells) = (Vec::new(), Vec::new());
    for (left, right) in screen.lines().filter_map(|l| l.split_once('│')) {
        if table.is_empty() {
            table = numbers(left);
        }
        if cells.is_empty() {
            cells = numbers(right);
        }
    }
    (table, cells)
}

/// Waits for an answer to end, and returns the screen then. Its last line names a speed, like the
/// status line; the text after it may be on another row.
pub fn answer(chat: &Chat, n: usize) -> String {
    let ended = |screen: &str| {
        let rows = screen.trim_end().rsplit_once('\n').map_or("", |(rows, _)| rows);
        rows.matches("tok/s").count() >= n && !screen.contains("answering")
    };
    chat.until("the end of an answer", ended)
}

#[test]
fn a_conversation_with_real_keys() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), 120, 60, &[], &["--temperature", "0"]);
    chat.until_shows("Try one of these");
    chat.say("Solve 5*b - 2355 = -50*b - 2740 for b.");
    let screen = answer(&chat, 1);
    assert!(screen.contains("thought for"), "{screen}");
    assert!(screen.contains("-7"), "{screen}");

    chat.say("/stats");
    // A frame may be read before it is whole, and the panel before it has the last numbers.
    chat.until("the panel and /stats to agree", |screen| {
        let tokens = screen.lines().find(|l| l.contains("live slots of")).and_then(|l| l.split_whitespace().nth(3));
        let Some(tokens) = tokens.and_then(|n| n.replace(',', "").parse::<u64>().ok()) else { return false };
        let layers = (0..).map(|layer| rows(screen, layer)).take_while(|(table, _)| !table.is_empty());
        let percent = |n: &u64| (*n as f64 * 100.0 / tokens as f64).round() as u64;
        let agree: Vec<bool> = layers.map(|(table, cells)| table.iter().map(percent).eq(cells)).collect();
        !agree.is_empty() && !agree.contains(&false)
    });

    chat.say("/eviction off");
    chat.until_shows("tokens are kept while there is memory");
    chat.keys("\x1bOS"); // F4
    // Nothing was said between, so the line goes.
    chat.until("no line of a switch", |s| s.contains("eviction on") && !s.contains("tokens are kept"));
    chat.say("What can you do?");
    answer(&chat, 2);

    chat.say("/save talk.jsonl");
    chat.until_shows("saved in");
    let saved = std::fs::read_to_string(home.path().join("talk.jsonl")).unwrap();
    let records: Vec<serde_json::Value> = saved.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(records.iter().any(|r| r.to_string().contains("Solve 5*b")), "{saved}");
    assert!(saved.contains("\"live\":[["), "{saved}");

    chat.say("/quit");
    assert_eq!(chat.end(), 0);
    let written = chat.written();
    let text = String::from_utf8_lossy(&written);
    let (_, after) = text.rsplit_once("\x1b[?1049l").expect("the alternate screen is left");
    assert_eq!(after.trim(), "dmschat --continue continues this conversation");
    // Beside it is its cache, if there was time at exit to write it.
    let files = std::fs::read_dir(home.path().join("data/sessions")).unwrap().map(|e| e.unwrap().path());
    assert_eq!(files.filter(|p| p.extension().is_some_and(|e| e == "jsonl")).count(), 1);

    // It continues where it was.
    let mut chat = Chat::start(home.path(), 120, 40, &[], &["--continue"]);
    chat.until_shows("cache loaded: ");
    chat.say("What can you do?");
    answer(&chat, 3);
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
}

#[test]
fn turns_that_cannot_be_written_are_kept_and_told() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("data/sessions");
    let temporary = home.path().join("tmp");
    std::fs::create_dir_all(home.path().join("data")).unwrap();
    std::fs::create_dir(&temporary).unwrap();
    // A file where the folder should be: nothing can be written there.
    std::fs::write(&folder, "").unwrap();
    let env = [("TMPDIR", temporary.to_str().unwrap())];
    let mut chat = Chat::start(home.path(), 120, 40, &env, &[]);
    chat.until_shows("Try one of these");
    chat.say("What can you do?");
    answer(&chat, 1);
    chat.until_shows("the session is not saved for now");
    chat.say("/new");
    chat.until_shows("Leave this conversation anyway?");
    chat.decide("n");
    chat.until("the question to go", |s| !s.contains("anyway"));
    // Room again: the turn is written before the conversation is left.
    std::fs::remove_file(&folder).unwrap();
    chat.say("/new");
    chat.until_shows("a new conversation");
    let files = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    // Its cache may stand beside it by then.
    let files: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "jsonl")).collect();
    assert_eq!(files.len(), 1);
    assert!(std::fs::read_to_string(&files[0]).unwrap().contains("What can you do?"));
    // No room to the end: the last turn is kept elsewhere, and the exit code says so.
    std::fs::rename(&folder, home.path().join("data/kept")).unwrap();
    std::fs::write(&folder, "").unwrap();
    chat.say("What can you do?");
    answer(&chat, 1);
    chat.until_shows("the session is not saved for now");
    chat.say("/quit");
    assert_eq!(chat.end(), 1);
    let files: Vec<_> = std::fs::read_dir(&temporary).unwrap().map(|e| e.unwrap().path()).collect();
    let path = files.iter().find(|p| p.extension().is_some_and(|e| e == "jsonl")).expect("it was written");
    let (written, name) = (chat.written(), path.file_name().unwrap().to_str().unwrap().to_owned());
    assert!(String::from_utf8_lossy(&written).contains(&name));
    let saved = dmschat::chat::session::load(&std::fs::read(path).unwrap(), "s").unwrap();
    assert_eq!((saved.conversation.turns(), saved.problems.len()), (1, 0));
}

#[test]
fn an_idle_chat_writes_nothing_and_signals_give_the_terminal_back() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), 100, 30, &[], &[]);
    chat.until_shows("Try one of these");
    chat.until_shows("demo");
    // It draws until everything is there; from then on nothing.
    chat.until_quiet(Duration::from_secs(1));
    let before = chat.written().len();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(chat.written().len(), before);
    let pid = chat.child.process_id().unwrap();
    std::process::Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
    chat.end();
    let text = String::from_utf8_lossy(&chat.written()).into_owned();
    // The window's title is kept, set, and restored.
    let (kept, restored) = (text.find("\x1b[22;2t\x1b]2;dmschat\x1b\\"), text.rfind("\x1b[23;2t"));
    assert!(kept.is_some() && kept < restored);
    for sequence in ["\x1b[?1049l", "\x1b[?2004l", "\x1b[?1000l", "\x1b[?25h", "\x1b[<1u"] {
        let (on, off) = (text.rfind(&sequence.replace('l', "h")), text.rfind(sequence));
        assert!(off.is_some() && on <= off, "{sequence:?}");
    }
}

#[test]
fn a_terminal_that_is_gone_ends_the_chat_quietly() {
    for term in ["xterm-256color", "dumb"] {
        let home = tempfile::tempdir().unwrap();
        let mut chat = Chat::start(home.path(), 100, 30, &[("TERM", term)], &[]);
        chat.until_shows("Try one of these");
        let pid = chat.child.process_id().unwrap();
        std::process::Command::new("kill").args(["-HUP", &pid.to_string()]).status().unwrap();
        assert_eq!(chat.end(), 129, "{term}");
    }
}

/// A terminal is closed without SIGHUP where it is not the controlling one, or its session's leader
/// was killed.
#[test]
fn a_terminal_that_closes_without_a_signal_ends_the_chat() {
    let home = tempfile::tempdir().unwrap();
    let pair = NativePtySystem::default().openpty(PtySize::default()).unwrap();
    let mut command = command(home.path(), &[], &["--no-session", "--theme", "dark"]);
    command.set_controlling_tty(false);
    let mut child = pair.slave.spawn_command(command).unwrap();
    drop(pair.slave);
    let mut reader = pair.master.try_clone_reader().unwrap();
    let mut terminal = vt100::Parser::new(24, 80, 0);
    let mut buffer = [0; 8192];
    while !terminal.screen().contents().contains("Try one of these") {
        let n = reader.read(&mut buffer).unwrap();
        terminal.process(&buffer[..n]);
    }
    // Both ends of the test's side.
    drop(reader);
    drop(pair.master);
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.exit_code(), 129);
}

#[test]
fn keys_of_all_kinds_edit_and_nothing_is_sent_by_a_paste() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), 100, 30, &[], &["--no-session"]);
    chat.until_shows("Try one of these");
    let lines: String = (0..500).map(|n| format!("pasted {n}\r")).collect();
    chat.keys(&format!("\x1b[200~{lines}\x1b[201~"));
    chat.until_shows("[500 lines]");
    chat.keys(&lines);
    chat.until_shows(" lines in the input");
    assert!(!chat.screen().contains("answering"));
    // Ctrl+C clears the draft, and undo brings it back; the caret is where the text ends.
    chat.keys("\x03");
    chat.until_shows("cleared; Alt+Z brings it back");
    chat.keys("\x1bz");
    chat.until_shows(" lines in the input");
    chat.keys("e\u{301}日\u{1112}\u{1161}\u{11ab}👩\u{200d}👩\u{200d}👧x");
    chat.until("the graphemes", |s| s.contains("日"));
    chat.keys("\x7f\x7f\x7f\x7f\x7f");
    chat.until("the graphemes to go", |s| !s.contains(['日', '👩', '👧']));
    let (row, column) = chat.seen.lock().unwrap().1.screen().cursor_position();
    assert_eq!((row, column), (28, 2));
    // Too small, and large again.
    let resize = |columns, rows| {
        // Held, so that nothing of the new size is read at the old one.
        let mut seen = chat.seen.lock().unwrap();
        chat.master.resize(PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 }).unwrap();
        seen.1.screen_mut().set_size(rows, columns);
    };
    resize(20, 5);
    chat.until_shows("too small");
    resize(120, 40);
    chat.until_shows("lines in the input");
}

#[test]
fn a_dumb_terminal_gets_lines() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), 80, 24, &[("TERM", "dumb")], &[]);
    chat.until_shows(">");
    chat.say("What can you do?");
    chat.until_shows("[end,");
    // Lines that come together are one message.
    chat.keys("pasted one\npasted two\n");
    chat.until("the second answer", |s| s.matches("[end,").count() + s.matches("[token limit").count() > 1);
    chat.say("/stats");
    chat.until_shows("by layer and head");
    let sessions = std::fs::read_dir(home.path().join("data/sessions")).unwrap().next().unwrap().unwrap();
    assert!(std::fs::read_to_string(sessions.path()).unwrap().contains("pasted one\\npasted two"));
    chat.say("/help");
    chat.until_shows("Configuration");
    // An idle Ctrl+C asks first.
    chat.keys("\x03");
    chat.until_shows("interrupt again to quit");
    chat.say("/quit");
    assert_eq!(chat.end(), 0);
    assert!(!chat.written().contains(&0x1b));
    let text = String::from_utf8_lossy(&chat.written()).into_owned();
    for hint in ["F1", "Tab", "Alt+", "Ctrl+", "Shift+"] {
        assert!(!text.contains(hint), "{hint}: {text}");
    }
}

#[test]
fn a_model_is_downloaded_on_the_screen_and_the_download_can_be_stopped() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub::healthy());
    let gate = Arc::new(Gate::default());
    hub.script("model.safetensors", vec![Do::Well, Do::Hold(80_000, gate.clone())]);
    let env = [("HF_HOME", home.path().to_str().unwrap()), ("HF_ENDPOINT", &hub.url)];
    let mut chat = Chat::start(home.path(), 120, 30, &env, &["--model", "any/model"]);
    chat.until_shows("downloading any/model: ");
    chat.until_shows("any/model at 01234567: 4 files, 168 kB; licence");
    let blob = fake_hub::hash(&hub.bytes_of("model.safetensors"));
    let partial = home.path().join(format!("hub/models--any--model/blobs/{blob}.incomplete"));
    chat.until("half of the file", |_| std::fs::metadata(&partial).is_ok_and(|m| m.len() == 80_000));
    chat.keys("\x1b");
    chat.until_shows("press Esc again to stop loading any/model");
    chat.keys("\x1b");
    chat.until_shows("the download of any/model stopped; the partial file is kept");
    gate.open();
    chat.say("/model any/model");
    chat.until("the model", |s| s.contains("eviction on") && !s.contains("downloading"));
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    // The connection that was stopped may have delivered more. No more than the rest is requested.
    for again in hub.asked("model.safetensors").iter().filter(|s| s.cdn).skip(1) {
        let from = again.header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<u64>().ok());
        assert!(from >= Some(80_000), "{again:?}");
    }

    // What went wrong is said when the terminal is given back: a name that is wrong is wrong use.
    hub.script("/api/models/no/such", vec![Do::Answer(404, Vec::new())]);
    hub.script("/api/models/no/luck", vec![Do::Answer(429, vec![("Retry-After", "9999".into())])]);
    for (id, code, said) in [("no/such", 2, "no model no/such at"), ("no/luck", 1, "no/luck is not downloaded")] {
        let mut chat = Chat::start(home.path(), 100, 30, &env, &["--model", id]);
        assert_eq!(chat.end(), code, "{id}");
        assert!(String::from_utf8_lossy(&chat.written()).contains(said), "{id}");
    }
}

#[test]
fn a_conversation_comes_back_with_its_own_model() {
    let home = tempfile::tempdir().unwrap();
    // Another model than the built-in one, as far as fingerprints tell.
    let folder = home.path().join("other");
    std::fs::create_dir(&folder).unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo");
    for entry in std::fs::read_dir(demo).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    std::fs::write(folder.join("config.json"), config.replacen('{', "{\"_name_or_path\": \"other\",", 1)).unwrap();

    let mut chat = Chat::start(home.path(), 120, 40, &[], &["-m", "other"]);
    chat.until_shows("other");
    chat.say("What is 2+2?");
    chat.until_shows("tok/s");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);

    // Without -m that model is loaded; with -m the named one, which encodes the texts with the next
    // message.
    let is_open = |screen: &str| screen.contains("cache loaded: ") || screen.contains("opened; the cache loads");
    let own = |args: &[&str]| {
        let mut chat = Chat::start(home.path(), 120, 40, &[], args);
        chat.until("opened", is_open);
        chat.say("/model");
        let screen = chat.until_shows("/model NAME loads another");
        chat.keys("\x04");
        assert_eq!(chat.end(), 0);
        screen
    };
    assert!(own(&["--continue"]).contains("other, cpu"));
    assert!(own(&["--continue", "-m", "demo"]).contains("demo, cpu"));

    // Opened in a running chat, it is loaded first; the answer comes from its cache.
    let mut chat = Chat::start(home.path(), 120, 40, &[], &[]);
    chat.until_shows("demo");
    chat.say("/resume What");
    chat.until("opened", is_open);
    chat.say("/model");
    chat.until_shows("other, cpu");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);

    // Gone: the model in use is offered.
    std::fs::remove_dir_all(&folder).unwrap();
    let mut chat = Chat::start(home.path(), 120, 40, &[], &["--continue"]);
    chat.until_shows("demo? Its texts are encoded again");
    chat.decide("y");
    chat.until_shows("another model (other)");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
}

/// The theme follows the background that the terminal reports at the start; a late reply changes
/// the theme too, and no reply is typed into the input.
/// A terminal counts how often the keys of the kitty protocol are asked for.
#[cfg(unix)]
#[test]
fn a_chat_that_was_stopped_gives_back_all_that_it_took() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), 100, 30, &[], &["--no-session"]);
    chat.until_shows("F1 help");
    let pid = chat.child.process_id().unwrap().to_string();
    let times = |written: &[u8], what: &[u8]| written.windows(what.len()).filter(|w| *w == what).count();
    for stops in 1..=2 {
        let taken = times(&chat.written(), b"\x1b[>1u");
        chat.keys("\x1a");
        chat.until("the terminal given back", |_| times(&chat.written(), b"\x1b[<1u") >= taken);
        std::process::Command::new("kill").args(["-CONT", &pid]).status().unwrap();
        chat.until("the chat again", |_| times(&chat.written(), b"\x1b[>1u") > taken);
        assert!(taken >= stops);
    }
    // Keys of the first moment may be lost.
    while !chat.screen().contains("› a") {
        chat.keys("a");
        std::thread::sleep(Duration::from_millis(50));
    }
    chat.keys("\x15");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    let written = chat.written();
    assert_eq!(times(&written, b"\x1b[>1u"), times(&written, b"\x1b[<1u"));
}

/// A model's files are mapped: if one shrinks while it is read, the terminal is restored before the
/// process ends.
#[cfg(unix)]
#[test]
fn a_model_file_that_is_shortened_gives_the_terminal_back() {
    let tiny = Tiny::new(Spec { speaks: true, context: 1024, ..Spec::new(false, Form::Borrowed) }, 500);
    let home = tempfile::tempdir().unwrap();
    let model = tiny.folder.path().to_str().unwrap().to_owned();
    let mut chat = Chat::start(home.path(), 100, 30, &[], &["--device", "cpu", "-m", &model]);
    chat.until_shows("eviction on");
    for file in std::fs::read_dir(&model).unwrap().map(|e| e.unwrap().path()) {
        if file.extension().is_some_and(|e| e == "safetensors") {
            std::fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap();
        }
    }
    chat.say("hello");
    assert_eq!(chat.end(), 1);
    let text = String::from_utf8_lossy(&chat.written()).into_owned();
    let after = &text[text.rfind("\x1b[?1049l").expect("the alternate screen is left")..];
    assert!(after.contains("dmschat: a model file was truncated"), "{after:?}");
    for sequence in ["\x1b[?2004l", "\x1b[?1000l", "\x1b[?25h"] {
        assert!(text.rfind(&sequence.replace('l', "h")) <= text.rfind(sequence), "{sequence:?}");
    }
}
