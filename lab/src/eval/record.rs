//! Records of the problems, in a file that is only appended to, so that a killed run can continue.

use anyhow::{Context, Result, bail, ensure};
use dmschat::chat::session::Output;
use dmschat::protocol::number::{each_or_zero, or_zero};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use super::sample::Sampled;
use dmschat::regular_file;

/// Name of the file in the folder of a run.
pub const FILE: &str = "problems.jsonl";
/// Keys that the first line of the file always has.
const HEADER: [&str; 3] = ["format", "seed", "task"];

/// Most bytes of that line.
const MAX_HEADER: u64 = 1 << 20;
/// Results are replaced in a folder that [`Store::open`] has found to be of a run.
pub const RESULTS: Output = Output { noun: "a result of dmslab eval", is_own: |_| true };
/// A person's own problems may have the same name.
const NOT_OURS: &str = "this is not a file of dmslab eval, and is left as it is; give another --out";

/// One answered problem.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Record {
    pub task: String,
    /// Name of the setting: [`super::grid::Setting::name`].
    pub setting: String,
    pub problem: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    pub chains: Vec<ChainRecord>,
    /// Most distinct pages `[lengths][widths]`: [`super::sample::Sampled::shared`].
    pub shared: Vec<Vec<usize>>,
    /// Live slots `[n_layers][n_kv_heads]` at the end of chain 0, and the tokens fed to it.
    pub live: Vec<Vec<u32>>,
    pub fed: usize,
    /// Its share of the time of its group: of all, and of the decode steps until each length.
    #[serde(deserialize_with = "or_zero")]
    pub seconds: f64,
    #[serde(deserialize_with = "each_or_zero")]
    pub decode_seconds: Vec<f64>,
}

/// One chain: see [`super::sample::Chain`].
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct ChainRecord {
    pub tokens: usize,
    pub ended: bool,
    /// The answer for the vote; `None` abstains.
    pub answer: Option<String>,
    pub right: bool,
    pub reads: Vec<u64>,
    pub stored: Vec<u32>,
}

impl Record {
    /// The record of a sampled problem. `read` gives the answer of a chain and whether it is right.
    pub fn new(
        [task, setting]: [&str; 2],
        problem: usize,
        prompt: usize,
        sampled: Sampled,
        read: impl Fn(&[u32]) -> Result<(Option<String>, bool)>,
    ) -> Result<Self> {
        let mut chains = Vec::new();
        for chain in sampled.chains {
            // A chain that did not end has no answer.
            let (answer, right) = if chain.ended { read(&chain.tokens)? } else { (None, false) };
            let (tokens, ended) = (chain.tokens.len(), chain.ended);
            chains.push(ChainRecord { tokens, ended, answer, right, reads: chain.reads, stored: chain.stored });
        }
        Ok(Self {
            task: task.to_owned(),
            setting: setting.to_owned(),
            problem,
            prompt,
            chains,
            shared: sampled.shared,
            live: sampled.live,
            fed: sampled.fed,
            seconds: 0.0,
            decode_seconds: Vec::new(),
        })
    }
}

type Key = (String, String, usize);

/// The records of a run, and the file that they are appended to.
pub struct Store {
    file: File,
    records: HashMap<Key, Record>,
}

impl Store {
    /// Opens the folder of a run, and creates it if it is missing. `run` holds everything that the
    /// results depend on. Fails if the folder holds another run or foreign files. [`FILE`] belongs
    /// to a run if its first line is a run's, and files named `results` are replaced only beside
    /// such a file.
    pub fn open(folder: &Path, run: &Value, results: &[&str]) -> Result<Self> {
        let path = folder.join(FILE);
        if fs::metadata(&path).map_or(true, |found| found.len() == 0)
            && let Some(taken) = results.iter().map(|name| folder.join(name)).find(|at| at.symlink_metadata().is_ok())
        {
            bail!("{} exists, and is not of a run in this folder; give another --out", taken.display());
        }
        ensure!(folder.is_dir() || !folder.exists(), "{} is not a folder", folder.display());
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        let mut options = OpenOptions::new();
        let mut file = regular_file::open_with(options.read(true).append(true).create(true), &path)
            .with_context(|| path.display().to_string())?;
        ensure!(file.try_lock().is_ok(), "{} is written by another dmslab", path.display());
        let mut records = HashMap::new();
        // Differences from the run of the file, which has answered nothing so far.
        let mut other = None;
        let whole = read(&file, |number, line| {
            if number == 0 {
                other = check(folder, &serde_json::from_str(line)?, run)?;
                return Ok(());
            }
            if let Some(differs) = other.take() {
                bail!("{differs}");
            }
            let record: Record = serde_json::from_str(line)?;
            records.insert((record.task.clone(), record.setting.clone(), record.problem), record);
            Ok(())
        })
        .with_context(|| path.display().to_string());
        // A line that was being written when the run was killed.
        let whole = if other.is_some() { 0 } else { whole? };
        let header = format!("{run}\n");
        if whole == 0 && other.is_none() {
            // Nothing, or the beginning of the header.
            let begun = regular_file::read(&path, MAX_HEADER).with_context(|| path.display().to_string())?;
            ensure!(header.as_bytes().starts_with(&begun), "{}: {NOT_OURS}", path.display());
        }
        file.set_len(whole)?;
        if whole == 0 {
            file.write_all(header.as_bytes())?;
        }
        Ok(Self { file, records })
    }

    pub fn get(&self, task: &str, setting: &str, problem: usize) -> Option<&Record> {
        self.records.get(&(task.to_owned(), setting.to_owned(), problem))
    }

    /// Appends records that are not there yet.
    pub fn add(&mut self, records: Vec<Record>) -> Result<()> {
        for record in records {
            let key = (record.task.clone(), record.setting.clone(), record.problem);
            if !self.records.contains_key(&key) {
                writeln!(self.file, "{}", serde_json::to_string(&record)?).context(FILE)?;
                self.records.insert(key, record);
            }
        }
        Ok(())
    }
}

/// Calls `each` with the number and the text of every whole line. Returns the bytes of these lines.
fn read(file: &File, mut each: impl FnMut(usize, &str) -> Result<()>) -> Result<u64> {
    let mut reader = BufReader::new(file);
    let (mut line, mut bytes) = (String::new(), 0);
    for number in 0.. {
        line.clear();
        let n = reader.read_line(&mut line)?;
        if !line.ends_with('\n') {
            break;
        }
        each(number, &line).with_context(|| format!("line {}", number + 1))?;
        bytes += n as u64;
    }
    Ok(bytes)
}

/// Describes in a sentence how the run in a folder differs from this one. Fails if there is no run.
fn check(folder: &Path, before: &Value, run: &Value) -> Result<Option<String>> {
    let is_header = |line: &&Map<String, Value>| HEADER.iter().all(|key| line.contains_key(*key));
    let (Some(before), Some(run)) = (before.as_object().filter(is_header), run.as_object()) else {
        bail!(NOT_OURS);
    };
    let differs = run.keys().chain(before.keys()).find(|key| before.get(*key) != run.get(*key));
    Ok(differs.map(|key| {
        let show = |value: Option<&Value>| value.map_or("missing".to_owned(), Value::to_string);
        format!(
            "{} holds the results of another run: its {key} is {}, here it is {}; give another --out",
            folder.display(),
            show(before.get(key)),
            show(run.get(key))
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(problem: usize) -> Record {
        let chain = ChainRecord {
            tokens: 9,
            ended: true,
            answer: Some("5\n\u{1f600}".into()),
            right: false,
            reads: vec![1 << 40],
            stored: vec![7],
        };
        Record {
            task: "sum".into(),
            setting: "dms 8x".into(),
            problem,
            prompt: 30,
            chains: vec![chain],
            shared: vec![vec![5]],
            live: vec![vec![3, 4]],
            fed: 38,
            seconds: 0.25,
            decode_seconds: vec![0.125],
        }
    }

    #[test]
    fn a_killed_run_keeps_its_whole_lines_and_another_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let run = json!({"format": 2, "seed": 1, "task": ["sum"]});
        let mut store = Store::open(&path, &run, &[]).unwrap();
        store.add(vec![record(0), record(1)]).unwrap();
        assert!(format!("{:#}", Store::open(&path, &run, &[]).err().unwrap()).contains("another dmslab"));
        drop(store);
        let whole = fs::read_to_string(path.join(FILE)).unwrap();
        fs::write(path.join(FILE), &whole[..whole.len() - 5]).unwrap();
        let mut store = Store::open(&path, &run, &[]).unwrap();
        assert_eq!((store.get("sum", "dms 8x", 0), store.get("sum", "dms 8x", 1)), (Some(&record(0)), None));
        store.add(vec![record(0), record(1)]).unwrap();
        drop(store);
        assert_eq!(fs::read_to_string(path.join(FILE)).unwrap(), whole);
        let said = |run: &Value| format!("{:#}", Store::open(&path, run, &[]).err().unwrap());
        let other = said(&json!({"seed": 2, "task": ["sum"]}));
        assert!(other.contains("its seed is 1, here it is 2") && !other.contains('\n'), "{other}");
        assert!(said(&json!({"format": 2, "seed": 1})).contains("its task"));
        // One that was refused before its first problem leaves the folder to another.
        fs::write(path.join(FILE), "{\"format\":2,\"seed\":2,\"task\":[]}\n").unwrap();
        assert!(Store::open(&path, &run, &[]).is_ok());
        assert_eq!(fs::read_to_string(path.join(FILE)).unwrap(), format!("{run}\n"));
        fs::write(path.join(FILE), "{}}\n").unwrap();
        assert!(said(&run).contains("line 1"));
    }

    #[test]
    fn files_of_others_are_left_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let run = json!({"format": 2, "seed": 1, "task": ["sum"]});
        let results = ["results.json"];
        let refused = |name: &str, text: &str| {
            fs::write(at(name), text).unwrap();
            let error = format!("{:#}", Store::open(folder.path(), &run, &results).err().unwrap());
            assert!(error.contains(name) && error.contains("give another --out"), "{error}");
            assert_eq!(fs::read_to_string(at(name)).unwrap(), text);
        };
        let problem = "{\"format\":2,\"task\":\"mine\"}";
        for text in [problem, &format!("{problem}\n"), &format!("{problem}\n{problem}"), "notes", "{\"a", "\0"] {
            refused(FILE, text);
        }
        // The beginning of the header, of a run that was killed as it began.
        fs::write(at(FILE), "{\"for").unwrap();
        Store::open(folder.path(), &run, &results).unwrap();
        // Results are a run's only beside its file.
        fs::write(at("results.json"), "of the run").unwrap();
        Store::open(folder.path(), &run, &results).unwrap();
        for none in [false, true] {
            fs::write(at(FILE), "").unwrap();
            if none {
                fs::remove_file(at(FILE)).unwrap();
            }
            refused("results.json", "mine");
            assert_eq!(at(FILE).exists(), !none);
        }
    }
}
