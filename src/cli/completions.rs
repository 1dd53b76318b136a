//! `dmschat completions SHELL`.

use super::args;
use super::output;
use crate::codec::Codec;
use crate::config::{Gemm, Pin};
use crate::policy::PolicyKind;
use crate::protocol::{DraftSource, WhenFull};
use crate::quant::Weights;
use anyhow::Result;
use clap::builder::PossibleValuesParser;

/// The words that flags take. Their parsers take more than these, such as lists.
const VALUES: &[(&str, &[&str])] = &[
    ("device", &["auto", "cpu", "cuda", "cuda:0"]),
    ("weights", &Weights::WORDS),
    ("gemm", &Gemm::WORDS),
    ("eviction", &["on", "off"]),
    ("policy", &PolicyKind::WORDS),
    ("budget", &["256", "512", "1024", "2x", "4x", "8x"]),
    ("kv", &KV),
    ("when_full", &WhenFull::WORDS),
    ("pin", &Pin::WORDS),
    ("draft", &DraftSource::WORDS),
    ("width", &["auto", "2", "4", "8", "16"]),
    ("early_stop", &["on", "off"]),
    ("think", &["on", "off"]),
    ("theme", &["auto", "dark", "light", "cividis", "ascii"]),
];

/// `auto` and every codec.
const KV: [&str; 1 + Codec::WORDS.len()] = {
    let mut words = ["auto"; 1 + Codec::WORDS.len()];
    words.split_at_mut(1).1.copy_from_slice(&Codec::WORDS);
    words
};

pub fn run(shell: clap_complete::Shell) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "dmschat", &mut script);
    output::out(&String::from_utf8_lossy(&script))?;
    Ok(output::OK)
}

fn command() -> clap::Command {
    let with_values = |arg: clap::Arg| {
        let id = arg.get_id().as_str();
        match VALUES.iter().find(|(name, _)| *name == id) {
            Some((_, values)) => arg.value_parser(PossibleValuesParser::new(*values)),
            None => arg,
        }
    };
    args::shown().mut_args(with_values).mut_subcommands(|sub| sub.mut_args(with_values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Auto, Device};
    use crate::ui::theme::Themes;

    #[test]
    fn each_word_that_is_offered_is_taken() {
        let values = |id: &str| VALUES.iter().find(|(name, _)| *name == id).unwrap().1;
        fn all<T: std::str::FromStr>(words: &[&str]) -> bool {
            words.iter().all(|word| word.parse::<T>().is_ok())
        }
        assert!(all::<Device>(values("device")) && all::<Auto<Codec>>(values("kv")));
        assert_eq!(values("theme"), Themes::default().names());
        let (mut script, mut command) = (Vec::new(), command());
        clap_complete::generate(clap_complete::Shell::Bash, &mut command, "dmschat", &mut script);
        let script = String::from_utf8(script).unwrap();
        let doctor = script.split("dmschat__subcmd__doctor)").last().unwrap().split(";;").next().unwrap();
        assert!(script.contains("auto dense dms window") && !doctor.contains("--temperature"), "{doctor}");
    }
}
