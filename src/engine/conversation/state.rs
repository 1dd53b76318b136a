//! What a conversation keeps between steps.

use super::chains::Chains;
use super::job::{Forgotten, Job};
use super::probe::running::Running;
use super::probe::twin::Twin;
use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::disk::DiskCache;
use crate::engine::far_load::FarLoad;
use crate::engine::presence::FedText;
use crate::protocol::{Command, EventSender, LogEntry, Outlet, Token};
use std::collections::{HashMap, VecDeque};

pub(in crate::engine) struct Conversation<B: Backend> {
    pub outlet: Outlet,
    pub chain: Chain,
    /// The chains that answer, while several do.
    pub chains: Option<Chains>,
    /// The sequence without eviction that answers are compared with.
    pub twin: Option<Twin>,
    /// Whether the next answers have a twin.
    pub twin_wanted: bool,
    /// The log that the front end knows: after the last report, change between turns or restore.
    pub reported: Vec<LogEntry>,
    /// Generated ids by turn, so that replies are never encoded again.
    pub replies: HashMap<u64, Vec<Token>>,
    /// Eviction as the user wants it. The cache knows the state of the sequence.
    pub eviction: bool,
    /// Whether turns begin only with states in which eviction was never switched.
    pub unswitched: bool,
    /// Threshold of decisions, as the user set it.
    pub dial: f32,
    pub decode_tok_s: Option<f64>,
    /// Tokens of the conversation after the current context, as of the last rewind.
    pub unread: usize,
    /// [`KvCache::far_fetched`](crate::cache::KvCache::far_fetched) before the newest turn.
    pub fetched_before: Vec<u32>,
    pub(super) fed_text: FedText,
    pub job: Option<Job>,
    /// The file that the cache is kept in.
    pub disk: DiskCache,
    /// Far rows that are still to come from that file.
    pub far_load: FarLoad<B>,
    pub(in crate::engine) queue: VecDeque<(EventSender, Command)>,
    /// Commands received during a replay that act between steps after it.
    pub(super) late: VecDeque<(EventSender, Command)>,
    pub forgotten: Forgotten,
    /// Work beside the answers.
    pub(super) probes: Vec<Running<B>>,
}
