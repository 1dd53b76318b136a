//! Tools, calls and results as transformers renders them, and answers as they were sampled.

use super::opts;
use dmschat::chat::template::{Author, Given, GivenCall, Tools, render_with_tools};
use dmschat::protocol::{Piece, TemplateSpec};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::Path;

const TEMPLATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/templates");

#[derive(Deserialize)]
struct Golden {
    tools: Value,
    chats: Vec<Vec<Value>>,
    models: Vec<Rendering>,
}

#[derive(Deserialize)]
struct Rendering {
    name: String,
    bos: String,
    eos: String,
    texts: Vec<String>,
}

fn golden() -> Golden {
    serde_json::from_slice(&fs::read(Path::new(TEMPLATES).join("tools.json")).unwrap()).unwrap()
}

fn spec(name: &str, bos: &str, eos: &str, control: &[&str]) -> TemplateSpec {
    let source = fs::read_to_string(Path::new(TEMPLATES).join(format!("{name}.jinja"))).unwrap();
    TemplateSpec {
        source: Some(source),
        bos_token: bos.to_owned(),
        eos_token: eos.to_owned(),
        control: control.iter().map(|literal| (*literal).to_owned()).collect(),
        trusted: true,
        ..TemplateSpec::default()
    }
}

fn spelled(pieces: &[Piece]) -> String {
    let of = |piece: &Piece| match piece {
        Piece::Text(text) | Piece::Control(text) => text.clone(),
        Piece::Reply { .. } => unreachable!(),
    };
    pieces.iter().map(of).collect()
}

fn given(message: &Value) -> Given {
    let text = |name: &str| message[name].as_str().map(str::to_owned);
    let author = match &*text("role").unwrap() {
        "user" => Author::User,
        "tool" => Author::Tool,
        _ => Author::Assistant,
    };
    let call = |call: &Value| GivenCall {
        id: call["id"].as_str().unwrap().to_owned(),
        name: call["function"]["name"].as_str().unwrap().to_owned(),
        arguments: call["function"]["arguments"].clone(),
    };
    Given {
        calls: message["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
        call_id: text("tool_call_id"),
        ..Given::new(author, text("content").unwrap())
    }
}

#[test]
fn tools_calls_and_results_render_as_by_transformers() {
    let Golden { tools, chats, models } = golden();
    for model in models {
        // Every one of these has to survive texts that could become control tokens.
        for control in
            [&[][..], &["<tool_call>", "</tool_call>", "<object>", "<|tool_call|>", "[TOOL_CALLS]", "<city>"]]
        {
            let spec = spec(&model.name, &model.bos, &model.eos, control);
            let tools = Tools { json: tools.clone(), ..Tools::default() };
            for (at, (chat, text)) in chats.iter().zip(&model.texts).enumerate() {
                let messages: Vec<Given> = chat.iter().map(given).collect();
                let pieces = render_with_tools(&messages, &tools, &spec, &opts(false, None)).unwrap();
                assert_eq!(&spelled(&pieces), text, "{}: conversation {at}", model.name);
            }
        }
    }
}

#[test]
fn an_answer_with_calls_stands_in_the_next_prompt_as_it_was_sampled() {
    const MARKS: &[&str] = &["<tool_call>", "</tool_call>"];
    let Golden { tools, chats, models } = golden();
    let model = &models[0];
    let spec = spec(&model.name, &model.bos, &model.eos, &["<|im_start|>", "<|im_end|>", MARKS[0], MARKS[1]]);
    let tools = Tools { json: tools, marks: MARKS, ..Tools::default() };
    let sampled = "<tool_call>{\"arguments\":{\"city\":\"Zürich\"},\"name\":\"get_weather\"}</tool_call>";
    let mut messages: Vec<Given> = chats[1].iter().map(given).collect();
    // What a user pastes is text, also beside the same text of the model.
    messages[0].text = sampled.to_owned();
    messages[1].as_sampled = Some(sampled.to_owned());
    let pieces = render_with_tools(&messages, &tools, &spec, &opts(false, None)).unwrap();
    let is_control = |piece: &&Piece| matches!(piece, Piece::Control(literal) if MARKS.contains(&literal.as_str()));
    let at = pieces.iter().position(|piece| *piece == Piece::Text("assistant\n".to_owned()));
    let at = at.unwrap_or_else(|| panic!("{pieces:?}"));
    let body = "{\"arguments\":{\"city\":\"Zürich\"},\"name\":\"get_weather\"}".to_owned();
    let [open, close] = [MARKS[0], MARKS[1]].map(|mark| Piece::Control(mark.to_owned()));
    assert_eq!(pieces[at + 1..at + 4], [open, Piece::Text(body), close]);
    assert!(pieces.contains(&Piece::Text(format!("user\n{sampled}"))));
    // The template itself writes four in its instructions.
    assert_eq!(pieces.iter().filter(is_control).count(), 6);
}
