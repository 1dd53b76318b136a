//! Texts of a folder for its chat: templates and the names of special tokens.

use crate::checkpoint::{opened, refusal};
use crate::folder::Folder;
use serde_json::json;

/// As transformers names them for a template.
#[test]
fn special_tokens_have_names_and_null_is_none() {
    let folder = Folder::healthy();
    let many: serde_json::Map<_, _> = (0..1000).map(|n| (format!("many_{n}"), json!("x"))).collect();
    folder.json(
        "tokenizer_config.json",
        &json!({"added_tokens_decoder": {}, "bos_token": null, "eos_token": "</s>", "pad_token": {"content": "<pad>"},
            "image_token": "<image>", "add_eos_token": true, "long_token": "x".repeat(9999),
            "extra_special_tokens": {"audio": "<audio>"}, "model_specific_special_tokens": many}),
    );
    folder.json("special_tokens_map.json", &json!({"bos_token": "<s>", "pad_token": "<old>", "unk_token": "<unk>"}));
    let c = opened(&folder);
    let named = |name: &str| c.special_tokens.get(name).map(String::as_str);
    assert_eq!((named("bos_token"), named("eos_token"), c.bos_token.as_str()), (None, Some("</s>"), ""));
    assert_eq!((named("pad_token"), named("unk_token")), (Some("<pad>"), Some("<unk>")));
    assert_eq!((named("image_token"), named("audio")), (Some("<image>"), Some("<audio>")));
    assert_eq!((named("add_eos_token"), named("long_token"), c.special_tokens.len()), (None, None, 256));
}

#[test]
fn of_several_templates_the_default_one_is_used() {
    let folder = Folder::healthy();
    let named = |name: &str| json!({"name": name, "template": name});
    let list = |names: [&str; 2]| json!({"chat_template": names.map(named)});
    folder.json("tokenizer_config.json", &list(["tool_use", "default"]));
    assert_eq!(opened(&folder).chat_template.as_deref(), Some("default"));
    folder.json("tokenizer_config.json", &list(["tool_use", "ra\ng"]));
    let said = "DIR/tokenizer_config.json: chat_template has no template named \"default\", only \"tool_use\", \
                \"ra\\ng\"; name one of them \"default\"";
    assert_eq!(refusal(&folder), said);
    folder.write("chat_template.jinja", b"J");
    assert_eq!(opened(&folder).chat_template.as_deref(), Some("J"));
}
