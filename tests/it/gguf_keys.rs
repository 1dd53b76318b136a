//! Keys of GGUF files that change the computation: each is read as llama.cpp reads it, or refused
//! by its name.

use crate::gguf::{open, refusal};
use crate::gguf_file::{GgufFile, Meta};
use dmschat::checkpoint::RopeScaling;
use dmschat::tokenizer::Tokenizer;

#[test]
fn a_key_that_is_not_computed_is_refused_by_its_name() {
    let set = |key: &str, value: Meta| refusal(|f| _ = f.set(key, value));
    let at = |key: &str, value: Meta, shown: &str| {
        assert_eq!(set(key, value), format!("x.gguf: {key} is {shown}, which is not supported"));
    };
    at("llama.residual_scale", Meta::F32(0.5), "0.5");
    at("llama.attention.scale", Meta::F32(0.5), "0.5");
    at("llama.attention.clamp_kqv", Meta::F32(8.0), "8");
    at("llama.attention.sliding_window", Meta::U32(100), "100");
    at("llama.attn_logit_softcapping", Meta::F32(50.0), "50");
    at("llama.rope.scaling.alpha", Meta::F32(1000.0), "1000");
    at("llama.rope.scaling.yarn_ext_factor", Meta::F32(0.5), "0.5");
    at("llama.hidden_activation", Meta::text("gelu"), "\"gelu\"");
    at("tokenizer.ggml.normalizer.lowercase", Meta::Bool(true), "true");
    at("llama.rope.scaling.yarn_log_multiplier", Meta::F32(0.5), "0.5");
    for key in ["llama.rope.of_tomorrow", "llama.attention.of_tomorrow"] {
        let said = set(key, Meta::F32(0.1));
        assert_eq!(said, format!("x.gguf: {key} is not known, and may change what the model computes"));
    }
    let said = set("tokenizer.ggml.of_tomorrow", Meta::Bool(true));
    assert_eq!(said, "x.gguf: tokenizer.ggml.of_tomorrow is not known, and may change how texts become tokens");
    assert!(set("llama.attention.causal", Meta::Bool(false)).starts_with("x.gguf: llama.attention.causal is false"));
    assert!(set("tokenizer.ggml.add_bos_token", Meta::U32(7)).ends_with("is 7, expected true or false"));
}

/// llama.cpp's keys of scaling, old ones, and ollama's names; values without effect are no reason
/// to refuse a file.
#[test]
fn scaling_is_read_from_every_key_that_states_it() {
    let of = |keys: &[(&str, Meta)]| {
        let mut file = GgufFile::tiny();
        keys.iter().for_each(|(key, value)| _ = file.set(&format!("llama.{key}"), value.clone()));
        open(&file).map(|c| c.config.rope.scaling).map_err(|e| format!("{e:#}"))
    };
    let (factor, kind) = (("rope.scaling.factor", Meta::F32(4.0)), |kind| ("rope.scaling.type", Meta::text(kind)));
    let linear = Ok(RopeScaling::Linear { factor: 4.0 });
    assert_eq!(of(std::slice::from_ref(&factor)), linear);
    assert_eq!(of(&[("rope.scale_linear", Meta::F32(4.0))]), linear);
    assert_eq!(of(&[factor.clone(), kind("linear")]), linear);
    for none in [vec![factor.clone(), kind("none")], vec![kind("linear")], vec![("rope.scale_linear", Meta::F32(0.0))]]
    {
        assert_eq!(of(&none), Ok(RopeScaling::Default));
    }
    let yarn = |more: &[(&str, Meta)]| match of(&[&[factor.clone(), kind("yarn")], more].concat()) {
        Ok(RopeScaling::Yarn { factor: 4.0, beta_fast, beta_slow, attention_factor, .. }) => {
            (beta_fast, beta_slow, attention_factor)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(yarn(&[]), (32.0, 1.0, None));
    let betas = |prefix: &str| {
        let key = |side: &str| format!("rope.scaling.{prefix}beta_{side}");
        yarn(&[(&key("fast"), Meta::F32(16.0)), (&key("slow"), Meta::F32(2.0))])
    };
    assert_eq!([betas("yarn_"), betas("")], [(16.0, 2.0, None); 2]);
    let usual = 0.1 * 4f64.ln() + 1.0;
    assert_eq!(yarn(&[("rope.scaling.yarn_attn_factor", Meta::F32(1.5))]).2, Some(1.5));
    assert_eq!(yarn(&[("rope.scaling.attn_factor", Meta::F32(0.5))]).2, Some(0.5 * usual));
    yarn(&[("rope.scaling.yarn_ext_factor", Meta::F32(1.0)), ("rope.scaling.finetuned", Meta::Bool(true))]);
    let said = of(&[factor, ("rope.scaling.yarn_attn_factor", Meta::F32(1.5))]).unwrap_err();
    assert!(said.contains("llama.rope.scaling.yarn_attn_factor 1.5 is not supported with rope scaling of type linear"));
    let mut file = GgufFile::tiny();
    for key in ["llama.attention.clamp_kqv", "llama.final_logit_softcapping", "llama.attention.max_alibi_bias"] {
        file.set(key, Meta::F32(0.0));
    }
    file.set("llama.attention.scale", Meta::F32(32f32.powf(-0.5)));
    file.set("llama.attention.causal", Meta::Bool(true)).set("llama.attention.sliding_window", Meta::U32(256));
    file.set("llama.rope.global.freq_base", Meta::F32(5e5)).meta.remove("llama.rope.freq_base");
    assert_eq!(open(&file).unwrap().config.rope.theta, 5e5);
}

/// What llama.cpp does by a key, a name or a spelling, and no template says.
#[test]
fn a_file_says_how_a_prompt_begins_what_strips_and_where_a_turn_ends() {
    let prompt = |file: &GgufFile| {
        let c = open(file).unwrap();
        let t = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
        let spec = dmschat::engine::template_spec(&c, &t, 256);
        let exe = Some(env!("CARGO_BIN_EXE_dmschat").into());
        let options = dmschat::chat::RenderOptions { exe, ..Default::default() };
        let mut chat = dmschat::chat::Conversation::new(None);
        chat.push_user("he");
        let pieces = dmschat::chat::render(None, &chat.context_path(), &spec, &options).unwrap();
        t.encode_pieces(&pieces).unwrap()
    };
    let mut file = GgufFile::tiny();
    assert_eq!(prompt(&file)[..2], [258, prompt(&file)[1]]);
    let plain = prompt(&file);
    file.set("tokenizer.ggml.add_bos_token", Meta::Bool(true));
    assert_eq!(prompt(&file), [&[257], &plain[..]].concat());
    let Some(Meta::Text(template)) = file.meta.get("tokenizer.chat_template") else { panic!() };
    let writes = format!("{{{{ bos_token }}}}{template}");
    file.set("tokenizer.chat_template", Meta::text(&writes));
    assert_eq!(prompt(&file), [&[257], &plain[..]].concat(), "once");
    let strips = |file: &GgufFile| {
        let json: serde_json::Value = serde_json::from_slice(&open(file).unwrap().tokenizer_json).unwrap();
        let added = json["added_tokens"].as_array().unwrap().clone();
        let of = |name: &str| added.iter().find(|t| t["content"] == name).unwrap()["rstrip"].as_bool().unwrap();
        ["<|im_end|>", "<|endoftext|>"].map(of)
    };
    assert_eq!(strips(&file), [false; 2]);
    assert_eq!(strips(file.set("general.name", Meta::text("Phi-3 mini"))), [true, false]);
    // Ends: of a list, and of a spelling with the type of ordinary words.
    let mut file = GgufFile::tiny();
    file.set("tokenizer.ggml.eos_token_ids", Meta::I32s(vec![258, 261]));
    let Some(Meta::I32s(types)) = file.meta.get_mut("tokenizer.ggml.token_type") else { panic!() };
    types[257] = 1;
    let c = open(&file).unwrap();
    assert_eq!(c.generation.eos, [259, 258, 261, 257]);
    let t = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
    assert_eq!(t.token_for("<|endoftext|>"), Some(257));
}

/// As in llama.cpp, where the ids of special tokens are missing or beyond the vocabulary.
#[test]
fn ids_of_special_tokens_have_the_defaults_of_llama_cpp() {
    let of = |file: &GgufFile| {
        let c = open(file).unwrap();
        (c.bos_token.clone(), c.eos_token.clone(), c.generation.eos.clone())
    };
    let texts = |bos: &str, eos: &str| (bos.to_owned(), eos.to_owned());
    let mut file = GgufFile::tiny();
    file.set("tokenizer.ggml.bos_token_id", Meta::U32(264)).set("tokenizer.ggml.eot_token_id", Meta::I32(-1));
    file.set("tokenizer.ggml.eom_token_id", Meta::U32(u32::MAX));
    file.set("tokenizer.ggml.eos_token_ids", Meta::I32s(vec![-1, 264, 258]));
    let (bos, eos, ends) = of(&file);
    assert_eq!(((bos, eos), ends), (texts("", "<|im_end|>"), vec![259, 258, 257]));
    // The id of Falcon's end, which is a comma here unless the file says that it is a control
    // token.
    let Some(Meta::I32s(types)) = file.meta.get_mut("tokenizer.ggml.token_type") else { panic!() };
    types[11] = 3;
    assert_eq!(of(&file).0, ",");
    let mut file = GgufFile::tiny();
    for key in ["bos_token_id", "eos_token_id", "add_bos_token"] {
        file.meta.remove(&format!("tokenizer.ggml.{key}"));
    }
    assert_eq!(of(&file), (String::new(), String::new(), vec![259, 257]));
    file.set("tokenizer.ggml.model", Meta::text("llama"));
    let Some(Meta::Texts(tokens)) = file.meta.get_mut("tokenizer.ggml.tokens") else { panic!() };
    tokens.splice(..3, ["<unk>", "<s>", "</s>"].map(str::to_owned));
    let Some(Meta::I32s(types)) = file.meta.get_mut("tokenizer.ggml.token_type") else { panic!() };
    types[..3].copy_from_slice(&[2, 3, 3]);
    let (bos, eos, ends) = of(&file);
    assert_eq!(((bos, eos), ends), (texts("<s>", "</s>"), vec![2, 259, 257]));
    let c = open(&file).unwrap();
    let t = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
    // The vocabulary has neither the space that a text begins with nor the bytes of an emoji.
    assert_eq!(t.encode_text("he").unwrap(), [1, 0, 256]);
    let emoji = t.encode_pieces(&[dmschat::protocol::Piece::Text("he\u{1F600}he".to_owned())]).unwrap();
    assert_eq!(emoji, [0, 256, 0, 256]);
}

/// `ignore_merges` and `add_bos` of llama.cpp's `llama-vocab.cpp`, by the pre-tokenizer.
#[test]
fn a_pre_tokenizer_says_whether_words_are_merged_and_texts_begin_with_the_bos() {
    for (pre, whole) in [
        ("llama-bpe", true),
        ("llama3", true),
        ("llama-v3", true),
        ("tekken", true),
        ("dbrx", false),
        ("smaug-bpe", false),
        ("gpt-4o", false),
        ("qwen2", false),
        ("smollm", false),
        ("gpt-2", false),
    ] {
        let mut file = GgufFile::tiny();
        file.set("tokenizer.ggml.pre", Meta::text(pre)).meta.remove("tokenizer.ggml.add_bos_token");
        let Some(Meta::Texts(tokens)) = file.meta.get_mut("tokenizer.ggml.tokens") else { panic!() };
        tokens[262] = "xy".to_owned();
        let Some(Meta::I32s(types)) = file.meta.get_mut("tokenizer.ggml.token_type") else { panic!() };
        types[262] = 1;
        let c = open(&file).unwrap();
        let t = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
        assert_eq!(t.encode_text("xy").unwrap(), if whole { [257, 262] } else { [87, 88] }, "{pre}");
    }
}

/// In Qwen's vocabulary `</s>` is a word.
#[test]
fn a_word_of_html_is_an_end_only_where_the_file_says_so() {
    let of = |change: &dyn Fn(&mut GgufFile)| {
        let mut file = GgufFile::tiny();
        let Some(Meta::Texts(tokens)) = file.meta.get_mut("tokenizer.ggml.tokens") else { panic!() };
        tokens[262] = "</s>".to_owned();
        change(&mut file);
        let c = open(&file).unwrap();
        let t = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
        (c.generation.eos.clone(), t.token_for("</s>"))
    };
    let typed = |file: &mut GgufFile, kind: i32| {
        let Some(Meta::I32s(types)) = file.meta.get_mut("tokenizer.ggml.token_type") else { panic!() };
        types[262] = kind;
    };
    assert_eq!(of(&|file| typed(file, 1)), (vec![259, 257], None));
    assert_eq!(of(&|file| typed(file, 3)), (vec![259, 257, 262], Some(262)));
    let named = of(&|file| {
        typed(file, 1);
        file.set("tokenizer.ggml.eot_token_id", Meta::U32(262));
    });
    assert_eq!(named, (vec![259, 262, 257], Some(262)));
}
