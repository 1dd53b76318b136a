//! Files of synthetic layers: what damage is found, and which files are deleted.

use super::header::{FAR_WHOLE, UNNUMBERED};
use super::*;
use crate::cache::SeqHead;
use crate::regular_file::checksum::checksum;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const SOON: Duration = Duration::from_secs(20);

fn header(layer_bytes: Vec<u64>) -> Header {
    let identity = Identity {
        model: "m".into(),
        tokenizer: "t".into(),
        weights: "w".into(),
        parameters: "p".into(),
        codec: "f32".into(),
        policy: "Dense".into(),
        n_layers: layer_bytes.len(),
        n_kv_heads: 1,
        head_dim: 8,
        heads: None,
        page_slots: 16,
        slot_meta: 0,
        delta: None,
        far: None,
    };
    let sequence = SeqHead { len: 9, eviction: true, dial: 0.1, pins: vec![0..4, 7..8], reads: 5, peak: 9 };
    Header { identity, sequence, log: "l".into(), layer_bytes, slot: None }
}

fn layers() -> Vec<Vec<u8>> {
    (0..3usize).map(|layer| (0..40 + 33 * layer).map(|i| (i * 7 + layer) as u8).collect()).collect()
}

fn write(path: PathBuf, limit_bytes: u64, layers: &[Vec<u8>]) -> io::Result<()> {
    let sizes = layers.iter().map(|l| l.len() as u64).collect();
    let writer = Writer::start(path, Room { limit_bytes }, header(sizes))?;
    for layer in layers {
        let mut image = layer.clone();
        while let Err(back) = writer.offer(image) {
            image = back;
            std::thread::yield_now();
        }
    }
    loop {
        if let Some(outcome) = writer.outcome() {
            return outcome;
        }
        std::thread::yield_now();
    }
}

type Content = (Header, Vec<Vec<u8>>);

fn read(path: &Path) -> Result<Option<Content>, FileError> {
    let Some(opened) = Opened::open(path)? else { return Ok(None) };
    let header = opened.header.clone();
    let mut reader = opened.read(|layer, image| Ok((layer, image)))?;
    let mut layers = vec![Vec::new(); reader.left()];
    while reader.left() > 0 {
        let (layer, image) = reader.next(SOON).expect("a reader that reads")?;
        layers[layer] = image;
    }
    Ok(Some((header, layers)))
}

#[test]
fn every_change_of_a_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.cache");
    assert!(read(&path).unwrap().is_none());
    write(path.clone(), 1 << 20, &layers()).unwrap();
    let (found, images) = read(&path).unwrap().unwrap();
    assert_eq!((found, images), (header(vec![40, 73, 106]), layers()));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).unwrap();
        assert!(read(&path).is_err(), "a bit of byte {at} changed");
    }
    for len in (0..whole.len()).chain([whole.len() + 1]) {
        let mut bytes = whole.clone();
        bytes.resize(len, 0);
        fs::write(&path, &bytes).unwrap();
        assert!(read(&path).is_err(), "{len} bytes of {}", whole.len());
    }
}

/// Images of the first version did not begin with the layer's number.
#[test]
fn a_file_of_the_first_version_is_read_with_numbers_before_its_layers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.cache");
    let old = layers();
    let sizes = old.iter().map(|l| l.len() as u64).collect();
    let mut bytes = header(sizes).encode().unwrap();
    bytes.truncate(bytes.len() - CHECKSUM_BYTES);
    bytes[MAGIC.len()..][..4].copy_from_slice(&UNNUMBERED.to_ne_bytes());
    let seed = checksum(0, &bytes);
    bytes.extend(seed.to_ne_bytes());
    for (layer, image) in old.iter().enumerate() {
        bytes.extend(image);
        bytes.extend(layer_checksum(seed, layer, image).to_ne_bytes());
    }
    fs::write(&path, bytes).unwrap();
    let (_, images) = read(&path).unwrap().unwrap();
    let numbered = |(layer, image): (usize, &Vec<u8>)| [&(layer as u32).to_ne_bytes()[..], image].concat();
    assert_eq!(images, old.iter().enumerate().map(numbered).collect::<Vec<_>>());
}

/// Files of the third version had the far rows of a lane in one image.
#[test]
fn a_file_of_the_third_version_is_read_without_far_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.cache");
    for far in [None, Some(16)] {
        let mut header = header(Vec::new());
        header.identity.far = far;
        let mut bytes = header.encode().unwrap();
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        bytes[MAGIC.len()..][..4].copy_from_slice(&FAR_WHOLE.to_ne_bytes());
        bytes.extend(checksum(0, &bytes).to_ne_bytes());
        fs::write(&path, bytes).unwrap();
        let opened = Opened::open(&path);
        let said = opened.err().map(|error| error.to_string());
        assert_eq!(said.as_deref(), far.map(|_| "it is of another version of dmschat"));
    }
}

#[test]
fn the_oldest_files_make_room_and_what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(path("a.cache"), 1 << 20, &layers()).unwrap();
    let bytes = fs::metadata(path("a.cache")).unwrap().len();
    let older = SystemTime::now() - Duration::from_secs(9000);
    let age = |name: &str, by: u64| {
        let file = fs::OpenOptions::new().write(true).open(path(name)).unwrap();
        file.set_modified(older - Duration::from_secs(by)).unwrap();
    };
    write(path("b.cache"), 1 << 20, &layers()).unwrap();
    // A file of a process that was killed.
    fs::write(path(".dmschat-0123456789abcdef.tmp"), "half").unwrap();
    fs::write(path("a.jsonl"), "session").unwrap();
    // The user's.
    fs::write(path("c.cache"), "mine").unwrap();
    age("a.cache", 1);
    age("b.cache", 2);
    age("a.jsonl", 3);
    age("c.cache", 4);
    // One that is written again needs no room beside itself.
    write(path("a.cache"), 2 * bytes, &layers()).unwrap();
    write(path("e.cache"), 2 * bytes, &layers()).unwrap();
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.cache", "a.jsonl", "c.cache", "e.cache"]);
    let refused = write(path("c.cache"), 2 * bytes, &layers()).unwrap_err();
    assert_eq!(refused.to_string(), "the file of that name is not a cache");
    assert_eq!(fs::read(path("c.cache")).unwrap(), b"mine");
    let refused = write(path("f.cache"), bytes - 1, &layers()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    assert!(path("e.cache").exists() && !path("f.cache").exists());
}

#[test]
fn a_write_that_is_given_up_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.cache");
    write(path.clone(), 1 << 20, &layers()).unwrap();
    let before = fs::read(&path).unwrap();
    let writer = Writer::start(path.clone(), Room { limit_bytes: 1 << 20 }, header(vec![4, 4])).unwrap();
    assert!(writer.offer(vec![0; 4]).is_ok());
    drop(writer);
    let only_one = || fs::read_dir(folder.path()).unwrap().count() == 1;
    let until = std::time::Instant::now() + SOON;
    while !only_one() && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    assert!(only_one() && fs::read(&path).unwrap() == before);
}
