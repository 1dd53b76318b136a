//! The one declaration of every setting: its flag, key, environment variable, default and help.

use super::environment::{env_name, env_value};
use super::values::{
    Adapter, Auto, ByteSize, Device, FarSize, Gemm, Importance, KeymapName, List, OnOff, Pin, Setting, Width,
};
use super::{BUILTIN_MODEL, Dirs};
use crate::codec::Codec;
use crate::policy::{Budget, Far, PolicyKind};
use crate::protocol::{DraftSource, MAX_CONTEXT, SamplingOverrides, WhenFull, sampling_table};
use crate::quant::Weights;
use anyhow::{Result, anyhow, bail};
use clap::ValueHint;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::PathBuf;

/// What the settings are read from, beside the environment.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    pub flags: Layer,
    /// The file of `--config`, which must exist; the default file need not.
    pub config: Option<PathBuf>,
    pub profile: Option<String>,
}

/// Type of a setting that is resolved: optional where there is no default.
macro_rules! resolved {
    ($type:ty, = $default:expr) => { <$type as Setting>::Is };
    ($type:ty, or $words:literal) => { Option<<$type as Setting>::Is> };
}

/// Value of a setting over its default.
macro_rules! value {
    ($value:expr, = $default:expr) => {
        $value.unwrap_or_else(|| $default).resolve()
    };
    ($value:expr, or $words:literal) => {
        $value.map(Setting::resolve)
    };
}

/// A default as `config show` prints it: as a file has it, or in words where it is no fixed value.
macro_rules! shown {
    ($type:ty, = $default:expr) => {{
        let default: $type = $default;
        serde_json::to_string(&default).unwrap_or_default()
    }};
    ($type:ty, or $words:literal) => {
        $words.to_owned()
    };
}

macro_rules! settings {
    ($($group:ident { $(
        $(#[$meta:meta])* $key:ident: $type:ty $(= $default:expr)? $(, or $words:literal)?;
    )* })*
    @sampling $(
        $(#[$help:meta])* $option:ident: $number:ident = $off:literal, $least:literal to $most:literal, $takes:literal;
    )* @kernel $($kernel:tt)*) => {
        /// One source of settings: the flags, the environment or a file. Every value is optional.
        /// The environment variable of a key is `DMSCHAT_` and the key in upper case.
        #[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Layer {
            $($($(#[$meta])* pub $key: Option<$type>,)*)*
            $($(#[$help])* pub $option: Option<$number>,)*
        }

        /// The settings of one run.
        #[derive(Clone, Debug)]
        pub struct Settings {
            pub dirs: Dirs,
            $($(pub $key: resolved!($type, $(= $default)? $(or $words)?),)*)*
            pub sampling: SamplingOverrides,
            /// Origin of the theme, for error messages: `--theme`, `DMSCHAT_THEME` or
            /// `FILE:LINE: theme`.
            pub theme_set_by: String,
            /// All sources as one layer, and what they were read from.
            pub layer: Layer,
            pub origin: Origin,
        }

        impl Layer {
            /// Names of all keys.
            pub const KEYS: &[&str] = &[$($(stringify!($key),)*)* $(stringify!($option)),*];

            /// Names of the keys of a group.
            pub fn group(name: &str) -> &'static [&'static str] {
                match name {
                    $(stringify!($group) => &[$(stringify!($key)),*],)*
                    _ => &[$(stringify!($option)),*],
                }
            }

            /// Returns this layer's values, or `below`'s if it has none.
            #[must_use]
            pub fn over(self, below: Layer) -> Layer {
                Layer { $($($key: self.$key.or(below.$key),)*)* $($option: self.$option.or(below.$option)),* }
            }

            /// Every key with its value as it is written in a file, if it has one, and its default.
            pub fn entries(&self) -> Vec<(&'static str, Option<String>, String)> {
                fn written(value: impl serde::Serialize) -> String {
                    serde_json::to_string(&value).unwrap_or_default()
                }
                vec![
                    $($((stringify!($key), self.$key.as_ref().map(written), shown!($type, $(= $default)? $(or $words)?)),)*)*
                    $((stringify!($option), self.$option.map(written), "the model's".to_owned())),*
                ]
            }

            /// Reads `DMSCHAT_MODEL`, `DMSCHAT_TEMPERATURE` and so on. Empty variables count as
            /// unset.
            pub fn from_env(var: impl Fn(&str) -> Option<OsString>) -> Result<Layer> {
                let layer = Layer {
                    $($($key: env_value(&var, stringify!($key))?,)*)*
                    $($option: env_value(&var, stringify!($option))?),*
                };
                layer.check().map_err(|(key, what)| anyhow!("{}: {what}", env_name(key)))?;
                if let Some(key) = layer.several().next() {
                    bail!("{}: several values are for flags only", env_name(key));
                }
                Ok(layer)
            }

            /// Sets the options of sampling.
            #[must_use]
            pub fn with_sampling(self, sampling: &SamplingOverrides) -> Layer {
                Layer { $($option: sampling.$option,)* ..self }
            }

            /// The value of a key as it is written in a file.
            pub fn value(&self, key: &str) -> Option<String> {
                self.entries().into_iter().find(|(name, ..)| *name == key).and_then(|(_, value, _)| value)
            }

            /// Whether it has a value for a key.
            pub fn sets(&self, key: &str) -> bool {
                self.value(key).is_some()
            }

            /// The keys that have a value.
            pub fn keys(&self) -> impl Iterator<Item = &'static str> {
                self.entries().into_iter().filter_map(|(key, value, _)| value.map(|_| key))
            }

            /// The keys that have several values.
            pub fn several(&self) -> impl Iterator<Item = &'static str> {
                let counts = [$($((stringify!($key), self.$key.as_ref().map_or(0, Setting::count)),)*)*];
                counts.into_iter().filter_map(|(key, count)| (count > 1).then_some(key))
            }

            fn sampling(&self) -> SamplingOverrides {
                SamplingOverrides { $($option: self.$option),* }
            }
        }

        impl Settings {
            /// Merges the settings of one layer over the defaults. Fails for a budget that the
            /// policy cannot have.
            pub fn from_layer(dirs: Dirs, layer: Layer) -> Result<Self> {
                let (sampling, all) = (layer.sampling(), layer.clone());
                let settings = Self {
                    dirs,
                    layer: all,
                    origin: Origin::default(),
                    $($($key: value!(layer.$key, $(= $default)? $(or $words)?),)*)*
                    sampling,
                    theme_set_by: String::new(),
                };
                match settings.budget.and_then(|budget| settings.policy.budget_refusal(budget)) {
                    Some(why) => Err(anyhow!(why)),
                    None => Ok(settings),
                }
            }
        }
    };
}

// `=`: the default; `or`: there is none, and how that is described. `arg(skip)`: there is no flag.
sampling_table!(settings {
    model {
        /// `demo` (built in), a folder, a GGUF file or ORG/NAME
        ///
        /// ORG/NAME[@REVISION] is a hub id: the model is downloaded if it is not in the cache.
        #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath, help_heading = "Model")]
        model: String = BUILTIN_MODEL.to_owned();

        /// Chat with a model of this server, such as http://gpu-box:8080/v1
        ///
        /// Another dmschat serve, llama-server, vLLM, SGLang or any other with OpenAI's API. -m
        /// names its model; without it, the first one answers. Saved here as every conversation.
        /// DMSCHAT_SERVER_KEY: a key that it wants.
        #[arg(long, value_name = "URL", value_hint = ValueHint::Url, hide_short_help = true, help_heading = "Model")]
        server: String, or "none";

        /// What makes a dense model evict: a predictor or adapter, or `none`
        ///
        /// An adapter file, a KVzap predictor (folder or hub id), such as
        /// nvidia/KVzap-mlp-Qwen3-8B, or retention gates of TrimKV, such as
        /// ngocbh/TrimKV-Qwen3-4B-Math.
        #[arg(long, value_name = "FILE|FOLDER|ORG/NAME|none", value_hint = ValueHint::AnyPath, hide_short_help = true)]
        #[arg(help_heading = "Model")]
        adapter: Adapter = Adapter::Auto;

        /// Score below which a predictor marks a token [default: the predictor's]
        ///
        /// Higher values evict more.
        #[arg(long, value_name = "X", hide_short_help = true, help_heading = "Model")]
        threshold: f64, or "the predictor's";

        /// Newest tokens that are never evicted [default: the model's]
        #[arg(long, value_name = "TOKENS", hide_short_help = true, help_heading = "Model")]
        window: usize, or "the model's";

        /// First tokens that are never evicted [default: the model's]
        #[arg(long, value_name = "TOKENS", hide_short_help = true, help_heading = "Model")]
        sinks: usize, or "the model's";

        /// auto, cpu or cuda[:N]
        #[arg(long, value_name = "DEVICE", help_heading = "Model")]
        device: Device = Device::Auto;

        /// Format: auto, bf16, int8, int4, int4-fast or own
        ///
        /// bf16 is as in the model's files. int8 and int4 need about a half and a quarter of the
        /// memory. auto is the first of them that is expected to fit with the context. own keeps
        /// the codes of a GGUF file and of experts in MXFP4, and auto does so where they fit.
        /// Quantized weights are kept in the cache folder for the next start.
        #[arg(long, value_name = "FORMAT", help_heading = "Model")]
        weights: List<Weights> = List::of(Weights::Auto);

        /// Quantize the weights in memory at every start, without a file in the cache folder
        #[arg(long = "no-weight-cache", num_args = 0, default_missing_value = "off", hide_short_help = true)]
        #[arg(help_heading = "Model")]
        weight_cache: OnOff = OnOff(true);

        /// By what 4-bit codes are chosen: how much each input of a matrix matters, measured or
        /// from a file of llama.cpp's imatrix tool; gptq, which also corrects errors and takes
        /// minutes; or auto
        ///
        /// auto takes the file of the model's GGUF repository if it is in the cache, else measures,
        /// and uses GPTQ for models of up to about 0.6 billion weights. GPTQ chooses the codes of
        /// a matrix only where that lowers the error on text that was held out.
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true, help_heading = "Model")]
        importance: Importance = Importance::Auto;

        /// On a GPU: launch every kernel instead of replaying captured CUDA graphs; the tokens are
        /// the same
        #[arg(long = "no-graph", num_args = 0, default_missing_value = "off", hide_short_help = true)]
        #[arg(help_heading = "Model")]
        graph: OnOff = OnOff(true);

        /// On a GPU: GEMM kernels of prefill: auto, own or cublaslt
        #[arg(long, value_name = "METHOD", hide_short_help = true, help_heading = "Model")]
        gemm: Gemm = Gemm::Auto;
    }
    cache {
        /// Whether marked tokens leave the cache: on or off
        ///
        /// Off keeps every token, as a dense model does. A chat can switch it at any time.
        #[arg(long, value_name = "on|off", help_heading = "Cache")]
        eviction: List<OnOff>, or "\"on\"";

        /// Rule: auto, dense, dms, window, tova, h2o or pool
        ///
        /// auto is dms or dmc for models trained with it, trimkv with retention gates (--adapter),
        /// else dense. The others work with any model, within --budget. window keeps the newest
        /// tokens and the first four; tova drops what the newest token attends to least; h2o keeps
        /// the newest half of the budget and the tokens with the most attention so far. tova, h2o
        /// and trimkv read prompts token by token. pool merges every 4 tokens (--budget 4x) into
        /// their mean; dmc merges what a model trained for it decides.
        #[arg(long, value_name = "POLICY", help_heading = "Cache")]
        policy: List<PolicyKind> = List::of(PolicyKind::Auto);

        /// Slots per head of a policy, or 4x [default: 512]
        ///
        /// 4x keeps one token in four, and at least 64. window takes slots only. pool takes a whole
        /// ratio only, 4x if none is given. trimkv takes those of its gates if none is given.
        #[arg(long, value_name = "SLOTS|RATIOx", help_heading = "Cache")]
        budget: Budget, or "\"512\" (pool: \"4x\")";

        /// Format: auto, f32, bf16, fp8, int8, k8v4 or csr:N
        ///
        /// csr:4, csr:8 and csr:16 are for research, on the CPU.
        #[arg(long, value_name = "FORMAT", help_heading = "Cache")]
        kv: List<Auto<Codec>> = List::of(Auto::Auto);

        /// File with the dictionary of a --kv that needs one
        ///
        /// dmslab dictionary makes it. Default: the file that it writes for the model, in
        /// dictionaries/ of the data folder.
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true)]
        #[arg(help_heading = "Cache")]
        kv_dictionary: PathBuf, or "the model's own";

        /// Longest conversation [default: the model's]
        ///
        /// In tokens, evicted ones included.
        #[arg(long, value_name = "TOKENS", help_heading = "Cache")]
        ctx_size: usize, or "the model's, lowered to what fits";

        /// Memory limit of the cache's pages, such as 512MiB: see --when-full
        #[arg(long, value_name = "BYTES", hide_short_help = true, help_heading = "Cache")]
        kv_limit: ByteSize, or "none";
    }
    conversation {
        /// What to do when a turn runs out of memory: forget, window or stop
        ///
        /// forget drops what the heads need least, and the turn continues; stop ends the turn.
        /// Default: forget for models trained to evict, stop for others. window: like forget, but
        /// other models drop their oldest tokens, except the first four.
        #[arg(long, value_name = "forget|window|stop", hide_short_help = true, help_heading = "Cache")]
        when_full: WhenFull, or "\"forget\" for DMS models, else \"stop\"";

        /// What is never forgotten in a chat: system, for the system prompt, or none
        #[arg(long, value_name = "system|none", hide_short_help = true, help_heading = "Cache")]
        pin: Pin = Pin::None;

        /// Host memory for what leaves the cache, such as 2GiB, auto (default) or off
        ///
        /// With it, evicted tokens are not lost: they lie in pages, and the pages that match the
        /// question best are read again. With policies dms and window. When it is full, the oldest
        /// pages go for good. auto: in conversations with models that have gated delta nets, at
        /// most a quarter of the free memory; off for others.
        #[arg(long, value_name = "SIZE|auto|off", hide_short_help = true, help_heading = "Cache")]
        far: FarSize = FarSize::Auto;

        /// With --far: pages of 32 tokens that each head reads again, the best of its pages
        #[arg(long, value_name = "N", hide_short_help = true, help_heading = "Cache")]
        far_pages: usize = Far::DEFAULT_PAGES;

        /// Compression ratio, from 1 on [default: trained]
        ///
        /// For models trained to evict. 2 keeps about one token in two of a long conversation.
        /// /forget changes it in a chat.
        #[arg(long, alias = "cr", value_name = "RATIO", help_heading = "Cache")]
        keep_ratio: List<f64>, or "as the model was trained";

        /// Bytes of disk for the caches of saved conversations; 0 keeps none
        #[arg(skip)]
        cache_disk: ByteSize = ByteSize(4 << 30);

        /// Bytes of memory for checkpoints of earlier turns; 0 keeps none
        #[arg(skip)]
        checkpoints: ByteSize = ByteSize(256 << 20);

        /// Maximum tokens of an answer, with its reasoning
        #[arg(long, value_name = "TOKENS", help_heading = "Answer")]
        max_tokens: usize, or "the rest of the context";

        /// Close a thought at this length [default: the model's]
        ///
        /// The model answers then. 0 never closes one; the built-in model has 2048.
        #[arg(long, value_name = "TOKENS", help_heading = "Answer")]
        max_think: usize, or "the model's (demo: 2048)";

        /// Answer with N chains and take the most frequent answer
        ///
        /// auto is as many as fit. The chains share the prompt's memory and decode together, each
        /// with a seed of its own; the first is the ordinary answer. In a chat, /parallel changes
        /// it.
        #[arg(long, value_name = "N|auto", help_heading = "Answer")]
        width: List<Width> = List::of(Width::Chains(1));

        /// Guess several tokens per step: auto, lookup, mtp, off, or an EAGLE-3 head
        ///
        /// Speculative decoding: the same answer, faster. lookup guesses what followed the newest
        /// words earlier in the conversation, which helps with quotes, code edits and lists. A
        /// head, given by its folder (with a / in it) or hub id, guesses from the model's hidden
        /// states and has to be made for the model. mtp is the model's own layer for multi-token
        /// prediction. auto is mtp where the model has one, else a known head that was downloaded,
        /// else lookup. In a chat, /draft changes it.
        #[arg(long, value_name = "auto|lookup|mtp|off|FOLDER|ORG/NAME", hide_short_help = true, help_heading = "Answer")]
        draft: DraftSource = DraftSource::Auto;

        /// With --width: end once the chains that still run cannot change the vote: on (default) or
        /// off
        #[arg(long, value_name = "on|off", hide_short_help = true, help_heading = "Answer")]
        early_stop: OnOff = OnOff(true);
    }
    answer {
        /// Seed of sampling; always reported [default: random]
        #[arg(long, value_name = "N", help_heading = "Answer")]
        seed: u64, or "random";

        /// Whether the model thinks first: on or off
        ///
        /// For models whose template has a switch.
        #[arg(long, value_name = "on|off", help_heading = "Answer")]
        think: OnOff = OnOff(true);

        /// System prompt
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Answer")]
        system: String, or "none";

        /// Whether earlier thoughts stay in the context
        #[arg(skip)]
        keep_thinking: OnOff, or "as the model's template does";
    }
    screen {
        /// auto (like the terminal's background), dark, light, ...
        #[arg(long, value_name = "NAME")]
        theme: String, or "\"auto\"";

        /// The keys: default, or vim (modes in the input, j and k in pages)
        #[arg(skip)]
        keymap: KeymapName = KeymapName::Default;

        /// A keymap file, which changes them; relative to the config folder
        #[arg(skip)]
        keys: PathBuf, or "keymap.toml beside the config file, if there is one";

        /// Whether the mouse is captured
        #[arg(skip)]
        mouse: OnOff = OnOff(true);

        /// Whether the terminal's title names the conversation
        #[arg(skip)]
        title: OnOff = OnOff(true);

        /// Whether a bell rings at the end of a long answer
        #[arg(skip)]
        bell: OnOff = OnOff(false);

        /// The editor for long messages
        #[arg(skip)]
        editor: String, or "$VISUAL, then $EDITOR";

        /// Whether to draw with ASCII characters only
        #[arg(skip)]
        ascii: OnOff = OnOff(false);

        /// Draw with plain characters and no colours
        #[arg(long, num_args = 0, default_missing_value = "on", hide_short_help = true)]
        plain: OnOff = OnOff(false);
    }
});

impl Layer {
    /// Whether this layer names the cache's policy or its budget.
    pub fn names_policy(&self) -> bool {
        self.policy.is_some() || self.budget.is_some()
    }

    /// Fails if a value is out of range. The error is the key and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        self.sampling().check()?;
        for ratio in self.keep_ratio.iter().flat_map(|list| &list.0) {
            if !(1.0..=64.0).contains(ratio) {
                return Err(("keep_ratio", format!("{ratio} is out of range, expected 1 to 64")));
            }
        }
        if self.threshold.is_some_and(|x| !x.is_finite() || x.abs() > 1e6) {
            return Err(("threshold", "out of range, expected -1000000 to 1000000".to_owned()));
        }
        if self.model.as_deref() == Some("") {
            return Err(("model", "the name is empty, expected demo, a folder, a GGUF file or a hub id".to_owned()));
        }
        if let Some(n) = self.far_pages.filter(|n| !(1..=Far::MOST_PAGES).contains(n)) {
            return Err(("far_pages", format!("{n} is out of range, expected 1 to {}", Far::MOST_PAGES)));
        }
        for (key, value) in [("ctx_size", self.ctx_size), ("max_tokens", self.max_tokens)] {
            if value == Some(0) {
                return Err((key, "0 leaves no room, expected at least 1".to_owned()));
            }
        }
        for (key, value, least) in
            [("window", self.window, 0), ("sinks", self.sinks, 0), ("ctx_size", self.ctx_size, 1)]
        {
            if let Some(n) = value.filter(|n| *n > MAX_CONTEXT) {
                return Err((key, format!("{n} is out of range, expected {least} to {MAX_CONTEXT} tokens")));
            }
        }
        Ok(())
    }
}
