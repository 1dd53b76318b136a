//! Caches on disk: a changed file is refused, and a layer's image that is accepted leaves
//! consistent page tables.

use crate::mutate::{Example, Shape};
use anyhow::Result;
use dmschat::backend::cpu::Cpu;
use dmschat::backend::{Device, KvGeometry, Measure, QkvRopeArgs, Use};
use dmschat::cache::file::{Header, Identity, Opened, Room, SlotLog, Writer};
use dmschat::cache::{KvCache, SeqId};
use dmschat::codec::Codec;
use dmschat::policy::{Dms, Far, Policy, Shift};
use dmschat::protocol::LogEntry;
use dmschat::regular_file::checksum::checksum;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

const TOKENS: usize = 110;
const DIM: usize = 8;
const HEADS: usize = 2;
const SOON: Duration = Duration::from_secs(20);

fn empty(b: &Cpu) -> KvCache<Cpu> {
    let rule = Dms { window: 5, shift: Shift::Previous, sinks: 0, dial: 0.0 };
    let geometry = KvGeometry {
        n_layers: 2,
        n_q_heads: HEADS,
        n_kv_heads: HEADS,
        head_dim: DIM,
        heads: None,
        n_seqs: 2,
        page_slots: 16,
        same_slots: false,
        max_pages: 0,
        codec: Codec::Int8,
        policy: Policy::Dms(rule),
        far: Some(Far { pages: 1 }),
        delta: None,
        vocab: 0,
        staged_rows: 0,
        local: Default::default(),
    };
    KvCache::new(b, geometry, 128, TOKENS).expect("memory")
}

/// A sequence of a few tokens, two of three marked, so that each lane has a near page, one that is
/// not near, and a part of one.
fn filled(b: &Cpu, cache: &mut KvCache<Cpu>) -> SeqId {
    let seq = cache.create(b, true).expect("a row");
    let spans = [cache.span(seq, 0, TOKENS)];
    cache.reserve_step(b, &spans).expect("pages");
    let width = 3 * HEADS * DIM;
    let rows: Vec<f32> = (0..TOKENS * width).map(|i| (i * 7919 % 17) as f32 - 8.0).collect();
    let decisions: Vec<f32> = (0..TOKENS * HEADS).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
    let inv_freq = vec![0.0; DIM / 2];
    let rope = QkvRopeArgs::plain(&inv_freq);
    let acts = |width| b.acts(TOKENS, width, Use::Any).expect("rows");
    for layer in 0..2 {
        let (mut qkv, mut out) = (acts(width), acts(HEADS * DIM));
        b.write_acts(&mut qkv, &rows);
        cache.attention(b, &mut out, &mut qkv, &mut decisions.clone(), layer, &spans, &rope);
    }
    cache.finish(b, &spans);
    cache.choose(b, seq, 1).expect("far rows are kept");
    seq
}

/// A whole file, and the images of its layers.
fn original() -> &'static [Vec<u8>] {
    static ORIGINAL: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let b = Cpu::new(1);
        let mut cache = empty(&b);
        let seq = filled(&b, &mut cache);
        let (sequence, layer_bytes) = cache.head(&b, seq);
        let identity = Identity::new(cache.geometry(), Default::default());
        let entries = vec![LogEntry::Token(3), LogEntry::Toggle { eviction: false }];
        let slot = SlotLog { entries, pending: Some(7), is_cut: false };
        let header = Header { identity, sequence, log: "log".into(), layer_bytes, slot: Some(slot) };
        let images = (0..cache.n_images()).map(|number| {
            let mut image = Vec::new();
            cache.export_layer(&b, seq, number, &mut image);
            image
        });
        let images: Vec<Vec<u8>> = images.collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.cache");
        let writer = Writer::start(path.clone(), Room { limit_bytes: 1 << 20 }, header).expect("a thread");
        for image in &images {
            let mut image = image.clone();
            while let Err(back) = writer.offer(image) {
                image = back;
            }
        }
        while writer.outcome().is_none() {}
        [vec![std::fs::read(path).expect("a file")], images].concat()
    })
}

pub fn examples() -> Vec<Example> {
    original().iter().map(|bytes| Example::new(Shape::Binary, bytes.clone())).collect()
}

/// Whole files.
pub fn files() -> Vec<Example> {
    vec![Example::new(Shape::Binary, original()[0].clone())]
}

/// Opens a file after correcting its checksums, and fills a sequence with the layers that are
/// accepted.
pub fn forged(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, sealed(bytes.to_vec()))?;
    let Some(opened) = Opened::open(path)? else { return Ok(()) };
    let b = Cpu::new(1);
    let mut cache = empty(&b);
    let seq = cache.create(&b, true)?;
    let (head, n) = (opened.header.sequence.clone(), opened.header.layer_bytes.len());
    if n != cache.n_images() || opened.header.layer_bytes.iter().any(|&bytes| bytes > cache.max_layer_bytes(TOKENS)) {
        return Ok(());
    }
    cache.check_head(&head, TOKENS).map_err(anyhow::Error::msg)?;
    let check = cache.layer_check(TOKENS);
    let mut rests = Vec::new();
    for (images, are_first) in [(0..cache.first_rest(), true), (cache.first_rest()..n, false)] {
        let mut reader = opened.read_some(images, move |layer, image| check.check(layer, image))?;
        while reader.left() > 0 {
            let image = reader.next(SOON).expect("a reader that reads")?;
            match are_first {
                true => rests.extend(cache.import_layer(&b, seq, &image)?),
                false => cache.import_rest(&b, &mut rests, &image)?,
            }
        }
    }
    cache.end_import(&b, seq, &head, std::iter::empty()).map_err(anyhow::Error::msg)?;
    if let Err(why) = cache.audit(&b) {
        panic!("{why}");
    }
    cache.unpin(&b, seq, 0..usize::MAX)?;
    cache.forget(&b, seq, 1)?;
    cache.choose(&b, seq, 1).expect("far rows are kept");
    let fork = cache.fork(&b, seq)?;
    cache.release(&b, seq);
    let stats = cache.stats(&b, fork);
    assert!(stats.live_slots <= u64::from(u32::MAX) && stats.len == TOKENS);
    cache.release(&b, fork);
    assert_eq!(cache.pool_stats(&b).used_pages, 0);
    Ok(())
}

/// The bytes with the checksums that they should have, as far as they are a file.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.get(12..16).map_or(0, |raw| u32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]) as usize);
    let end = 16 + length.min(1 << 20);
    let Some(seed) = bytes.get(..end).map(|head| checksum(0, head)) else { return bytes };
    let mut put = |at: usize, sum: u64| {
        if let Some(place) = bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&sum.to_ne_bytes());
        }
    };
    put(end, seed);
    let Ok(header) = serde_json::from_slice::<Header>(&bytes[16..end]) else { return bytes };
    let mut at = end + 8;
    for (layer, size) in header.layer_bytes.iter().enumerate() {
        let Some(next) = at.checked_add(*size as usize) else { break };
        let Some(image) = bytes.get(at..next) else { break };
        let sum = checksum(seed.wrapping_add(layer as u64 + 1), image);
        if let Some(place) = bytes.get_mut(next..next + 8) {
            place.copy_from_slice(&sum.to_ne_bytes());
        }
        at = next + 8;
    }
    bytes
}

/// An input that begins as a file is one; any other is the image of a layer.
pub fn run(path: PathBuf, bytes: &[u8]) -> Result<()> {
    if bytes.starts_with(b"dmschatC") { file(&path, bytes) } else { image(bytes) }
}

fn file(path: &Path, bytes: &[u8]) -> Result<()> {
    let Some(opened) = Opened::open(path)? else { return Ok(()) };
    let mut reader = opened.read(|_, image| Ok(image))?;
    while reader.left() > 0 {
        reader.next(SOON).expect("a reader that reads")?;
    }
    assert!(*bytes == original()[0], "a changed file was taken");
    Ok(())
}

fn image(bytes: &[u8]) -> Result<()> {
    let b = Cpu::new(1);
    let mut cache = empty(&b);
    let seq = cache.create(&b, true)?;
    // Its number may be damaged too.
    let number = bytes.first().map_or(0, |&number| number as usize);
    let checked = cache.layer_check(TOKENS).check(number, bytes.to_vec());
    let taken = checked.map(|image| cache.import_layer(&b, seq, &image));
    if let Err(why) = cache.audit(&b) {
        panic!("{why}");
    }
    cache.release(&b, seq);
    assert_eq!(cache.pool_stats(&b).used_pages, 0);
    taken??;
    Ok(())
}
