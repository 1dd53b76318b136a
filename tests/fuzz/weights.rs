//! Files of quantized weights: one that was changed is refused, unless it claims to be of the
//! version without checksums.

use crate::gguf_file::GgufFile;
use crate::mutate::{Example, Shape};
use anyhow::Result;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::quant::Weights;
use dmschat::quantize::calibration::Calibration;
use dmschat::quantize::weight_cache::WeightCache;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A cache folder with one file and its texts.
struct Original {
    /// Name and content of the file.
    name: PathBuf,
    bytes: Vec<u8>,
    /// Bytes of the header.
    head: usize,
    texts: BTreeMap<PathBuf, Vec<u8>>,
}

fn original() -> &'static Original {
    static ORIGINAL: OnceLock<Original> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("tiny.gguf");
        std::fs::write(&model, GgufFile::tiny().bytes()).expect("written");
        let cache = WeightCache::new(folder.path().join("weights"));
        let source = Checkpoint::open(&ModelRef::Folder(model), &AdapterChoice::None).expect("a model");
        let made = cache.make(&source, Weights::Int8, &Calibration::Equal, &mut |_| true).expect("a file");
        let bytes = std::fs::read(&made.path).expect("a file");
        let texts = std::fs::read_dir(made.texts()).expect("texts").map(|entry| entry.expect("an entry").path());
        Original {
            head: 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize,
            name: made.path.file_name().expect("a name").into(),
            texts: texts.map(|p| (p.file_name().expect("a name").into(), std::fs::read(&p).expect("a text"))).collect(),
            bytes,
        }
    })
}

pub fn headers() -> Vec<Example> {
    vec![Example::new(Shape::Header, original().bytes[..original().head].to_vec())]
}

pub fn data() -> Vec<Example> {
    vec![Example::new(Shape::Lines, original().bytes[original().head..].to_vec())]
}

/// Opens the file with another header, or with other data.
pub fn run(folder: &Path, bytes: &[u8], is_header: bool) -> Result<()> {
    let Original { name, bytes: whole, head, texts } = original();
    let file = match is_header {
        true => [bytes, &whole[*head..]].concat(),
        false => [&whole[..*head], bytes].concat(),
    };
    let folder = folder.join("weights");
    let path = folder.join(name);
    std::fs::create_dir_all(path.with_extension(""))?;
    texts.iter().try_for_each(|(name, text)| std::fs::write(path.with_extension("").join(name), text))?;
    std::fs::write(&path, &file)?;
    let cache = WeightCache::new(folder);
    let Some(cached) = cache.list().pop() else { return Ok(()) };
    let opened = cache.open(&cached, &AdapterChoice::None)?;
    let unchecked = file.windows(9).any(|w| w == b"weights 1");
    assert!(file == *whole || unchecked, "a changed file was used");
    for tensor in opened.tensors.values().filter(|t| t.shape.len() == 2) {
        let mut row = vec![0.0; tensor.shape[1]];
        tensor.decode_row(tensor.shape[0] - 1, &mut row);
    }
    Ok(())
}
