//! Renders a conversation's path into the pieces of a prompt with the checkpoint's chat template.
//! Only the template can write control tokens.
//!
//! A noncharacter is inserted into every control literal of a message before rendering. A literal
//! that is intact afterwards was written by the template ([`Piece::Control`]); the rest, without
//! the noncharacters, is text. Replies of the loaded model are placeholders, which the engine
//! replaces by the tokens that it generated. Knows nothing of tokenizers.

mod filters;
mod given;
mod guard;
mod jinja;
mod python;
mod rewrite;
mod sandbox;

pub use given::{Author, Given, GivenCall, Tools};
pub use sandbox::child_main;

use crate::chat::conversation::{Message, Role};
use crate::protocol::{Piece, TemplateSpec, thought_header};
use anyhow::{Context, Result, bail};
use guard::Guard;
use jinja::{JinjaMessage, Job};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Options of rendering. All but `think` and `keep_thinking` are fixed for a session.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    pub think: bool,
    /// Whether to keep earlier think blocks; `None`: as the template does.
    pub keep_thinking: Option<bool>,
    /// The template's date and time, fixed at the start of the session.
    pub date: jiff::civil::DateTime,
    /// [`crate::protocol::ModelInfo::think_tags`].
    pub think_tags: Option<(String, String)>,
    /// The dmschat binary that renders untrusted templates; `None`: the running one.
    pub exe: Option<PathBuf>,
    /// Set by another thread to cancel a rendering in a child process, which then returns an error.
    pub cancel: Arc<AtomicBool>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            think: true,
            keep_thinking: None,
            date: jiff::Zoned::now().datetime(),
            think_tags: None,
            exe: None,
            cancel: Arc::default(),
        }
    }
}

/// Renders `path` (see `Conversation::context_path`) and the beginning of the next reply. Errors
/// are one line: the template's message, or the bound that it exceeded.
pub fn render(
    system: Option<&str>,
    path: &[&Message],
    spec: &TemplateSpec,
    opts: &RenderOptions,
) -> Result<Vec<Piece>> {
    let rendering = Rendering::new(spec, opts);
    rendering.render(system, path).map_err(|error| match system {
        // Many templates have no place for a system prompt.
        Some(_) if rendering.render(None, path).is_ok() => {
            error.context("the model's template takes no system prompt; leave out --system (in a chat: /system none)")
        }
        _ => error,
    })
}

/// Renders given messages, among which those of the system may stand anywhere, and the beginning of
/// the next reply. Errors as those of [`render`].
pub fn render_given(messages: &[Given], spec: &TemplateSpec, opts: &RenderOptions) -> Result<Vec<Piece>> {
    render_with_tools(messages, &Tools::default(), spec, opts)
}

/// Renders messages as [`render_given`] does, with tools. An answer whose sampled text is known is
/// rendered with that text if the template accepts it; else the template writes its calls.
pub fn render_with_tools(
    messages: &[Given],
    tools: &Tools,
    spec: &TemplateSpec,
    opts: &RenderOptions,
) -> Result<Vec<Piece>> {
    let rendering = Rendering::new(spec, opts);
    let has_sampled = messages.iter().any(|message| message.as_sampled.is_some());
    if has_sampled && let Ok(pieces) = rendering.render_given(messages, tools, true) {
        return Ok(pieces);
    }
    rendering.render_given(messages, tools, false).map_err(|error| {
        let others: Vec<Given> = messages.iter().filter(|m| m.author != Author::System).cloned().collect();
        // Many templates have no place for them.
        match others.len() < messages.len() && rendering.render_given(&others, tools, false).is_ok() {
            true => error.context("the model's template takes no system message here"),
            false => error,
        }
    })
}

/// The pieces of a text in which its author wrote control tokens by their literals, as a template
/// does.
pub fn with_controls(text: &str, spec: &TemplateSpec) -> Vec<Piece> {
    with_bos(merge(Guard::new(&spec.control).split(text)), spec)
}

/// Prepends a BOS if prompts begin with one and the pieces do not.
fn with_bos(mut pieces: Vec<Piece>, spec: &TemplateSpec) -> Vec<Piece> {
    let bos = Piece::Control(spec.bos_token.clone());
    if spec.prompt_bos && spec.has_control(&spec.bos_token) && pieces.first() != Some(&bos) {
        pieces.insert(0, bos);
    }
    pieces
}

/// Whether the last think tag in these pieces is an opening one.
fn ends_thinking(pieces: &[Piece], tags: &(String, String)) -> bool {
    pieces
        .iter()
        .rev()
        .find_map(|p| match p {
            Piece::Control(c) if *c == tags.0 => Some(true),
            Piece::Control(c) if *c == tags.1 => Some(false),
            Piece::Reply { .. } => Some(false),
            Piece::Text(text) if text.trim_end().ends_with(&tags.0) => Some(true),
            Piece::Text(text) if text.trim_end().ends_with(&tags.1) => Some(false),
            _ => None,
        })
        .unwrap_or(false)
}

struct Rendering<'a> {
    spec: &'a TemplateSpec,
    opts: &'a RenderOptions,
    guard: Guard<'a>,
}

/// Part of a generation prompt after the header that every assistant message has.
#[derive(Default)]
struct Opening {
    with_thinking: Vec<Piece>,
    without: Vec<Piece>,
}

impl<'a> Rendering<'a> {
    fn new(spec: &'a TemplateSpec, opts: &'a RenderOptions) -> Self {
        Self { spec, opts, guard: Guard::new(&spec.control) }
    }

    fn render(&self, system: Option<&str>, path: &[&Message]) -> Result<Vec<Piece>> {
        self.check_given(system, path)?;
        let has_reply = path.iter().any(|m| m.role == Role::Assistant);
        // Without tags or replies there is nothing to keep or drop.
        let keep = if has_reply && self.opts.think_tags.is_some() { self.opts.keep_thinking } else { Some(false) };
        let mut jobs = Vec::new();
        if keep != Some(true) {
            jobs.push(self.job(system, path, false));
        }
        if keep != Some(false) {
            jobs.push(self.job(system, path, true));
            jobs.extend(self.probes());
        }
        let mut texts = self.texts(&jobs)?.into_iter();
        let mut next = || texts.next().context("chat template: a rendering is missing");
        let dropped = if keep != Some(true) { Some(next()?) } else { None };
        if keep == Some(false) {
            return self.pieces(&dropped.unwrap_or_default(), path, None);
        }
        let kept = next()?;
        let (between, with, without, thought) = (next()?, next()?, next()?, next()?);
        if keep.is_none() && !thought.contains(PROBE_THOUGHT) {
            return self.pieces(&dropped.unwrap_or_default(), path, None);
        }
        let opening = self.opening(&between, &with, &without);
        self.pieces(&kept, path, Some(&opening))
    }

    /// `as_sampled`: answers are rendered as the model wrote them, calls included.
    fn render_given(&self, given: &[Given], tools: &Tools, as_sampled: bool) -> Result<Vec<Piece>> {
        self.check_bytes("the conversation", given.iter().map(|m| m.text.len()).sum())?;
        let message = |(index, one): (usize, &Given)| one.message(index, &self.guard, tools, as_sampled);
        let mut messages: Vec<JinjaMessage> = given.iter().enumerate().map(message).collect();
        tools.add_to_system(&mut messages, &self.guard);
        let job = Job { tools: tools.of_template(&self.guard), ..self.job_of(messages, true, self.opts.think) };
        let texts = self.texts(&[job])?;
        let text = texts.first().context("chat template: a rendering is missing")?;
        self.given_pieces(text, given, tools, as_sampled)
    }

    /// Splits a rendering into pieces and replaces placeholders by the answers. In texts that the
    /// model wrote, the marks of calls become control tokens again.
    fn given_pieces(&self, text: &str, given: &[Given], tools: &Tools, as_sampled: bool) -> Result<Vec<Piece>> {
        let known = |mark: &&&str| self.spec.has_control(mark);
        let marks: Vec<String> = tools.marks.iter().filter(known).map(|mark| (*mark).to_owned()).collect();
        let marks = Guard::new(&marks);
        let (mut out, mut bytes) = (Vec::new(), 0);
        for part in guard::parts(text) {
            let before = out.len();
            match part {
                guard::Part::Text(text) => out.extend(self.guard.split(text)),
                guard::Part::Placeholder(index) => {
                    let Some(one) = given.get(index) else { continue };
                    match one.as_sampled.as_ref().filter(|_| as_sampled) {
                        Some(text) => out.extend(marks.split(text.trim_start_matches('\n'))),
                        None => out.push(Piece::Text(one.text.trim_start_matches('\n').to_owned())),
                    }
                }
            }
            // A template may repeat an answer many times.
            bytes += out[before..].iter().map(bytes_of).sum::<usize>();
            self.check_bytes("the rendered conversation", bytes)?;
        }
        Ok(with_bos(merge(out), self.spec))
    }

    /// Runs the template.
    fn texts(&self, jobs: &[Job]) -> Result<Vec<String>> {
        let (source, bytes) = (self.source(), self.text_bytes());
        match self.spec.trusted {
            true => jinja::render(&source, bytes, jobs),
            false => sandbox::render(&source, bytes, self.opts.exe.as_deref(), &self.opts.cancel, jobs),
        }
    }

    /// Fails on texts larger than any context, before they are rendered.
    fn check_given(&self, system: Option<&str>, path: &[&Message]) -> Result<()> {
        let bytes = system.map_or(0, str::len) + path.iter().map(|m| m.text.len()).sum::<usize>();
        self.check_bytes("the conversation", bytes)
    }

    fn check_bytes(&self, what: &str, bytes: usize) -> Result<()> {
        match self.spec.limit.and_then(|limit| limit.refusal(what, bytes)) {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Largest rendering in bytes. The short probes of a template always fit.
    fn text_bytes(&self) -> usize {
        self.spec.limit.map_or(usize::MAX, |limit| limit.bytes().max(SHORT_TEXT_BYTES))
    }

    /// The template in use: the checkpoint's, else ChatML where its tokens exist, else plain lines.
    fn source(&self) -> String {
        match &self.spec.source {
            Some(source) => source.clone(),
            None if self.spec.is_plain() => PLAIN.to_owned(),
            None => CHATML.to_owned(),
        }
    }

    /// A think tag: a control token, or text where the model writes it in ordinary tokens.
    fn tag(&self, literal: &str) -> Piece {
        let literal_is_token = self.spec.has_control(literal);
        if literal_is_token { Piece::Control(literal.to_owned()) } else { Piece::Text(literal.to_owned()) }
    }

    /// `keep`: a placeholder stands for the whole reply with its think block; else for the answer
    /// alone.
    fn job(&self, system: Option<&str>, path: &[&Message], keep: bool) -> Job {
        let mut messages = Vec::with_capacity(path.len() + 1);
        if let Some(system) = system {
            messages.push(JinjaMessage::new("system", self.guard.protect(system)));
        }
        for (index, message) in path.iter().enumerate() {
            let role = message.role.as_str();
            messages.push(match message.role {
                Role::User => JinjaMessage::new(role, self.guard.protect(&message.text)),
                Role::Assistant => {
                    let mut out = JinjaMessage::new(role, guard::placeholder(index));
                    if !(keep && self.is_raw(message)) && self.opts.keep_thinking != Some(false) {
                        out.reasoning_content = message.shown_reasoning().map(|r| self.guard.protect(r));
                    }
                    out
                }
            });
        }
        self.job_of(messages, true, self.opts.think)
    }

    /// Whether a rendering that keeps think blocks has this reply as generated, not as the template
    /// would write it. Given texts (examples, files) only if the template drops think blocks.
    fn is_raw(&self, message: &Message) -> bool {
        message.turn.is_some() || (self.opts.keep_thinking == Some(true) && message.shown_reasoning().is_some())
    }

    fn job_of(&self, messages: Vec<JinjaMessage>, add_generation_prompt: bool, enable_thinking: bool) -> Job {
        Job {
            messages,
            add_generation_prompt,
            enable_thinking,
            special_tokens: self.special_tokens(),
            date: self.opts.date.to_string(),
            tools: None,
        }
    }

    /// A token that the model lacks is undefined in a template.
    fn special_tokens(&self) -> BTreeMap<String, String> {
        let mut out = self.spec.special_tokens.clone();
        for (name, literal) in [("bos_token", &self.spec.bos_token), ("eos_token", &self.spec.eos_token)] {
            if !literal.is_empty() {
                out.insert(name.to_owned(), literal.clone());
            }
        }
        out
    }

    /// Four short renderings that probe what the template does with think blocks.
    fn probes(&self) -> [Job; 4] {
        let user = |text: &str| JinjaMessage::new("user", text.to_owned());
        let reply = JinjaMessage::new("assistant", guard::placeholder(0));
        let thoughtful = JinjaMessage { reasoning_content: Some(PROBE_THOUGHT.to_owned()), ..reply.clone() };
        [
            self.job_of(vec![user(PROBE_USER), reply, user("b")], false, true),
            self.job_of(vec![user(PROBE_USER)], true, true),
            self.job_of(vec![user(PROBE_USER)], true, false),
            self.job_of(vec![user(PROBE_USER), thoughtful, user("b")], false, true),
        ]
    }

    /// Compares the text before an earlier reply with that before the next one.
    fn opening(&self, between: &str, with: &str, without: &str) -> Opening {
        let header = between
            .rsplit_once(PROBE_USER)
            .and_then(|(_, after)| after.split_once(&guard::placeholder(0)))
            .map(|(header, _)| self.without_empty_think(header));
        let extra = |prompt: &str| {
            let after = prompt.rsplit_once(PROBE_USER).map(|(_, after)| after);
            after.zip(header).and_then(|(a, h)| a.strip_prefix(h)).map(|e| self.guard.split(e)).unwrap_or_default()
        };
        Opening { with_thinking: extra(with), without: extra(without) }
    }

    /// Removes an empty think block at the end of template text: some templates write one before
    /// every reply without reasoning, but the reply as generated has its own.
    fn without_empty_think<'t>(&self, text: &'t str) -> &'t str {
        let Some((open, close)) = &self.opts.think_tags else { return text };
        let before_close = text.trim_end().strip_suffix(close.as_str());
        let header = thought_header(open).trim_end();
        let before = before_close.and_then(|t| t.trim_end().strip_suffix(header));
        before.and_then(|t| t.trim_end().strip_suffix(open.as_str())).unwrap_or(text)
    }

    /// Splits a rendering into pieces and replaces placeholders by replies.
    fn pieces(&self, text: &str, path: &[&Message], keep: Option<&Opening>) -> Result<Vec<Piece>> {
        let (mut out, mut bytes, mut counted) = (Vec::new(), 0, 0);
        let parts = guard::parts(text);
        for (at, part) in parts.iter().enumerate() {
            let message = |part: Option<&guard::Part>| match part {
                Some(guard::Part::Placeholder(index)) => path.get(*index).copied(),
                _ => None,
            };
            if let guard::Part::Text(text) = part {
                let raw = keep.is_some() && message(parts.get(at + 1)).is_some_and(|m| self.is_raw(m));
                out.extend(self.guard.split(if raw { self.without_empty_think(text) } else { text }));
            } else if let Some(message) = message(Some(part)) {
                self.reply(&mut out, message, keep.filter(|_| self.is_raw(message)));
            }
            // A template may repeat a reply many times.
            bytes += out[counted..].iter().map(bytes_of).sum::<usize>();
            counted = out.len();
            self.check_bytes("the rendered conversation", bytes)?;
        }
        Ok(with_bos(merge(out), self.spec))
    }

    fn reply(&self, out: &mut Vec<Piece>, message: &Message, keep: Option<&Opening>) {
        let pieces = match keep {
            Some(opening) => {
                let prefix = if message.think { &opening.with_thinking } else { &opening.without };
                let thinking = self.opts.think_tags.as_ref().is_some_and(|t| ends_thinking(prefix, t));
                out.extend(prefix.iter().cloned());
                self.whole_reply(message, thinking)
            }
            None => vec![Piece::Text(message.text.trim_start_matches('\n').to_owned())],
        };
        match message.turn.filter(|_| message.own) {
            Some(turn) => out.push(Piece::Reply { turn, pieces }),
            None => out.extend(pieces),
        }
    }

    /// A reply as generated, with its think block. `in_prompt`: the opening tag was in the prompt
    /// and not generated.
    fn whole_reply(&self, message: &Message, in_prompt: bool) -> Vec<Piece> {
        let mut out = Vec::new();
        if let (Some((open, close)), Some(reasoning)) = (&self.opts.think_tags, &message.reasoning) {
            if !in_prompt {
                out.extend([self.tag(open), Piece::Text(thought_header(open).to_owned())]);
            }
            // Given texts, unlike generated ones, lack the newlines around a think block.
            let given = message.turn.is_none();
            let around = if given { "\n" } else { "" };
            let before = if thought_header(open).is_empty() { around } else { "" };
            out.push(Piece::Text(format!("{before}{reasoning}{around}")));
            if message.reasoning_closed || given {
                out.push(self.tag(close));
                out.push(Piece::Text(format!("{around}{around}")));
            }
        }
        out.push(Piece::Text(message.text.clone()));
        merge(out)
    }
}

/// Bytes of text in a piece. A control token counts as its literal.
fn bytes_of(piece: &Piece) -> usize {
    match piece {
        Piece::Control(text) | Piece::Text(text) => text.len(),
        Piece::Reply { pieces, .. } => pieces.iter().map(bytes_of).sum(),
    }
}

/// Joins adjacent texts and drops empty ones.
fn merge(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), piece) {
            (_, Piece::Text(text)) if text.is_empty() => {}
            (Some(Piece::Text(before)), Piece::Text(text)) => before.push_str(&text),
            (_, piece) => out.push(piece),
        }
    }
    out
}

/// Bytes that any rendering may have: more than the probes need.
const SHORT_TEXT_BYTES: usize = 64 << 10;

const PROBE_USER: &str = "dmschat-probe-user";
const PROBE_THOUGHT: &str = "dmschat-probe-thought";

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const PLAIN: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n\
{% elif m.role == 'user' %}User: {{ m.content }}\n{% else %}Assistant: {{ m.content }}\n{% endif %}{% endfor %}\
{% if add_generation_prompt %}Assistant:{% endif %}";
