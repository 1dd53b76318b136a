//! Options of sampling a token from a row of logits. This table declares every option once. From it
//! come flags, variables and keys of the settings, `/set`, the recommendations of models, reports,
//! and the struct that a kernel reads.

use super::Token;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Description of an option for front ends.
#[derive(Clone, Debug)]
pub struct SamplingOption {
    pub name: &'static str,
    pub range: RangeInclusive<f64>,
}

macro_rules! sampling {
    (@sampling $(
        $(#[$help:meta])* $name:ident: $type:ident = $off:literal, $least:literal to $most:literal, $_takes:literal;
    )* @kernel $($kernel:ident: $kernel_type:ident),*) => {
        /// Parameters of sampling the next token from a row of logits. The default is greedy, with
        /// everything off.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(from = "SamplingOverrides")]
        pub struct SamplingParams {
            $(pub $name: $type,)*
        }

        impl Default for SamplingParams {
            fn default() -> Self {
                Self { $($name: $off,)* }
            }
        }

        /// Sampling parameters that the user set, or a model recommends; the others are another's.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct SamplingOverrides {
            $(pub $name: Option<$type>,)*
        }

        /// An option that a file omits, or states as null, is off.
        impl From<SamplingOverrides> for SamplingParams {
            fn from(given: SamplingOverrides) -> Self {
                given.over(&Self::default())
            }
        }

        impl SamplingOverrides {
            pub fn options() -> impl Iterator<Item = SamplingOption> {
                [$(SamplingOption { name: stringify!($name), range: $least..=$most }),*].into_iter()
            }

            /// The parameters of `below`, but for those set here.
            pub fn over(&self, below: &SamplingParams) -> SamplingParams {
                SamplingParams { $($name: self.$name.unwrap_or(below.$name),)* }
            }

            /// Returns a copy with another value of the option of that name, or with none. `None`
            /// if there is no such option or the value is out of range.
            pub fn with(mut self, name: &str, value: Option<f64>) -> Option<Self> {
                match name {
                    $(stringify!($name) => self.$name = value.map(|v| v as $type),)*
                    _ => return None,
                }
                let in_range = |v| Self::options().any(|option| option.name == name && option.range.contains(&v));
                value.is_none_or(in_range).then_some(self)
            }

            /// Fails if a value is out of range, with the option's name and the reason.
            pub fn check(&self) -> Result<(), (&'static str, String)> {
                $(if let Some(v) = self.$name && !($least as $type..=$most as $type).contains(&v) {
                    let (least, most) = ($least as $type, $most as $type);
                    return Err((stringify!($name), format!("{v} is out of range, expected {least} to {most}")));
                })*
                Ok(())
            }
        }

        impl SamplingParams {
            /// Every option's name and value.
            pub fn values(&self) -> impl Iterator<Item = (&'static str, f32)> {
                [$((stringify!($name), self.$name as f32)),*].into_iter()
            }
        }

        /// Sampling parameters and random state of one sequence in a step, in the layout of
        /// `sample.cuh`. They are in device memory, so that a replayed graph uses the current
        /// values.
        #[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub struct SamplingState {
            /// Low and high word. Without an eight-byte field, the struct has no gap for any number
            /// of options.
            pub seed: [u32; 2],
            /// Row of the cache's sequence tables.
            pub seq: u32,
            /// Rows of the step up to this one that the sequence is fed later: 0 if it has been fed
            /// them.
            pub ahead: u32,
            /// 1 if only tokens of the row's mask may be sampled, else 0.
            pub masked: u32,
            /// Adjustments of the row's logits, at most [`Self::MOST_ADJUSTED`].
            pub adjusted: u32,
            $(pub $kernel: $kernel_type,)*
        }

        impl SamplingState {
            pub fn new(seq: usize, seed: u64, p: &SamplingParams) -> Self {
                let (seed, seq) = ([seed as u32, (seed >> 32) as u32], seq as u32);
                Self { seed, seq, ahead: 0, masked: 0, adjusted: 0, $($kernel: p.$kernel,)* }
            }

            /// The random number is a function of the seed and the token's position.
            pub fn seed(&self) -> u64 {
                u64::from(self.seed[1]) << 32 | u64::from(self.seed[0])
            }

            /// The parameters that a kernel reads; the others are off.
            pub fn params(&self) -> SamplingParams {
                SamplingParams { $($kernel: self.$kernel,)* ..SamplingParams::default() }
            }
        }
    };
}

/// Calls a macro with the table of options, after the given tokens. A row has the type, the value
/// that turns it off, the range, and the values that `/set` accepts. Behind the table are the
/// options of the kernel's struct, in its order. What the others subtract is an [`Adjustment`].
macro_rules! sampling_table {
    ($then:ident { $($before:tt)* }) => {
        $then! { $($before)* @sampling
            /// Sample from this many of the most probable tokens; 0 is off
            #[arg(long, value_name = "K", hide_short_help = true, help_heading = "Answer")]
            top_k: u32 = 0, 0.0 to 4294967295.0, "a number of tokens, or default; 0 is off";

            /// Of sampling; 0 is greedy [default: the model's]
            #[arg(long, value_name = "T", help_heading = "Answer")]
            temperature: f32 = 0.0, 0.0 to 100.0, "0 to 100, or default; 0 is greedy (argmax)";

            /// Sample from the most probable tokens that together have this probability; 1 is off
            #[arg(long, value_name = "P", hide_short_help = true, help_heading = "Answer")]
            top_p: f32 = 1.0, 0.0 to 1.0, "0 to 1, or default; 1 is off";

            /// Drop tokens less probable than this fraction of the most probable one; 0 is off
            #[arg(long, value_name = "P", hide_short_help = true, help_heading = "Answer")]
            min_p: f32 = 0.0, 0.0 to 1.0, "0 to 1, or default; 0 is off";

            /// Make tokens that have occurred less probable; 1 is off
            #[arg(long, value_name = "X", hide_short_help = true, help_heading = "Answer")]
            repetition_penalty: f32 = 1.0, 0.01 to 100.0, "0.01 to 100, or default; 1 is off";

            /// Drop tokens whose logit is more than N standard deviations below the largest; 0 is
            /// off
            #[arg(long, value_name = "N", hide_short_help = true, help_heading = "Answer")]
            top_n_sigma: f32 = 0.0, 0.0 to 100.0, "0 to 100, or default; 0 is off";

            /// Lower the logits of tokens that the answer has; 0 is off
            #[arg(long, value_name = "X", hide_short_help = true, help_heading = "Answer")]
            presence_penalty: f32 = 0.0, -2.0 to 2.0, "-2 to 2, or default; 0 is off";

            /// Lower the logits of tokens by how often the answer has them; 0 is off
            #[arg(long, value_name = "X", hide_short_help = true, help_heading = "Answer")]
            frequency_penalty: f32 = 0.0, -2.0 to 2.0, "-2 to 2, or default; 0 is off";

            @kernel top_k: u32, temperature: f32, top_p: f32, min_p: f32, repetition_penalty: f32, top_n_sigma: f32
        }
    };
}
pub(crate) use sampling_table;

sampling_table!(sampling {});

/// What is added to the logit of a token: an [`adjustment`](SamplingState::adjusted).
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Adjustment {
    pub token: Token,
    pub add: f32,
}

impl SamplingState {
    /// Most adjustments of a row: an answer has fewer tokens that differ.
    pub const MOST_ADJUSTED: usize = 8192;

    /// Whether the token is the one of the largest logit.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }
}
