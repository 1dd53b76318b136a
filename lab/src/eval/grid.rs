//! Points of the grid of lengths and widths, from the records of the longest and widest run.
//!
//! A chain answers within L tokens if it ended by then, and width k is the first k chains: chains
//! of a policy whose rule does not depend on L are sampled once, for the largest of both.

use super::latency::Latency;
use super::record::Record;
use super::rng::Rng;
use super::sample::STRIDE;
use dmschat::cache::PAGE_SLOTS;
use dmschat::policy::{Budget, Policy};
use dmschat::vote;
use serde::Serialize;

/// Draws of chains for the error of a width.
const DRAWS: usize = 100;

/// A policy with its compression, and the length that its budget was made for.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub policy: Policy,
    /// Compression ratio asked for.
    pub cr: f64,
    /// `None` where the rule does not depend on the length.
    pub length: Option<usize>,
}

impl Setting {
    pub fn name(&self) -> String {
        let policy = self.policy.name();
        match self.length {
            Some(length) => format!("{policy} {}x {length}", self.cr),
            None => format!("{policy} {}x", self.cr),
        }
    }

    /// Slots of a head under a budget.
    pub fn budget(&self) -> Option<usize> {
        match self.policy.budget() {
            Some(Budget::Slots(slots)) => Some(slots),
            // Pool's, which does not depend on the length.
            Some(Budget::Ratio(_)) | None => None,
        }
    }
}

/// Request for a run.
#[derive(Clone, Debug)]
pub struct Axes {
    /// In rising order.
    pub lengths: Vec<usize>,
    /// In rising order.
    pub widths: Vec<usize>,
    /// Layers x KV heads.
    pub lanes: usize,
    pub seed: u64,
}

/// One row of the results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub task: String,
    pub policy: String,
    pub length: usize,
    pub width: usize,
    /// Compression ratio asked for.
    pub cr: f64,
    /// Keys that dense chains of these tokens read / keys read.
    pub cr_measured: f64,
    pub budget: Option<usize>,
    /// Problems.
    pub n: usize,
    /// Share whose vote is right.
    pub accuracy: f64,
    /// Share of problems that any chain solves.
    pub pass_all: f64,
    /// Standard error of the accuracy over problems.
    pub error: f64,
    /// Standard deviation of the accuracy over draws of this many chains; 0 at the largest width.
    pub draw_error: f64,
    /// Means per problem: KV token reads, peak tokens, tokens sampled, tokens of the prompt.
    pub reads: f64,
    pub peak: f64,
    pub tokens: f64,
    pub prompt: f64,
    /// Like `peak`, in pages; pages that chains share count once.
    pub peak_shared: f64,
    /// Mean seconds of a problem's decode steps: by the model of latency for a problem alone, where
    /// the machine was measured...
    pub model_seconds: Option<f64>,
    /// ... and measured, as a share of the group that decoded together. At the largest width only.
    pub seconds: Option<f64>,
}

/// The rows of a task under a setting. `records`: its problems.
pub fn rows(task: &str, setting: &Setting, records: &[&Record], axes: &Axes, latency: Option<&Latency>) -> Vec<Row> {
    let ballots = records.iter().map(|record| Ballot::new(record)).collect();
    let answered = Answered { task, setting, records, ballots, axes, latency };
    let lengths = axes.lengths.iter().enumerate().filter(|(_, l)| setting.length.is_none_or(|own| own == **l));
    // Records of a setting with a length of its own have the reads of that length only.
    let lengths = lengths.map(|(i, &length)| (if setting.length.is_some() { 0 } else { i }, length));
    let widths = || axes.widths.iter().copied().enumerate();
    lengths.flat_map(|length| widths().map(move |width| (length, width))).map(|at| answered.row(at)).collect()
}

/// The answers to a task under a setting.
struct Answered<'a> {
    task: &'a str,
    setting: &'a Setting,
    records: &'a [&'a Record],
    ballots: Vec<Ballot>,
    axes: &'a Axes,
    latency: Option<&'a Latency>,
}

impl Answered<'_> {
    /// The row of a length and a width, each with its place in the records.
    fn row(&self, ((index, length), (column, width)): ((usize, usize), (usize, usize))) -> Row {
        let Self { task, setting, records, ballots, axes, latency } = self;
        let n = records.len();
        let share = |count: usize| count as f64 / n.max(1) as f64;
        let first: Vec<usize> = (0..width).collect();
        let right = ballots.iter().filter(|b| b.is_right(&first, length)).count();
        let any =
            ballots.iter().filter(|b| first.iter().any(|&c| b.chains[c].answers(length) && b.chains[c].right)).count();
        let lanes = axes.lanes.max(1) as f64;
        let mean = |of: &dyn Fn(&Record) -> f64| mean(records, of);
        let reads = mean(&|r| r.chains[..width].iter().map(|c| c.reads[index] as f64).sum::<f64>() / lanes);
        let dense = mean(&|r| r.chains[..width].iter().map(|c| dense_reads(r.prompt, c.tokens.min(length))).sum());
        let accuracy = share(right);
        Row {
            task: (*task).to_owned(),
            policy: setting.policy.name().to_owned(),
            length,
            width,
            cr: setting.cr,
            cr_measured: if reads > 0.0 { dense / reads } else { 1.0 },
            budget: setting.budget(),
            n,
            accuracy,
            pass_all: share(any),
            error: (accuracy * (1.0 - accuracy) / n.max(1) as f64).sqrt(),
            draw_error: draw_error(task, ballots, length, width, axes.seed),
            reads,
            peak: mean(&|r| peak(r, length, width) as f64 / lanes),
            tokens: mean(&|r| r.chains[..width].iter().map(|c| c.tokens.min(length) as f64).sum()),
            prompt: mean(&|r| r.prompt as f64),
            peak_shared: mean(&|r| (r.shared[index][column] * PAGE_SLOTS) as f64 / lanes),
            model_seconds: latency.map(|latency| mean(&|r| model_seconds(r, (index, length), width, latency))),
            seconds: (Some(&width) == axes.widths.last()).then(|| mean(&|r| r.decode_seconds[index])),
        }
    }
}

fn mean(records: &[&Record], of: impl Fn(&Record) -> f64) -> f64 {
    records.iter().map(|r| of(r)).sum::<f64>() / records.len().max(1) as f64
}

/// Seconds that the steps of the first `width` chains take within a length, if they decode side by
/// side and alone.
fn model_seconds(record: &Record, (index, length): (usize, usize), width: usize, latency: &Latency) -> f64 {
    let tokens = || record.chains[..width].iter().map(|c| c.tokens.min(length));
    let reads = record.chains[..width].iter().map(|c| c.reads[index]).sum();
    latency.seconds(tokens().max().unwrap_or(0), tokens().sum(), reads)
}

/// Keys that a dense lane reads for `n` sampled tokens: the first step feeds the last token of the
/// prompt.
fn dense_reads(prompt: usize, n: usize) -> f64 {
    (0..n).map(|i| (prompt + i) as f64).sum()
}

/// Most slots that the first `width` chains store at once within `length` tokens, where they run
/// side by side and a chain that ends gives its slots back. Known at every [`STRIDE`] tokens.
fn peak(record: &Record, length: usize, width: usize) -> u64 {
    let at = |stride: usize| {
        let running = record.chains[..width].iter().filter(|c| c.tokens > stride * STRIDE);
        running.map(|c| u64::from(c.stored[stride.min(c.stored.len() - 1)])).sum()
    };
    (0..length.div_ceil(STRIDE)).map(at).max().unwrap_or(0)
}

/// Standard deviation of the accuracy over random draws of `width` chains of each problem.
fn draw_error(task: &str, ballots: &[Ballot], length: usize, width: usize, seed: u64) -> f64 {
    let all: Vec<usize> = (0..ballots.first().map_or(0, |b| b.chains.len())).collect();
    if width >= all.len() || ballots.is_empty() {
        return 0.0;
    }
    let mut rng = Rng::new(seed, task, length.wrapping_mul(1000) + width);
    let accuracies: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let right = ballots.iter().filter(|ballot| {
                let mut drawn = rng.sample(&all, width);
                drawn.sort_unstable();
                ballot.is_right(&drawn, length)
            });
            right.count() as f64 / ballots.len() as f64
        })
        .collect();
    let mean = accuracies.iter().sum::<f64>() / DRAWS as f64;
    (accuracies.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / (DRAWS - 1) as f64).sqrt()
}

/// The votes of a problem's chains: answers with the same number are the same.
struct Ballot {
    chains: Vec<Cast>,
}

struct Cast {
    tokens: usize,
    answer: Option<usize>,
    right: bool,
}

impl Cast {
    /// Whether it has answered within `length` tokens.
    fn answers(&self, length: usize) -> bool {
        self.answer.is_some() && self.tokens <= length
    }
}

impl Ballot {
    fn new(record: &Record) -> Self {
        let mut keys = Vec::new();
        let mut number = |answer: &str| {
            let key = vote::key(answer);
            keys.iter().position(|k| *k == key).unwrap_or_else(|| {
                keys.push(key);
                keys.len() - 1
            })
        };
        let cast = |c: &super::record::ChainRecord| {
            let answer = c.answer.as_deref().filter(|_| c.ended).map(&mut number);
            Cast { tokens: c.tokens, answer, right: c.right }
        };
        Self { chains: record.chains.iter().map(cast).collect() }
    }

    /// Whether the most frequent answer of these chains is right. Ties go to the first chain.
    fn is_right(&self, chains: &[usize], length: usize) -> bool {
        let mut votes: Vec<(usize, usize, bool)> = Vec::new();
        for cast in chains.iter().map(|&c| &self.chains[c]).filter(|c| c.answers(length)) {
            let Some(answer) = cast.answer else { continue };
            match votes.iter_mut().find(|(of, ..)| *of == answer) {
                Some((_, count, _)) => *count += 1,
                None => votes.push((answer, 1, cast.right)),
            }
        }
        let most = votes.iter().map(|v| v.1).max();
        votes.iter().find(|v| Some(v.1) == most).is_some_and(|v| v.2)
    }
}

/// Mean share of its tokens that each head stores at the end of chain 0: `[n_layers][n_kv_heads]`.
pub fn retention(records: &[&Record]) -> Vec<Vec<f64>> {
    let Some(first) = records.first() else { return Vec::new() };
    let mut out: Vec<Vec<f64>> = first.live.iter().map(|heads| vec![0.0; heads.len()]).collect();
    for record in records {
        for (sums, live) in out.iter_mut().zip(&record.live) {
            for (sum, &n) in sums.iter_mut().zip(live) {
                *sum += f64::from(n) / (record.fed.max(1) * records.len()) as f64;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::record::ChainRecord;
    use super::*;
    use dmschat::policy::Window;

    fn record(chains: &[(usize, Option<&str>, bool)]) -> Record {
        let chain = |&(tokens, answer, right): &(usize, Option<&str>, bool)| ChainRecord {
            tokens,
            ended: answer.is_some(),
            answer: answer.map(str::to_owned),
            right,
            reads: vec![2 * tokens.min(20) as u64, 2 * tokens.min(64) as u64],
            stored: (0..tokens.div_ceil(STRIDE)).map(|i| 10 * (i as u32 + 1)).collect(),
        };
        let chains = chains.iter().map(chain).collect();
        Record {
            task: "t".into(),
            setting: "s".into(),
            problem: 0,
            prompt: 3,
            chains,
            shared: vec![vec![1, 2, 3], vec![4, 5, 6]],
            live: vec![vec![1, 3]],
            fed: 4,
            seconds: 9.0,
            decode_seconds: vec![0.25, 0.5],
        }
    }

    fn axes() -> Axes {
        Axes { lengths: vec![20, 64], widths: vec![1, 2, 4], lanes: 2, seed: 1 }
    }

    /// Worked by hand: the chains end after 10, 40, 30 and never (64).
    #[test]
    fn points_are_those_of_the_chains_that_have_ended() {
        let one = record(&[(10, Some("5"), false), (40, Some("7.0"), true), (30, Some("7"), true), (64, None, false)]);
        let setting = Setting { policy: Policy::Dense, cr: 4.0, length: None };
        let latency = Latency {
            copy_bytes_per_s: 100.0,
            matmul_flops_per_s: 1e9,
            weight_bytes: 10,
            token_flops: 1.0,
            slot_bytes: 1,
            slot_flops: 1.0,
        };
        let rows = rows("t", &setting, &[&one], &axes(), Some(&latency));
        let of = |length, width| rows.iter().find(|r| (r.length, r.width) == (length, width)).unwrap();
        // Within 20 tokens only chain 0 answers.
        assert_eq!([of(20, 1), of(20, 4)].map(|r| (r.accuracy, r.pass_all)), [(0.0, 0.0), (0.0, 0.0)]);
        // Within 64: 5 against 7, where the first chain decides; then 7 has two votes.
        assert_eq!([of(64, 2), of(64, 4)].map(|r| (r.accuracy, r.pass_all)), [(0.0, 1.0), (1.0, 1.0)]);
        assert_eq!(of(20, 4).reads, (10 + 3 * 20) as f64);
        assert_eq!(of(64, 4).tokens, (10 + 40 + 30 + 64) as f64);
        // Strides: 4 chains store 10 each; then three 20; then 40 > 32 and 64 store 30 each; then
        // 64 alone 40. The largest is 60.
        assert_eq!((of(64, 4).peak, of(64, 1).peak), (30.0, 5.0));
        assert_eq!((of(20, 4).peak, of(20, 2).peak), (30.0, 10.0));
        // Chain 0 of a prompt of 3: 3 + 4 + .. + 12 = 75 keys against 10.
        assert_eq!(of(20, 1).cr_measured, 7.5);
        // Pages of 16 slots over two lanes.
        assert_eq!((of(20, 1).peak_shared, of(64, 4).peak_shared), (8.0, 48.0));
        // 64 steps of 10 bytes, and 288 slots.
        assert_eq!((of(64, 4).model_seconds, of(64, 4).seconds, of(64, 2).seconds), (Some(9.28), Some(0.5), None));
        assert_eq!(of(64, 4).draw_error, 0.0);
        assert!(of(64, 2).draw_error > 0.3);
        assert_eq!(retention(&[&one]), [[0.25, 0.75]]);
    }

    #[test]
    fn errors_are_those_of_shares_and_lengths_of_budgets_stand_alone() {
        let (yes, no) = (record(&[(5, Some("1"), true); 4]), record(&[(5, Some("2"), false); 4]));
        let setting = Setting { policy: Policy::Window(Window::new(32)), cr: 2.0, length: Some(64) };
        let rows = rows("t", &setting, &[&yes, &no, &no, &yes], &axes(), None);
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|r| r.length == 64 && r.accuracy == 0.5 && r.error == 0.25 && r.draw_error == 0.0));
        assert_eq!(((rows[0].length, rows[0].width, rows[0].cr), rows[0].budget), ((64, 1, 2.0), Some(32)));
    }

    #[test]
    fn a_ballot_agrees_with_the_vote() {
        let answers = [Some("1/2"), None, Some("3"), Some("0.5"), Some("3.0"), Some("x")];
        for mask in 0..64usize {
            let drawn: Vec<usize> = (0..6).filter(|c| mask >> c & 1 == 1).collect();
            let votes = vote::tally(drawn.iter().map(|&c| (c, answers[c])));
            for key in ["0.5", "3", "x"] {
                let chains: Vec<_> =
                    answers.map(|a| (5, a, a.is_some_and(|a| vote::key(a) == vote::key(key)))).to_vec();
                let wins = votes.first().is_some_and(|v| vote::key(&v.answer) == vote::key(key));
                assert_eq!(Ballot::new(&record(&chains)).is_right(&drawn, 9), wins, "{drawn:?}");
            }
        }
    }
}
