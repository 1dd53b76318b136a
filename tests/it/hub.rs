//! Models from the hub: downloads and their place in the cache, failures on the way, and who sees
//! the token. Runs against a hub on loopback ([`crate::fake_hub`]).

use crate::fake_hub::{COMMIT, Do, FakeHub, Gate, git_hash, hash, sha256};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::checkpoint::pull::{Downloader, Plan};
use dmschat::hub::{Hub, HubError, HubModel, Observer, Progress, Token};
use dmschat::protocol::bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
const SECRET: &str = "hf_SecretOfMine";
const ID: &str = "any/model";

/// A model that talks, and files beside it that nobody needs.
pub fn files() -> BTreeMap<String, Vec<u8>> {
    let tiny = Tiny::new(Spec { tied: false, speaks: true, ..Spec::new(true, Form::Borrowed) }, 11);
    let mut files: BTreeMap<String, Vec<u8>> =
        [("NOTES.md", "# hello"), ("pytorch_model.bin", "pickled"), ("original/model.safetensors", "other")]
            .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
            .into();
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        files.insert(name.to_owned(), fs::read(tiny.folder.file(name)).unwrap());
    }
    files.insert("tokenizer_config.json".to_owned(), br#"{"eos_token": "<|im_end|>"}"#.to_vec());
    files
}

pub fn healthy() -> FakeHub {
    FakeHub::new(files())
}

/// The same weights in two files.
pub fn sharded() -> FakeHub {
    let mut files = files();
    let whole = files.remove(WEIGHTS).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    let data = &whole[8 + length..];
    let mut map = json!({});
    for (n, shard) in ["a.safetensors", "deep/b.safetensors"].iter().enumerate() {
        let (mut part, mut bytes) = (json!({}), Vec::new());
        for (name, about) in header.as_object().unwrap().iter().skip(n).step_by(2) {
            let at = |i: usize| about["data_offsets"][i].as_u64().unwrap() as usize;
            let begin = bytes.len();
            bytes.extend_from_slice(&data[at(0)..at(1)]);
            part[name] = json!({"dtype": "BF16", "shape": about["shape"], "data_offsets": [begin, bytes.len()]});
            map[name] = json!(shard);
        }
        files.insert((*shard).to_owned(), crate::folder::assemble(&part, &bytes));
    }
    files.insert(INDEX.to_owned(), json!({"metadata": {}, "weight_map": map}).to_string().into_bytes());
    FakeHub::new(files)
}

pub fn model() -> HubModel {
    HubModel { id: ID.to_owned(), gguf: None, revision: None }
}

/// A machine with a cache of its own.
pub struct Home(pub TempDir);

impl Home {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn cache(&self) -> PathBuf {
        self.0.path().join("hf/hub")
    }

    pub fn repo(&self) -> PathBuf {
        self.cache().join("models--any--model")
    }

    pub fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }

    pub fn command(&self, hub: &FakeHub, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dmschat"));
        command.env_clear().env("DMSCHAT_CONFIG_DIR", self.0.path().join("config"));
        command.env("DMSCHAT_DATA_DIR", self.0.path().join("data")).env("HOME", self.0.path());
        command.env("HF_HOME", self.0.path().join("hf")).env("HF_ENDPOINT", &hub.url).env("HF_TOKEN", SECRET);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.args(args);
        command
    }

    pub fn run(&self, hub: &FakeHub, args: &[&str]) -> (i32, String, String) {
        said(self.command(hub, args).spawn().unwrap())
    }

    pub fn pull(&self, hub: &FakeHub) -> (i32, String, String) {
        self.run(hub, &["models", "pull", ID])
    }

    /// One line on stderr with all of these in it, and this exit code.
    pub fn refused(&self, hub: &FakeHub, code: i32, parts: &[&str]) {
        self.refused_as(hub, ID, code, parts);
    }

    pub fn refused_as(&self, hub: &FakeHub, name: &str, code: i32, parts: &[&str]) {
        let (found, stdout, stderr) = self.run(hub, &["models", "pull", name]);
        assert_eq!((found, stdout.as_str()), (code, ""), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(parts.iter().all(|p| stderr.contains(p)), "{parts:?}: {stderr}");
    }

    /// The library's view of the same, without long pauses.
    pub fn hub(&self, hub: &FakeHub) -> Hub {
        Hub {
            cache: self.cache(),
            endpoint: hub.url.clone(),
            token: Some(Token::new(SECRET)),
            offline: false,
            pause: Duration::from_millis(1),
        }
    }

    pub fn lib_pull(&self, hub: &FakeHub) -> (Result<PathBuf, HubError>, Heard) {
        let mut heard = Heard::default();
        (self.hub(hub).pull(&model(), &mut heard), heard)
    }

    /// Every file of the model is there with its bytes.
    pub fn assert_whole(&self, hub: &FakeHub, names: &[&str]) {
        for name in names {
            let path = self.snapshot().join(name);
            assert!(fs::read(&path).unwrap() == hub.bytes_of(name), "{name}");
            let link = fs::read_link(&path).unwrap();
            assert!(
                link.is_relative() && link.ends_with(Path::new("blobs").join(hash(&hub.bytes_of(name)))),
                "{link:?}"
            );
        }
        assert_eq!(fs::read_to_string(self.repo().join("refs/main")).unwrap(), COMMIT);
        let left = fs::read_dir(self.repo().join("blobs")).unwrap().map(|e| e.unwrap().file_name());
        let left: Vec<_> = left.filter(|n| n.to_string_lossy().contains('.')).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

pub const NEEDED: [&str; 4] = ["config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS];

/// Exit code, stdout and stderr; the token is in neither.
pub fn said(child: Child) -> (i32, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    for text in [&stdout, &stderr] {
        assert!(!text.contains(SECRET) && !text.contains("s3cret") && !text.contains('\x1b'), "{text}");
    }
    (output.status.code().unwrap_or(-1), stdout, stderr)
}

/// What a watcher heard.
#[derive(Default)]
pub struct Heard {
    pub plans: Vec<Plan>,
    progress: Vec<Progress>,
    notices: Vec<String>,
}

impl Downloader for Heard {
    fn plan(&mut self, plan: &Plan) {
        self.plans.push(plan.clone());
    }
}

impl Observer for Heard {
    fn stopped(&self) -> bool {
        false
    }
    fn progress(&mut self, progress: &Progress) {
        self.progress.push(progress.clone());
    }
    fn notice(&mut self, text: &str) {
        self.notices.push(text.to_owned());
    }
}

impl Heard {
    /// The bar never went back, and ended at its end.
    fn assert_forward(&self) {
        assert!(self.progress.windows(2).all(|w| w[0].done <= w[1].done), "{:?}", self.progress);
        let last = self.progress.last().unwrap();
        assert_eq!((last.done, last.bytes), (self.plans[0].bytes, self.plans[0].bytes));
    }
}

fn until(what: &str, mut wanted: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !wanted() {
        assert!(begin.elapsed() < Duration::from_secs(60), "waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_model_is_pulled_used_offline_told_about_and_removed() {
    let (hub, home) = (healthy(), Home::new());
    let (code, stdout, stderr) = home.pull(&hub);
    assert_eq!((code, stdout.trim_end()), (0, &*home.snapshot().display().to_string()), "{stderr}");
    for part in
        ["any/model at 01234567: 4 files, 168 kB; ", "licence apache-2.0", "the disk has", "its weights", "100 % of"]
    {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    home.assert_whole(&hub, &NEEDED);
    let mut names: Vec<String> =
        fs::read_dir(home.snapshot()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut needed = NEEDED.map(str::to_owned);
    needed.sort();
    assert_eq!(names, needed, "nothing else is fetched");
    // The token goes to the hub, also where it sends to itself, and never to the CDN.
    let seen = hub.seen();
    assert!(seen.iter().any(|s| s.cdn) && seen.iter().any(|s| s.path.starts_with("/cache/")), "{seen:?}");
    for s in &seen {
        assert_eq!(s.header("authorization").is_some(), !s.cdn, "{s:?}");
    }

    // What is in the cache is used without a connection, whether or not that is forbidden.
    let before = hub.connections();
    for offline in ["1", "0"] {
        let mut command = home.command(&hub, &["-p", "hi", "-m", ID, "--max-tokens", "8", "--temperature", "0"]);
        let (code, stdout, stderr) = said(command.env("HF_HUB_OFFLINE", offline).spawn().unwrap());
        assert!(code == 0 && !stdout.trim().is_empty(), "{stderr}");
        let commit = format!("{ID}@{COMMIT}");
        assert_eq!(home.run(&hub, &["models", "info", &commit]).0, 0);
    }
    let (_, list, _) = home.run(&hub, &["models", "list", "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list[1]["name"], &list[1]["complete"]), (&json!(ID), &json!(true)), "{list}");
    let (_, info, _) = home.run(&hub, &["models", "info", ID, "--json"]);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["dms"], &info["layers"]), (&json!("borrowed"), &json!(2)), "{info}");
    let (_, words, _) = home.run(&hub, &["models", "info", ID]);
    let window = &info["dms_window"];
    assert!(words.contains(&format!("evicts by          itself, trained with DMS (window {window})\n")), "{words}");
    assert!(["false", "true", "dmc", "\ndms"].iter().all(|word| !words.contains(word)), "{words}");
    assert_eq!(hub.connections(), before);

    // Pulling again looks for news, and fetches nothing.
    let (sent, code) = (hub.sent(), home.pull(&hub).0);
    assert_eq!((code, hub.sent()), (0, sent));
    assert!(hub.connections() > before);

    let (code, removed, _) = home.run(&hub, &["models", "rm", ID]);
    assert!(code == 0 && removed.contains("free again") && !home.repo().exists(), "{removed}");
    let mut command = home.command(&hub, &["-p", "hi", "-m", "any/modle"]);
    let (code, _, stderr) = said(command.env("HF_HUB_OFFLINE", "1").spawn().unwrap());
    assert!(code == 2 && stderr.contains("HF_HUB_OFFLINE") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn hf_hub_finds_a_pulled_model() {
    let (hub, home) = (healthy(), Home::new());
    home.lib_pull(&hub).0.unwrap();
    let cached = hf_hub::Cache::new(home.cache()).model(ID.to_owned());
    for name in NEEDED {
        assert_eq!(cached.get(name), Some(home.snapshot().join(name)), "{name}");
    }
    assert_eq!(cached.get("NOTES.md"), None);
}

#[test]
fn a_question_downloads_what_it_needs_and_answers() {
    let (hub, home) = (sharded(), Home::new());
    let (code, stdout, stderr) = home.run(&hub, &["-p", "hi", "-m", ID, "--max-tokens", "8", "--temperature", "0"]);
    assert!(code == 0 && !stdout.trim().is_empty(), "{stderr}");
    assert!(stderr.lines().all(|l| l.starts_with("dmschat: ")) && stderr.contains("files"), "{stderr}");
    home.assert_whole(&hub, &["config.json", INDEX, "a.safetensors", "deep/b.safetensors"]);
    // The very same model in one file says the same.
    let (whole, other) = (healthy(), Home::new());
    let same = other.run(&whole, &["-p", "hi", "-m", ID, "--max-tokens", "8", "--temperature", "0"]);
    assert_eq!(same.1, stdout);
    // A shard that is gone is fetched again, and only that.
    fs::remove_file(home.snapshot().join("a.safetensors")).unwrap();
    fs::remove_file(home.repo().join("blobs").join(hash(&hub.bytes_of("a.safetensors")))).unwrap();
    let before = hub.sent();
    assert_eq!(home.run(&hub, &["-p", "hi", "-m", ID, "--max-tokens", "8", "--temperature", "0"]).1, stdout);
    assert_eq!(hub.sent() - before, hub.bytes_of("a.safetensors").len());
    // A revision that is not here is asked for by its name.
    let pulled = home.run(&hub, &["models", "pull", &format!("{ID}@refs/pr/7")]);
    assert_eq!(pulled.0, 0, "{pulled:?}");
    assert!(hub.seen().last().unwrap().path.contains("/revision/refs%2Fpr%2F7?"), "{:?}", hub.seen().last());
    assert!(home.repo().join("refs/refs/pr/7").exists());
}

#[test]
fn a_cut_download_goes_on_where_it_was() {
    let (hub, home) = (healthy(), Home::new());
    let size = hub.bytes_of(WEIGHTS).len();
    hub.script(WEIGHTS, vec![Do::Well, Do::Cut(70_000), Do::Well, Do::Cut(1), Do::Well, Do::Cut(0)]);
    let (result, heard) = home.lib_pull(&hub);
    result.unwrap();
    home.assert_whole(&hub, &NEEDED);
    heard.assert_forward();
    assert_eq!(hub.sent(), size, "every byte once");
    let cdn: Vec<_> = hub.asked(WEIGHTS).into_iter().filter(|s| s.cdn).collect();
    let ranges: Vec<_> = cdn.iter().map(|s| s.header("range").unwrap_or("-")).collect();
    assert_eq!(ranges, ["-", "bytes=70000-", "bytes=70001-", "bytes=70001-"]);
    let etag = format!("\"{}\"", sha256(&hub.bytes_of(WEIGHTS)));
    assert!(cdn[1..].iter().all(|s| s.header("if-range") == Some(&etag)), "{cdn:?}");
}

#[test]
fn other_bytes_under_the_same_name_are_not_appended() {
    // Another ETag at the second try, a server without ranges, and one that answers with another
    // part.
    let range = |from: usize| vec![("Content-Range", format!("bytes {from}-{}/{}", from + 3, 1 << 30))];
    for second in [Do::Whole("\"other\""), Do::Answer(206, range(5)), Do::Answer(416, Vec::new())] {
        let (hub, home) = (healthy(), Home::new());
        hub.script(WEIGHTS, vec![Do::Well, Do::Cut(90_000), Do::Well, second]);
        let (result, heard) = home.lib_pull(&hub);
        result.unwrap();
        home.assert_whole(&hub, &NEEDED);
        heard.assert_forward();
    }
    // What an earlier download left turns out to be something else: once more from the beginning.
    let (hub, home) = (healthy(), Home::new());
    let blobs = home.repo().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", hash(&hub.bytes_of(WEIGHTS)))), [7; 60_000]).unwrap();
    let (result, heard) = home.lib_pull(&hub);
    result.unwrap();
    home.assert_whole(&hub, &NEEDED);
    heard.assert_forward();
    assert!(heard.notices.iter().any(|n| n.contains("downloaded again")), "{:?}", heard.notices);
}

#[test]
fn wrong_bytes_never_get_a_name() {
    let (hub, home) = (healthy(), Home::new());
    hub.script(WEIGHTS, vec![Do::Well, Do::Wrong]);
    let (code, _, stderr) = home.pull(&hub);
    assert!(
        code == 1 && stderr.lines().last().unwrap().contains("model.safetensors does not have the hash"),
        "{stderr}"
    );
    assert!(!home.snapshot().join(WEIGHTS).exists() && !home.repo().join("refs/main").exists());
    assert_eq!(fs::read_dir(home.repo().join("blobs")).unwrap().count(), 3, "the small files");
    // A small file too, which has git's hash.
    let (hub, home) = (healthy(), Home::new());
    hub.script("config.json", vec![Do::Wrong]);
    home.refused(&hub, 1, &["config.json does not have the hash that 127.0.0.1 lists"]);
    // Wrong and in pieces: one fresh try, and no more.
    let (hub, home) = (healthy(), Home::new());
    let pieces = [Do::Well, Do::Cut(60_000), Do::Well, Do::Wrong];
    hub.script(WEIGHTS, [pieces.clone(), pieces.clone(), pieces].concat());
    let (result, heard) = home.lib_pull(&hub);
    assert!(result.unwrap_err().to_string().contains("does not have the hash"), "{:?}", heard.notices);
    assert_eq!(hub.asked(WEIGHTS).len(), 8);
}

#[test]
fn a_busy_hub_is_asked_again_after_what_it_asks_for() {
    let (hub, home) = (healthy(), Home::new());
    hub.script("/api/models/", vec![Do::Answer(503, Vec::new())]);
    hub.script("config.json", vec![Do::Answer(429, vec![("Retry-After", "1".to_owned())])]);
    hub.script(WEIGHTS, vec![Do::Answer(500, Vec::new()), Do::Well, Do::Answer(403, Vec::new()), Do::Cut(0)]);
    let begin = Instant::now();
    let (result, _) = home.lib_pull(&hub);
    result.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1), "the pauses of our own are a millisecond");
    home.assert_whole(&hub, &NEEDED);
    // For ever is too long, and so is an hour.
    let (hub, home) = (healthy(), Home::new());
    hub.script(WEIGHTS, vec![Do::Answer(502, Vec::new()); 50]);
    let (result, _) = home.lib_pull(&hub);
    assert!(result.unwrap_err().to_string().ends_with("127.0.0.1 answers 502 (tried 8 times)"));
    let (hub, home) = (healthy(), Home::new());
    hub.script("/api/models/", vec![Do::Answer(429, vec![("Retry-After", "3600".to_owned())])]);
    home.refused(&hub, 1, &["any/model is not downloaded", "asked too often", "3600 s"]);
}

#[test]
fn refusals_are_one_line_each() {
    let word = |status, word: &str| vec![Do::Answer(status, vec![("X-Error-Code", word.to_owned())])];
    for (path, what, parts) in [
        ("/api/models/", word(401, "RepoNotFound"), &["no model any/model at 127.0.0.1"][..]),
        ("/api/models/", vec![Do::Answer(404, Vec::new())], &["no model any/model at 127.0.0.1"]),
        ("/api/models/", word(404, "RevisionNotFound"), &["any/model has no revision \"main\""]),
        ("/api/models/", vec![Do::Answer(401, Vec::new())], &["does not accept the token", "HF_TOKEN"]),
        ("config.json", word(403, "GatedRepo"), &["any/model is gated", "accept its licence at http", "no access"]),
        ("config.json", vec![Do::Answer(401, Vec::new())], &["any/model is gated"]),
    ] {
        let (hub, home) = (healthy(), Home::new());
        hub.script(path, what);
        home.refused(&hub, 2, parts);
    }
    let (hub, home) = (healthy(), Home::new());
    fs::create_dir_all(home.cache().join("models--any--modell")).unwrap();
    hub.script("/api/models/", vec![Do::Answer(404, Vec::new())]);
    home.refused(&hub, 2, &["did you mean any/modell?"]);
    // A token that could not stand in a header is not put there.
    let mut command = home.command(&hub, &["models", "pull", ID]);
    let (code, _, stderr) = said(command.env("HF_TOKEN", "hf_Sec\tret").spawn().unwrap());
    assert!(
        code == 2 && stderr.contains("contains characters that no such token has") && !stderr.contains("Sec"),
        "{stderr}"
    );
    // Nobody there, and somebody who speaks no TLS.
    for url in ["http://127.0.0.1:1".to_owned(), hub.url.replace("http:", "https:")] {
        let mut command = home.command(&hub, &["-p", "x", "-m", ID]);
        let (code, stdout, stderr) = said(command.env("HF_ENDPOINT", url).spawn().unwrap());
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (1, "", 1), "{stderr}");
        assert!(stderr.contains("any/model is not downloaded: 127.0.0.1"), "{stderr}");
    }
    // What is in the cache is not said to be missing.
    let (hub, home) = (healthy(), Home::new());
    assert_eq!(home.pull(&hub).0, 0);
    let pull =
        |name: &str, value: &str| said(home.command(&hub, &["models", "pull", ID]).env(name, value).spawn().unwrap());
    let (code, _, stderr) = pull("HF_ENDPOINT", "http://127.0.0.1:1");
    let parts =
        ["any/model was not checked for updates: 127.0.0.1", "connection refused", "copy in the cache can be used"];
    assert!(code == 1 && parts.iter().all(|p| stderr.contains(p)), "{stderr}");
    let (code, stdout, stderr) = pull("HF_HUB_OFFLINE", "1");
    assert!(code == 0 && stdout.contains("snapshots") && stderr.contains("not checked for updates"), "{stderr}");
}

#[test]
fn models_that_cannot_run_are_refused_before_their_weights_are_fetched() {
    let refused = |change: &dyn Fn(&FakeHub), code: i32, parts: &[&str]| {
        let (hub, home) = (healthy(), Home::new());
        change(&hub);
        let (found, stdout, stderr) = home.pull(&hub);
        let last = stderr.lines().last().unwrap_or("");
        assert_eq!((found, stdout.as_str()), (code, ""), "{stderr}");
        assert!(parts.iter().all(|p| last.contains(p)), "{parts:?}: {stderr}");
        assert_eq!(hub.sent(), 0);
        // Nothing was written outside of the cache.
        let outside = fs::read_dir(home.0.path()).unwrap().map(|e| e.unwrap().file_name());
        assert!(outside.into_iter().all(|n| n == "hf"), "{:?}", home.0.path());
    };
    let config = br#"{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}"#;
    refused(&|hub| _ = hub.file("config.json", config), 2, &["any/model: ", "mamba", "qwen3"]);
    let listed = |name: &str, keys: Value| {
        let mut file =
            json!({"rfilename": name, "size": 1u64 << 60, "lfs": {"sha256": "a".repeat(64), "size": 1u64 << 60}});
        for (key, value) in keys.as_object().unwrap() {
            file[key] = value.clone();
        }
        file
    };
    let config = files()["config.json"].clone();
    let small = json!({"rfilename": "config.json", "size": config.len(), "blobId": git_hash(&config)});
    let siblings = |file: Value| json!({"siblings": [small, file]});
    // More than any disk has.
    let huge = siblings(listed(WEIGHTS, json!({})));
    let need = format!("any/model is not downloaded: {} are needed, ", bytes((1 << 60) + config.len() as u64));
    refused(&|hub| _ = hub.listing(huge.clone()), 1, &[&need, "B are needed, and the disk of", "B free"]);
    let pickled = siblings(listed("pytorch_model.bin", json!({})));
    refused(&|hub| _ = hub.listing(pickled.clone()), 2, &["only safetensors"]);
    refused(&|hub| _ = hub.listing(json!({"siblings": []})), 2, &["any/model has no config.json"]);
    refused(&|hub| _ = hub.listing(json!({"sha": "../../../x"})), 1, &["no commit"]);
    // A hash becomes a file name: this one is none, and the file's headers have no better one.
    let outward = siblings(listed(WEIGHTS, json!({"lfs": {"sha256": "../../../../evil", "size": 4}})));
    let no_hash = vec![Do::Answer(200, vec![("X-Linked-Etag", "\"../../evil\"".to_owned())])];
    refused(
        &|hub| _ = hub.listing(outward.clone()).script(WEIGHTS, no_hash.clone()),
        1,
        &["gives no hash of model.safetensors"],
    );
    for name in ["../evil.safetensors", "/tmp/evil.safetensors", "a/../../evil.safetensors", "evil.bin"] {
        let index = json!({"weight_map": {"x": name}}).to_string();
        let mut listing = siblings(listed(name, json!({})));
        let file = json!({"rfilename": INDEX, "size": index.len(), "blobId": git_hash(index.as_bytes())});
        listing["siblings"].as_array_mut().unwrap().push(file);
        refused(&|hub| _ = hub.file(INDEX, index.as_bytes()).listing(listing.clone()), 2, &[INDEX, name]);
    }
}

#[test]
fn redirects_end_and_do_not_leave_http() {
    let to = |place: &str| Do::Answer(302, vec![("Location", place.to_owned())]);
    for (place, part) in [("file:///etc/passwd", "redirects to an invalid URL"), ("", "without end")] {
        let (hub, home) = (healthy(), Home::new());
        let place =
            if place.is_empty() { format!("/any/model/resolve/{COMMIT}/config.json") } else { place.to_owned() };
        hub.script("config.json", vec![to(&place); 20]);
        home.refused(&hub, 1, &[part]);
        assert!(hub.asked("config.json").len() <= 9);
    }
}

#[test]
fn a_mirror_that_lists_no_hashes_gives_them_with_the_files() {
    let (hub, home) = (healthy(), Home::new());
    let names: Vec<Value> = files().keys().map(|name| json!({"rfilename": name})).collect();
    hub.listing(json!({"siblings": names}));
    let (result, _) = home.lib_pull(&hub);
    result.unwrap();
    home.assert_whole(&hub, &NEEDED);
    assert!(hub.seen().iter().all(|s| s.header("authorization").is_some() != s.cdn));
}

/// Starts a download that stands still in the middle of its weights.
fn in_the_middle(hub: &FakeHub, home: &Home, n: usize) -> (Child, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    hub.script(WEIGHTS, vec![Do::Well, Do::Hold(n, gate.clone())]);
    let child = home.command(hub, &["models", "pull", ID]).spawn().unwrap();
    let partial = home.repo().join("blobs").join(format!("{}.incomplete", hash(&hub.bytes_of(WEIGHTS))));
    until("half of the file", || fs::metadata(&partial).is_ok_and(|m| m.len() == n as u64));
    (child, gate)
}

#[cfg(unix)]
#[test]
fn a_killed_download_goes_on_with_the_rest() {
    use rustix::process::{Pid, Signal, kill_process};
    for (signal, code) in [(Signal::KILL, None), (Signal::INT, Some(130))] {
        let (hub, home) = (healthy(), Home::new());
        let (mut child, gate) = in_the_middle(&hub, &home, 77_000);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), code);
        gate.open();
        let (_, list, _) = home.run(&hub, &["models", "list"]);
        assert!(list.contains("any/model") && list.contains("incomplete"), "{list}");
        let before: usize = hub.asked(WEIGHTS).len();
        assert_eq!(home.pull(&hub).0, 0);
        home.assert_whole(&hub, &NEEDED);
        let rest = &hub.asked(WEIGHTS)[before..];
        let sent: Vec<usize> = rest.iter().filter(|s| s.cdn).map(|s| s.sent).collect();
        assert_eq!(sent, [hub.bytes_of(WEIGHTS).len() - 77_000]);
    }
}

#[test]
fn two_processes_fetch_a_file_once() {
    let (hub, home) = (healthy(), Home::new());
    let (first, gate) = in_the_middle(&hub, &home, 60_000);
    let log = home.0.path().join("second");
    let mut second = home.command(&hub, &["models", "pull", ID]);
    let second = second.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    until("the second to wait", || fs::read_to_string(&log).unwrap().contains("waiting for another process"));
    let (code, _, stderr) = home.run(&hub, &["models", "rm", ID]);
    assert!(code == 1 && stderr.contains("is being downloaded by another process"), "{stderr}");
    gate.open();
    assert_eq!((said(first).0, said(second).0), (0, 0));
    home.assert_whole(&hub, &NEEDED);
    assert_eq!(hub.sent(), hub.bytes_of(WEIGHTS).len());
}

#[test]
fn a_revision_is_removed_without_what_others_need() {
    let (hub, home) = (healthy(), Home::new());
    assert_eq!(home.pull(&hub).0, 0);
    let other = "fedcba9876543210fedcba9876543210fedcba98";
    hub.listing(json!({"sha": other})).script("/resolve/", Vec::new());
    // The same files but for one.
    let new = br#"{"eos_token": "<|im_end|>", "x": 1}"#;
    let old = hub.bytes_of("tokenizer_config.json");
    let folder = home.repo().join("snapshots").join(other);
    fs::create_dir_all(&folder).unwrap();
    for name in NEEDED {
        std::os::unix::fs::symlink(fs::read_link(home.snapshot().join(name)).unwrap(), folder.join(name)).unwrap();
    }
    fs::remove_file(folder.join("tokenizer_config.json")).unwrap();
    fs::write(home.repo().join("blobs").join(git_hash(new)), new).unwrap();
    std::os::unix::fs::symlink(format!("../../blobs/{}", git_hash(new)), folder.join("tokenizer_config.json")).unwrap();
    fs::write(home.repo().join("refs/v2"), other).unwrap();
    let (code, out, _) = home.run(&hub, &["models", "rm", &format!("{ID}@v2")]);
    assert!(code == 0 && out.contains("free again"), "{out}");
    home.assert_whole(&hub, &NEEDED);
    assert!(!folder.exists() && !home.repo().join("refs/v2").exists());
    assert!(
        !home.repo().join("blobs").join(git_hash(new)).exists()
            && home.repo().join("blobs").join(git_hash(&old)).exists()
    );
    assert_eq!(home.run(&hub, &["models", "rm", &format!("{ID}@v2")]).0, 2);
}
