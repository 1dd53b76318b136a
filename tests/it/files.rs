//! Files from outside that are no files: a named pipe or a device in the place of each one that the
//! program reads is refused in one line, at once and without memory; what a user names may be a
//! pipe.
#![cfg(unix)]

use crate::folder::Folder;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::regular_file::temporary::Temporary;
use dmschat::ui::history::HistoryFile;
use dmschat::ui::keymap::Keymap;
use dmschat::ui::theme::Themes;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

fn make_pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let _ = fs::remove_file(path);
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

const PIPE: &str = "not a regular file but a named pipe";

/// What `ask` returns; a test that hangs on a pipe fails here.
fn at_once<T: Send + 'static>(what: &str, ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || drop(send.send(ask())));
    done.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{what}: no answer in 30 s"))
}

#[test]
fn a_pipe_in_a_model_folder_is_refused() {
    for name in [
        "config.json",
        "dms_metadata.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "adapter.safetensors",
    ] {
        let folder = Folder::healthy();
        if name.ends_with(".index.json") {
            folder.remove("model.safetensors");
        }
        make_pipe(&folder.file(name));
        let adapter = AdapterChoice::File(folder.file(name));
        let adapter = if name.starts_with("adapter") { adapter } else { AdapterChoice::Auto };
        let model = ModelRef::Folder(folder.path().to_owned());
        let said = at_once(name, move || format!("{:#}", Checkpoint::open(&model, &adapter).err().expect("refused")));
        assert!(said.ends_with(&format!("{name}: {PIPE}")), "{said}");
    }
    let folder = Folder::healthy();
    let file = fs::File::create(folder.file("tokenizer_config.json")).unwrap();
    file.set_len(16 << 20 | 1).unwrap();
    let model = ModelRef::Folder(folder.path().to_owned());
    let said = format!("{:#}", Checkpoint::open(&model, &AdapterChoice::Auto).err().expect("refused"));
    assert!(said.ends_with("more than 16777216 bytes, the most that a file of this kind may have"), "{said}");
}

#[test]
fn themes_keys_and_history_are_regular_files() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name);
    for name in ["own.toml", "keymap.toml", "history.jsonl"] {
        make_pipe(&file(name));
    }
    let themes = Themes { folder: Some(home.path().to_owned()), ..Themes::default() };
    let said = at_once("theme", move || format!("{:#}", themes.load("own").expect_err("refused")));
    assert!(said.ends_with(PIPE), "{said}");
    let keys = file("keymap.toml");
    let said =
        at_once("keymap", move || format!("{:#}", Keymap::load(Default::default(), Some(&keys)).expect_err("refused")));
    assert!(said.ends_with(PIPE), "{said}");
    let history = HistoryFile::new(Some(file("history.jsonl")));
    assert!(at_once("history", move || history.read()).is_empty());
}

/// The program with folders of its own, a hub cache among them: exit code, stdout and stderr.
fn dmschat(home: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dmschat"));
    command.env_clear().env("DMSCHAT_CONFIG_DIR", home).env("DMSCHAT_DATA_DIR", home).env("HOME", home);
    command.env("HF_HOME", home).env("HF_HUB_OFFLINE", "1").stdin(Stdio::null()).args(args);
    let what = format!("{args:?}");
    let output = at_once(&what, move || command.output().unwrap());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn pipes_among_sessions_settings_and_in_the_cache_do_not_hang() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name);
    // A model that the cache has, but for what its reference means; a token; a session.
    fs::create_dir_all(file("hub/models--any--model/refs")).unwrap();
    fs::create_dir_all(file("hub/models--any--model/snapshots/abc")).unwrap();
    make_pipe(&file("hub/models--any--model/refs/main"));
    make_pipe(&file("token"));
    fs::create_dir_all(file("sessions")).unwrap();
    make_pipe(&file("sessions/a-b-c.jsonl"));
    for args in [
        &["-p", "x", "-m", "any/model"][..],
        &["-p", "x", "--continue"],
        &["-p", "x", "--resume", "a-b-c"],
        &["-p", "x", "--adapter", "sessions/a-b-c.jsonl"],
    ] {
        let (code, stdout, stderr) = dmschat(home.path(), args);
        assert_eq!((code, &*stdout, stderr.lines().count()), (2, "", 1), "{args:?}: {stderr}");
    }
    assert_eq!(dmschat(home.path(), &["models", "list"]).0, 0);
    make_pipe(&file("config.toml"));
    let (code, _, stderr) = dmschat(home.path(), &["-p", "x"]);
    assert!(code == 2 && stderr.contains("config.toml") && stderr.trim_end().ends_with(PIPE), "{stderr}");
}

/// A page is neither written through a link nor in its place, whatever it leads to.
#[test]
fn a_page_follows_no_link() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let mut session = dmschat::chat::session::Store::new(at("sessions")).create();
    let mut chat = dmschat::chat::Conversation::new(None);
    crate::session::turn(&mut chat, Some("q"), "a", 0);
    session.sync(&mut chat, &crate::session::info()).unwrap();
    let saved = session.path().unwrap().display().to_string();
    fs::write(at("victim"), "mine").unwrap();
    make_pipe(&at("pipe"));
    for to in ["victim", "gone", "pipe", "/dev/null"] {
        std::os::unix::fs::symlink(at(to), at("link")).unwrap();
        let link = at("link").display().to_string();
        let (code, stdout, stderr) = dmschat(home.path(), &["show", &saved, "--html", &link]);
        assert_eq!(
            (code, &*stdout, at("link").is_symlink(), at("gone").exists()),
            (2, "", true, false),
            "{to}: {stderr}"
        );
        assert!(stderr.contains("link exists; name another file"), "{stderr}");
        fs::remove_file(at("link")).unwrap();
    }
    assert_eq!(fs::read(at("victim")).unwrap(), b"mine");
    let page = at("page.html").display().to_string();
    assert_eq!(dmschat(home.path(), &["show", &saved, "--html", &page]).0, 0);
}

/// `--json` names what is in files and answers: no byte of it may steer a terminal or hide.
#[test]
fn json_escapes_what_hides() {
    let home = tempfile::tempdir().unwrap();
    let hidden = "m\u{9b}\u{202e}\u{200b}\u{e0041}\u{ad}\u{3164}é";
    let folder = home.path().join(hidden);
    fs::create_dir(&folder).unwrap();
    let healthy = Folder::healthy();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(healthy.file(name), folder.join(name)).unwrap();
    }
    let folder = folder.to_str().unwrap();
    for args in [&["models", "info", folder, "--json"][..], &["models", "list", "-m", folder, "--json"]] {
        let (code, stdout, stderr) = dmschat(home.path(), args);
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.chars().all(|c| c == '\n' || c == 'é' || (' '..='~').contains(&c)), "{stdout:?}");
        assert!(stdout.contains(r"m\u009b\u202e\u200b\udb40\udc41\u00ad\u3164é"), "{stdout}");
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let name = if json.is_array() { &json[1]["name"] } else { &json["name"] };
        assert!(name.as_str().unwrap().ends_with(hidden), "{json}");
    }
}

/// Says that the process is to write a file in this folder and to be killed.
const KILLED: &str = "DMSCHAT_TEST_KILLED_IN";

/// Runs itself as the process that is killed.
#[test]
fn what_a_killed_write_left_is_removed_by_the_next_and_what_a_running_one_writes_is_not() {
    if let Some(folder) = std::env::var_os(KILLED) {
        let mut write = Temporary::in_own_folder(Path::new(&folder)).unwrap();
        write.file.write_all(b"half").unwrap();
        std::io::stderr().write_all(b".").unwrap();
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (folder, target) = (dir.path(), dir.path().join("session.jsonl"));
    // Names of other schemes, and a link.
    for other in [".dmschat-0123456789ABCDEF.tmp", ".dmschat-1.tmp", "a.cache.1-0.tmp", "session.jsonl"] {
        fs::write(folder.join(other), "").unwrap();
    }
    std::os::unix::fs::symlink(&target, folder.join(".dmschat-0123456789abcdef.tmp")).unwrap();
    let count = || fs::read_dir(folder).unwrap().count();
    let before = count();
    let name = "files::what_a_killed_write_left_is_removed_by_the_next_and_what_a_running_one_writes_is_not";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([name, "--exact", "--nocapture"]).env(KILLED, folder).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stderr.take().unwrap().read_exact(&mut [0]).unwrap();
    let write = || {
        let mut write = Temporary::in_own_folder(folder).unwrap();
        write.file.write_all(b"whole").unwrap();
        write.rename(&target).unwrap();
        count()
    };
    assert_eq!(write(), before + 1, "a process that runs keeps its file");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(write(), before);
    assert_eq!(fs::read(&target).unwrap(), b"whole");
}
