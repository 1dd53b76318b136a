//! `dmschat adapter train`: makes a predictor for a model and finds its threshold.

use super::super::args::{Common, TrainArgs};
use super::super::download;
use super::super::output::{self, as_wrong_use, notice, wrong_use};
use super::super::spawn::{self, ModelJob, with_options};
use super::progress::Work;
use crate::backend::Measure;
use crate::chat::session::{Output, load};
use crate::chat::{Conversation, RenderOptions, Role, render};
use crate::checkpoint::adapter::card::{Card, Figure, Header};
use crate::checkpoint::adapter::{Adapter as AdapterFile, EXTENSION, is_own};
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::config::{Adapter, BUILTIN_MODEL, Settings};
use crate::cores;
use crate::engine::{Runner, template_spec};
use crate::policy::PolicyKind;
use crate::predictor::file::to_bytes;
use crate::predictor::search::{self, Found, Goal};
use crate::predictor::texts::{self, Piece, Pieces, Text};
use crate::predictor::{self, Fitted, Frame, Progress, Speed};
use crate::protocol::Piece as TextPiece;
use crate::regular_file;
use crate::regular_file::temporary::Temporary;
use crate::tokenizer::Tokenizer;
use crate::ui::text::bytes;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes of a text that the user gives.
const MAX_TEXT: u64 = 64 << 20;
/// Request after a text.
const REPEAT: &str = "\n\nRepeat the previous context exactly.";
const RATIO: f64 = 3.0;
const TOO_SHORT: &str = "the texts are too short to learn from: about 20 kB are needed, and more is better; every eighth 8 kB block is held out for measuring";
/// Only a file of ours is replaced.
const OUTPUT: Output = Output { noun: "a predictor of dmschat", is_own };

pub fn run(settings: &Settings, args: &TrainArgs, common: &Common) -> Result<u8> {
    let goal = goal(args)?;
    if settings.model == BUILTIN_MODEL && common.model.is_none() {
        return Err(wrong_use("-m MODEL is missing: the model to make a predictor for"));
    }
    let texts = match &args.text[..] {
        [] => texts::built_in()?,
        files => user_texts(files).map_err(as_wrong_use)?,
    };
    match &args.out {
        Some(out) => OUTPUT.check(out).map_err(as_wrong_use)?,
        None => warn_of_replacing(settings, goal)?,
    }
    let mut work = Work::new(args.progress);
    let mut settings = Settings {
        adapter: Adapter::None,
        policy: PolicyKind::Auto,
        eviction: None,
        keep_ratio: None,
        ctx_size: None,
        ..settings.clone()
    };
    let folder = settings.dirs.adapters();
    let own_folder = args.out.is_none().then_some(&*folder);
    let fit = Fit { texts: &texts, goal, own_folder, estimate: args.estimate, work: &mut work };
    let Some(fitted) = with_options(&settings, predictor::options, fit)? else { return Ok(output::OK) };
    // The model is loaded again, with the predictor at a threshold of 0, which the dial then moves.
    let draft = fitted.file(&Found { window: 256, threshold: 0.0, measured: Vec::new() })?;
    let mut temporary = Temporary::in_own_folder(&folder).with_context(|| folder.display().to_string())?;
    temporary.file.write_all(&draft).with_context(|| folder.display().to_string())?;
    settings.adapter = Adapter::File(temporary.path().to_owned());
    let find = Find { fitted: &fitted, goal, work: &mut work, draft: temporary };
    let found = with_options(&settings, predictor::options, find)?;
    work.end();
    let whole = fitted.file(&found)?;
    let path = match &args.out {
        Some(path) => {
            OUTPUT.write(path, &whole)?;
            path.clone()
        }
        None => write_in_folder(&folder, &fitted.base, &whole)?,
    };
    report(&settings, &fitted, &found, &path, whole.len(), common.json || args.progress, args.out.is_none())
}

/// Says what evicts now and will be left aside, if anything does.
fn warn_of_replacing(settings: &Settings, goal: Goal) -> Result<()> {
    download::ensure(settings)?;
    let now = spawn::open(&Settings { adapter: Adapter::Auto, ..settings.clone() }).map_err(as_wrong_use)?;
    let Some(source) = &now.adapter else { return Ok(()) };
    let what = match source.kind {
        "adapter" => "the built-in adapter".to_owned(),
        _ => format!("the predictor {}", source.name),
    };
    let ratio = now.config.dms.as_ref().and_then(|dms| dms.target_ratio);
    let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({}x)", short(ratio)));
    let new = if let Goal::Ratio(ratio) = goal { format!(" ({}x)", short(ratio)) } else { String::new() };
    notice(&format!(
        "{} already forgets with {what}{ratio}. The new predictor{new} will take its place; --out FILE keeps both.",
        now.name
    ));
    Ok(())
}

/// A ratio with at most one decimal.
fn short(ratio: f64) -> f64 {
    (ratio * 10.0).round() / 10.0
}

fn goal(args: &TrainArgs) -> Result<Goal> {
    match (args.ratio, args.kl) {
        (_, Some(kl)) if !(kl > 0.0 && kl.is_finite()) => {
            Err(wrong_use(format!("--kl {kl} is not a divergence, expected a positive number such as 0.01")))
        }
        (_, Some(kl)) => Ok(Goal::Kl(kl)),
        (ratio, None) => {
            let ratio = ratio.unwrap_or(RATIO);
            if !(ratio > 1.0 && ratio <= 12.0) {
                return Err(wrong_use(format!("--ratio {ratio} is out of range, expected more than 1 and at most 12")));
            }
            Ok(Goal::Ratio(ratio))
        }
    }
}

/// Reads the user's texts and saved conversations.
fn user_texts(files: &[PathBuf]) -> Result<Vec<Text>> {
    let mut out = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let is_session = path.extension().is_some_and(|extension| extension == "jsonl");
        let text = if is_session {
            let loaded = load(&regular_file::read(path, MAX_TEXT).with_context(|| name.clone())?, &name)?;
            let said = |message: &crate::chat::Message| match message.role {
                Role::User => format!("User: {}\n", message.text),
                _ => format!("Assistant: {}\n", message.text),
            };
            loaded.conversation.path().into_iter().map(said).collect()
        } else {
            regular_file::read_text(path, MAX_TEXT).with_context(|| name.clone())?
        };
        let kind = path.file_stem().map_or_else(|| name.clone(), |stem| stem.to_string_lossy().into_owned());
        out.extend(texts::of_user(&kind, &text));
    }
    if !texts::hold_out(&mut out) {
        return Err(wrong_use(TOO_SHORT));
    }
    Ok(out)
}

/// The fitted predictor, and the texts it is measured on.
struct FittedModel {
    layers: Vec<Fitted>,
    measured: Vec<Piece>,
    config: ModelConfig,
    /// The model's name.
    base: String,
    /// How many texts of each kind were fitted.
    texts: String,
}

impl FittedModel {
    fn file(&self, found: &Found) -> Result<Vec<u8>> {
        let card = Card {
            date: jiff::Zoned::now().date().to_string(),
            command: command(),
            texts: self.texts.clone(),
            measured: found.measured.clone(),
        };
        let Found { threshold, window, .. } = *found;
        let header = Header { base: self.base.clone(), threshold, window, sinks: search::SINKS, card };
        to_bytes(&self.config, &self.layers, &header)
    }
}

struct Fit<'a> {
    texts: &'a [Text],
    goal: Goal,
    /// The folder that the file goes to if the user names none.
    own_folder: Option<&'a Path>,
    /// End once it is said how long the work takes.
    estimate: bool,
    work: &'a mut Work,
}

impl ModelJob for Fit<'_> {
    type Output = Option<FittedModel>;
    fn run<B: Measure>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<Option<FittedModel>> {
        let Self { texts, goal, own_folder, estimate, work } = self;
        let c = &checkpoint.config;
        if c.trained().is_some() {
            return Err(wrong_use(format!("{} evicts by itself, so it needs no predictor", checkpoint.name)));
        }
        if let Some(folder) = own_folder {
            check_own(&path_in(folder, &checkpoint.name), &checkpoint.name).map_err(as_wrong_use)?;
        }
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, c.vocab)?;
        let frame = frame(checkpoint, &tokenizer, runner.context())?;
        let around = frame.before.len() + frame.after.len();
        let pieces = Pieces::new(texts, &tokenizer, runner.context(), around)?;
        if pieces.fitted.is_empty() || pieces.measured.is_empty() {
            return Err(wrong_use(TOO_SHORT));
        }
        let speed = Speed::measure(runner, &pieces.fitted[0])?;
        work.begin(seconds(speed, checkpoint, &pieces, goal), &format!("making a predictor for {}", checkpoint.name))?;
        if estimate {
            return Ok(None);
        }
        let rows = predictor::observe(runner, &pieces.fitted, &frame, &mut |progress| work.show(0, progress))?;
        let layers = predictor::regress(rows, cores::count(), &mut |progress| work.show(1, progress))?;
        let mut texts: Vec<String> = Vec::new();
        for kind in pieces.fitted.chunk_by(|a, b| a.kind == b.kind) {
            texts.push(format!("{} {}", kind.len(), kind[0].kind));
        }
        Ok(Some(FittedModel {
            layers,
            measured: pieces.measured,
            config: c.clone(),
            base: checkpoint.name.clone(),
            texts: texts.join(", "),
        }))
    }
}

struct Find<'a> {
    fitted: &'a FittedModel,
    goal: Goal,
    work: &'a mut Work,
    /// The predictor's file while it is loaded.
    draft: Temporary,
}

impl ModelJob for Find<'_> {
    type Output = Found;
    fn run<B: Measure>(self, runner: &mut Runner<B>, _: &Checkpoint) -> Result<Found> {
        let Self { fitted, goal, work, draft } = self;
        // Nothing that Ctrl+C ends the process at leaves a file behind.
        drop(draft);
        let scores = predictor::sorted_scores(&fitted.layers);
        let total = search::passes(&fitted.measured, fitted.config.vocab, goal);
        let mut done = 0;
        let mut on_pass = || {
            work.show(2, Progress { doing: "measuring eviction, pass", done: done.min(total), total });
            done += 1;
        };
        search::find(runner, &fitted.measured, goal, &scores, &mut on_pass)
    }
}

/// Estimated seconds of measuring attention, fitting, and searching the threshold.
fn seconds(speed: Speed, checkpoint: &Checkpoint, pieces: &Pieces, goal: Goal) -> [f64; 3] {
    let c = &checkpoint.config;
    let tokens = |pieces: &[Piece]| pieces.iter().map(|piece| piece.tokens.len()).sum::<usize>() as f64;
    let (fitted, measured) = (tokens(&pieces.fitted), tokens(&pieces.measured));
    let passes = search::passes(&pieces.measured, c.vocab, goal) as f64 / pieces.measured.len().max(1) as f64;
    [
        // A text and its repetition; reading attention takes about a third of a forward pass.
        1.3 * 2.0 * fitted * speed.token_s,
        fitted * (c.attention_layers() * c.hidden) as f64 * speed.fit_s,
        measured * passes * speed.token_s,
    ]
}

/// The model's template around a text that is to be repeated.
fn frame(checkpoint: &Checkpoint, tokenizer: &Tokenizer, context: usize) -> Result<Frame> {
    // No text has it, and no template changes it.
    const TEXT: &str = "QUOTEDTEXT";
    let spec = template_spec(checkpoint, tokenizer, context);
    let mut chat = Conversation::new(None);
    chat.push_user(format!("{TEXT}{REPEAT}"));
    let opts =
        RenderOptions { think: false, date: jiff::civil::date(2025, 1, 1).at(0, 0, 0, 0), ..RenderOptions::default() };
    let pieces = render(chat.system(), &chat.context_path(), &spec, &opts)?;
    let quoting = |piece: &TextPiece| matches!(piece, TextPiece::Text(text) if text.contains(TEXT));
    let at = pieces.iter().position(quoting).context("the chat template does not show what the user says")?;
    let TextPiece::Text(text) = &pieces[at] else { unreachable!("a text was looked for") };
    let (before, after) = text.split_once(TEXT).unwrap_or_default();
    let with = |text: &str| TextPiece::Text(text.to_owned());
    let before = [&pieces[..at], &[with(before)]].concat();
    let after = [&[with(after)], &pieces[at + 1..]].concat();
    Ok(Frame { before: tokenizer.encode_pieces(&before)?, after: tokenizer.encode_pieces(&after)? })
}

/// This command, for the card.
fn command() -> String {
    let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    let args = args.filter(|arg| arg != "--progress");
    std::iter::once("dmschat".to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

/// The file in the data folder for a model of this name.
fn path_in(folder: &Path, base: &str) -> PathBuf {
    let name = base.rsplit(['/', '\\']).next().unwrap_or(base);
    let name: String = name.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    folder.join(format!("{}.{EXTENSION}", name.trim_start_matches('.')))
}

/// Fails if another file than a predictor for this model is at a path of the data folder.
fn check_own(path: &Path, base: &str) -> Result<()> {
    OUTPUT.check(path).or_else(|error| if path.symlink_metadata().is_ok() { Err(error) } else { Ok(()) })?;
    let before = AdapterFile::open(path, None).ok();
    match before.as_ref().and_then(AdapterFile::base).filter(|before| *before != base) {
        Some(other) => bail!("{} is a predictor for {other}; name another file with --out", path.display()),
        None => Ok(()),
    }
}

/// Writes a predictor to the data folder under its model's name.
fn write_in_folder(folder: &Path, base: &str, whole: &[u8]) -> Result<PathBuf> {
    let path = path_in(folder, base);
    check_own(&path, base)?;
    let write = || {
        let mut file = Temporary::in_own_folder(folder)?;
        file.file.write_all(whole)?;
        file.rename(&path)
    };
    write().with_context(|| path.display().to_string())?;
    Ok(path)
}

fn report(
    settings: &Settings,
    fitted: &FittedModel,
    found: &Found,
    path: &Path,
    size: usize,
    json: bool,
    is_found: bool,
) -> Result<u8> {
    if json {
        output::out_json(&json!({
            "path": path, "bytes": size, "base": fitted.base, "window": found.window, "threshold": found.threshold,
            "ratio": found.ratio(), "kl": found.kl(), "measured": found.measured,
        }))?;
        return Ok(output::OK);
    }
    output::out(&output::visible(&table(&found.measured, found.all())))?;
    let of_layers: Vec<f64> =
        fitted.layers.iter().filter(|layer| !layer.scores.is_empty()).map(|layer| layer.explained[1]).collect();
    let fit = of_layers.iter().sum::<f64>() / of_layers.len() as f64;
    notice(&format!(
        "fitted to other texts ({}), explains {:.0} % of the variance of log importance; window {}, threshold {:.2}",
        fitted.texts,
        100.0 * fit,
        found.window,
        found.threshold
    ));
    let next = match is_found {
        true => format!("dmschat -m {} evicts by it from its next start", settings.model),
        false => format!("use it with --adapter {}", path.display()),
    };
    notice(&format!("wrote {} ({}); {next}", path.display(), bytes(size as u64)));
    Ok(output::OK)
}

/// Measurements on each text, and on all of them: ratio and divergence.
pub fn table(measured: &[Figure], all: (f64, f64)) -> String {
    let row = |texts: &str, tokens: usize, ratio: f64, kl: f64| {
        format!("{texts:<17}  {tokens:>6}  {ratio:>5.2}x  {kl:>14.4}\n")
    };
    let mut out = format!("{:<17}  {:>6}  {:>6}  {:>14}\n", "texts", "tokens", "ratio", "KL, nats/token");
    measured.iter().for_each(|m| out += &row(&m.texts, m.tokens, m.ratio, m.kl));
    out + &row("all", measured.iter().map(|m| m.tokens).sum(), all.0, all.1)
}
