//! A hub that lies about sizes or never ends, and a cache in which somebody has put links.

use crate::fake_hub::{COMMIT, Do, FakeHub, git_hash, hash};
use crate::hub::{Heard, Home, INDEX, NEEDED, WEIGHTS, files, healthy, model, sharded};
use dmschat::checkpoint::pull::{Downloader, Plan};
use dmschat::hub::{Observer, Progress};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// The listing of a whole model, with other sizes for some files.
fn listed(sizes: &[(&str, u64)]) -> Value {
    let file = |(name, bytes): (&String, &Vec<u8>)| {
        let lie = sizes.iter().find(|(n, _)| n == name).map(|(_, size)| *size);
        json!({"rfilename": name, "size": lie.unwrap_or(bytes.len() as u64), "blobId": git_hash(bytes)})
    };
    let mut all = files();
    all.insert(INDEX.to_owned(), b"{}".to_vec());
    if !sizes.iter().any(|(name, _)| *name == WEIGHTS) {
        all.remove(WEIGHTS);
    }
    json!({"siblings": all.iter().map(file).collect::<Vec<_>>()})
}

#[test]
fn small_files_are_bounded_before_the_first_byte() {
    for (name, most) in [("config.json", 4u64 << 20), ("tokenizer.json", 128 << 20), (INDEX, 32 << 20)] {
        let (hub, home) = (healthy(), Home::new());
        hub.listing(listed(&[(name, most + 1)]));
        let size = (most + 1).to_string();
        home.refused(&hub, 2, &["any/model is not downloaded", name, &size, "expected at most"]);
        assert_eq!((hub.asked(name).len(), home.cache().exists()), (0, false), "{name}");
    }
    // Sizes that only the file's own headers say.
    let (hub, home) = (healthy(), Home::new());
    hub.listing(json!({"siblings": [{"rfilename": "config.json"}, {"rfilename": WEIGHTS}]}));
    let headers = vec![("X-Linked-Etag", "a".repeat(64)), ("X-Linked-Size", (1u64 << 40).to_string())];
    hub.script("config.json", vec![Do::Answer(302, headers)]);
    home.refused(&hub, 2, &["lists config.json with 1099511627776 bytes"]);
    assert!(!home.cache().exists());
}

#[test]
fn a_body_without_end_is_cut_off() {
    let (hub, home) = (healthy(), Home::new());
    hub.script("config.json", vec![Do::Endless]);
    home.refused(&hub, 1, &["config.json does not have the hash that 127.0.0.1 lists"]);
    // What the sockets hold is all that came beyond it.
    let sent = |part: &str| hub.asked(part).iter().map(|s| s.sent).sum::<usize>();
    assert!(sent("config.json") < 16 << 20 && !home.cache().exists(), "{}", sent("config.json"));
    hub.script("/api/models/", vec![Do::Endless]);
    home.refused(&hub, 1, &["127.0.0.1: ", "larger than"]);
    assert!(sent("/api/models/") < 24 << 20, "{}", sent("/api/models/"));
}

/// Looks at the cache when the plan comes.
struct Early {
    cache: PathBuf,
    plans: Vec<Plan>,
}

impl Downloader for Early {
    fn plan(&mut self, plan: &Plan) {
        assert!(!self.cache.exists(), "something was written before the plan");
        self.plans.push(plan.clone());
    }
}

impl Observer for Early {
    fn stopped(&self) -> bool {
        false
    }
    fn progress(&mut self, _: &Progress) {
        assert!(!self.plans.is_empty());
    }
    fn notice(&mut self, _: &str) {}
}

#[test]
fn the_plan_and_the_room_come_before_the_first_byte() {
    for hub in [healthy(), sharded()] {
        let home = Home::new();
        let mut early = Early { cache: home.cache(), plans: Vec::new() };
        home.hub(&hub).pull(&model(), &mut early).unwrap();
        let plan = &early.plans[0];
        assert_eq!((early.plans.len(), plan.todo_bytes), (1, plan.bytes));
        for name in ["/config.json", INDEX] {
            assert!(hub.asked(name).len() <= 1, "{name} is fetched once");
        }
    }
    let (hub, home) = (healthy(), Home::new());
    hub.listing(listed(&[(WEIGHTS, 1 << 60)]));
    home.refused_at_last(&hub, 1, &["are needed", "the disk of", "free"]);
    assert!(!home.cache().exists());
}

#[cfg(unix)]
#[test]
fn links_in_the_cache_are_not_followed() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let weights = hash(&files()[WEIGHTS]);
    let folder = outside.path().to_owned();
    for (at, to, named) in [
        (format!("blobs/{weights}.incomplete"), &victim, ".incomplete: a link, which is not followed here"),
        (format!("snapshots/{COMMIT}"), &folder, "a link or a file where the cache has a folder"),
        ("snapshots".to_owned(), &folder, "a link or a file where the cache has a folder"),
        ("blobs".to_owned(), &folder, "a link or a file where the cache has a folder"),
        ("refs".to_owned(), &folder, "a link or a file where the cache has a folder"),
        (format!("../.locks/models--any--model/{weights}.lock"), &victim, ".lock: a link"),
    ] {
        let (hub, home) = (healthy(), Home::new());
        let at = home.repo().join(at);
        fs::create_dir_all(home.repo()).unwrap();
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(to, &at).unwrap();
        home.refused_at_last(&hub, 1, &["any/model is not downloaded", named]);
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "{at:?}");
        fs::remove_file(&at).unwrap();
        assert_eq!(home.pull(&hub).0, 0);
        home.assert_whole(&hub, &NEEDED);
    }
    // A blob that is a link is no blob, and is replaced by one.
    let (hub, home) = (healthy(), Home::new());
    let blobs = home.repo().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(&victim, &files()[WEIGHTS]).unwrap();
    symlink(&victim, blobs.join(&weights)).unwrap();
    let (result, heard): (_, Heard) = home.lib_pull(&hub);
    result.unwrap();
    assert_eq!(heard.plans[0].todo_bytes, heard.plans[0].bytes);
    assert!(fs::symlink_metadata(blobs.join(&weights)).unwrap().is_file());
}

/// As [`Home::refused`], where notices may come before the last line.
impl Home {
    fn refused_at_last(&self, hub: &FakeHub, code: i32, parts: &[&str]) {
        let (found, stdout, stderr) = self.pull(hub);
        assert_eq!((found, stdout.as_str()), (code, ""), "{stderr}");
        let last = stderr.lines().last().unwrap_or("");
        assert!(parts.iter().all(|p| last.contains(p)), "{parts:?}: {stderr}");
    }
}
