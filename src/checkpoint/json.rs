//! Reads a JSON object of a checkpoint field by field. Errors name file and key.

use super::files::Files;
use anyhow::{Result, anyhow, bail};
use serde_json::{Map, Value};

/// Upper bound of all sizes; [`super::bounds`] has a bound for each.
const MAX_SIZE: u64 = 1 << 31;

/// An object and its place: `dir/config.json` or `dir/config.json: rope_scaling`.
pub struct Fields<'a> {
    place: String,
    map: &'a Map<String, Value>,
}

/// Parses a file of one JSON object.
pub fn object(place: &str, raw: &[u8]) -> Result<Map<String, Value>> {
    match serde_json::from_slice(raw) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => bail!("{place} holds no JSON object"),
        Err(e) => bail!("{place} is not JSON: {e}"),
    }
}

/// [`object`] of a file of a checkpoint, if it exists.
pub fn optional(files: &Files, name: &str) -> Result<Option<Map<String, Value>>> {
    files.text(name)?.map(|raw| object(&files.label(name), &raw)).transpose()
}

impl<'a> Fields<'a> {
    pub fn new(place: &str, map: &'a Map<String, Value>) -> Self {
        Self { place: place.to_owned(), map }
    }

    pub fn place(&self) -> &str {
        &self.place
    }

    /// The value, if it exists and is not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    pub fn missing(&self, key: &str) -> anyhow::Error {
        anyhow!("{} has no {key}, which is needed", self.place)
    }

    fn wrong(&self, key: &str, wanted: &str) -> anyhow::Error {
        let found: String = self.map.get(key).map(Value::to_string).unwrap_or_default().chars().take(60).collect();
        anyhow!("{}: {key} is {found}, expected {wanted}", self.place)
    }

    /// An integer, also written as a float (`1e6`).
    pub fn opt_size(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let whole = value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..MAX_SIZE as f64).contains(f));
        match value.as_u64().or(whole.map(|f| f as u64)).filter(|&n| n < MAX_SIZE) {
            Some(n) => Ok(Some(n as usize)),
            None => Err(self.wrong(key, "a whole number below 2^31")),
        }
    }

    /// An integer of at least 1.
    pub fn size(&self, key: &str) -> Result<usize> {
        match self.opt_size(key)?.ok_or_else(|| self.missing(key))? {
            0 => Err(self.wrong(key, "at least 1")),
            n => Ok(n),
        }
    }

    /// An integer from 1 to `most`.
    pub fn size_to(&self, key: &str, most: usize) -> Result<usize> {
        self.at_most(key, self.size(key)?, most)
    }

    /// An integer up to `most`.
    pub fn opt_size_to(&self, key: &str, most: usize) -> Result<Option<usize>> {
        self.opt_size(key)?.map(|n| self.at_most(key, n, most)).transpose()
    }

    fn at_most(&self, key: &str, n: usize, most: usize) -> Result<usize> {
        if n > most { Err(self.wrong(key, &format!("at most {most}"))) } else { Ok(n) }
    }

    pub fn opt_f64(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().filter(|f| f.is_finite()).map(Some).ok_or_else(|| self.wrong(key, "a number"))
    }

    /// A number in the range of f32.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        match self.opt_f64(key)?.map(|f| f as f32) {
            Some(f) if !f.is_finite() => Err(self.wrong(key, "a number that fits in 32 bits")),
            f => Ok(f),
        }
    }

    /// A number above 0.
    pub fn opt_positive(&self, key: &str) -> Result<Option<f64>> {
        match self.opt_f64(key)? {
            Some(f) if f <= 0.0 => Err(self.wrong(key, "a number above 0")),
            f => Ok(f),
        }
    }

    pub fn positive(&self, key: &str) -> Result<f64> {
        self.opt_positive(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false"))
    }

    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.opt_bool(key)?.unwrap_or(default))
    }

    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string"))
    }

    pub fn opt_object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields::new(&format!("{}: {key}", self.place), map))),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }
}
