//! What all requests share: the engine, the model, the settings of answers, counters.

use super::admission::Admission;
use super::board::Board;
use super::memory::Memories;
use super::metrics::Metrics;
use super::refusal::Refusal;
use super::stored::Store;
use super::tools::Said;
use crate::protocol::{Command, CommandSender, Event, ModelInfo, Piece, RequestId, SamplingParams, Token};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// How answers are generated where a request does not say.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    pub sampling: SamplingParams,
    pub seed: Option<u64>,
    pub max_tokens: Option<usize>,
    pub max_think: Option<usize>,
    pub think: bool,
    pub drafts: usize,
    /// The system prompt of conversations without one.
    pub system: Option<String>,
}

/// Receives lines for the log.
pub type Log = Box<dyn Fn(&str) + Send + Sync>;

const KEEP_ALIVE: Duration = Duration::from_secs(5);

type Encoded = Result<Vec<Token>, String>;

pub struct Shared {
    commands: CommandSender,
    pub info: Arc<ModelInfo>,
    pub defaults: Defaults,
    pub admission: Admission,
    pub board: Arc<Board>,
    pub metrics: Metrics,
    /// Answers in the form of Responses that can be asked for again.
    pub responses: Store,
    /// What the slots held at the ends of answers.
    pub memories: Memories,
    /// Answers with tool calls, as the model wrote them.
    pub said: Said,
    pub log: Log,
    /// A client is sent something at least this often while its answer is worked on.
    pub keep_alive: Duration,
    /// Texts that the engine is encoding.
    encoding: Mutex<HashMap<RequestId, oneshot::Sender<Encoded>>>,
    encodes: Semaphore,
    /// The engine has failed, or the server is ending.
    closed: AtomicBool,
}

impl Shared {
    pub fn new(
        commands: CommandSender,
        info: Arc<ModelInfo>,
        defaults: Defaults,
        admission: Admission,
        board: Arc<Board>,
        log: Log,
    ) -> Self {
        let (metrics, responses) = (Metrics::default(), Store::default());
        let (encoding, closed) = (Mutex::default(), AtomicBool::new(false));
        let encodes = Semaphore::new(1);
        Self {
            commands,
            info,
            defaults,
            admission,
            board,
            metrics,
            responses,
            memories: Memories::default(),
            said: Said::default(),
            log,
            keep_alive: KEEP_ALIVE,
            encoding,
            encodes,
            closed,
        }
    }

    pub fn commands(&self) -> &CommandSender {
        &self.commands
    }

    /// Ends the taking of requests.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Refuses a text that no context holds, before anything is made of it.
    pub fn check_length(&self, param: &str, bytes: usize) -> Result<(), Refusal> {
        let limit = self.info.template.limit;
        let Some(why) = limit.and_then(|limit| limit.refusal("the prompt", bytes)) else { return Ok(()) };
        let least = limit.map_or(0, |limit| bytes.div_ceil(limit.token_bytes.max(1)));
        Err(Refusal::too_long(why, param, least, self.info.context))
    }

    fn encoding(&self) -> std::sync::MutexGuard<'_, HashMap<RequestId, oneshot::Sender<Encoded>>> {
        self.encoding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes a text. One text is encoded at a time.
    pub async fn encode(&self, pieces: Vec<Piece>) -> Encoded {
        let _turn = self.encodes.acquire().await;
        let (send, encoded) = oneshot::channel();
        {
            // Locked until the id is in the map, which its answer needs.
            let mut encoding = self.encoding();
            match self.commands.request(Command::Encode(pieces)) {
                Some(id) => drop(encoding.insert(id, send)),
                None => return Err("the engine has ended".to_owned()),
            }
        }
        encoded.await.unwrap_or_else(|_| Err("the engine has ended".to_owned()))
    }

    /// Hands the engine's answer to whom it is for.
    pub fn on_event(&self, request: Option<RequestId>, event: Event) {
        match event {
            Event::Encoded(tokens) => {
                let waits = request.and_then(|id| self.encoding().remove(&id));
                waits.into_iter().for_each(|send| drop(send.send(tokens.clone())));
            }
            Event::Notice(line) | Event::Info(line) => (self.log)(&line),
            _ => {}
        }
    }
}
