//! Models with local attention in some layers (Gemma 3): these layers see and store the newest
//! tokens, regardless of the other layers' policy, the switch, pins and the valve.

use crate::families::predictor;
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::codec::Codec;
use dmschat::engine::{Decode, Drafts, EngineOptions, Runner, Verify};
use dmschat::policy::{PolicyKind, PolicyRequest};
use dmschat::protocol::{SamplingParams, Token};
use std::path::Path;

const TOKENS: usize = 80;
const WINDOW: usize = 24;
const LAYERS: usize = 7;
const GLOBAL: usize = 5;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gemma3")
}

fn runner(adapter: &AdapterChoice, policy: PolicyRequest) -> Runner<Cpu> {
    let mut checkpoint = Checkpoint::open(&ModelRef::Folder(folder()), adapter).unwrap();
    if let Some(dms) = &mut checkpoint.config.dms {
        dms.rule.window = 9;
    }
    let options = EngineOptions {
        context: Some(128),
        policy,
        max_seqs: 8,
        drafts: Drafts { rows: 16, ..Drafts::default() },
        ..EngineOptions::new(Codec::Bf16)
    };
    Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| true).unwrap()
}

fn tokens() -> Vec<Token> {
    (0..TOKENS).map(|i| (i * 7919 % 128) as Token).collect()
}

/// Positions stored in a layer's lanes, in order.
fn stored(runner: &Runner<Cpu>, seq: SeqId, layer: usize) -> Vec<Vec<usize>> {
    let lane = |head| {
        let metas = runner.cache.slot_metas(runner.backend(), seq, layer, head);
        let mut positions: Vec<usize> = metas.iter().map(|meta| meta.position()).collect();
        positions.sort_unstable();
        positions
    };
    (0..2).map(lane).collect()
}

pub fn images(runner: &mut Runner<Cpu>, seq: SeqId) -> Vec<Vec<u8>> {
    let layers = runner.head(seq).1.len();
    let mut image = |layer| {
        let mut bytes = Vec::new();
        runner.export_layer(seq, layer, &mut bytes);
        bytes
    };
    (0..layers).map(&mut image).collect()
}

fn check_local(runner: &Runner<Cpu>, seq: SeqId) {
    let n = runner.cache.len(seq);
    let newest: Vec<usize> = (n.saturating_sub(WINDOW)..n).collect();
    for layer in (0..LAYERS).filter(|&layer| layer != GLOBAL) {
        assert_eq!(stored(runner, seq, layer), [newest.clone(), newest.clone()], "layer {layer} of {n} tokens");
    }
}

/// Six tokens for two sequences of the same tokens: one by one, and in one step with drafts, of
/// which some are right. Returns the token before them, and them.
pub fn step_and_draft(runner: &mut Runner<Cpu>, plain: SeqId, drafted: SeqId) -> Vec<Token> {
    let sampling = SamplingParams::default();
    let row = |seq, token| Decode { seq, token, sampling: &sampling, seed: 1 };
    let mut next = vec![5];
    for i in 0..6 {
        next.extend(runner.decode(&[row(plain, next[i])]).unwrap());
    }
    let mut drafts = next[1..6].to_vec();
    drafts.extend([9, 9, 9]);
    let rows = runner.verify(&[Verify { decode: row(drafted, 5), drafts: &drafts }]).unwrap().remove(0);
    let sampled: Vec<Token> = rows[..6].iter().map(|row| *row.as_ref().unwrap()).collect();
    assert_eq!(sampled, next[1..]);
    (0..6).for_each(|_| runner.accept(drafted));
    runner.commit();
    next
}

/// Any chunks, steps with drafts, and images give the results of single steps, under every source
/// of decisions.
#[test]
fn local_layers_store_their_window_and_the_others_follow_the_policy() {
    let adapter = tempfile::tempdir().unwrap();
    predictor(adapter.path(), &crate::gguf::golden("gemma3").config);
    let predicted = AdapterChoice::File(adapter.path().to_owned());
    let window = PolicyKind::Window.with("20".parse().unwrap());
    for (adapter, policy) in [
        (&AdapterChoice::None, PolicyRequest::default()),
        (&AdapterChoice::None, window),
        (&predicted, PolicyRequest::default()),
    ] {
        let mut runner = runner(adapter, policy);
        let all = tokens();
        let mut wanted: Option<(Vec<Vec<u8>>, Vec<usize>)> = None;
        for chunks in [vec![1; TOKENS], vec![TOKENS], vec![30, 1, 1, 25, TOKENS - 57]] {
            let seq = runner.create(true).unwrap();
            let mut at = 0;
            for chunk in chunks {
                runner.feed(seq, &all[at..at + chunk]).unwrap();
                at += chunk;
                check_local(&runner, seq);
            }
            let global: Vec<usize> = stored(&runner, seq, GLOBAL).iter().map(Vec::len).collect();
            let got = (images(&mut runner, seq), global);
            match policy.kind {
                PolicyKind::Window => assert_eq!(got.1, [20; 2]),
                _ if runner.config().dms.is_some() => {
                    assert!(got.1.iter().any(|&n| n < TOKENS - 9) && got.1.iter().all(|&n| n > 10), "{:?}", got.1);
                }
                _ => assert_eq!(got.1, [TOKENS; 2]),
            }
            assert!(wanted.as_ref().is_none_or(|wanted| *wanted == got), "{policy:?}");
            wanted = Some(got);
            runner.release(seq);
        }
        // Drafts, of which some are right.
        let [plain, drafted] = [(); 2].map(|()| runner.create(true).unwrap());
        runner.feed(plain, &all).unwrap();
        runner.feed(drafted, &all).unwrap();
        step_and_draft(&mut runner, plain, drafted);
        check_local(&runner, drafted);
        assert_eq!(images(&mut runner, plain), images(&mut runner, drafted), "{policy:?}");
        runner.cache.audit(runner.backend()).unwrap();
    }
}

#[test]
fn nothing_but_the_window_decides_in_local_layers() {
    let adapter = tempfile::tempdir().unwrap();
    predictor(adapter.path(), &crate::gguf::golden("gemma3").config);
    let mut runner = runner(&AdapterChoice::File(adapter.path().to_owned()), PolicyRequest::default());
    let seq = runner.create(false).unwrap();
    runner.pin(seq, 3..30).unwrap();
    runner.feed(seq, &tokens()[..60]).unwrap();
    check_local(&runner, seq);
    assert_eq!(stored(&runner, seq, GLOBAL)[0].len(), 60, "the switch is off there");
    assert!(runner.set_eviction(seq, true).unwrap() > 0);
    runner.pin(seq, 52..58).unwrap();
    runner.feed(seq, &tokens()[60..]).unwrap();
    runner.forget(seq, 1).unwrap();
    check_local(&runner, seq);
    let kept = stored(&runner, seq, GLOBAL);
    assert!(kept.iter().all(|lane| (3..30).chain(52..58).all(|pinned| lane.contains(&pinned))), "{kept:?}");
    assert!(kept.iter().any(|lane| lane.len() < TOKENS), "{kept:?}");
    let fork = runner.fork(seq).unwrap();
    runner.feed(fork, &[1, 2, 3]).unwrap();
    check_local(&runner, fork);
    check_local(&runner, seq);
    runner.drop_positions(seq, 70..75).unwrap();
    check_local(&runner, seq);
    runner.cache.audit(runner.backend()).unwrap();
}
