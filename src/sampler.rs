//! Samples a token from a row of logits: a pure function of logits, parameters, seed and position.
//! Defines the order of the filters and the random number for all backends.
//!
//! Penalties of presence and frequency, and biases, were added to the logits before
//! (`engine::adjust`). Each step sees what the one before it kept:
//!
//! 1. repetition penalty, once per distinct token that was fed: a positive logit is divided by it,
//!    a negative one multiplied (Keskar et al. 2019, as in transformers);
//! 2. temperature divides the logits; 0 ends here with the argmax;
//! 3. top-k keeps the k largest logits;
//! 4. top-p keeps the smallest set of largest logits whose probability reaches p, at least one;
//! 5. min-p keeps tokens of at least min-p times the largest probability;
//! 6. top-n-sigma keeps tokens whose logit is at most n standard deviations below the largest (Tang
//!    et al. 2024, arXiv 2411.07641); the deviation covers all finite logits after step 1;
//! 7. inverse CDF over the remaining tokens in ascending id, at a uniform number that depends on
//!    (seed, position) only.
//!
//! Equal logits are ordered by id, lowest first. NaN counts as minus infinity.

use crate::protocol::{SamplingParams, Token};
use crate::random::{GOLDEN, mix64};
use std::cmp::Ordering;

/// Ranges of at most this many candidates are sorted instead of partitioned further.
const SORT_BELOW: usize = 64;

/// Returns the id of the largest logit, the lowest of equals; 0 if all are NaN.
pub fn argmax(logits: &[f32]) -> Token {
    // Eight running maxima, which the compiler vectorises.
    let mut lanes = [f32::NEG_INFINITY; 8];
    let chunks = logits.chunks_exact(8);
    let mut max = chunks.remainder().iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    max = lanes.iter().fold(max, |m, &x| if x > m { x } else { m });
    logits.iter().position(|&x| x == max).unwrap_or(0) as Token
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    max + logits.iter().map(|&l| (l as f64 - max).exp()).sum::<f64>().ln()
}

/// The log-probability of one token.
pub fn log_softmax_at(logits: &[f32], token: Token) -> f64 {
    logits[token as usize] as f64 - log_sum_exp(logits)
}

/// The log-probabilities of all tokens.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum = log_sum_exp(logits);
    logits.iter().map(|&l| l as f64 - sum).collect()
}

/// KL(p || q) in nats, of two rows of log-probabilities.
pub fn divergence(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// Returns the uniform number in [0, 1) of a position: 24 bits, exact in f32. Two rounds of the
/// splitmix64 finaliser (Steele et al. 2014), which every backend reproduces bit for bit.
pub fn uniform(seed: u64, position: u64) -> f32 {
    let key = mix64(seed.wrapping_add(GOLDEN));
    let bits = mix64(key.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
}

/// The seed of one of several chains: the first has the turn's. 32 bits, like seeds that are chosen
/// at random.
pub fn chain_seed(seed: u64, chain: usize) -> u64 {
    if chain == 0 { seed } else { mix64(seed.wrapping_add(chain as u64)) >> 32 }
}

/// Samples the next token from `logits [vocab]`. The repetition penalty modifies them in place.
///
/// `fed`: distinct tokens of the sequence, for the penalty; ids outside the vocabulary are ignored.
/// `position`: index of the sampled token in its sequence. Takes O(vocab) time.
pub fn sample(
    logits: &mut [f32],
    params: &SamplingParams,
    fed: impl IntoIterator<Item = Token>,
    seed: u64,
    position: u64,
) -> Token {
    apply_penalty(logits, params.repetition_penalty, fed);
    if params.temperature.is_nan() || params.temperature <= 0.0 || params.top_k == 1 {
        return argmax(logits);
    }
    let best = argmax(logits);
    let max = logits.get(best as usize).copied().unwrap_or(f32::NEG_INFINITY);
    if !max.is_finite() {
        // All NaN or infinite: there is no distribution to sample from.
        return best;
    }
    let inv_temperature = 1.0 / params.temperature;
    let least = least_logit(logits, max, params.top_n_sigma);
    let u = uniform(seed, position) as f64;

    let open = params.top_k == 0 || params.top_k as usize >= logits.len();
    if open && (params.top_p.is_nan() || params.top_p >= 1.0) {
        return sample_unfiltered(logits, max, least, inv_temperature, params.min_p, u).unwrap_or(best);
    }
    // Adding 0.0 turns -0.0 into 0.0: total_cmp tells them apart.
    let candidate = |(id, &x): (usize, &f32)| Candidate { logit: x + 0.0, weight: 0.0, id: id as Token };
    let all = logits.iter().enumerate().map(candidate);
    let mut kept = if open { all.collect() } else { top_k(all, params.top_k as usize) };
    for c in &mut kept {
        c.weight = weight(c.logit, max, inv_temperature);
    }
    kept.retain(|c| c.weight > 0.0);
    if params.top_p < 1.0 {
        keep_nucleus(&mut kept, params.top_p as f64);
    }
    // The largest weight is exp(0) = 1, so min-p is a plain threshold.
    kept.retain(|c| (c.weight >= params.min_p || c.id == best) && c.logit >= least);
    kept.sort_unstable_by_key(|c| c.id);
    inverse_cdf(kept.iter().map(|c| (c.id, c.weight)), u).unwrap_or(best)
}

/// A token that may be sampled. `weight` is its unnormalised probability, set after top-k.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    weight: f32,
    id: Token,
}

impl Candidate {
    /// Descending logit, then ascending id. A total order, so that the result of a partial
    /// selection is unique.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// Returns the first k candidates in order. They arrive in ascending id, so one that equals the
/// k-th so far is dropped: one comparison rejects most of a vocabulary.
fn top_k(all: impl Iterator<Item = Candidate>, k: usize) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(2 * k + SORT_BELOW);
    let mut threshold = f32::NEG_INFINITY;
    for c in all.filter(|c| !c.logit.is_nan()) {
        if c.logit <= threshold {
            continue;
        }
        if best.len() == best.capacity() {
            best.select_nth_unstable_by(k - 1, Candidate::order);
            best.truncate(k);
            threshold = best[k - 1].logit;
            if c.logit <= threshold {
                continue;
            }
        }
        best.push(c);
    }
    if best.len() > k {
        best.select_nth_unstable_by(k - 1, Candidate::order);
        best.truncate(k);
    }
    best
}

/// Returns `exp((logit - max) / temperature)`, 0 for NaN.
fn weight(logit: f32, max: f32, inv_temperature: f32) -> f32 {
    let w = ((logit - max) * inv_temperature).exp();
    if w.is_nan() { 0.0 } else { w }
}

/// The least logit that top-n-sigma keeps; minus infinity where it is off. `max` is finite.
fn least_logit(logits: &[f32], max: f32, n: f32) -> f32 {
    if n.is_nan() || n <= 0.0 {
        return f32::NEG_INFINITY;
    }
    let (mut count, mut sum, mut squares) = (0u32, 0.0, 0.0);
    for x in logits.iter().map(|&x| x as f64).filter(|x| x.is_finite()) {
        (count, sum, squares) = (count + 1, sum + x, squares + x * x);
    }
    let (count, mean) = (count as f64, sum / count as f64);
    (max as f64 - n as f64 * (squares / count - mean * mean).max(0.0).sqrt()) as f32
}

fn apply_penalty(logits: &mut [f32], penalty: f32, fed: impl IntoIterator<Item = Token>) {
    if penalty == 1.0 || penalty.is_nan() || penalty <= 0.0 {
        return;
    }
    for id in fed {
        if let Some(x) = logits.get_mut(id as usize) {
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
    }
}

/// Reduces `kept` to the nucleus: the first candidates in order whose weights reach `p` of the
/// total, at least one. Partitions the range that contains the threshold and sums one half at a
/// time: O(n) in total.
fn keep_nucleus(kept: &mut Vec<Candidate>, p: f64) {
    let total: f64 = kept.iter().map(|c| c.weight as f64).sum();
    let goal = p.max(0.0) * total;
    // Invariant: [..low] is in the nucleus, sums to `mass` < goal, and all of [low..high] come
    // before all of [high..].
    let (mut low, mut high, mut mass) = (0, kept.len(), 0.0);
    while high - low > SORT_BELOW {
        let half = (high - low) / 2;
        kept[low..high].select_nth_unstable_by(half, Candidate::order);
        let left: f64 = kept[low..low + half].iter().map(|c| c.weight as f64).sum();
        if mass + left >= goal {
            high = low + half;
        } else {
            mass += left;
            low += half;
        }
    }
    kept[low..high].sort_unstable_by(Candidate::order);
    let mut end = low;
    while end < high && (end == 0 || mass < goal) {
        mass += kept[end].weight as f64;
        end += 1;
    }
    kept.truncate(end.max(1));
}

/// Samples without top-k and top-p in two passes over the row, without a list of candidates.
fn sample_unfiltered(logits: &[f32], max: f32, least: f32, inv_temperature: f32, min_p: f32, u: f64) -> Option<Token> {
    let weights = logits.iter().enumerate().filter_map(|(id, &logit)| {
        let w = weight(logit, max, inv_temperature);
        (w > 0.0 && w >= min_p && logit >= least).then_some((id as Token, w))
    });
    inverse_cdf(weights, u)
}

/// Returns the first id at which the running sum of weights exceeds `u` of the total.
fn inverse_cdf(weights: impl Iterator<Item = (Token, f32)> + Clone, u: f64) -> Option<Token> {
    let total: f64 = weights.clone().map(|(_, w)| w as f64).sum();
    let goal = u * total;
    let (mut mass, mut last) = (0.0, None);
    for (id, w) in weights {
        mass += w as f64;
        last = Some(id);
        if mass > goal {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same distribution by the book: a full sort, one filter after the other.
    fn distribution(logits: &[f32], params: &SamplingParams, fed: &[Token]) -> Vec<f64> {
        let mut row: Vec<f64> = logits.iter().map(|&x| if x.is_nan() { f64::NEG_INFINITY } else { x as f64 }).collect();
        for &id in fed {
            let x = &mut row[id as usize];
            *x = if *x > 0.0 { *x / params.repetition_penalty as f64 } else { *x * params.repetition_penalty as f64 };
        }
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
        let max = row[order[0]];
        let p: Vec<f64> = row.iter().map(|x| ((x - max) / params.temperature as f64).exp()).collect();
        if params.top_k > 0 {
            order.truncate(params.top_k as usize);
        }
        let total: f64 = order.iter().map(|&i| p[i]).sum();
        let mut mass = 0.0;
        let mut kept = Vec::new();
        for &i in &order {
            if !kept.is_empty() && mass >= params.top_p as f64 * total {
                break;
            }
            mass += p[i];
            kept.push(i);
        }
        kept.retain(|&i| p[i] >= params.min_p as f64);
        if params.top_n_sigma > 0.0 {
            let finite: Vec<f64> = row.iter().copied().filter(|x| x.is_finite()).collect();
            let mean = finite.iter().sum::<f64>() / finite.len() as f64;
            let variance = finite.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / finite.len() as f64;
            kept.retain(|&i| max - row[i] <= params.top_n_sigma as f64 * variance.sqrt());
        }
        let total: f64 = kept.iter().map(|&i| p[i]).sum();
        let mut out = vec![0.0; row.len()];
        for i in kept {
            out[i] = p[i] / total;
        }
        out
    }

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| (uniform(seed, i) + uniform(seed + 1, i) + uniform(seed + 2, i) - 1.5) * 6.0).collect()
    }

    fn cases() -> Vec<SamplingParams> {
        let base = SamplingParams { temperature: 0.9, ..Default::default() };
        vec![
            base.clone(),
            SamplingParams { top_k: 7, ..base.clone() },
            SamplingParams { top_p: 0.8, ..base.clone() },
            SamplingParams { min_p: 0.1, ..base.clone() },
            SamplingParams { top_n_sigma: 1.0, temperature: 3.0, ..base.clone() },
            SamplingParams { top_p: 0.0, ..base.clone() },
            SamplingParams {
                top_k: 20,
                top_p: 0.95,
                min_p: 0.02,
                temperature: 0.6,
                repetition_penalty: 1.3,
                top_n_sigma: 1.5,
                ..base.clone()
            },
        ]
    }

    #[test]
    fn draws_follow_the_distribution_by_the_book() {
        for n in [5, 50, 700] {
            for params in cases() {
                let mut row = noise(n, 11);
                row[3] = f32::NAN;
                let fed = [0, 1, 4];
                let want = distribution(&row, &params, &fed);
                let draws = 20_000u64;
                let mut seen = vec![0u64; n];
                for position in 0..draws {
                    seen[sample(&mut row.clone(), &params, fed, 5, position) as usize] += 1;
                }
                let (mut chi2, mut cells) = (0.0f64, 0.0f64);
                for (&count, &p) in seen.iter().zip(&want) {
                    if p == 0.0 {
                        assert_eq!(count, 0, "{params:?}: drew a token that was filtered out");
                    } else if p * draws as f64 >= 5.0 {
                        let expected = p * draws as f64;
                        chi2 += (count as f64 - expected).powi(2) / expected;
                        cells += 1.0;
                    }
                }
                // Mean k-1, variance 2(k-1); five sigma with fixed seeds.
                assert!(chi2 < cells + 5.0 * (2.0 * cells).sqrt() + 5.0, "{params:?} n={n}: chi2 {chi2} of {cells}");
            }
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_survives_nan() {
        let greedy = SamplingParams::default();
        assert_eq!(sample(&mut [1.0, f32::NAN, 3.0, 3.0], &greedy, [], 1, 0), 2);
        assert_eq!(argmax(&[f32::NAN; 9]), 0);
        assert_eq!(argmax(&[f32::NEG_INFINITY, f32::NAN, -1e30]), 2);
        let hot = SamplingParams { temperature: 2.0, top_p: 0.9, top_k: 3, ..greedy.clone() };
        assert_eq!(sample(&mut [f32::NAN; 4], &hot, [], 1, 0), 0);
        assert_eq!(sample(&mut [0.0, f32::INFINITY, 1.0], &hot, [], 1, 0), 1);
        let ties = SamplingParams { temperature: 1.0, top_k: 2, ..greedy.clone() };
        for position in 0..200 {
            assert!(sample(&mut [0.0, 1.0, 1.0, 1.0], &ties, [], 3, position) < 3);
        }
        assert_eq!(sample(&mut [], &greedy, [], 1, 0), 0);
    }

    #[test]
    fn the_penalty_divides_what_is_positive_and_multiplies_what_is_not() {
        let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
        let mut row = [4.0, -1.0, 1.5];
        assert_eq!(sample(&mut row, &params, [0, 1, 99], 0, 0), 0);
        assert_eq!(row, [2.0, -2.0, 1.5]);
    }

    #[test]
    fn the_uniform_number_is_fixed() {
        // Computed with splitmix64 in Python; kernels have to return the same bits.
        let bits: Vec<u32> = [(0, 0), (0, 1), (42, 0), (42, 7), (u64::MAX, u64::MAX)]
            .iter()
            .map(|&(seed, position)| (uniform(seed, position) * (1 << 24) as f32) as u32)
            .collect();
        assert_eq!(bits, UNIFORM_BITS);
    }

    const UNIFORM_BITS: [u32; 5] = [10946269, 11764387, 5759482, 12326563, 4476952];
}
