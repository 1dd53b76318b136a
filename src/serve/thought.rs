//! Whether and how long the model thinks before it answers.

use super::refusal::Refusal;
use super::shared::Shared;
use crate::protocol::Thinking;

/// Tokens of a thought by effort: most, or without a limit.
const EFFORTS: [(&str, Option<usize>); 6] = [
    ("minimal", Some(512)),
    ("low", Some(2048)),
    ("medium", Some(8192)),
    ("high", None),
    ("xhigh", None),
    ("max", None),
];

#[derive(Clone, Copy, Debug)]
pub struct Thought {
    pub think: bool,
    /// Tokens after which it is closed. `None`: never.
    pub most: Option<usize>,
}

impl Thought {
    /// As the server has it where a request does not say.
    pub fn default_of(shared: &Shared) -> Self {
        Self { think: shared.defaults.think, most: shared.defaults.max_think }
    }

    /// Takes the value of the field `name`, as `low`. It does not raise the server's limit.
    pub fn set_effort(&mut self, name: &str, effort: &str) -> Result<(), Refusal> {
        let Some((_, most)) = EFFORTS.iter().find(|(known, _)| *known == effort) else {
            let known = EFFORTS.map(|(known, _)| known).join(", ");
            let short = name.rsplit('.').next().unwrap_or(name);
            return Err(Refusal::field(name, format!("{effort:?} is not a {short} (expected {known})")));
        };
        self.most = most.or(self.most);
        Ok(())
    }

    /// Switches thinking, by the field `name`. Fails for a model that cannot be told not to.
    pub fn switch(&mut self, name: &str, think: bool, shared: &Shared) -> Result<(), Refusal> {
        if !think && shared.info.thinking() == Thinking::Fixed {
            let message = format!("{name}: {} cannot be told not to think", shared.info.identity.name);
            return Err(Refusal::unsupported(name, message));
        }
        self.think = think;
        Ok(())
    }
}
