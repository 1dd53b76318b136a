//! A row of logits to a token: pure, seeded, and the same for every caller. Owns the order of the
//! filters and the random number; knows nothing of models, devices or text.
//!
//! The order, each step seeing what the one before left over:
//!
//! 1. repetition penalty, once per distinct token that was fed: a positive logit is divided by it, a
//!    negative one multiplied (Keskar et al. 2019, as transformers does);
//! 2. temperature divides the logits; 0 ends here with the likeliest token;
//! 3. top-k keeps the k likeliest;
//! 4. top-p keeps the shortest run of the likeliest whose probability reaches p, at least one;
//! 5. min-p keeps what is at least min-p times as likely as the likeliest;
//! 6. inverse CDF over the survivors in ascending token id, at a uniform number that is a pure
//!    function of (seed, position).
//!
//! A tie is two equal logits, and goes to the lowest id everywhere. NaN counts as minus infinity.

use crate::protocol::{SamplingParams, Token};
use std::cmp::Ordering;

/// Below this many candidates a range is sorted instead of halved further.
const SORT_BELOW: usize = 64;

/// The likeliest token, the lowest id among equals; 0 where nothing is a number.
pub fn argmax(logits: &[f32]) -> Token {
    // Eight running maxima, so that the pass over the vocabulary is vectorised.
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

/// The uniform number in [0, 1) of a position: 24 bits, so exact in f32. Two rounds of the
/// splitmix64 finaliser (Steele et al. 2014); any backend can reproduce it bit for bit.
pub fn uniform(seed: u64, position: u64) -> f32 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let key = mix64(seed.wrapping_add(GOLDEN));
    let bits = mix64(key.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)));
    (bits >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
}

/// The finaliser of splitmix64: a bijection whose output bits all depend on all input bits.
fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Chooses the next token from `logits [vocab]`, which the repetition penalty changes in place.
///
/// `fed` is what the repetition penalty counts, each token once (ids outside the vocabulary do no harm); `position` the index of the token to be
/// chosen in its sequence. Takes O(vocab) time.
pub fn sample(
    logits: &mut [f32],
    params: &SamplingParams,
    fed: impl IntoIterator<Item = Token>,
    seed: u64,
    position: u64,
) -> Token {
    penalise(logits, params.repetition_penalty, fed);
    if params.temperature.is_nan() || params.temperature <= 0.0 || params.top_k == 1 {
        return argmax(logits);
    }
    let best = argmax(logits);
    let max = logits.get(best as usize).copied().unwrap_or(f32::NEG_INFINITY);
    if !max.is_finite() {
        // All NaN or infinite: there is no distribution to draw from.
        return best;
    }
    let inv_temperature = 1.0 / params.temperature;
    let u = uniform(seed, position) as f64;

    let open = params.top_k == 0 || params.top_k as usize >= logits.len();
    if open && (params.top_p.is_nan() || params.top_p >= 1.0) {
        return draw_unsorted(logits, max, inv_temperature, params.min_p, u).unwrap_or(best);
    }
    // There is one zero among logits, not two.
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
    // The likeliest weighs exp(0) = 1, so min-p is a plain threshold.
    kept.retain(|c| c.weight >= params.min_p || c.id == best);
    kept.sort_unstable_by_key(|c| c.id);
    inverse_cdf(kept.iter().map(|c| (c.id, c.weight)), u).unwrap_or(best)
}

/// A token still in the running; `weight` is its probability times a common factor, 0 until top-k is through.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    weight: f32,
    id: Token,
}

impl Candidate {
    /// The likelier first, the lower id first among equals: a total order, so that the set a
    /// partial selection keeps does not depend on how it went.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// The k that order first. Candidates come by ascending id, so one that equals the k-th seen so far
/// loses to it; most of a vocabulary is thus dropped by one comparison.
fn top_k(all: impl Iterator<Item = Candidate>, k: usize) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(2 * k + SORT_BELOW);
    let mut bar = f32::NEG_INFINITY;
    for c in all.filter(|c| !c.logit.is_nan()) {
        if c.logit <= bar {
            continue;
        }
        if best.len() == best.capacity() {
            best.select_nth_unstable_by(k - 1, Candidate::order);
            best.truncate(k);
            bar = best[k - 1].logit;
            if c.logit <= bar {
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

/// `exp((logit - max) / temperature)`, 0 for NaN.
fn weight(logit: f32, max: f32, inv_temperature: f32) -> f32 {
    let w = ((logit - max) * inv_temperature).exp();
    if w.is_nan() { 0.0 } else { w }
}

fn penalise(logits: &mut [f32], penalty: f32, fed: impl IntoIterator<Item = Token>) {
    if penalty == 1.0 || penalty.is_nan() || penalty <= 0.0 {
        return;
    }
    for id in fed {
        if let Some(x) = logits.get_mut(id as usize) {
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
    }
}

/// Shortens `kept` to the likeliest whose weights sum to at least `p` of the whole, at least one.
/// Halves the range that holds the border, summing one half at a time: O(n) in all.
fn keep_nucleus(kept: &mut Vec<Candidate>, p: f64) {
    let total: f64 = kept.iter().map(|c| c.weight as f64).sum();
    let goal = p.max(0.0) * total;
    // Invariant: [..low] is inside the nucleus, sums to `mass` < goal, and all of [low..high]
    // orders before all of [high..].
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

/// Without top-k and top-p no candidate list is needed: two passes over the row.
fn draw_unsorted(logits: &[f32], max: f32, inv_temperature: f32, min_p: f32, u: f64) -> Option<Token> {
    let weights = logits.iter().enumerate().filter_map(|(id, &logit)| {
        let w = weight(logit, max, inv_temperature);
        (w > 0.0 && w >= min_p).then_some((id as Token, w))
    });
    inverse_cdf(weights, u)
}

/// The first id at which the running sum of weights exceeds `u` of their total.
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
            SamplingParams { top_k: 20, top_p: 0.95, min_p: 0.02, temperature: 0.6, repetition_penalty: 1.3 },
            SamplingParams { top_p: 0.0, ..base },
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
        // splitmix64 in Python, as in the module's text: a kernel has to give these bits.
        let bits: Vec<u32> = [(0, 0), (0, 1), (42, 0), (42, 7), (u64::MAX, u64::MAX)]
            .iter()
            .map(|&(seed, position)| (uniform(seed, position) * (1 << 24) as f32) as u32)
            .collect();
        assert_eq!(bits, UNIFORM_BITS);
    }

    const UNIFORM_BITS: [u32; 5] = [10946269, 11764387, 5759482, 12326563, 4476952];
}
