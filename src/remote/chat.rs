//! A prompt as the messages of OpenAI's API, and the body of a request.
//!
//! The chat renders a conversation by the model's template into pieces. The template of a server's
//! model is its own affair, so the one that is used here writes who speaks as control tokens, which
//! no text of a person can become; the messages are read back from the pieces.

use crate::protocol::{Ask, Piece, SamplingParams, TemplateSpec};
use serde_json::{Map, Value, json};

const TEMPLATE: &str = "{% for message in messages %}<|dmschat:{{ message.role }}|>\
    {% if message.reasoning_content %}<|dmschat:thought|>{{ message.reasoning_content }}<|dmschat:said|>{% endif %}\
    {{ message.content }}{% endfor %}\
    {% if enable_thinking %}<|dmschat:think|>{% else %}<|dmschat:answer|>{% endif %}";

const SPEAKERS: [(&str, &str); 3] =
    [("<|dmschat:system|>", "system"), ("<|dmschat:user|>", "user"), ("<|dmschat:assistant|>", "assistant")];
const THOUGHT: &str = "<|dmschat:thought|>";
const SAID: &str = "<|dmschat:said|>";
const THINK: &str = "<|dmschat:think|>";
const ANSWER: &str = "<|dmschat:answer|>";

/// The template of every server's model.
pub fn template() -> TemplateSpec {
    let mut control: Vec<String> = SPEAKERS.map(|(literal, _)| literal.to_owned()).into();
    control.extend([THOUGHT, SAID, THINK, ANSWER].map(str::to_owned));
    control.sort_by_key(|literal| std::cmp::Reverse(literal.len()));
    TemplateSpec { source: Some(TEMPLATE.to_owned()), control, trusted: true, ..TemplateSpec::default() }
}

/// The messages that pieces of [`template`] spell, and whether the model is to think.
fn messages(pieces: &[Piece]) -> (Vec<Value>, bool) {
    let (mut out, mut think) = (Vec::<Value>::new(), false);
    let mut field = "content";
    let mut visit = |piece: &Piece| match piece {
        Piece::Control(literal) => match SPEAKERS.iter().find(|(speaker, _)| speaker == literal) {
            Some((_, role)) => {
                field = "content";
                out.push(json!({ "role": role, "content": "" }));
            }
            None if literal == THOUGHT => field = "reasoning_content",
            None if literal == SAID => field = "content",
            None => think = literal == THINK,
        },
        Piece::Text(text) => {
            if let Some(message) = out.last_mut() {
                let before = message[field].as_str().unwrap_or_default();
                message[field] = format!("{before}{text}").into();
            }
        }
        Piece::Reply { .. } => {}
    };
    for piece in pieces {
        match piece {
            Piece::Reply { pieces, .. } => pieces.iter().for_each(&mut visit),
            piece => visit(piece),
        }
    }
    (out, think)
}

/// The body of `POST /v1/chat/completions`. An option is sent if it is set: what is off here is as
/// the server has it.
pub fn body(ask: &Ask, model: &str) -> Value {
    let (messages, think) = messages(&ask.prompt);
    let mut body = Map::new();
    for ((name, value), (_, off)) in ask.sampling.values().zip(SamplingParams::default().values()) {
        if value != off {
            body.insert(name.to_owned(), json!(value));
        }
    }
    // Some servers take whole numbers only.
    body.entry("top_k").and_modify(|k| *k = json!(k.as_f64().unwrap_or(0.0) as u64));
    let fields = json!({
        "model": model, "messages": messages, "stream": true, "stream_options": { "include_usage": true },
        "seed": ask.seed, "max_tokens": ask.max_tokens, "thinking_budget": ask.max_think,
        "stop": Some(&ask.stop).filter(|stop| !stop.is_empty()),
        "chat_template_kwargs": { "enable_thinking": think }, "return_progress": true,
        "return_cache": true, "eviction": ask.eviction,
    });
    let Value::Object(fields) = fields else { unreachable!("an object was written") };
    body.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_is_left_to_the_server() {
        let ask = Ask { prompt: vec![Piece::Control(ANSWER.into())], ..Ask::default() };
        let wanted = json!({
            "model": "m", "messages": [], "stream": true, "stream_options": { "include_usage": true },
            "chat_template_kwargs": { "enable_thinking": false }, "return_progress": true, "return_cache": true,
        });
        assert_eq!(body(&ask, "m"), wanted);
        let sampling = SamplingParams { temperature: 0.5, top_k: 20, ..SamplingParams::default() };
        let body = body(&Ask { sampling, seed: Some(7), max_tokens: Some(9), ..ask }, "m");
        assert_eq!((&body["temperature"], &body["top_k"]), (&json!(0.5), &json!(20)));
        assert_eq!((&body["seed"], &body["max_tokens"]), (&json!(7), &json!(9)));
    }
}
