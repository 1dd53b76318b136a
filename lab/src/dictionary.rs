//! `dmslab dictionary`: learns from texts the dictionary that `--kv csr:N` codes K and V with.

mod fit;

use crate::score::encode_text_file;
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueHint};
use dmschat::backend::{Backend, KvGeometry, Measure};
use dmschat::chat::session::Output;
use dmschat::checkpoint::Checkpoint;
use dmschat::cli::output::{self, as_wrong_use, notice, wrong_use};
use dmschat::cli::spawn::{self, ModelJob};
use dmschat::codec::csr::{Angles, Dictionary};
use dmschat::codec::{Codec, Rotation};
use dmschat::config::{Auto, Settings};
use dmschat::cores;
use dmschat::engine::Runner;
use dmschat::policy::PolicyKind;
use dmschat::predictor::texts;
use dmschat::protocol::Token;
use dmschat::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};

/// Only a dictionary is replaced.
const OUTPUT: Output = Output { noun: "a dictionary", is_own: is_dictionary };
/// Tokens of a sequence that rows are taken from.
const PIECE: usize = 1024;
const MAX_STEP: usize = 128;
/// Atoms that a row is coded with while they are learned, of K and of half a row of V.
const TERMS: [usize; 2] = [8, 4];
const KMEANS_ITERATIONS: usize = 10;

fn is_dictionary(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| Dictionary::parse(&bytes).is_ok())
}

#[derive(Args, Debug)]
pub struct DictionaryArgs {
    /// The file to write [default: where --kv csr:N looks for it]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// UTF-8 text of the kind that the model will work on [default: built-in texts]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text_file: Option<PathBuf>,
    /// Tokens of the texts that are read, from all of their length
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub tokens: u32,
    /// Atoms of each group of layers
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub atoms: u32,
    /// Rows that a group of layers is fitted to
    #[arg(long, value_name = "N", default_value_t = 16000, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub rows: u32,
    /// Epochs of matching pursuit over the rows
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub epochs: u32,
}

/// Feeds the texts to the model on the CPU with a dense cache in f32, fits the atoms, and writes
/// the dictionary.
pub fn run(settings: &Settings, args: &DictionaryArgs) -> Result<u8> {
    ensure!(args.rows >= args.atoms, wrong_use(format!("--rows {} are fewer than --atoms {}", args.rows, args.atoms)));
    let mut settings = settings.clone();
    (settings.kv, settings.policy, settings.budget) = (Auto::Is(Codec::F32), PolicyKind::Dense, Default::default());
    spawn::with_model(&settings, MAX_STEP, Job { settings: &settings, args })
}

struct Job<'a> {
    settings: &'a Settings,
    args: &'a DictionaryArgs,
}

impl ModelJob for Job<'_> {
    type Output = u8;

    fn run<B: Measure>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8> {
        let pieces = self.pieces(checkpoint, runner.context()).map_err(as_wrong_use)?;
        let path = self.args.output.clone().unwrap_or_else(|| spawn::dictionary_path(self.settings, checkpoint));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let made = folder.map_or(Ok(()), std::fs::create_dir_all);
        made.with_context(|| format!("cannot write {}", path.display()))?;
        OUTPUT.check(&path).map_err(as_wrong_use)?;
        let mut rows = Rows::new(runner, self.args.rows as usize, pieces.iter().map(Vec::len).sum());
        for piece in &pieces {
            rows.collect(runner, piece)?;
        }
        let dictionary = rows.fit(self.args)?;
        let bytes = dictionary.to_bytes().map_err(|why| anyhow!("{why}"))?;
        OUTPUT.write(&path, &bytes)?;
        let groups = [dictionary.k.len(), dictionary.v.len()];
        notice(&format!("{} groups of layers for K, {} for V; use it with --kv csr:8", groups[0], groups[1]));
        output::out(&format!("{}\n", path.display()))?;
        Ok(output::OK)
    }
}

impl Job<'_> {
    /// Pieces of the texts, spread over all of them, with as many tokens as are asked for.
    fn pieces(&self, checkpoint: &Checkpoint, context: usize) -> Result<Vec<Vec<Token>>> {
        let tokens = match &self.args.text_file {
            Some(file) => encode_text_file(checkpoint, file, usize::MAX)?,
            None => {
                let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
                let texts = texts::built_in()?.into_iter().filter(|text| !text.held_out);
                let tokens = texts.map(|text| tokenizer.encode_text(&text.text)).collect::<Result<Vec<_>>>()?;
                tokens.concat()
            }
        };
        let len = PIECE.min(context);
        let all: Vec<&[Token]> = tokens.chunks(len).collect();
        let n = (self.args.tokens as usize).div_ceil(len).min(all.len());
        ensure!(n > 0, wrong_use("the text has no tokens"));
        Ok((0..n).map(|i| all[i * all.len() / n].to_vec()).collect())
    }
}

/// Rows of each layer: K before RoPE, and halves of V.
struct Rows {
    geometry: KvGeometry,
    angles: Vec<Angles>,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    /// One in so many tokens is taken.
    stride: usize,
}

impl Rows {
    fn new<B: Backend>(runner: &Runner<B>, rows: usize, tokens: usize) -> Self {
        let geometry = *runner.cache.geometry();
        let rotation = |(inv_freq, factor)| Angles::new(Rotation { inv_freq, factor });
        let empty = || vec![Vec::new(); geometry.n_layers];
        Self {
            geometry,
            angles: runner.config().rotations().map(rotation).collect(),
            k: empty(),
            v: empty(),
            stride: (tokens * geometry.n_kv_heads / rows).max(1),
        }
    }

    /// Adds the rows of a text.
    fn collect<B: Backend>(&mut self, runner: &mut Runner<B>, tokens: &[Token]) -> Result<()> {
        let seq = runner.create(false)?;
        for step in tokens.chunks(runner.max_step()) {
            runner.feed(seq, step)?;
        }
        let mut image = Vec::new();
        let live = runner.cache.stats(runner.backend(), seq).live;
        for (layer, live) in live.iter().enumerate() {
            runner.export_layer(seq, layer, &mut image);
            self.collect_layer(layer, live, &image);
        }
        runner.release(seq);
        Ok(())
    }

    /// Adds the rows of a layer's image, which ends with the pages of its lanes.
    fn collect_layer(&mut self, layer: usize, live: &[u32], image: &[u8]) {
        let (g, layout, bytes) = (&self.geometry, self.geometry.page(), self.geometry.page_bytes());
        let pages = live.iter().map(|&live| (live as usize).div_ceil(g.page_slots)).sum::<usize>();
        let mut pages = image[image.len() - pages * bytes..].chunks_exact(bytes);
        let floats =
            |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks::<4>().0.iter().map(|x| f32::from_ne_bytes(*x)).collect() };
        for &live in live {
            for first in (0..live as usize).step_by(g.page_slots) {
                let Some(page) = pages.next() else { return };
                for row in 0..g.page_slots.min(live as usize - first) {
                    let position = layout.meta(page, row).position();
                    if position % self.stride != 0 {
                        continue;
                    }
                    let mut k = floats(&page[layout.k(row)]);
                    self.angles[layer].unrotate(position, &mut k);
                    self.k[layer].extend(k);
                    self.v[layer].extend(floats(&page[layout.v(row)]));
                }
            }
        }
    }

    /// Fits the atoms of all groups, on all cores.
    fn fit(&self, args: &DictionaryArgs) -> Result<Dictionary> {
        let d = self.geometry.head_dim;
        let kinds = [(&self.k, d, TERMS[0]), (&self.v, d / 2, TERMS[1])];
        let of_layers = kinds.map(|(layers, dim, _)| fit::groups(layers, dim));
        let mut tasks = Vec::new();
        for (kind, (layers, dim, terms)) in kinds.into_iter().enumerate() {
            for group in 0..of_layers[kind].last().map_or(0, |last| last + 1) {
                let members = layers.iter().zip(&of_layers[kind]).filter(|(_, of)| **of == group);
                let rows: Vec<f32> = members.flat_map(|(rows, _)| rows.iter().copied()).collect();
                let rows = spread(&rows, dim, args.rows as usize);
                let n = args.atoms as usize;
                ensure!(
                    rows.len() / dim >= n,
                    wrong_use(format!(
                        "the text gives {} rows for {n} atoms: use a longer one, or fewer --atoms",
                        rows.len() / dim
                    ))
                );
                tasks.push((kind, dim, terms, rows));
            }
        }
        let fitted = cores::map(&tasks, |(_, dim, terms, rows)| {
            let first = fit::kmeans(rows, *dim, args.atoms as usize, KMEANS_ITERATIONS);
            fit::learn(rows, *dim, first, *terms, args.epochs as usize)
        });
        let mut atoms = [Vec::new(), Vec::new()];
        for ((kind, ..), fitted) in tasks.iter().zip(fitted) {
            atoms[*kind].push(fitted);
        }
        let [k, v] = atoms;
        let layers = of_layers[0].iter().zip(&of_layers[1]).map(|(&k, &v)| [k, v]).collect();
        Ok(Dictionary { layers, k, v })
    }
}

/// At most `n` of the rows, spread over all.
fn spread(rows: &[f32], dim: usize, n: usize) -> Vec<f32> {
    let len = rows.len() / dim;
    (0..n.min(len)).flat_map(|i| &rows[i * len / n.min(len) * dim..][..dim]).copied().collect()
}
