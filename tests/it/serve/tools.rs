//! Calls that a request demands, and answers by a schema, of a random model: whatever it would say,
//! the grammar holds.

use super::{Server, with};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::{Value, json};

/// Calls as Qwen writes them, and no thoughts.
pub const TEMPLATE: &str = "{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}\
{{- '\nCalls: <tool_call>{}</tool_call><|im_end|>\n' }}{%- endif %}{%- for m in messages %}\
{{- '<|im_start|>' + m.role + '\n' }}\
{%- if m.role == 'assistant' %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{{- m.content }}{%- for call in m.tool_calls or [] %}\
{{- '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{%- endif %}";

pub fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "$ref": "#/$defs/city" }, "n": { "type": "integer", "minimum": 3, "maximum": 42 } },
        "required": ["city", "n"],
        "additionalProperties": false,
        "$defs": { "city": { "enum": ["Bern", "Zürich", "<tool_call>"] } },
    })
}

/// The data of a stream's events.
fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let (status, _, text) = server.call("POST", path, &[], &with(body.clone(), json!({ "stream": true })).to_string());
    assert_eq!(status, 200, "{text}");
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// Those of a type.
fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// Joins the fragments that events have.
fn joined(events: &[&Value], fragment: impl Fn(&Value) -> &Value) -> String {
    events.iter().filter_map(|event| fragment(event).as_str()).collect()
}

/// Fails unless a value is as the schema says.
pub fn check(value: &Value) {
    assert!(["Bern", "Zürich", "<tool_call>"].contains(&value["city"].as_str().unwrap()), "{value}");
    assert!((3..=42).contains(&value["n"].as_i64().unwrap()) && value.as_object().unwrap().len() == 2, "{value}");
}

fn parsed(text: &Value) -> Value {
    serde_json::from_str(text.as_str().unwrap()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A random model with this template, and its server.
fn server() -> (Tiny, Server) {
    let model = Tiny::new(Spec { context: 2048, ..Spec::new(true, Form::Plain) }, 7);
    model.folder.json("tokenizer_config.json", &json!({ "chat_template": TEMPLATE }));
    let server = Server::start(&["-m", model.folder.path().to_str().unwrap(), "--slots", "1"]);
    (model, server)
}

fn tools() -> Value {
    let function = |name: &str| json!({ "name": name, "description": "x", "parameters": schema() });
    json!(["f", "g"].map(|name| json!({ "type": "function", "function": function(name) })))
}

fn body(more: Value) -> Value {
    let question = json!([{ "role": "user", "content": "hi" }]);
    with(json!({ "model": "default", "messages": question, "temperature": 1, "seed": 3, "max_tokens": 900 }), more)
}

#[test]
fn a_call_is_demanded_streamed_and_taken_back_as_it_was_sampled() {
    const PATH: &str = "/v1/chat/completions";
    let (_model, server) = server();
    let asked = body(json!({ "tools": tools(), "tool_choice": "required" }));
    let (status, whole) = server.post(PATH, &asked);
    assert_eq!(status, 200, "{whole}");
    let choice = &whole["choices"][0];
    let (message, call) = (&choice["message"], &choice["message"]["tool_calls"][0]);
    assert_eq!((&choice["finish_reason"], &message["content"]), (&json!("tool_calls"), &Value::Null), "{whole}");
    check(&parsed(&call["function"]["arguments"]));

    let chunks = server.chunks(PATH, &with(asked.clone(), json!({ "stream": true })));
    let deltas: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"].get("tool_calls")).collect();
    let first = &deltas[0][0];
    assert_eq!((&first["index"], &first["type"]), (&json!(0), &json!("function")));
    assert_eq!((&first["function"]["name"], first["id"] == call["id"]), (&call["function"]["name"], false));
    let arguments: String = deltas.iter().map(|delta| delta[0]["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(json!(arguments), call["function"]["arguments"], "the same seed");
    // The name comes before the arguments, which come as they are generated.
    assert_eq!((&first["function"]["arguments"], deltas.len() > 3), (&json!(""), true), "{deltas:?}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // The second turn reads what is new alone: spaces that the model chose are in the prompt again.
    let streamed = json!({
        "id": first["id"], "type": "function",
        "function": { "name": first["function"]["name"], "arguments": arguments },
    });
    let messages = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": null, "tool_calls": [streamed] },
        { "role": "tool", "tool_call_id": first["id"], "content": "20 degrees" },
    ]);
    let again = with(asked, json!({ "messages": messages, "tool_choice": "auto", "max_tokens": 1 }));
    let (status, second) = server.post(PATH, &again);
    assert_eq!(status, 200, "{second}");
    let held = whole["usage"]["total_tokens"].as_u64().unwrap() - 1;
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= held, "{cached} of {held}: {second}");

    let named = json!({ "type": "function", "function": { "name": "g" } });
    let (_, whole) = server.post(PATH, &body(json!({ "tools": tools(), "tool_choice": named })));
    assert_eq!(whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "g");
    for (more, param) in [
        (
            json!({ "tools": tools(), "tool_choice": { "type": "function", "function": { "name": "h" } } }),
            "tool_choice",
        ),
        (json!({ "tools": [], "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": tools(), "response_format": { "type": "json_object" } }), "tools"),
        (json!({ "response_format": { "type": "json_schema", "json_schema": {} } }), "response_format.schema"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": 7 } } } }),
            "response_format",
        ),
        (json!({ "response_format": { "type": "grammar" } }), "response_format.type"),
    ] {
        let (status, refused) = server.post(PATH, &body(more));
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
}

#[test]
fn each_api_has_calls_and_answers_by_a_schema() {
    let (_model, server) = server();
    let text = json!({ "type": "json_schema", "name": "x", "schema": schema() });
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema() } });
    let (_, whole) = server.post("/v1/chat/completions", &body(json!({ "response_format": format, "n": 2 })));
    whole["choices"].as_array().unwrap().iter().for_each(|choice| check(&parsed(&choice["message"]["content"])));

    let flat = json!([{ "type": "function", "name": "f", "parameters": schema(), "strict": true }]);
    let asked = json!({ "model": "default", "input": "hi", "temperature": 1, "seed": 3, "max_output_tokens": 900 });
    let (status, whole) =
        server.post("/v1/responses", &with(asked.clone(), json!({ "tools": flat, "tool_choice": "required" })));
    assert_eq!(status, 200, "{whole}");
    let call = &whole["output"][0];
    assert_eq!((&call["type"], &whole["status"]), (&json!("function_call"), &json!("completed")), "{whole}");
    check(&parsed(&call["arguments"]));
    let result = json!([{ "type": "function_call_output", "call_id": call["call_id"], "output": "20" }]);
    let next = json!({ "input": result, "previous_response_id": whole["id"], "tools": flat, "max_output_tokens": 1 });
    let (status, second) = server.post("/v1/responses", &with(asked.clone(), next));
    assert_eq!(status, 200, "{second}");
    let (_, whole) = server.post("/v1/responses", &with(asked, json!({ "text": { "format": text } })));
    check(&parsed(&whole["output"][0]["content"][0]["text"]));

    let tool = json!([{ "name": "f", "input_schema": schema() }]);
    let (_, whole) =
        server.post("/v1/messages", &body(json!({ "tools": tool, "tool_choice": { "type": "tool", "name": "f" } })));
    let call = &whole["content"][0];
    assert_eq!((&call["type"], &whole["stop_reason"]), (&json!("tool_use"), &json!("tool_use")), "{whole}");
    check(&call["input"]);
    let messages = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": whole["content"] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": call["id"], "content": [{ "type": "text", "text": "20" }] },
            { "type": "text", "text": "Well?" },
        ] },
    ]);
    let (status, second) =
        server.post("/v1/messages", &body(json!({ "tools": tool, "messages": messages, "max_tokens": 1 })));
    assert_eq!(status, 200, "{second}");
    let (_, whole) = server.post("/v1/messages", &body(json!({ "output_config": { "format": text } })));
    check(&parsed(&whole["content"][0]["text"]));

    let options = json!({ "temperature": 1, "seed": 3, "num_predict": 900 });
    let asked = body(json!({ "stream": false, "options": options, "format": schema() }));
    let (_, whole) = server.post("/api/chat", &asked);
    check(&parsed(&whole["message"]["content"]));
    let asked = body(json!({ "stream": false, "options": options, "tools": tools(), "tool_choice": "required" }));
    let (_, whole) = server.post("/api/chat", &asked);
    check(&whole["message"]["tool_calls"][0]["function"]["arguments"]);
}

#[test]
fn streams_have_a_call_from_its_name_on_and_say_when_it_breaks_off() {
    let (_model, server) = server();
    let flat = json!([{ "type": "function", "name": "f", "parameters": schema() }]);
    let asked = json!({ "model": "default", "input": "hi", "temperature": 1, "seed": 3, "max_output_tokens": 900 });
    let asked = with(asked, json!({ "tools": flat, "tool_choice": "required" }));
    let (_, whole) = server.post("/v1/responses", &asked);
    let n = whole["usage"]["output_tokens"].as_u64().unwrap();
    // Up to a limit within the arguments.
    for limit in (n.saturating_sub(60)..=n).rev() {
        let events = events(&server, "/v1/responses", &with(asked.clone(), json!({ "max_output_tokens": limit })));
        let deltas = of(&events, "response.function_call_arguments.delta");
        let (done, end) = (of(&events, "response.output_item.done"), &events.last().unwrap()["response"]);
        let item = &done[0]["item"];
        assert_eq!((&item["name"], &end["output"][0], done.len()), (&json!("f"), item, 1), "{events:?}");
        assert_eq!(end["status"], if limit == n { "completed" } else { "incomplete" });
        assert!(deltas.len() > 1, "{events:?}");
        assert_eq!(item["arguments"], joined(&deltas, |event| &event["delta"]));
        assert_eq!(of(&events, "response.output_item.added")[0]["item"]["arguments"], "");
        assert!(events.iter().enumerate().all(|(n, event)| event["sequence_number"] == n), "{events:?}");
        let is_complete = item["status"] == "completed";
        assert_eq!(of(&events, "response.function_call_arguments.done").len(), usize::from(is_complete));
        if is_complete {
            assert_eq!(item["arguments"], whole["output"][0]["arguments"]);
        } else {
            assert_eq!((limit < n, &item["status"]), (true, &json!("incomplete")));
            break;
        }
        assert!(limit + 60 > n, "no limit is within the arguments: {whole}");
    }

    let tool = json!([{ "name": "f", "input_schema": schema() }]);
    let asked = body(json!({ "tools": tool, "tool_choice": { "type": "tool", "name": "f" } }));
    let (_, whole) = server.post("/v1/messages", &asked);
    let n = whole["usage"]["output_tokens"].as_u64().unwrap();
    for limit in (n.saturating_sub(60)..=n).rev() {
        let events = events(&server, "/v1/messages", &with(asked.clone(), json!({ "max_tokens": limit })));
        let deltas = of(&events, "content_block_delta");
        assert!(deltas.len() > 2 && deltas.iter().all(|event| event["index"] == 0), "{events:?}");
        let start = &of(&events, "content_block_start")[0]["content_block"];
        assert_eq!((&start["type"], &start["name"], &start["input"]), (&json!("tool_use"), &json!("f"), &json!({})));
        assert_eq!(of(&events, "content_block_stop").len(), 1);
        let stop = if limit == n { "tool_use" } else { "max_tokens" };
        assert_eq!(of(&events, "message_delta")[0]["delta"]["stop_reason"], stop);
        let arguments = joined(&deltas, |event| &event["delta"]["partial_json"]);
        match serde_json::from_str::<Value>(&arguments) {
            Ok(input) => assert_eq!(input, whole["content"][0]["input"]),
            Err(_) => {
                assert!(limit < n && arguments.starts_with('{'), "{arguments}");
                break;
            }
        }
        assert!(limit + 60 > n, "no limit is within the arguments: {whole}");
    }
}

#[test]
fn each_api_names_its_own_field_of_a_schema_that_cannot_be_followed() {
    let (_model, server) = server();
    let wrong = json!({ "type": "object", "properties": { "x": { "type": "nosuch" } }, "required": ["x"] });
    let schema = |name: &str| if name == "g" { wrong.clone() } else { schema() };
    let format = json!({ "type": "json_schema", "name": "x", "schema": wrong, "json_schema": { "schema": wrong } });
    let function = |name: &str| json!({ "name": name, "parameters": schema(name) });
    let nested = json!(["f", "g"].map(|name| json!({ "type": "function", "function": function(name) })));
    let flat = json!(["f", "g"].map(|name| with(json!({ "type": "function" }), function(name))));
    let own = json!(["f", "g"].map(|name| json!({ "name": name, "input_schema": schema(name) })));
    let responses = |more: Value| with(json!({ "model": "default", "input": "hi" }), more);
    let (required, any) = (json!("required"), json!({ "type": "any" }));
    for (path, asked, field) in [
        ("/v1/chat/completions", body(json!({ "response_format": format })), "response_format"),
        (
            "/v1/chat/completions",
            body(json!({ "tools": nested, "tool_choice": required })),
            "tools[1].function.parameters",
        ),
        ("/v1/responses", responses(json!({ "text": { "format": format } })), "text.format"),
        ("/v1/responses", responses(json!({ "tools": flat, "tool_choice": required })), "tools[1].parameters"),
        ("/v1/messages", body(json!({ "output_config": { "format": format } })), "output_config.format"),
        ("/v1/messages", body(json!({ "tools": own, "tool_choice": any })), "tools[1].input_schema"),
        ("/api/chat", body(json!({ "format": wrong })), "format"),
        ("/api/chat", body(json!({ "tools": nested, "tool_choice": required })), "tools[1].function.parameters"),
    ] {
        for stream in [false, true] {
            let (status, refused) = server.post(path, &with(asked.clone(), json!({ "stream": stream })));
            let error = &refused["error"];
            let message = error["message"].as_str().or(error.as_str()).unwrap_or_default();
            let starts = message.starts_with(&format!("{field}: the schema cannot be followed: "));
            assert!(status == 400 && starts && message.contains("nosuch"), "{path} {field}: {refused}");
            let param = error["param"].as_str().unwrap_or(field);
            assert_eq!(param, field, "{refused}");
        }
    }
    // A tool that is not chosen has no say.
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let (status, whole) =
        server.post("/v1/chat/completions", &body(json!({ "tools": nested, "tool_choice": named, "max_tokens": 1 })));
    assert_eq!(status, 200, "{whole}");
}
