//! Element-wise maths: plain loops without branches, which the compiler turns into vector code
//! for each isa.

use super::{Isa, Set};

/// Builds a plain loop for every isa and calls the one that fits.
macro_rules! plain_by_isa {
    ($(#[$doc:meta])* $name:ident = $body:ident ($($arg:ident : $ty:ty),*) $(-> $ret:ty)?) => {
        $(#[$doc])*
        pub(in super::super) fn $name(isa: Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            match isa.0 {
                // No loop here is fused, so all of them have the same results.
                // SAFETY: AVX2 was detected.
                #[cfg(target_arch = "x86_64")]
                Set::Exact if super::isa::has_avx2() => unsafe { avx2($($arg),*) },
                Set::Exact | Set::Portable => $body($($arg),*),
                // SAFETY: a `Isa` exists only where its instructions were detected.
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => unsafe { avx512($($arg),*) },
                // The compiler uses NEON wherever it builds for aarch64.
                #[cfg(target_arch = "aarch64")]
                Set::Neon => $body($($arg),*),
            }
        }
    };
}

/// Sums in flight: a sum in one chain is bound by the latency of an addition.
const CHAINS: usize = 32;

#[inline(always)]
fn fold(x: &[f32], zero: f32, one: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [zero; CHAINS];
    let chunks = x.chunks_exact(CHAINS);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (a, &v) in acc.iter_mut().zip(chunk) {
            *a = one(*a, v);
        }
    }
    for (a, &v) in acc.iter_mut().zip(rest) {
        *a = one(*a, v);
    }
    let mut half = CHAINS / 2;
    while half > 0 {
        for i in 0..half {
            acc[i] = join(acc[i], acc[i + half]);
        }
        half /= 2;
    }
    acc[0]
}

/// `e^x`, within 2e-7 of its value; 0 below -87, where the result would leave the normal numbers.
/// NaN stays NaN. The bits are the same on every machine, unlike the standard library's.
#[inline(always)]
pub(in super::super) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has few enough bits for an exact product (Cephes).
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding it rounds to an integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > 88.0 { 88.0 } else { x };
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5.000_000_3e-1;
    p = p * r * r + r + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { p * power }
}

#[inline(always)]
fn max_body(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    fold(x, f32::NEG_INFINITY, larger, larger)
}

plain_by_isa! {
    /// The largest value; negative infinity of nothing.
    max = max_body(x: &[f32]) -> f32
}

#[inline(always)]
fn exp_minus_body(x: &mut [f32], max: f32) -> f64 {
    x.iter_mut().for_each(|v| *v = exp(*v - max));
    // Adding it to a value below 2^20 rounds to a multiple of 2^-33; an f64 holds every sum of
    // those below 2^20.
    const GRID: f64 = 1.5 * (1u64 << 19) as f64;
    let mut sums = [0f64; 16];
    let chunks = x.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, &v) in sums.iter_mut().zip(chunk) {
            *sum += (v as f64 + GRID) - GRID;
        }
    }
    for (sum, &v) in sums.iter_mut().zip(rest) {
        *sum += (v as f64 + GRID) - GRID;
    }
    sums.iter().sum()
}

plain_by_isa! {
    /// `x = e^(x - max)` for up to 2^20 values of at most `max`; returns the sum, which is exact
    /// but for a rounding of each value to a multiple of 2^-33, so that it does not depend on the
    /// order.
    exp_minus = exp_minus_body(x: &mut [f32], max: f32) -> f64
}

#[inline(always)]
fn scale_body(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|v| *v *= factor);
}

plain_by_isa! {
    /// `x *= factor`
    scale = scale_body(x: &mut [f32], factor: f32)
}

#[inline(always)]
fn add_body(acc: &mut [f32], x: &[f32]) {
    acc.iter_mut().zip(x).for_each(|(a, v)| *a += v);
}

plain_by_isa! {
    /// `acc += x`
    add = add_body(acc: &mut [f32], x: &[f32])
}

#[inline(always)]
fn mul_body(acc: &mut [f32], x: &[f32]) {
    acc.iter_mut().zip(x).for_each(|(a, v)| *a *= v);
}

plain_by_isa! {
    /// `acc *= x`
    mul = mul_body(acc: &mut [f32], x: &[f32])
}

#[inline(always)]
fn swiglu_body(out: &mut [f32], gate: &[f32], up: &[f32]) {
    for ((o, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *o = g / (1.0 + exp(-g)) * u;
    }
}

plain_by_isa! {
    /// `out = silu(gate) * up`
    swiglu = swiglu_body(out: &mut [f32], gate: &[f32], up: &[f32])
}

#[inline(always)]
fn geglu_body(out: &mut [f32], gate: &[f32], up: &[f32]) {
    /// sqrt(2 / pi)
    const FACTOR: f32 = 0.797_884_6;
    for ((o, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        // (1 + tanh(y)) / 2 is the logistic function of 2 y.
        let y = FACTOR * (g + 0.044715 * g * g * g);
        *o = g / (1.0 + exp(-2.0 * y)) * u;
    }
}

plain_by_isa! {
    /// `out = gelu(gate) * up`, by the approximation of GELU with tanh
    geglu = geglu_body(out: &mut [f32], gate: &[f32], up: &[f32])
}

#[inline(always)]
fn gate_body(out: &mut [f32], gate: &[f32]) {
    for (o, &g) in out.iter_mut().zip(gate) {
        *o *= 1.0 / (1.0 + exp(-g));
    }
}

plain_by_isa! {
    /// `out *= sigmoid(gate)`
    gate = gate_body(out: &mut [f32], gate: &[f32])
}

#[inline(always)]
fn add_products_body(acc: &mut [f32], x: &[f32], y: &[f32]) {
    for ((a, &x), &y) in acc.iter_mut().zip(x).zip(y) {
        *a += x * y;
    }
}

plain_by_isa! {
    /// `acc += x * y`
    add_products = add_products_body(acc: &mut [f32], x: &[f32], y: &[f32])
}

#[inline(always)]
fn silu_body(x: &mut [f32]) {
    x.iter_mut().for_each(|v| *v /= 1.0 + exp(-*v));
}

plain_by_isa! {
    /// `x = silu(x)`
    silu = silu_body(x: &mut [f32])
}

#[inline(always)]
fn unit_body(x: &mut [f32], eps: f32, factor: f32) {
    let scale = factor / (fold(x, 0.0, |a, v| a + v * v, |a, b| a + b) + eps).sqrt();
    x.iter_mut().for_each(|v| *v *= scale);
}

plain_by_isa! {
    /// `x = factor * x / sqrt(sum(x^2) + eps)`
    unit = unit_body(x: &mut [f32], eps: f32, factor: f32)
}

/// `ln(1 + e^x)`, the same bits on every machine.
pub(in super::super) fn softplus(x: f32) -> f32 {
    let y = exp(-x.abs());
    // ln(1 + y) = 2 atanh(y / (2 + y)), whose argument is at most 1/3.
    let s = y / (2.0 + y);
    let square = s * s;
    let series = (0..8).rev().fold(0.0, |sum, i| sum * square + 1.0 / (2 * i + 1) as f32);
    x.max(0.0) + 2.0 * s * series
}

#[inline(always)]
fn delta_rule_body(out: &mut [f32], state: &mut [f32], q: &[f32], k: &[f32], v: &mut [f32], gates: [f32; 2]) {
    let [decay, beta] = gates;
    let width = out.len();
    out.fill(0.0);
    for (row, &k) in state.chunks_exact_mut(width).zip(k) {
        for (s, o) in row.iter_mut().zip(&mut *out) {
            *s *= decay;
            *o += *s * k;
        }
    }
    for (v, o) in v.iter_mut().zip(&mut *out) {
        *v = beta * (*v - *o);
        *o = 0.0;
    }
    for ((row, &k), &q) in state.chunks_exact_mut(width).zip(k).zip(q) {
        for ((s, &v), o) in row.iter_mut().zip(&*v).zip(&mut *out) {
            *s += k * v;
            *o += *s * q;
        }
    }
}

plain_by_isa! {
    /// One token of the gated delta rule: `S *= decay; S += k (beta (v - S^T k))^T; out = S^T q`,
    /// with the state S `[q.len(), v.len()]`. `v` is overwritten.
    delta_rule = delta_rule_body(out: &mut [f32], state: &mut [f32], q: &[f32], k: &[f32], v: &mut [f32], gates: [f32; 2])
}

#[inline(always)]
fn rms_norm_body(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) -> f32 {
    let mean = fold(x, 0.0, |a, v| a + v * v, |a, b| a + b) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = v * scale * w;
    }
    mean
}

plain_by_isa! {
    /// `out = x / sqrt(mean(x^2) + eps) * weight`; returns the mean square, which is finite
    /// exactly when the row is sane.
    rms_norm = rms_norm_body(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) -> f32
}

#[inline(always)]
fn rms_norm_in_place_body(x: &mut [f32], weight: &[f32], eps: f32) {
    let mean = fold(x, 0.0, |a, v| a + v * v, |a, b| a + b) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(v, w)| *v = *v * scale * w);
}

plain_by_isa! {
    /// `x = x / sqrt(mean(x^2) + eps) * weight`
    rms_norm_in_place = rms_norm_in_place_body(x: &mut [f32], weight: &[f32], eps: f32)
}

#[inline(always)]
fn rotate_body(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (a, b) = head.split_at_mut(head.len() / 2);
    for (((x, y), &cos), &sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
    }
}

plain_by_isa! {
    /// Turns the pairs `(head[i], head[i + d / 2])`.
    rotate = rotate_body(head: &mut [f32], cos: &[f32], sin: &[f32])
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;
    use crate::random::Random;

    /// Values in -1..1 that depend only on `seed`.
    pub fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut random = Random(seed);
        (0..len).map(|_| random.signed()).collect()
    }

    #[test]
    fn exp_is_close_everywhere() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01 + 0.003;
            let (got, want) = (exp(x) as f64, (x as f64).exp());
            assert!(x < -87.0 || (got / want - 1.0).abs() < 3e-7, "{x}: {got} {want}");
        }
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(-200.0)), (1.0, 0.0, 0.0));
        for i in -300..300 {
            let x = i as f32 * 0.1 + 0.03;
            let (got, want) = (softplus(x) as f64, (x as f64).exp().ln_1p());
            assert!((got / want - 1.0).abs() < 1e-6, "{x}: {got} {want}");
        }
        assert!(exp(f32::NAN).is_nan() && exp(1e9) > 1e38);
    }

    #[test]
    fn loops_agree_on_every_isa() {
        for isa in Isa::available() {
            for len in [1, 31, 72, 96, 577] {
                let (x, y) = (random(len, 1), random(len, 2));
                let close = |a: f32, b: f32| (a - b).abs() < 1e-5 * (1.0 + b.abs());
                assert_eq!(max(isa, &x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
                let mut out = vec![f32::NAN; len];
                swiglu(isa, &mut out, &x, &y);
                assert!((0..len).all(|i| close(out[i], x[i] / (1.0 + (-x[i]).exp()) * y[i])));
                let mean = rms_norm(isa, &mut out, &x, &y, 1e-5);
                assert!(close(mean, x.iter().map(|v| v * v).sum::<f32>() / len as f32));
                assert!((0..len).all(|i| close(out[i], x[i] / (mean + 1e-5).sqrt() * y[i])));
                let mut out = x.clone();
                let sum = exp_minus(isa, &mut out, 1.0);
                let wanted = out.iter().map(|v| *v as f64).sum::<f64>();
                assert!(
                    (0..len).all(|i| close(out[i], (x[i] - 1.0).exp())) && (sum - wanted).abs() < 1e-9 * len as f64
                );
                let mut reversed: Vec<f32> = x.iter().rev().copied().collect();
                assert_eq!(exp_minus(isa, &mut reversed, 1.0), sum, "a sum in another order");
            }
        }
    }
}
