//! The fast forms against the plain loops, over the steps of two sequences.

use super::super::super::{KvGeometry, KvTables, Measure, Ops, Pages, QkvRopeArgs, Queries, Span};
use super::super::kv::{append, round_trip};
use super::super::simd::maths::tests::random;
use super::super::{Acts, Cpu};
use super::{attend, reference};
use crate::codec::{Codec, Rotation, random_coder};
use crate::policy::{Dms, Policy, Shift, Window};

pub(super) fn tables(cpu: &Cpu, geometry: KvGeometry) -> KvTables<Cpu> {
    let rows = geometry.n_layers * geometry.n_lanes();
    let no_rope = Rotation { inv_freq: Vec::new(), factor: 1.0 };
    KvTables {
        geometry,
        coder: random_coder(geometry.codec, &[no_rope], geometry.head_dim),
        pool: cpu.pool(&geometry, 10_000, 0).unwrap(),
        page_table: vec![-1; rows * geometry.max_pages],
        live: vec![0; rows],
        ring: vec![0; rows * geometry.ring_len()],
        score: vec![0.0; rows * geometry.score_slots()],
        sums: vec![0.0; rows * geometry.sums_len()],
        delta_inputs: Vec::new(),
        delta_state: Vec::new(),
        seq_len: vec![0; geometry.n_seqs],
        seen: Vec::new(),
        eviction: vec![1; geometry.n_seqs],
        dial: vec![0.0; geometry.n_seqs],
        pinned: vec![0; 1024],
        slots: vec![-1; 1024 * geometry.n_kv_heads],
        reads: vec![0; geometry.n_seqs],
        peak: vec![0; geometry.n_seqs],
    }
}

/// Steps of (tokens of sequence 0, tokens of sequence 1, eviction).
const STEPS: [(usize, usize, bool); 10] = [
    (17, 0, true),
    (1, 0, true),
    (0, 130, true),
    (1, 1, true),
    (2, 33, true),
    (130, 1, false),
    (1, 1, false),
    (300, 0, true),
    (3, 4, true),
    (1, 1, true),
];

/// All codecs; of those with data of the model, which code rows slowly, one under one policy.
fn codecs(policy: Policy) -> impl Iterator<Item = Codec> {
    let slow = matches!(policy, Policy::Dms(Dms { window: 9, .. }));
    Codec::ALL.into_iter().filter(move |&codec| !codec.needs_data() || slow && codec == Codec::Csr4)
}

fn check(policy: Policy, codec: Codec, head_dim: usize, group: usize, threads: usize) {
    let name = format!("{policy:?} {codec:?} {head_dim} {group} {threads}");
    let cpu = Cpu::new(threads);
    let (heads, q_heads) = (2, 2 * group);
    let geometry = KvGeometry {
        n_layers: 1,
        n_q_heads: q_heads,
        n_kv_heads: heads,
        head_dim,
        heads: None,
        n_seqs: 2,
        page_slots: 16,
        same_slots: false,
        max_pages: 64,
        codec,
        policy,
        far: None,
        delta: None,
        vocab: 0,
        staged_rows: 0,
        local: Default::default(),
    };
    let mut kv = tables(&cpu, geometry);
    let width = (q_heads + 2 * heads) * head_dim;
    for (step, (a, b, eviction)) in STEPS.into_iter().enumerate() {
        let n = a + b;
        // Spans need not lie in the order of the sequences.
        let spans: Vec<Span> = [Span { seq: 1, start: 0, len: b }, Span { seq: 0, start: b, len: a }]
            .into_iter()
            .filter(|s| s.len > 0)
            .collect();
        kv.eviction.fill(eviction as i32);
        let seed = step as u64 + 10;
        let data = random(n * width, seed).into_iter().map(|v| 2.5 * v).collect();
        let mut qkv = Acts { data, width };
        let decisions: Vec<f32> = random(n * heads, seed + 100).iter().map(|v| v + 0.4).collect();
        round_trip(&cpu, &mut qkv, &kv, 0, &spans);
        let acts = |poison: f32| Acts { data: vec![poison; n * q_heads * head_dim], width: q_heads * head_dim };
        let (mut got, mut again, mut want) = (acts(f32::NAN), acts(1.0), acts(0.0));
        attend(&cpu, &mut got, &qkv, &decisions, &mut kv, 0, &spans, &QkvRopeArgs::plain(&Vec::new()));
        attend(&cpu, &mut again, &qkv, &decisions, &mut kv, 0, &spans, &QkvRopeArgs::plain(&Vec::new()));
        reference::attend(&mut want, &qkv, &decisions, &kv, 0, &spans);
        for (i, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
            assert!((g - w).abs() < 2e-5, "{name}, step {step}, row {}: {g} {w}", i / got.width);
        }
        assert!(
            got.data.iter().zip(&again.data).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{name}: not the same twice"
        );
        cpu.reserve(&mut kv, 2 * n * heads).unwrap();
        append(&mut kv, &qkv, &decisions, 0, &spans);
        cpu.advance(&mut kv, None, &spans);
    }
}

#[test]
fn attention_matches_the_plain_loops() {
    let policies = [
        Policy::Dense,
        Policy::Dms(Dms { window: 16, shift: Shift::Previous, sinks: 0, dial: 0.0 }),
        Policy::Dms(Dms { window: 9, shift: Shift::Same, sinks: 0, dial: 0.0 }),
        Policy::Window(Window::new(24)),
    ];
    for policy in policies {
        for codec in codecs(policy) {
            check(policy, codec, 64, 3, 2);
        }
        for (head_dim, group) in [(32, 1), (72, 2), (128, 4), (32, 5), (64, 8)] {
            check(policy, Codec::F32, head_dim, group, 1);
        }
        check(policy, Codec::Fp8, 128, 7, 3);
        // Rows of codes are longer than half a byte a value here.
        check(policy, Codec::K8V4, 8, 2, 2);
    }
}

/// Behind V there is the gate of the output, which is not stored: rounded or rotated as V is, it
/// would be another gate.
#[test]
fn a_format_changes_k_and_v_and_not_the_gate_behind_them() {
    let (cpu, d) = (Cpu::new(1), 16);
    let geometry = KvGeometry {
        n_layers: 1,
        n_q_heads: 2,
        n_kv_heads: 1,
        head_dim: d,
        heads: None,
        n_seqs: 1,
        page_slots: 16,
        same_slots: false,
        max_pages: 4,
        codec: Codec::K8V4,
        policy: Policy::Dense,
        far: None,
        delta: None,
        vocab: 0,
        staged_rows: 0,
        local: Default::default(),
    };
    let kv = tables(&cpu, geometry);
    // Two heads of q, K, V, two heads of the gate.
    let width = 6 * d;
    let before = random(3 * width, 9);
    let mut qkv = Acts { data: before.clone(), width };
    round_trip(&cpu, &mut qkv, &kv, 0, &[Span { seq: 0, start: 0, len: 3 }]);
    for (row, before) in before.chunks_exact(width).enumerate() {
        let (mut k, mut v) = (before[2 * d..3 * d].to_vec(), before[3 * d..4 * d].to_vec());
        geometry.codec.round_trip_k(&mut k);
        geometry.codec.round_trip_v(&mut v);
        assert_eq!(qkv.row(row), [&before[..2 * d], &k, &v, &before[4 * d..]].concat());
    }
}

/// Compares prefill of a step's tokens with the same tokens one after another, with another number
/// of threads.
fn check_bits(policy: Policy, codec: Codec, head_dim: usize, group: usize) {
    let (heads, q_heads) = (2, 2 * group);
    let geometry = KvGeometry {
        n_layers: 1,
        n_q_heads: q_heads,
        n_kv_heads: heads,
        head_dim,
        heads: None,
        n_seqs: 1,
        page_slots: 16,
        same_slots: false,
        max_pages: 64,
        codec,
        policy,
        far: None,
        delta: None,
        vocab: 0,
        staged_rows: 0,
        local: Default::default(),
    };
    let (prefill, decode) = (Cpu::new(2), Cpu::new(3));
    let (mut chunks, mut steps) = (tables(&prefill, geometry), tables(&decode, geometry));
    let (width, out_width) = ((q_heads + 2 * heads) * head_dim, q_heads * head_dim);
    for (step, (n, eviction)) in [(90, true), (3, true), (530, true), (40, false), (150, true)].into_iter().enumerate()
    {
        let data = random(n * width, step as u64 + 10).into_iter().map(|v| 2.5 * v).collect();
        let mut qkv = Acts { data, width };
        let decisions: Vec<f32> = random(n * heads, step as u64 + 100).iter().map(|v| v + 0.4).collect();
        let span = Span { seq: 0, start: 0, len: n };
        round_trip(&prefill, &mut qkv, &chunks, 0, &[span]);
        for kv in [&mut chunks, &mut steps] {
            kv.eviction.fill(eviction as i32);
            prefill.reserve(kv, 2 * n * heads).unwrap();
        }
        let put = |cpu: &Cpu, kv: &mut KvTables<Cpu>, qkv: &Acts, decisions: &[f32], span: Span| {
            append(kv, qkv, decisions, 0, &[span]);
            cpu.advance(kv, None, &[span]);
        };
        let mut out = Acts { data: vec![0.0; n * out_width], width: out_width };
        attend(&prefill, &mut out, &qkv, &decisions, &mut chunks, 0, &[span], &QkvRopeArgs::plain(&Vec::new()));
        put(&prefill, &mut chunks, &qkv, &decisions, span);
        for i in 0..n {
            let one = Acts { data: qkv.row(i).to_vec(), width };
            let (decisions, span) = (&decisions[i * heads..(i + 1) * heads], Span { seq: 0, start: 0, len: 1 });
            let mut alone = Acts { data: vec![0.0; out_width], width: out_width };
            attend(&decode, &mut alone, &one, decisions, &mut steps, 0, &[span], &QkvRopeArgs::plain(&Vec::new()));
            put(&decode, &mut steps, &one, decisions, span);
            let same = alone.data.iter().zip(out.row(i)).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{policy:?} {codec:?} {head_dim}, step {step}, row {i}");
        }
    }
    assert_eq!(chunks.live, steps.live);
}

#[test]
fn rows_have_the_same_bits_in_prefill_and_decode() {
    let dms = |window, shift| Policy::Dms(Dms { window, shift, sinks: 0, dial: 0.0 });
    for policy in [Policy::Dense, dms(16, Shift::Previous), dms(9, Shift::Same), Policy::Window(Window::new(24))] {
        for codec in codecs(policy) {
            check_bits(policy, codec, 64, 3);
        }
        check_bits(policy, Codec::F32, 72, 1);
        check_bits(policy, Codec::K8V4, 8, 2);
    }
}

/// The whole matrix of attention, in f64, from the definition.
#[test]
fn importance_is_the_largest_weighted_attention_of_the_chosen_queries() {
    let (n_q_heads, n_kv_heads, d, n, tokens) = (4, 2, 16, 75, 60);
    let geometry = KvGeometry {
        n_layers: 1,
        n_q_heads,
        n_kv_heads,
        head_dim: d,
        heads: None,
        n_seqs: 1,
        page_slots: 16,
        same_slots: false,
        max_pages: 8,
        codec: Codec::F32,
        policy: Policy::Dense,
        far: None,
        delta: None,
        vocab: 0,
        staged_rows: 0,
        local: Default::default(),
    };
    let width = (n_q_heads + 2 * n_kv_heads) * d;
    let data: Vec<f32> = random(n * width, 5).into_iter().map(|v| 3.0 * v).collect();
    let inv_freq: Vec<f32> = (0..d / 2).map(|i| 0.3f32.powi(i as i32)).collect();
    let factors: Vec<f32> = random(n - 20, 6).into_iter().map(|v| v.abs() + 0.1).collect();
    let turned = |row: usize, head: usize| -> Vec<f64> {
        let x = &data[row * width + head * d..][..d];
        let half = |i: usize| (row as f64 * f64::from(inv_freq[i % (d / 2)])).sin_cos();
        let at = |i: usize| f64::from(x[i]);
        (0..d)
            .map(|i| {
                let (sin, cos) = half(i);
                if i < d / 2 { at(i) * cos - at(i + d / 2) * sin } else { at(i) * cos + at(i - d / 2) * sin }
            })
            .collect()
    };
    let mut want = vec![0f64; n_q_heads * tokens];
    for head in 0..n_q_heads {
        for row in 20..n {
            let q = turned(row, head);
            let keys = (0..=row).map(|key| turned(key, n_q_heads + head / 2));
            let score = |k: Vec<f64>| (q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (d as f64).sqrt()).exp();
            let scores: Vec<f64> = keys.map(score).collect();
            let sum: f64 = scores.iter().sum();
            for (want, score) in want[head * tokens..][..tokens].iter_mut().zip(scores) {
                *want = want.max(score / sum * f64::from(factors[row - 20]));
            }
        }
    }
    for threads in [1, 3] {
        let cpu = Cpu::new(threads);
        let mut got = vec![7.0; n_q_heads * tokens];
        let queries = Queries { rows: 20..n, factors: &factors };
        let mut qkv = Acts::from_rows(data.clone(), width);
        cpu.importance(&mut got, &mut qkv, &geometry, &QkvRopeArgs::plain(&inv_freq), &queries);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 1e-5, "{i}: {got} {want}");
        }
    }
}
