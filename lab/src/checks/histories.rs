//! The histories of [`super::history`] that are checked: policies, codecs, shapes and seeds.

use super::CODECS;
use super::history::{EVENTS, History, WIDE_EVENTS};
use dmschat::codec::Codec;
use dmschat::policy::{Budget, Dmc, Dms, H2o, Policy, Pool, Quest, Shift, Tova, TrimKv, Window};

/// Events of long histories.
const MANY_EVENTS: usize = 1000;

fn policies() -> [Policy; 7] {
    let dms = |window, shift| Policy::Dms(Dms::new(window, shift));
    [
        Policy::Dense,
        dms(5, Shift::Previous),
        dms(40, Shift::Same),
        dms(0, Shift::Previous),
        dms(16, Shift::Previous),
        dms(3, Shift::Same),
        Policy::Window(Window::new(12)),
    ]
}

/// Every policy over a long history with small heads.
pub fn long() -> Vec<History> {
    let case = |(i, policy): (usize, Policy)| {
        let codec = CODECS[i % CODECS.len()];
        History { events: MANY_EVENTS, ..History::new(policy, codec, [8, 2, 1], 100 + i as u64) }
    };
    policies().into_iter().enumerate().map(case).collect()
}

/// Chunks of hundreds of tokens, with windows shorter and longer than a thread block.
pub fn wide() -> Vec<History> {
    let dms = |window, shift| Policy::Dms(Dms::new(window, shift));
    let policies = [dms(300, Shift::Previous), dms(30, Shift::Same)];
    let case =
        |(i, policy): (usize, Policy)| History::new(policy, CODECS[1 + i % 2], [32, 1, 2], 200 + i as u64).wide();
    policies.into_iter().enumerate().map(case).collect()
}

/// Every head size and group size, alternating policies and codecs.
pub fn all() -> Vec<History> {
    let policies = policies();
    let mut out = Vec::new();
    for (i, head_dim) in [32, 64, 128, 8].into_iter().enumerate() {
        for group in 1..=8 {
            let at = i * 8 + group;
            let codec = CODECS[(at + at / 3) % CODECS.len()];
            let policy = policies[at % policies.len()];
            out.push(History::new(policy, codec, [head_dim, 1 + at % 3, group], at as u64));
        }
    }
    // Heads with kernels of their own.
    let wide = [(256, 4), (256, 6), (200, 8), (256, 1)].into_iter().zip(CODECS).zip([4, 1, 2, 6]);
    let case = |(((head_dim, group), codec), policy): ((_, &Codec), usize)| {
        History::new(policies[policy], *codec, [head_dim, 2, group], 90 + policy as u64)
    };
    out.extend(wide.map(case));
    out
}

/// Models whose layers see different tokens, in every attention kernel: windows shorter and longer
/// than a step's chunks, than the other layer's window, and than a thread block.
pub fn local() -> Vec<History> {
    let [dense, previous, same, _, _, _, window] = policies();
    let shapes = [
        (dense, 24, Codec::Bf16, [256, 2, 2]),
        (previous, 30, Codec::Int8, [256, 1, 4]),
        (same, 9, Codec::Bf16, [128, 2, 2]),
        (window, 16, Codec::Fp8, [64, 2, 3]),
        (dense, 1, Codec::K8V4, [32, 2, 1]),
    ];
    let case = |(i, (policy, local, codec, shape))| History {
        local,
        events: 2 * EVENTS,
        ..History::new(policy, codec, shape, 500 + i as u64)
    };
    let wide = [(previous, 200, 128), (dense, 1030, 256)].map(|(policy, local, head_dim)| History {
        local,
        ..History::new(policy, Codec::Bf16, [head_dim, 1, 2], 510 + local as u64).wide()
    });
    shapes.into_iter().enumerate().map(case).chain(wide).collect()
}

/// Caches that keep what leaves them, with every codec, in every attention kernel; also chunks
/// longer than the window, more pages than a block scores at once, and a model with local layers.
/// Queries are bf16, so that scores have the CPU's bits.
pub fn far() -> Vec<History> {
    let [_, previous, same, merging, usual, short, window] = policies();
    let shapes = [
        (previous, Codec::Bf16, [32, 2, 2], 2),
        (same, Codec::Fp8, [64, 1, 4], 1),
        (merging, Codec::Int8, [128, 2, 1], 3),
        (window, Codec::K8V4, [128, 1, 8], 1),
        (usual, Codec::Bf16, [256, 2, 2], 2),
        (short, Codec::Int8, [8, 3, 3], 0),
        (usual, Codec::Fp8, [128, 1, 2], 1000),
    ];
    let case = |(i, (policy, codec, shape, far)): (usize, (_, _, _, usize))| History {
        far: Some(far),
        events: 2 * EVENTS,
        local: if i == 5 { 12 } else { 0 },
        ..History::new(policy, codec, shape, 600 + i as u64)
    };
    let wide = History { far: Some(2), ..History::new(short, Codec::Bf16, [128, 1, 2], 620).wide() };
    let many = [(128, 622), (256, 624)].map(|(head_dim, seed)| History {
        far: Some(3),
        events: 8 * WIDE_EVENTS,
        ..History::new(window, Codec::Fp8, [head_dim, 1, 1], seed).wide()
    });
    shapes.into_iter().enumerate().map(case).chain([wide]).chain(many).collect()
}

/// Policies with scores. The seeds give histories in which every victim has less attention than the
/// other slots by a margin, so that rounding on a device cannot change the choice.
pub fn scored() -> Vec<History> {
    let tova = |budget| Policy::Tova(Tova { budget });
    let h2o = |budget| Policy::H2o(H2o { budget });
    let trimkv = |budget| Policy::TrimKv(TrimKv { budget });
    let (few, ratio) = (Budget::Slots(20), Budget::Ratio(2 * Budget::UNIT));
    let shapes = [
        (tova(few), 32, 1, 1),
        (tova(Budget::Slots(33)), 64, 3, 3),
        (tova(ratio), 128, 2, 4),
        (tova(few), 8, 2, 8),
        (h2o(few), 32, 2, 2),
        (h2o(Budget::Slots(33)), 64, 1, 5),
        (h2o(ratio), 128, 2, 7),
        (h2o(few), 8, 3, 1),
        (trimkv(ratio), 32, 2, 2),
        (trimkv(few), 64, 3, 4),
        (trimkv(Budget::Slots(33)), 128, 2, 1),
    ];
    let case = |(i, (policy, head_dim, heads, group))| {
        let codec = CODECS[(i + i / 4) % CODECS.len()];
        // The last two have gates, of one hidden layer and of two.
        let gates = [None, Some(false), Some(true)][usize::saturating_sub(i, 8)];
        History { gates, ..History::new(policy, codec, [head_dim, heads, group], SCORED_SEEDS[i]) }
    };
    shapes.into_iter().enumerate().map(case).collect()
}

/// Seeds of [`scored`].
const SCORED_SEEDS: [u64; 11] = [300, 301, 302, 303, 304, 305, 306, 307, 308, 309, 310];

/// Policies that merge tokens, also with chunks longer than a tile of rows. DMC's weights may
/// differ in their last bits, and so may the codes: it uses the codec with the smallest steps.
pub fn merging() -> Vec<History> {
    let pool = |every| Policy::Pool(Pool { every });
    let dmc = Policy::Dmc(Dmc { most_members: 7, ..Dmc::default() });
    let shapes = [
        (pool(3), Codec::Bf16, 128, 2, 4, false),
        (pool(20), Codec::Fp8, 64, 1, 1, false),
        (pool(64), Codec::Int8, 32, 2, 3, true),
        (pool(2), Codec::K8V4, 8, 3, 8, false),
        (dmc, Codec::Bf16, 64, 2, 2, false),
        (dmc, Codec::Bf16, 128, 1, 7, true),
    ];
    let case = |(i, (policy, codec, head_dim, heads, group, wide))| {
        let case = History::new(policy, codec, [head_dim, heads, group], 410 + i as u64);
        if wide { case.wide() } else { case }
    };
    shapes.into_iter().enumerate().map(case).collect()
}

/// Policies that read pages, over every cache below them.
fn paged_policies() -> [Policy; 5] {
    let quest = |budget, dms| Policy::Quest(Quest { budget, dms });
    let dms = |window, shift| Some(Dms::new(window, shift));
    [
        quest(Budget::Slots(48), None),
        quest(Budget::Slots(64), dms(5, Shift::Previous)),
        quest(Budget::Ratio(4 * Budget::UNIT), None),
        quest(Budget::Slots(48), dms(40, Shift::Same)),
        quest(Budget::Slots(48), dms(0, Shift::Previous)),
    ]
}

/// The same policies with every head size and group size, some in models with dense layers.
pub fn paged() -> Vec<History> {
    let mut out = Vec::new();
    for (i, head_dim) in [64, 128, 8].into_iter().enumerate() {
        for group in [1, 3, 4, 8] {
            let at = 4 * i + group;
            let codec = CODECS[(i + group) % CODECS.len()];
            let policy = paged_policies()[out.len() % 5];
            let layers = if group == 3 { 3 } else { 2 };
            let case = History::new(policy, codec, [head_dim, 1 + at % 3, group], 300 + at as u64);
            out.push(History { layers, events: 2 * EVENTS, ..case });
        }
    }
    out
}

/// The same over long histories.
pub fn long_paged() -> Vec<History> {
    let cases = paged().into_iter().step_by(2);
    cases.map(|case| History { events: MANY_EVENTS / 2, ..case }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Case;
    use super::*;
    use dmschat::backend::cpu::Cpu;

    /// Queries that are off by twenty times the rounding of a device change no victim.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "takes a minute without optimizations")]
    fn no_victim_of_the_scored_histories_is_chosen_by_a_hair() {
        let cpu = Cpu::new(2);
        for mut case in scored() {
            let exact = case.run(&cpu).exact;
            case.noise = 2e-5;
            assert!(case.run(&cpu).exact == exact, "{}: take another seed than {}", case.name(), case.seed);
        }
    }
}
