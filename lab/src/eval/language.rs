//! From a problem to the tokens of its prompt, and from sampled tokens to a reply.

use super::problem::Problem;
use anyhow::{Context, Result, anyhow};
use dmschat::chat::{RenderOptions, render};
use dmschat::checkpoint::Checkpoint;
use dmschat::engine::{ThinkTags, split_reply, template_spec};
use dmschat::protocol::{TemplateSpec, Token};
use dmschat::tokenizer::Tokenizer;

/// The model's tokenizer and template.
pub struct Language {
    tokenizer: Tokenizer,
    spec: TemplateSpec,
    opts: RenderOptions,
    /// Tokens that end an answer.
    pub eos: Vec<Token>,
    think: ThinkTags,
    /// The system prompt of problems that bring none.
    system: Option<String>,
}

/// A rendered problem.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub tokens: Vec<Token>,
    /// Whether it ends in an open think block.
    pub thinks: bool,
}

impl Language {
    /// The language of a checkpoint whose conversations have at most `context` tokens.
    pub fn new(checkpoint: &Checkpoint, context: usize, think: bool, system: Option<String>) -> Result<Self> {
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
        let tags = ThinkTags::of(&tokenizer, checkpoint.chat_template.as_deref());
        let opts = RenderOptions {
            think,
            // A date of today would change the prompts from day to day.
            date: jiff::civil::date(2025, 1, 1).at(0, 0, 0, 0),
            think_tags: tags.literals(),
            ..RenderOptions::default()
        };
        let spec = template_spec(checkpoint, &tokenizer, context);
        Ok(Self { spec, opts, eos: checkpoint.generation.eos.clone(), think: tags, system, tokenizer })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Renders and encodes a problem.
    pub fn prompt(&self, problem: &Problem) -> Result<Prompt> {
        let chat = Problem::conversation(&problem.messages, self.system.clone()).map_err(|why| anyhow!(why))?;
        let pieces = render(chat.system(), &chat.context_path(), &self.spec, &self.opts)?;
        let tokens = self.tokenizer.encode_pieces(&pieces).context("the prompt cannot be encoded")?;
        Ok(Prompt { tokens, thinks: self.think.end(&pieces) })
    }

    /// The reasoning and the answer that tokens spell.
    pub fn reply(&self, tokens: &[Token], thinks: bool) -> Result<(String, String)> {
        let is = |token: &Token, pick: fn((Token, Token)) -> Token| self.think.tokens.map(pick) == Some(*token);
        let opened = tokens.iter().position(|t| is(t, |tags| tags.0));
        let closed = tokens.iter().rposition(|t| is(t, |tags| tags.1));
        let at = match (closed, thinks || opened.is_some()) {
            (Some(at), _) => at,
            (None, true) => tokens.len(),
            (None, false) => 0,
        };
        let text = |part: &[Token]| {
            let shown = |t: &Token| !self.tokenizer.is_hidden(*t) && !self.eos.contains(t);
            let plain: Vec<Token> = part.iter().copied().filter(shown).collect();
            self.tokenizer.decode(&plain)
        };
        if self.think.tokens.is_none() {
            return Ok(split_reply(&self.think, thinks, &text(tokens)?));
        }
        Ok((text(&tokens[..at])?, text(&tokens[at..])?))
    }
}
