//! The strength of a decision: 11 bits that keep the order of decisions. CUDA twin: `strength_of`
//! in `kernels/policy_dms.cuh`, bit for bit.

/// Number of strengths.
pub const STRENGTHS: usize = 2048;
/// Strengths of one sign.
const HALF: usize = STRENGTHS / 2;
/// Bits of an f32 below a step. A step is 1/64 near 0 and grows with `1 + |decision|`, so that
/// decisions of any scale have one: up to 64,000 they differ by a sixty-fourth at most.
const BELOW: u32 = 17;

/// The strength of a decision. Strengths are monotonic in decisions; positive ones have at least
/// `STRENGTHS / 2`. A pinned token, whose decision is minus infinity, has strength 0.
pub fn strength(decision: f32) -> usize {
    if decision == f32::NEG_INFINITY {
        return 0;
    }
    let size = (1.0 + decision.abs()).to_bits() - 1f32.to_bits();
    let size = ((size >> BELOW) as usize).min(HALF - 2);
    if decision > 0.0 { HALF + size } else { HALF - 1 - size }
}

/// The smallest decision of this strength, or the bound that smaller decisions approach; minus
/// infinity for 0.
pub fn least_decision(strength: usize) -> f32 {
    let bound = |size: usize| f32::from_bits(1f32.to_bits() + ((size as u32) << BELOW)) - 1.0;
    match strength {
        0 => f32::NEG_INFINITY,
        s if s < HALF => -bound(HALF - s),
        s => bound(s - HALF),
    }
}

/// The middle of the decisions that have this strength; minus infinity for 0.
pub fn decision_of(strength: usize) -> f32 {
    (least_decision(strength) + least_decision(strength + 1)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strengths_keep_the_order_of_decisions_at_any_scale() {
        let sizes = (-40..60).map(|e| 1.3f32.powi(e));
        let mut decisions: Vec<f32> = sizes.flat_map(|d| [d, -d]).chain([0.0, f32::MAX, f32::MIN]).collect();
        decisions.sort_by(f32::total_cmp);
        let strengths: Vec<usize> = decisions.iter().map(|&d| strength(d)).collect();
        assert!(strengths.is_sorted());
        for (&d, s) in decisions.iter().zip(strengths) {
            assert!((1..STRENGTHS).contains(&s) && (s >= HALF) == (d > 0.0), "{d}: {s}");
            assert!(d.abs() > 6e4 || (decision_of(s) - d).abs() <= (1.0 + d.abs()) / 64.0, "{d}: {}", decision_of(s));
            assert_eq!(strength(decision_of(s)), s);
        }
        assert_eq!((strength(f32::NEG_INFINITY), strength(f32::NAN)), (0, 1));
    }
}
