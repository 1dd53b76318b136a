//! Memory traffic of steps and turns: a decode step allocates nothing, writes tokens that it has
//! not sampled, and reads one result back.

use crate::harness::Session;
use crate::spy::{Spy, Watch};
use crate::tiny::{Form, Spec, Tiny, bf16_word};
use dmschat::backend::cpu::Cpu;
use dmschat::codec::Codec;
use dmschat::engine::{Decode, EngineOptions, Runner};
use dmschat::protocol::{Command, Event, Phase, SamplingParams};
use std::collections::BTreeMap;

#[test]
fn a_decode_step_allocates_nothing_and_reads_back_one_result() {
    for form in [Form::Plain, Form::Borrowed, Form::Adapter, Form::Metadata] {
        let (watch, tiny) = (Watch::default(), Tiny::new(Spec::new(true, form), 3));
        let options = EngineOptions { max_step: Some(32), ..EngineOptions::new(Codec::F32) };
        let mut runner = Runner::new(Spy::new(&watch), &tiny.checkpoint(), &options, |_, _| true).unwrap();
        let seq = runner.create(true).unwrap();
        let prompt: Vec<u32> = (0..30).collect();
        runner.feed(seq, &prompt).unwrap();
        let params = SamplingParams::default();
        let kept = runner.fork(seq).unwrap();
        watch.seen().calls.clear();
        const STEPS: usize = 100;
        let mut token = 5;
        for _ in 0..STEPS {
            token = runner.decode(&[Decode { seq, token, sampling: &params, seed: 1 }]).unwrap()[0];
        }
        // One write of the first token, and one of the sampling parameters: sampled tokens are on
        // the device.
        let wanted = |steps, writes| BTreeMap::from([("read_step".to_owned(), steps), ("write".to_owned(), writes)]);
        assert_eq!(watch.seen().calls, wanted(STEPS, 2), "{form:?}");
        // Another token than the sampled one is written.
        runner.decode(&[Decode { seq, token: (token + 1) % 256, sampling: &params, seed: 1 }]).unwrap();
        assert_eq!(watch.seen().calls, wanted(STEPS + 1, 3), "{form:?}");
        runner.release(kept);
    }
}

#[test]
fn a_turn_reads_the_tables_once_for_report_and_snapshot() {
    let tiny = Tiny::new(Spec { tied: false, speaks: true, ..Spec::new(true, Form::Borrowed) }, 3);
    let mut s = Session::new(&tiny);
    let prompt = s.prompt("a question");
    let request = s.request(prompt);
    s.send(Command::Generate(Box::new(request)));
    s.wait(|e| matches!(e, Event::TurnDone(_)).then_some(()));
    // Live counts, slots read and peak of the conversation's sequence.
    assert_eq!(s.watch.seen().reads_since_step, 3);
    assert_eq!(s.handle.snapshot.borrow().as_ref().map(|s| s.phase.clone()), Some(Phase::Idle));
}

#[test]
fn a_broken_row_of_a_decode_step_fails_alone() {
    for word in [bf16_word(3e38), 0x7fc0] {
        let spec = Spec { tied: false, speaks: true, ..Spec::new(true, Form::Borrowed) };
        let hidden = spec.hidden;
        let tiny = Tiny::edited(spec, 3, |block| {
            if block.name == "model.embed_tokens.weight" {
                block.words[b'Z' as usize * hidden..][..hidden].fill(word);
            }
        });
        let options = EngineOptions { max_step: Some(32), ..EngineOptions::new(Codec::F32) };
        let mut runner = Runner::new(Cpu::new(1), &tiny.checkpoint(), &options, |_, _| true).unwrap();
        let sampling = SamplingParams::default();
        let seqs = [(); 3].map(|()| runner.create(true).unwrap());
        let row = |(seq, token)| Decode { seq, token, sampling: &sampling, seed: 1 };
        let batch: Vec<Decode> = seqs.into_iter().zip([b'a', b'Z', b'b'].map(u32::from)).map(row).collect();
        let sampled = runner.decode_each(&batch).unwrap();
        assert!(sampled[0].is_ok() && sampled[2].is_ok());
        assert_eq!(sampled[1].as_ref().map_err(|e| e.layer), Err(0));
    }
}
