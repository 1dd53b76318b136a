//! The server: HTTP endpoints for other programs, over the same engine as the terminal chat.
//!
//! | file | owns |
//! | --- | --- |
//! | `http` | connections, their bounds, which request goes where |
//! | `access` | keys, and the checks of `Host` and `Origin` |
//! | `admission` | the queue in front of the slots |
//! | `board` | the requests that are worked on, for a screen |
//! | `answer`, `choice`, `answering` | an answer that is being generated, and its way to its client |
//! | `openai`, `responses`, `messages`, `ollama` | requests and answers in OpenAI's two forms, Anthropic's and ollama's |
//! | `request`, `prompt`, `thought`, `logprobs`, `structured` | what requests of all forms have |
//! | `facts`, `tokenize`, `metrics` | the model, properties, health, tokens, counters |
//! | `stored`, `memory` | answers that can be asked for again, and what the cache held after them |
//! | `tools` | calls of tools, in the format of the model |
//! | `fields`, `refusal`, `stamp` | bodies, errors, ids |
//!
//! It knows protocol, configuration and chat, and nothing of the engine: each answer is an
//! [`EngineHandle`] of its own, and dropping it ends the answer.

mod access;
mod admission;
mod answer;
mod answering;
pub mod board;
mod choice;
mod facts;
mod fields;
mod http;
mod logprobs;
mod memory;
mod messages;
mod metrics;
mod ollama;
mod openai;
mod prompt;
mod refusal;
mod request;
mod responses;
mod shared;
mod stamp;
mod stored;
mod structured;
mod thought;
mod tokenize;
pub mod tools;

pub use access::Access;
pub use admission::Admission;
pub use http::Ends;
pub use shared::{Defaults, Log};

use crate::protocol::{EngineHandle, Event, ModelInfo};
use board::Board;
use shared::Shared;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Time for the last words of answers whose engine has failed.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The address of a server, before its model is loaded.
pub struct Bound {
    listener: std::net::TcpListener,
    pub address: SocketAddr,
}

impl Bound {
    /// Listens on an address or a name of this machine. A name that has several addresses is the
    /// first of them. Port 0 is any that is free.
    pub fn new(host: &str, port: u16) -> Result<Self, String> {
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let found = (name, port).to_socket_addrs().ok().and_then(|mut all| all.next());
        let address = found.ok_or_else(|| format!("{host:?} is neither an address nor the name of this machine"))?;
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(|error: std::io::Error| {
            format!("cannot listen on {address}: {error}; --port takes another, 0 any")
        })?;
        Ok(Self { listener, address })
    }

    /// Whether it is reached from this machine alone.
    pub fn is_loopback(&self) -> bool {
        self.address.ip().is_loopback()
    }
}

/// Everything that a server needs beside its listener.
pub struct Options {
    pub info: Arc<ModelInfo>,
    pub defaults: Defaults,
    pub access: Access,
    pub admission: Admission,
    pub board: Arc<Board>,
    pub log: Log,
}

/// Serves until the first of `ends`, and then until the answers that run have ended, but not longer
/// than ten seconds or until the second. Fails if the engine does.
pub async fn serve(bound: Bound, mut engine: EngineHandle, options: Options, ends: impl Ends) -> Result<(), String> {
    let Options { info, defaults, access, admission, board, log } = options;
    let listener = TcpListener::from_std(bound.listener).map_err(|error| error.to_string())?;
    let shared = Arc::new(Shared::new(engine.commands.clone(), info, defaults, admission, board, log));
    let router = http::router(Arc::clone(&shared), Arc::new(access));
    let listening = async {
        while let Some(response) = engine.events.recv().await {
            match response.event {
                Event::Failed(why) => return why,
                event => shared.on_event(response.request, event),
            }
        }
        "the engine has ended".to_owned()
    };
    tokio::select! {
        () = http::serve(listener, router, &shared, ends) => Ok(()),
        why = listening => {
            shared.close();
            // Answers that ran are told why they end.
            tokio::time::sleep(LAST_WORDS).await;
            Err(why)
        }
    }
}
