//! Metadata of our adapter files, for reading and for writing.

use super::super::{ModelConfig, bounds};
use crate::unicode;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Formats of an adapter file: a linear map with its own norm, and a predictor. Beginning of the
/// name of every format, also of later ones.
pub const FORMATS: &str = "dmschat-adapter-";
pub const VERSION_1: &str = "dmschat-adapter-1";
pub const VERSION_2: &str = "dmschat-adapter-2";

/// Longest card, and most figures in it.
const MAX_CARD_BYTES: usize = 1 << 20;
const MAX_FIGURES: usize = 4096;
/// Longest text of a card that is kept, in characters.
const MAX_TEXT: usize = 400;
/// Thresholds nearer than this are the same.
const SAME_THRESHOLD: f32 = 1e-3;

/// How a predictor was made, and what it costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Day on which it was made, `2026-11-23`.
    #[serde(default)]
    pub date: String,
    /// Command that made it.
    #[serde(default)]
    pub command: String,
    /// Texts that it was fitted to.
    #[serde(default)]
    pub texts: String,
    #[serde(default)]
    pub measured: Vec<Figure>,
}

/// A measurement on texts that were not fitted, with eviction in the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Kind of the texts.
    pub texts: String,
    pub threshold: f32,
    pub window: usize,
    pub tokens: usize,
    /// Tokens for each live slot at the end.
    pub ratio: f64,
    /// KL divergence to the dense model, nats per token.
    pub kl: f64,
}

impl Card {
    fn parse(text: &str) -> Result<Self> {
        ensure!(text.len() <= MAX_CARD_BYTES, "it has {} bytes, expected at most {MAX_CARD_BYTES}", text.len());
        let mut card: Self = serde_json::from_str(text)?;
        ensure!(card.measured.len() <= MAX_FIGURES, "it has {} figures", card.measured.len());
        let sound = |f: &Figure| f.threshold.is_finite() && f.kl.is_finite() && f.ratio.is_finite() && f.ratio > 0.0;
        ensure!(card.measured.iter().all(sound), "a figure in it is out of range");
        let names = card.measured.iter_mut().map(|figure| &mut figure.texts);
        for text in [&mut card.date, &mut card.command, &mut card.texts].into_iter().chain(names) {
            *text = unicode::one_line(text).chars().take(MAX_TEXT).collect();
        }
        Ok(card)
    }

    /// Ratio and KL divergence at a threshold and window, over all texts that were measured so.
    pub fn figures(&self, threshold: f32, window: usize) -> Option<(f64, f64)> {
        let same = |f: &&Figure| f.window == window && (f.threshold - threshold).abs() < SAME_THRESHOLD;
        over_all(self.measured.iter().filter(same))
    }
}

/// Ratio and KL divergence over all texts, each by its tokens; `None` if they have none.
pub fn over_all<'a>(figures: impl Iterator<Item = &'a Figure>) -> Option<(f64, f64)> {
    let (mut tokens, mut live, mut kl) = (0.0, 0.0, 0.0);
    for figure in figures {
        let n = figure.tokens as f64;
        (tokens, live, kl) = (tokens + n, live + n / figure.ratio, kl + n * figure.kl);
    }
    (tokens > 0.0).then(|| (tokens / live, kl / tokens))
}

/// The metadata of a predictor's file.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The model that it was made for, as a user names it.
    pub base: String,
    pub threshold: f32,
    pub window: usize,
    /// First tokens that are never marked.
    pub sinks: usize,
    pub card: Card,
}

impl Header {
    /// The map for a file of format [`VERSION_2`] that fits models of `config`'s shapes.
    pub fn metadata(&self, config: &ModelConfig) -> BTreeMap<String, String> {
        let card = serde_json::to_string(&self.card).unwrap_or_default();
        let own = [
            ("format", VERSION_2.to_owned()),
            ("base", self.base.clone()),
            ("shift", "0".to_owned()),
            ("threshold", self.threshold.to_string()),
            ("window", self.window.to_string()),
            ("sinks", self.sinks.to_string()),
            ("card", card),
        ];
        let model = shapes(config).into_iter().map(|(key, value)| (key, value.to_string()));
        let model = model.chain([("model_type", config.family.name.to_owned())]);
        own.into_iter().chain(model).map(|(key, value)| (key.to_owned(), value)).collect()
    }

    pub(super) fn parse(file: &Metadata<'_>) -> Result<Self> {
        let shift = file.text("shift")?;
        ensure!(shift == "0", "{}: metadata shift is {shift:?}, expected 0", file.label);
        let card = file.text("card").and_then(Card::parse);
        Ok(Self {
            base: file.text("base")?.to_owned(),
            threshold: file.finite("threshold")?,
            window: file.length("window")?,
            sinks: file.length("sinks")?,
            card: card.with_context(|| format!("{}: metadata card cannot be read", file.label))?,
        })
    }
}

/// Names and values of the shapes that a model and an adapter file have in common.
pub(super) fn shapes(c: &ModelConfig) -> [(&'static str, usize); 4] {
    [
        ("num_hidden_layers", c.n_layers),
        ("hidden_size", c.hidden),
        ("num_key_value_heads", c.deciding_heads().count),
        ("vocab_size", c.vocab),
    ]
}

/// Metadata of a file, all strings. Errors name the file and the key.
pub(super) struct Metadata<'a> {
    pub label: &'a str,
    pub map: &'a BTreeMap<String, String>,
}

impl Metadata<'_> {
    pub fn text(&self, key: &str) -> Result<&str> {
        let value = self.map.get(key).map(String::as_str);
        value.with_context(|| format!("{}: its metadata has no {key}, so it is not an adapter file", self.label))
    }

    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T> {
        let text = self.text(key)?;
        let parsed = text.trim().parse().ok();
        parsed.with_context(|| format!("{}: metadata {key} is {text:?}, which is not such a number", self.label))
    }

    pub fn finite(&self, key: &str) -> Result<f32> {
        let value: f32 = self.number(key)?;
        ensure!(value.is_finite(), "{}: metadata {key} is {value}", self.label);
        Ok(value)
    }

    /// A number of tokens.
    pub fn length(&self, key: &str) -> Result<usize> {
        let tokens: usize = self.number(key)?;
        let most = bounds::POSITIONS;
        ensure!(tokens <= most, "{}: metadata {key} is {tokens}, expected at most {most} tokens", self.label);
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_over_the_texts_of_one_threshold_and_window() {
        let figure = |threshold, tokens, ratio, kl| {
            let texts = "prose".to_owned();
            Figure { texts, threshold, window: 128, tokens, ratio, kl }
        };
        let measured = vec![figure(-4.0, 100, 2.0, 0.01), figure(-4.0, 300, 6.0, 0.03), figure(-3.0, 9, 9.0, 9.0)];
        let card = Card { measured, ..Card::default() };
        let (ratio, kl) = card.figures(-4.0, 128).unwrap();
        assert!((ratio - 4.0).abs() < 1e-9 && (kl - 0.025).abs() < 1e-9);
        assert_eq!((card.figures(-4.0, 256), card.figures(-5.0, 128)), (None, None));
        let text = serde_json::to_string(&card).unwrap();
        assert_eq!(Card::parse(&text).unwrap(), card);
        assert_eq!(Card::parse("{\"date\": \"a\\n\\u001bb\"}").unwrap().date.lines().count(), 1);
        assert!(Card::parse("{\"measured\": [{}]}").is_err());
    }
}
