//! Which pages a decode step reads, against a sort of recomputed bounds.

use super::super::super::super::{KvGeometry, KvTables, Ops, Pages, QkvRopeArgs, Span};
use super::super::super::kv::{append, round_trip};
use super::super::super::simd::maths::tests::random;
use super::super::super::{Acts, Cpu};
use super::super::{attend, count_reads, reference, tests::tables};
use crate::codec::{Codec, Place};
use crate::policy::{Budget, Dms, Policy, Quest, Shift};
use std::collections::BTreeSet;

const D: usize = 32;
const HEADS: usize = 2;
const GROUP: usize = 3;

/// `q.k` of a page's keys, and the bound on them by the stored bounds, which hold every key.
fn bound(kv: &KvTables<Cpu>, row: usize, page: usize, query: &[f32]) -> f64 {
    let g = &kv.geometry;
    let (layout, bytes) = (g.page(), kv.pool.page(kv.page_table[row * g.max_pages + page]));
    let [low, high] = layout.bounds(bytes).map(|b| b.iter().map(|&x| f32::from_bits(u32::from(x) << 16)).collect());
    let (low, high): (Vec<f32>, Vec<f32>) = (low, high);
    let (mut least, mut most) = (vec![f32::INFINITY; D], vec![f32::NEG_INFINITY; D]);
    let mut key = vec![0.0; D];
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let larger = |(q, (low, high)): (&f32, (&f32, &f32))| {
        (f64::from(*q) * f64::from(*low)).max(f64::from(*q) * f64::from(*high))
    };
    let bound: f64 = query.iter().zip(low.iter().zip(&high)).map(larger).sum();
    for slot in page * 16..(kv.live[row] as usize).min(page * 16 + 16) {
        let place = Place { layer: 0, position: layout.meta(bytes, slot % 16).position() };
        let (k, side) = (&bytes[layout.k(slot % 16)], layout.sides(bytes, slot % 16)[0]);
        g.codec.read_k(kv.coder.as_deref(), place, k, side, &mut key);
        assert!(product(query, &key) <= bound + 1e-6, "a key is above its page's bound");
        for (c, x) in key.iter().enumerate() {
            (least[c], most[c]) = (least[c].min(*x), most[c].max(*x));
        }
    }
    for c in 0..D {
        assert!(low[c] <= least[c] && most[c] <= high[c], "a key is outside its page's bounds");
        // Not looser than the rounding makes them, also once slots were overwritten.
        assert!(least[c] - low[c] <= least[c].abs() / 64.0 && high[c] - most[c] <= most[c].abs() / 64.0);
    }
    bound
}

fn step(cpu: &Cpu, kv: &mut KvTables<Cpu>, n: usize, seed: u64) {
    let g = kv.geometry;
    let (span, width) = (Span { seq: 0, start: 0, len: n }, (HEADS * GROUP + 2 * HEADS) * D);
    let mut qkv = Acts { data: random(n * width, seed).into_iter().map(|v| 2.5 * v).collect(), width };
    let decisions: Vec<f32> = random(n * HEADS, seed + 100).iter().map(|v| v + 0.4).collect();
    round_trip(cpu, &mut qkv, kv, 0, &[span]);
    let acts = || Acts { data: vec![0.0; n * HEADS * GROUP * D], width: HEADS * GROUP * D };
    let (mut got, mut want, before) = (acts(), acts(), kv.reads[0]);
    attend(cpu, &mut got, &qkv, &decisions, kv, 0, &[span], &QkvRopeArgs::plain(&Vec::new()));
    count_reads(cpu, kv, &[span]);
    let mut reads = 0;
    for head in 0..HEADS {
        let live = kv.live[head] as usize;
        let chosen: Vec<BTreeSet<usize>> = (0..GROUP)
            .map(|q| {
                if n > 1 || live / 16 < 3 {
                    return (0..=live / 16).collect();
                }
                let query = &qkv.row(0)[(head * GROUP + q) * D..][..D];
                let mut pages: Vec<(f64, usize)> = (0..live / 16).map(|p| (bound(kv, head, p, query), p)).collect();
                pages.sort_by(|a, b| b.0.total_cmp(&a.0));
                pages.truncate(2);
                pages.into_iter().map(|(_, page)| page).chain([live / 16]).collect()
            })
            .collect();
        let reads_slot = |q_head: usize, slot: usize| chosen[q_head - head * GROUP].contains(&(slot / 16));
        reference::attend_lane(&mut want, &qkv, &decisions, kv, 0, &span, head, &reads_slot);
        if n == 1 {
            let union: BTreeSet<usize> = chosen.iter().flatten().copied().collect();
            let rule = g.policy.rule().filter(|_| kv.eviction[0] != 0);
            let metas = cpu.slot_metas(kv, 0, 0, head);
            let base = kv.seq_len[0] as usize;
            let sees = |meta| {
                rule.is_none_or(|rule| {
                    let marked = rule.stored_mark(base, meta, Some(decisions[head]));
                    rule.visible(base, meta.position(), marked)
                })
            };
            let read = metas.iter().enumerate().filter(|(slot, meta)| union.contains(&(slot / 16)) && sees(**meta));
            reads += read.count() as u64 + 1;
        }
    }
    for (i, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
        assert!((g - w).abs() < 2e-5, "{} tokens, channel {i}: {g} {w}", kv.seq_len[0]);
    }
    assert_eq!(kv.reads[0] - before, reads);
    cpu.reserve(kv, 2 * n * HEADS).unwrap();
    append(kv, &qkv, &decisions, 0, &[span]);
    cpu.advance(kv, None, &[span]);
}

#[test]
fn queries_read_the_pages_with_the_greatest_bounds() {
    let rule = Dms { window: 20, shift: Shift::Previous, sinks: 0, dial: 0.0 };
    for dms in [None, Some(rule)] {
        for codec in Codec::ALL {
            let cpu = Cpu::new(2);
            let geometry = KvGeometry {
                n_layers: 1,
                n_q_heads: HEADS * GROUP,
                n_kv_heads: HEADS,
                head_dim: D,
                heads: None,
                n_seqs: 1,
                page_slots: 16,
                same_slots: false,
                max_pages: 64,
                codec,
                policy: Policy::Quest(Quest { budget: Budget::Slots(48), dms }),
                far: None,
                delta: None,
                vocab: 0,
                staged_rows: 0,
                local: Default::default(),
            };
            let mut kv = tables(&cpu, geometry);
            for (i, n) in [37, 1, 1, 90, 1, 1, 1, 1, 1, 1, 6, 1, 1].into_iter().enumerate() {
                kv.eviction.fill(i32::from(i != 7));
                step(&cpu, &mut kv, n, 40 + i as u64);
            }
        }
    }
}
