//! What clients of OpenAI's Responses rely on.

use super::{QUESTION, Server, asked, with};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

fn question(more: Value) -> Value {
    with(json!({ "model": "demo", "input": QUESTION, "temperature": 0, "seed": 1 }), more)
}

/// The events of a stream. Each has its name in its data, too, and their numbers are in order.
fn events(server: &Server, body: &Value) -> Vec<Value> {
    let (status, head, text) =
        server.call("POST", PATH, &[], &with(body.clone(), json!({ "stream": true })).to_string());
    assert!(status == 200 && head.contains("text/event-stream"), "{head}{text}");
    let events = text.trim_end().split("\n\n").enumerate().map(|(number, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], number);
        data
    });
    events.collect()
}

/// The items that a stream's events make, as a client follows them: each is begun, grows, and is
/// complete as its parts say.
fn assembled(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    for event in events {
        let index = event["output_index"].as_u64().map(|index| index as usize);
        let of_item = |items: &[Value]| assert_eq!(event["item_id"], items[index.unwrap()]["id"]);
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!((index, &event["item"]["content"]), (Some(items.len()), &json!([])));
                items.push(event["item"].clone());
            }
            "response.content_part.added" => {
                of_item(&items);
                items[index.unwrap()]["content"] = json!([event["part"]]);
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                of_item(&items);
                let text = &mut items[index.unwrap()]["content"][0]["text"];
                *text = json!(text.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                of_item(&items);
                assert_eq!(event["text"], items[index.unwrap()]["content"][0]["text"]);
            }
            "response.content_part.done" => assert_eq!(event["part"], items[index.unwrap()]["content"][0]),
            "response.output_item.done" => {
                let item = &mut items[index.unwrap()];
                item["status"] = event["item"]["status"].clone();
                assert_eq!(*item, event["item"]);
            }
            "response.created" | "response.in_progress" | "response.completed" | "response.incomplete" => {}
            other => panic!("{other}"),
        }
    }
    items
}

#[test]
fn a_response_is_the_answer_of_chat_completions_whole_and_in_a_stream() {
    let server = Server::start(&["--max-think", "20"]);
    let (_, chat) = server.post("/v1/chat/completions", &asked(QUESTION));
    let said = &chat["choices"][0]["message"];
    let (status, whole) = server.post(PATH, &question(json!({})));
    assert_eq!((status, &whole["status"], &whole["object"]), (200, &json!("completed"), &json!("response")), "{whole}");
    let [thought, message] = whole["output"].as_array().unwrap().as_slice() else { panic!("{whole}") };
    assert_eq!((&thought["type"], &message["type"]), (&json!("reasoning"), &json!("message")));
    assert_eq!(thought["content"], json!([{ "type": "reasoning_text", "text": said["reasoning_content"] }]));
    assert_eq!(message["content"][0]["text"], said["content"]);
    let (usage, of_chat) = (&whole["usage"], &chat["usage"]);
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"], &usage["output_tokens_details"]),
        (&of_chat["prompt_tokens"], &of_chat["completion_tokens"], &of_chat["completion_tokens_details"])
    );

    let events = events(&server, &question(json!({})));
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["response.created", "response.in_progress", "response.output_item.added"]);
    assert_eq!(names[names.len() - 2..], ["response.output_item.done", "response.completed"]);
    let last = &events.last().unwrap()["response"];
    assert_eq!(events[0]["response"]["id"], last["id"]);
    // The same items, with the same ids, as in their own events.
    assert_eq!(json!(assembled(&events)), last["output"]);
    let text = |response: &Value| response["output"][1]["content"].clone();
    assert_eq!(text(last), text(&whole));

    let cut = question(json!({ "max_output_tokens": 3, "reasoning": { "effort": "none" } }));
    let (_, short) = server.post(PATH, &cut);
    assert_eq!(
        (&short["status"], &short["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let events = self::events(&server, &cut);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["output"]),
        (&json!("response.incomplete"), &json!(assembled(&events)))
    );
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    let likely = json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 600 });
    let (_, likely) = server.post(PATH, &question(with(likely, json!({ "reasoning": { "effort": "none" } }))));
    let part = &likely["output"][0]["content"][0];
    let spelled: String =
        part["logprobs"].as_array().unwrap().iter().map(|one| one["token"].as_str().unwrap()).collect();
    assert_eq!(spelled.trim_matches('\n'), part["text"]);
}

#[test]
fn a_stored_response_is_gone_on_from_and_asked_for_again_until_it_is_deleted() {
    let server = Server::start(&["--max-think", "20"]);
    let get = |path: &str| {
        let (status, _, body) = server.call("GET", path, &[], "");
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let first = question(json!({ "instructions": "Answer in short words.", "metadata": { "who": "eve" } }));
    let (_, first) = server.post(PATH, &first);
    let id = first["id"].as_str().unwrap();
    assert_eq!(get(&format!("{PATH}/{id}")), (200, first.clone()));
    assert_eq!((&first["metadata"]["who"], &first["store"]), (&json!("eve"), &json!(true)));
    let next = "Solve 3*y - 6 = 9 for y.";
    let (_, second) = server.post(
        PATH,
        &question(json!({
            "input": next, "instructions": "Answer in short words.", "previous_response_id": id,
        })),
    );
    assert_eq!(second["previous_response_id"], id);
    // It reads what the whole conversation as items does, and the first turn is in the cache.
    let mut items = vec![json!({ "role": "user", "content": QUESTION })];
    items.extend(first["output"].as_array().unwrap().iter().cloned());
    items.push(json!({ "role": "user", "content": next }));
    let spelled = json!({ "input": items, "instructions": "Answer in short words.", "store": false });
    let (_, spelled) = server.post(PATH, &question(spelled));
    assert_eq!(spelled["usage"]["input_tokens"], second["usage"]["input_tokens"]);
    let cached = second["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached + 1 >= first["usage"]["input_tokens"].as_u64().unwrap(), "{second}");
    assert_eq!(get(&format!("{PATH}/{}", spelled["id"].as_str().unwrap())).0, 404);

    let (_, items) = get(&format!("{PATH}/{id}/input_items"));
    assert_eq!((&items["data"][0]["content"][0]["text"], &items["has_more"]), (&json!(QUESTION), &json!(false)));
    let (status, _, body) = server.call("DELETE", &format!("{PATH}/{id}"), &[], "");
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap(),
        json!({ "id": id, "object": "response", "deleted": true })
    );
    assert_eq!((status, get(&format!("{PATH}/{id}")).0), (200, 404));
    let (status, gone) = server.post(PATH, &question(json!({ "previous_response_id": id })));
    assert_eq!((status, &gone["error"]["param"]), (404, &json!("previous_response_id")), "{gone}");
    // What went on from it did not need it.
    let more = question(json!({ "previous_response_id": second["id"], "max_output_tokens": 1 }));
    assert_eq!(server.post(PATH, &more).0, 200);

    // Clients that keep only what they cannot read send a thought back by it.
    let include = json!({ "include": ["reasoning.encrypted_content"], "store": false });
    let (_, hidden) = server.post(PATH, &question(include));
    let thought = &hidden["output"][0];
    assert_eq!(thought["encrypted_content"], thought["content"][0]["text"]);
    for (more, status, param, part) in [
        (json!({ "model": "gpt-5" }), 404, "model", "\"demo\""),
        (json!({ "input": null }), 400, "input", "missing"),
        (json!({ "tools": [{ "type": "function", "name": "f" }] }), 400, "tools", "has no tools"),
        (json!({ "background": true }), 400, "background", "not supported"),
        (json!({ "text": { "format": { "type": "json_schema" } } }), 400, "text.format.schema", "no schema"),
        (json!({ "reasoning": { "effort": "huge" } }), 400, "reasoning.effort", "huge"),
        (json!({ "max_output_tokens": 0 }), 400, "max_output_tokens", "from 1"),
        (json!({ "input": [{ "type": "function_call_output" }] }), 400, "input[0].call_id", "no call_id"),
    ] {
        let (is, answer) = server.post(PATH, &question(more));
        assert_eq!((is, answer["error"]["param"].as_str()), (status, Some(param)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(part), "{answer}");
    }
}
