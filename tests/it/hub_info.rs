//! What `models info` says of a model before it is downloaded, and what `models list` shows.
//! Against a hub on loopback ([`crate::fake_hub`]).

use crate::fake_hub::FakeHub;
use crate::gguf_file::GgufFile;
use crate::hub::{Home, WEIGHTS, files, healthy};
use crate::session::{info, turn};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::chat::Conversation;
use dmschat::chat::session::Store;
use dmschat::protocol::ModelReference;
use serde_json::{Value, json};
use std::fs;

const ID: &str = "any/model";

fn about(home: &Home, hub: &FakeHub, name: &str) -> Value {
    let (code, stdout, stderr) = home.run(hub, &["models", "info", name, "--json"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn a_model_is_described_before_its_download_as_after_it() {
    let keys = ["architecture", "layers", "query_heads", "kv_heads", "head_dim", "vocabulary", "context"];
    let gguf = [("tiny-Q4_K_M.gguf".to_owned(), GgufFile::tiny().bytes())].into();
    for (hub, name) in [(healthy(), ID), (FakeHub::new(gguf), "any/model:Q4_K_M")] {
        let home = Home::new();
        let before = about(&home, &hub, name);
        assert_eq!((&before["downloaded"], &before["problem"]), (&json!(false), &Value::Null), "{before}");
        assert!(before["fit"].as_str().unwrap().contains(" tokens of context in "), "{before}");
        assert!(!home.cache().exists() && hub.asked(WEIGHTS).is_empty(), "nothing is written, no weights are fetched");
        assert_eq!(home.run(&hub, &["models", "pull", name]).0, 0);
        let after = about(&home, &hub, name);
        for key in keys {
            assert!(!before[key].is_null() && before[key] == after[key], "{key}: {before} {after}");
        }
        if name == ID {
            assert_eq!((&before["evicts_by"], &after["dms_window"]), (&json!("DMS, window 11"), &json!(11)));
            let (_, text, _) = Home::new().run(&hub, &["models", "info", name]);
            for line in ["context            512", "evicts by          DMS, window 11"] {
                assert!(text.lines().any(|l| l == line), "{text}");
            }
        }
    }
    // A model that evicts by nothing, and one that cannot run: the listing is shown all the same.
    let plain = Tiny::new(Spec { tied: false, speaks: true, ..Spec::new(true, Form::Plain) }, 11);
    let hub = healthy();
    hub.file("config.json", &fs::read(plain.folder.file("config.json")).unwrap());
    let found = about(&Home::new(), &hub, ID);
    assert_eq!((&found["evicts_by"], &found["context"]), (&Value::Null, &json!(512)), "{found}");
    hub.file("config.json", br#"{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}"#);
    let found = about(&Home::new(), &hub, ID);
    assert!(
        found["problem"].as_str().unwrap().contains("mamba") && found["weight_bytes"].as_u64() > Some(0),
        "{found}"
    );
    let many = [("a-Q8_0.gguf", "GGUF"), ("b-Q4_K_M.gguf", "GGUF")].map(|(n, t)| (n.to_owned(), t.as_bytes().to_vec()));
    let found = about(&Home::new(), &FakeHub::new(many.into()), ID);
    assert!(found["problem"].is_null() && found["gguf"].as_str().unwrap().contains("Q8_0"), "{found}");
}

#[test]
fn the_list_has_a_header_and_the_folders_that_were_used_before() {
    let (hub, home) = (FakeHub::new(files()), Home::new());
    assert_eq!(home.pull(&hub).0, 0);
    let tiny = Tiny::new(Spec::new(true, Form::Borrowed), 3);
    let folder = tiny.folder.path().display().to_string();
    for model in [folder.clone(), home.snapshot().display().to_string(), ID.to_owned()] {
        let mut session = Store::new(home.0.path().join("data/sessions")).create();
        let (mut chat, mut info) = (Conversation::new(None), info());
        turn(&mut chat, Some("q"), "a", 0);
        info.identity.reference = Some(ModelReference { model, adapter: "auto".into(), ..ModelReference::default() });
        session.sync(&mut chat, &info).unwrap();
    }
    let (_, list, _) = home.run(&hub, &["models", "list", "--json"]);
    let list: Vec<Value> = serde_json::from_str(&list).unwrap();
    let used: Vec<_> = list.iter().map(|m| (m["name"].as_str().unwrap(), m["used_before"].as_bool())).collect();
    assert_eq!(used, [("demo", Some(false)), (ID, Some(false)), (&*folder, Some(true))]);
    let (_, text, _) = home.run(&hub, &["models", "list"]);
    let lines: Vec<&str> = text.lines().collect();
    let at = lines[0].find("size").unwrap() + "size".len();
    assert!(lines[0].starts_with("name ") && lines.len() == 4, "{text}");
    // The sizes stand under their heading.
    assert!(lines[2].starts_with(ID) && lines[2][..at].ends_with(" kB"), "{text}");
    assert!(lines[3].starts_with(&folder) && lines[3].contains(" kB") && lines[3].ends_with("(used before)"), "{text}");
}
