//! A hub on loopback, as far as dmschat asks one: the listing of a model, its files, and a second
//! port that large files are sent to ("the CDN"). What goes wrong is scripted, request by request,
//! and everything that came in is kept.

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Larger files than that are "large files": hashed by sha256 and kept at the CDN.
const LARGE: usize = 50_000;

/// What is done with one request instead of answering it well.
#[derive(Clone)]
pub enum Do {
    /// A status and headers, nothing else.
    Answer(u16, Vec<(&'static str, String)>),
    /// So many bytes of the body, and the connection is closed.
    Cut(usize),
    /// So many bytes of the body, and no more until the gate opens.
    Hold(usize, Arc<Gate>),
    /// The whole file whatever was asked for, under this ETag.
    Whole(&'static str),
    /// Bytes of the right number, with one that is wrong.
    Wrong,
    /// A body of no stated length, for as long as somebody reads it.
    Endless,
    Well,
}

/// Closed until opened.
#[derive(Default)]
pub struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let closed = |open: &mut bool| !*open;
        let _ = self.1.wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(60), closed).unwrap();
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub cdn: bool,
    pub path: String,
    headers: BTreeMap<String, String>,
    /// Bytes of the body that were sent.
    pub sent: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Those of any model of `nvidia` and `RedHatAI`.
    predictor: BTreeMap<String, Vec<u8>>,
    /// Keys of the listing that are not as usual.
    listing: Value,
    /// By a part of the path.
    script: Vec<(&'static str, VecDeque<Do>)>,
    seen: Vec<Seen>,
    connections: usize,
    cdn: String,
}

pub struct FakeHub {
    pub url: String,
    state: Arc<Mutex<State>>,
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// As `git hash-object` has it.
pub fn git_hash(bytes: &[u8]) -> String {
    let mut sha = Sha1::new();
    sha.update(format!("blob {}\0", bytes.len()));
    sha.update(bytes);
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// The blob's name in the cache.
pub fn hash(bytes: &[u8]) -> String {
    if bytes.len() > LARGE { sha256(bytes) } else { git_hash(bytes) }
}

impl FakeHub {
    /// Serves these files as `any/model`.
    pub fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let state = Arc::new(Mutex::new(State { files, listing: json!({}), ..State::default() }));
        let cdn = listen(&state, true);
        state.lock().unwrap().cdn = cdn;
        Self { url: listen(&state, false), state }
    }

    /// The next requests whose path has this in it go so, one after the other.
    pub fn script(&self, path: &'static str, what: Vec<Do>) -> &Self {
        self.state.lock().unwrap().script.push((path, what.into()));
        self
    }

    /// Keys of the listing that differ; `files` replaces the list of files.
    pub fn listing(&self, keys: Value) -> &Self {
        self.state.lock().unwrap().listing = keys;
        self
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> &Self {
        self.state.lock().unwrap().files.insert(name.to_owned(), bytes.to_vec());
        self
    }

    /// Serves these files, none of them large, as any model of `nvidia` and `RedHatAI`.
    pub fn predictor(&self, files: BTreeMap<String, Vec<u8>>) -> &Self {
        self.state.lock().unwrap().predictor = files;
        self
    }

    pub fn bytes_of(&self, name: &str) -> Vec<u8> {
        self.state.lock().unwrap().files[name].clone()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Requests for a file, in order.
    pub fn asked(&self, part: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|s| s.path.contains(part)).collect()
    }

    pub fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    /// Bytes that the CDN has sent.
    pub fn sent(&self) -> usize {
        self.seen().iter().filter(|s| s.cdn).map(|s| s.sent).sum()
    }
}

/// A port of its own, served until the tests end.
fn listen(state: &Arc<Mutex<State>>, cdn: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let state = state.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = state.clone();
            state.lock().unwrap().connections += 1;
            std::thread::spawn(move || serve(stream, &state, cdn));
        }
    });
    url
}

/// One request, one answer.
fn serve(mut stream: TcpStream, state: &Mutex<State>, cdn: bool) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next()?.ok()?;
    let (method, path) = (first.split(' ').next()?.to_owned(), first.split(' ').nth(1)?.to_owned());
    let mut headers = BTreeMap::new();
    for line in lines.map_while(Result::ok).take_while(|l| !l.is_empty()) {
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let range = headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let if_range = headers.get("if-range").cloned();
    let (at, what, reply) = {
        let mut s = state.lock().unwrap();
        s.seen.push(Seen { cdn, path: path.clone(), headers, sent: 0 });
        let script = s.script.iter_mut().find(|(part, todo)| path.contains(*part) && !todo.is_empty());
        let what = script.and_then(|(_, todo)| todo.pop_front()).unwrap_or(Do::Well);
        (s.seen.len() - 1, what, if cdn { s.blob(&path) } else { s.hub(&path) })
    };
    let mut reply = reply;
    if let Do::Answer(status, headers) = &what {
        reply = Reply { status: *status, headers: headers.clone(), body: Vec::new() };
    }
    let etag = match &what {
        Do::Whole(tag) => (*tag).to_owned(),
        _ => format!("\"{}\"", hash(&reply.body)),
    };
    let all = reply.body.len();
    let ranged = range.filter(|from| {
        reply.status == 200 && *from < all && !matches!(what, Do::Whole(_)) && if_range.is_none_or(|tag| tag == etag)
    });
    if let Do::Wrong = what {
        reply.body[all / 2] ^= 1;
    }
    let mut head = String::new();
    if let Some(from) = ranged {
        reply.status = 206;
        reply.body.drain(..from);
        head += &format!("Content-Range: bytes {from}-{}/{all}\r\n", all - 1);
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let (status, length) = (reply.status, reply.body.len());
    let endless = matches!(what, Do::Endless);
    let length_line = if endless { String::new() } else { format!("Content-Length: {length}\r\n") };
    let head = format!("HTTP/1.1 {status} X\r\nETag: {etag}\r\n{length_line}Connection: close\r\n{head}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    if method == "HEAD" {
        return None;
    }
    let (now, gate) = match what {
        Do::Cut(n) => (n.min(length), None),
        Do::Hold(n, gate) => (n.min(length), Some(gate)),
        _ => (length, None),
    };
    let mut send = |bytes: &[u8]| -> Option<()> {
        stream.write_all(bytes).ok()?;
        stream.flush().ok()?;
        state.lock().unwrap().seen[at].sent += bytes.len();
        Some(())
    };
    if endless {
        loop {
            send(&[b' '; 64 << 10])?;
        }
    }
    send(&reply.body[..now])?;
    if let Some(gate) = gate {
        gate.pass();
        send(&reply.body[now..])?;
    }
    Some(())
}

struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn of(body: Vec<u8>) -> Self {
        Self { status: 200, headers: Vec::new(), body }
    }

    fn none() -> Self {
        Self { status: 404, headers: Vec::new(), body: Vec::new() }
    }
}

/// Whether a path is of what belongs to a model.
fn is_beside(path: &str) -> bool {
    ["/nvidia/", "/RedHatAI/"].iter().any(|of| path.contains(of))
}

impl State {
    fn hub(&self, path: &str) -> Reply {
        let files = if is_beside(path) { &self.predictor } else { &self.files };
        if path.starts_with("/api/models/") {
            return Reply::of(self.list(files).to_string().into_bytes());
        }
        if let Some(name) = path.strip_prefix("/cache/") {
            return Reply::of(self.files[name].clone());
        }
        let name = path.split_once(&format!("/resolve/{COMMIT}/")).map_or("", |(_, name)| name);
        let Some(bytes) = files.get(name) else { return Reply::none() };
        let linked = |to: String, status| {
            let headers = vec![
                ("Location", to),
                ("X-Repo-Commit", COMMIT.to_owned()),
                ("X-Linked-Etag", format!("\"{}\"", hash(bytes))),
                ("X-Linked-Size", bytes.len().to_string()),
            ];
            Reply { status, headers, body: Vec::new() }
        };
        match name {
            _ if bytes.len() > LARGE => {
                let of = if is_beside(path) { "&of=predictor" } else { "" };
                linked(format!("{}/{name}?signature=s3cret{of}", self.cdn), 302)
            }
            // The hub sends to another path of its own too.
            "tokenizer.json" => linked(format!("/cache/{name}"), 307),
            _ => Reply::of(bytes.clone()),
        }
    }

    fn blob(&self, path: &str) -> Reply {
        let name = path.trim_start_matches('/').split('?').next().unwrap_or("");
        let files = if path.ends_with("&of=predictor") { &self.predictor } else { &self.files };
        files.get(name).map_or_else(Reply::none, |bytes| Reply::of(bytes.clone()))
    }

    fn list(&self, files: &BTreeMap<String, Vec<u8>>) -> Value {
        let file = |(name, bytes): (&String, &Vec<u8>)| {
            let mut file = json!({"rfilename": name, "size": bytes.len(), "blobId": git_hash(bytes)});
            if bytes.len() > LARGE {
                file["lfs"] = json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134});
            }
            file
        };
        let mut list = json!({
            "id": "any/model", "sha": COMMIT, "gated": false, "tags": ["license:apache-2.0"],
            "config": {"model_type": "qwen3"}, "siblings": files.iter().map(file).collect::<Vec<_>>(),
        });
        for (key, value) in self.listing.as_object().into_iter().flatten() {
            list[key] = value.clone();
        }
        list
    }
}
