//! The prompt of a chat: its messages, rendered by the model's template.

use super::refusal::Refusal;
use super::shared::Shared;
use super::tools::{Offered, format_of};
use crate::chat::template::{Author, Given, RenderOptions, Tools, render_with_tools, with_controls};
use crate::protocol::{Piece, Token};
use crate::tokenizer::flatten;
use serde_json::Value;
use std::sync::Arc;

/// Most messages of a request.
const MOST: usize = 10_000;

/// Refuses a request with no message, or with too many.
pub fn check_count(n: usize) -> Result<(), Refusal> {
    match n {
        0 => Err(Refusal::field("messages", "messages is empty")),
        n if n > MOST => Err(Refusal::field("messages", format!("there are {n} messages, expected at most {MOST}"))),
        _ => Ok(()),
    }
}

/// A rendered prompt.
pub struct Prompt {
    pub pieces: Vec<Piece>,
    /// [`Ask::shared`](crate::protocol::Ask::shared)
    pub shared: usize,
}

impl Prompt {
    /// A text that the client has rendered. The literals of control tokens in it are these tokens.
    pub fn raw(text: &str, shared: &Shared) -> Self {
        Self { pieces: with_controls(text, &shared.info.template), shared: 0 }
    }
}

/// A conversation, and whether the model thinks before it answers.
pub struct Chat {
    messages: Vec<Given>,
    think: bool,
    tools: Tools,
}

impl Chat {
    /// Of these messages, after the server's own system prompt if they have none. Refuses what no
    /// context holds.
    pub fn new(mut messages: Vec<Given>, think: bool, shared: &Shared) -> Result<Self, Refusal> {
        let has_system = messages.first().is_some_and(|first| first.author == Author::System);
        if let Some(system) = shared.defaults.system.as_ref().filter(|_| !has_system) {
            messages.insert(0, Given::new(Author::System, system.as_str()));
        }
        shared.check_length("messages", messages.iter().map(|message| message.text.len()).sum())?;
        Ok(Self { messages, think, tools: Tools::default() })
    }

    /// Adds tools. Answers with calls that were sampled here are rendered as they were sampled.
    pub fn with_tools(self, offered: Option<&Offered>, shared: &Shared) -> Self {
        // Without tools, messages may still have calls and results.
        let Some(format) = offered.map(|offered| offered.format).or_else(|| format_of(&shared.info.template)) else {
            return self;
        };
        let mut messages = self.messages;
        if offered.is_some() && format.repeats_sampled() {
            for message in messages.iter_mut().filter(|message| !message.calls.is_empty()) {
                message.as_sampled = shared.said.find(&message.text, &message.calls);
            }
        }
        let tools = Tools {
            json: offered.map_or(Value::Null, |offered| offered.json.clone()),
            marks: format.marks(),
            in_system: format.tools_in_system(),
            id: Some(Arc::new(|id: &str| format.id_for_template(id))),
        };
        Self { messages, tools, ..self }
    }

    pub fn render(&self, shared: &Shared) -> anyhow::Result<Prompt> {
        let pieces = self.pieces(&self.messages, shared)?;
        let shared = self.shared(&flatten(&pieces), shared);
        Ok(Prompt { pieces, shared })
    }

    fn pieces(&self, messages: &[Given], shared: &Shared) -> anyhow::Result<Vec<Piece>> {
        let opts =
            RenderOptions { think: self.think, think_tags: shared.info.think_tags.clone(), ..RenderOptions::default() };
        render_with_tools(messages, &self.tools, &shared.info.template, &opts)
    }

    /// Bytes of the prompt that do not depend on what the first message after the system prompt
    /// says: as many as the rendering of another question has alike. 0 without a system prompt and
    /// tools.
    fn shared(&self, flat: &str, shared: &Shared) -> usize {
        let n = self.messages.iter().take_while(|message| message.author == Author::System).count();
        let Some(first) = self.messages.get(n).filter(|_| n > 0 || !self.tools.json.is_null()) else { return 0 };
        let other = if first.text.trim_start().starts_with('a') { "b" } else { "a" };
        let mut messages = self.messages[..n].to_vec();
        messages.push(Given::new(Author::User, other));
        // A template may refuse it.
        let other = self.pieces(&messages, shared).map(|pieces| flatten(&pieces)).unwrap_or_default();
        flat.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count()
    }

    /// The tokens of the prompt.
    pub async fn tokens(self, shared: &Arc<Shared>) -> Result<Vec<Token>, Refusal> {
        let prompt = rendered(shared, move |shared| self.render(shared)).await?;
        shared.encode(prompt.pieces).await.map_err(Refusal::failed)
    }
}

/// Refuses a prompt that the context does not hold, as the engine does.
pub async fn check_fits(shared: &Arc<Shared>, prompt: Vec<Piece>) -> Result<(), Refusal> {
    let (tokens, context) = (shared.encode(prompt).await.map_err(Refusal::failed)?.len(), shared.info.context);
    if tokens < context {
        return Ok(());
    }
    let message = format!("the prompt has {tokens} tokens, and the context holds {context} with the answer");
    Err(Refusal::too_long(message, "messages", tokens, context))
}

/// Renders on a thread of its own.
pub async fn rendered(
    shared: &Arc<Shared>,
    render: impl FnOnce(&Shared) -> anyhow::Result<Prompt> + Send + 'static,
) -> Result<Prompt, Refusal> {
    let renderer = Arc::clone(shared);
    let rendered = tokio::task::spawn_blocking(move || render(&renderer)).await;
    let rendered = rendered.map_err(|_| Refusal::failed("the prompt could not be rendered"))?;
    rendered.map_err(|error| Refusal::wrong(format!("{error:#}")))
}
