//! The queue of commands to the engine. A command with a prompt waits until a separate thread has
//! rendered the prompt, and later commands wait behind it, so that the UI thread never waits and
//! the order is kept.

use super::event::Asked;
use super::worker::{Outcome, Rendered, Worker};
use crate::chat::{Conversation, Message, RenderOptions, render};
use crate::protocol::{Command, GenerateRequest, ModelInfo, Piece, Probe};
use anyhow::{Result, anyhow};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The purpose of a rendering.
#[derive(Debug)]
pub enum Purpose {
    /// The request still lacks its prompt.
    Generate(Box<GenerateRequest>),
    Rewind,
    /// Work that the user waits for, and the request, which still lacks its prompts.
    Probe(Asked, Probe),
}

impl Purpose {
    /// Work that the user waits for.
    pub fn asked(&self) -> Option<Asked> {
        match self {
            Self::Generate(request) => Some(Asked::Turn(request.turn)),
            Self::Probe(asked, _) => Some(*asked),
            Self::Rewind => None,
        }
    }
}

/// Input of a rendering, owned by its thread.
pub struct Source {
    pub system: Option<String>,
    pub path: Vec<Message>,
    /// Whether to render the last message of the path also by itself.
    pub alone: bool,
    pub info: Arc<ModelInfo>,
    pub options: RenderOptions,
}

impl Source {
    /// Adds a question that is not part of the conversation and is answered without thinking.
    pub fn ask(&mut self, chat: &Conversation, question: &str) {
        let mut chat = chat.clone();
        chat.push_user(question);
        self.path = chat.context_path().into_iter().cloned().collect();
        self.options.think = false;
    }
}

enum Waiting {
    Command(Command),
    Prompt {
        purpose: Purpose,
        /// Absent once the rendering has begun.
        source: Option<Source>,
        cancel: Arc<AtomicBool>,
    },
}

pub struct Outbox {
    waiting: VecDeque<Waiting>,
    /// Id of the running rendering, which belongs to the first entry of the queue.
    running: Option<u64>,
    last_id: u64,
    worker: Worker,
}

impl Outbox {
    pub fn new(worker: Worker) -> Self {
        Self { waiting: VecDeque::new(), running: None, last_id: 0, worker }
    }

    pub fn push(&mut self, command: Command) {
        self.waiting.push_back(Waiting::Command(command));
    }

    /// Appends a prompt, and drops rewinds directly before it, which it makes unnecessary.
    pub fn push_prompt(&mut self, purpose: Purpose, source: Source) {
        while let Some(Waiting::Prompt { purpose: Purpose::Rewind, .. }) = self.waiting.back() {
            self.remove(self.waiting.len() - 1);
        }
        let cancel = source.options.cancel.clone();
        self.waiting.push_back(Waiting::Prompt { purpose, source: Some(source), cancel });
    }

    /// Removes an entry from the queue and cancels its rendering.
    fn remove(&mut self, at: usize) -> Option<Waiting> {
        let entry = self.waiting.remove(at)?;
        if let Waiting::Prompt { cancel, .. } = &entry {
            cancel.store(true, Ordering::Relaxed);
        }
        if at == 0 {
            self.running = None;
        }
        Some(entry)
    }

    /// Returns the next command that can be sent, or starts the rendering that the queue waits for.
    pub fn ready(&mut self) -> Option<Command> {
        match self.waiting.pop_front()? {
            Waiting::Command(command) => return Some(command),
            Waiting::Prompt { purpose, source, cancel } => {
                if let Some(source) = source {
                    self.begin(source);
                }
                self.waiting.push_front(Waiting::Prompt { purpose, source: None, cancel });
            }
        }
        None
    }

    fn begin(&mut self, source: Source) {
        self.last_id += 1;
        let id = self.last_id;
        self.running = Some(id);
        let work = move || {
            let Source { system, path, alone, info, options } = source;
            let path: Vec<&Message> = path.iter().collect();
            let last = path.last().filter(|_| alone);
            let work = AssertUnwindSafe(|| {
                let all = render(system.as_deref(), &path, &info.template, &options)?;
                let alone = last.map(|last| render(None, &[last], &info.template, &options)).transpose()?;
                Ok((all, alone.unwrap_or_default()))
            });
            let result = catch_unwind(work).unwrap_or_else(|_| Err(anyhow!("chat template: the renderer crashed")));
            let (result, alone) = result.map_or_else(|e| (Err(e), Vec::new()), |(all, alone)| (Ok(all), alone));
            Outcome::Rendered(Rendered { id, result, alone })
        };
        if let Err(error) = self.worker.spawn("render", work) {
            let result = Err(anyhow!("chat template: no thread to render on: {error}"));
            self.worker.send(Outcome::Rendered(Rendered { id, result, alone: Vec::new() }));
        }
    }

    /// Returns the purpose of a finished rendering, the prompt, and the last message by itself;
    /// `None` if it was cancelled.
    pub fn finish(&mut self, rendered: Rendered) -> Option<(Purpose, Result<[Vec<Piece>; 2]>)> {
        if self.running != Some(rendered.id) {
            return None;
        }
        match self.remove(0)? {
            Waiting::Prompt { purpose, .. } => Some((purpose, rendered.result.map(|prompt| [prompt, rendered.alone]))),
            Waiting::Command(_) => None,
        }
    }

    /// Removes what the user waits for and was not sent yet: an answer, a recall test or a rebuild.
    pub fn withdraw(&mut self) -> Option<Asked> {
        let asked = |waiting: &Waiting| match waiting {
            Waiting::Prompt { purpose, .. } => purpose.asked(),
            Waiting::Command(Command::Rebuild) => Some(Asked::Rebuild),
            Waiting::Command(_) => None,
        };
        let (at, asked) = self.waiting.iter().enumerate().find_map(|(at, waiting)| Some((at, asked(waiting)?)))?;
        self.remove(at);
        Some(asked)
    }

    /// Empties the queue: its engine is gone.
    pub fn clear(&mut self) {
        while self.remove(0).is_some() {}
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::ui::testing;
    use crate::ui::worker::Outcomes;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    /// A renderer that never answers, and leaves its process id in `pid`. Written by a child
    /// process, because a file that is open for writing cannot be run.
    fn stalled(dir: &Path) -> PathBuf {
        let script = "printf '#!/bin/sh\\necho $$ > \"%s/pid\"\\nexec sleep 600\\n' \"$0\" > \"$0/renderer\" && chmod +x \"$0/renderer\"";
        assert!(std::process::Command::new("sh").args(["-c", script]).arg(dir).status().unwrap().success());
        dir.join("renderer")
    }

    fn source(exe: Option<PathBuf>) -> Source {
        let mut info = testing::model(1, 1);
        info.template.trusted = exe.is_none();
        let mut chat = Conversation::new(None);
        chat.push_user("hi");
        Source {
            system: None,
            path: chat.context_path().into_iter().cloned().collect(),
            alone: false,
            info: Arc::new(info),
            options: RenderOptions { exe, ..RenderOptions::default() },
        }
    }

    fn request(turn: u64) -> Purpose {
        let ask = crate::protocol::Ask::default();
        Purpose::Generate(Box::new(GenerateRequest { turn, ask, pin: None, chains: None }))
    }

    fn start() -> (Outbox, Outcomes) {
        let (worker, outcomes) = Worker::start().unwrap();
        (Outbox::new(worker), outcomes)
    }

    fn finish((outbox, outcomes): (&mut Outbox, &mut Outcomes)) -> Option<(Purpose, Result<[Vec<Piece>; 2]>)> {
        let Some(Outcome::Rendered(rendered)) = outcomes.blocking_recv() else { panic!("nothing was rendered") };
        outbox.finish(rendered)
    }

    #[test]
    fn what_was_asked_after_a_prompt_waits_behind_it() {
        let (mut outbox, mut outcomes) = start();
        outbox.push_prompt(Purpose::Rewind, source(None));
        outbox.push(Command::SetEviction(false));
        outbox.push_prompt(request(1), source(None));
        outbox.push(Command::Clear);
        assert!(outbox.ready().is_none());
        assert!(matches!(finish((&mut outbox, &mut outcomes)), Some((Purpose::Rewind, Ok(_)))));
        assert!(matches!(outbox.ready(), Some(Command::SetEviction(false))));
        assert!(outbox.ready().is_none());
        assert!(matches!(finish((&mut outbox, &mut outcomes)), Some((Purpose::Generate(_), Ok(_)))));
        assert!(matches!(outbox.ready(), Some(Command::Clear)));
    }

    #[test]
    fn a_stalled_renderer_holds_nobody_up_and_is_killed_when_the_turn_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let (mut outbox, mut outcomes) = start();
        let begin = Instant::now();
        outbox.push_prompt(request(7), source(Some(stalled(dir.path()))));
        outbox.push(Command::SetEviction(true));
        assert!(outbox.ready().is_none());
        let pid = dir.path().join("pid");
        while !std::fs::read_to_string(&pid).is_ok_and(|p| p.ends_with('\n')) {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(matches!(outbox.withdraw(), Some(Asked::Turn(7))));
        assert!(matches!(outbox.ready(), Some(Command::SetEviction(true))));
        // The late result is nobody's, and the child is gone.
        assert!(finish((&mut outbox, &mut outcomes)).is_none());
        assert!(begin.elapsed() < Duration::from_secs(20), "the rendering was waited for");
        let pid = std::fs::read_to_string(pid).unwrap();
        let alive = std::process::Command::new("kill").args(["-0", pid.trim()]).output().unwrap();
        assert!(!alive.status.success());
    }

    #[test]
    fn a_newer_prompt_replaces_the_rewind_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut outbox, mut outcomes) = start();
        outbox.push_prompt(Purpose::Rewind, source(Some(stalled(dir.path()))));
        assert!(outbox.ready().is_none());
        outbox.push_prompt(request(1), source(None));
        assert!(outbox.ready().is_none());
        loop {
            match finish((&mut outbox, &mut outcomes)) {
                Some((purpose, result)) => break assert!(matches!(purpose, Purpose::Generate(_)) && result.is_ok()),
                None => continue,
            }
        }
    }
}
