//! Prefills of a whole log (rebuild, restore, and the return from a failed turn), and the return to
//! an earlier state.

use super::chain::Chain;
use super::context::Context;
use super::conversation::{Conversation, Halt, Job, Work};
use super::disk::{begin_load, not_used};
use super::far_load::FarLoad;
use super::loaded::Loaded;
use super::reply::flat_of;
use super::runner::Runner;
use super::snapshots::Worth;
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::protocol::{Event, EventSender, LogEntry, Piece, RestoreRequest, Token, bytes, count};
use crate::tokenizer::flatten;

impl<B: Backend> Conversation<B> {
    /// Begins to prefill the log into a new sequence under the wanted eviction state. The old cache
    /// is kept while there is room for both. Refused where all tokens would be kept and do not fit.
    pub fn begin_rebuild(&mut self, m: &mut Loaded<B>) -> Result<Work, String> {
        self.release_twin(&mut m.runner);
        let said = |error: CacheError| error.to_string();
        let mut fresh = Chain::idle(Context::new(&mut m.runner, self.eviction).map_err(said)?);
        if let Some(why) = self.no_room_for_all(m, &fresh) {
            m.runner.release(fresh.context.seq);
            return Err(why);
        }
        fresh.context.set_dial(&mut m.runner, self.dial);
        for entry in self.chain.context.pins() {
            fresh.context.apply(&mut m.runner, entry).map_err(said)?;
        }
        let old = std::mem::replace(&mut self.chain, fresh).context;
        self.chain.prefill(old.tokens());
        let log = (old.log.clone(), old.pending);
        Ok(Work::Rebuild { beside: Some(old), old: log })
    }

    /// Why the tokens do not fit into the cache if none of them is dropped.
    fn no_room_for_all(&self, m: &Loaded<B>, fresh: &Chain) -> Option<String> {
        let cache = &m.runner.cache;
        let keeps_all = !self.eviction || cache.geometry().policy.kind().keeps_all();
        let limit = cache.limit_bytes().filter(|_| keeps_all)?;
        let tokens = self.chain.context.len(&m.runner);
        let pages = cache.pages_for(m.runner.backend(), fresh.context.seq, tokens);
        let need = (pages * cache.geometry().page_bytes()) as u64;
        (need > limit).then(|| {
            let less = if self.eviction { "" } else { ", /eviction on needs less" };
            let [need, limit] = [need, limit].map(bytes);
            let tokens = count(tokens);
            format!("all {tokens} tokens need {need}, and the limit is {limit}; /set kv_limit raises it{less}")
        })
    }

    /// Releases the cache that a rebuild will replace. Returns false if there is none.
    pub fn give_up_old_cache(&mut self, runner: &mut Runner<B>) -> bool {
        let Some(job) = &mut self.job else { return false };
        let Work::Rebuild { beside, .. } = &mut job.work else { return false };
        let Some(old) = beside.take() else { return false };
        job.events.notice("the old cache is given up to make room for the new one");
        runner.release(old.seq);
        (self.chain.context.flat, self.chain.context.pending) = (old.flat, old.pending);
        true
    }

    /// Ends a rebuild. If it did not finish, the old cache is used again. If that was given up, and
    /// there is no room for the new one either, returns the work that replays the old log.
    pub fn end_rebuild(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        beside: Option<Context>,
        (log, pending): (Vec<LogEntry>, Option<Token>),
        halt: Option<Halt>,
    ) -> Option<Work> {
        self.chain.stop();
        if let (Some(Halt::CacheFull(why)), None) = (&halt, &beside) {
            events.notice(format!("the rebuild stopped: {why}; the cache becomes what it was"));
            self.reset_context(&mut m.runner, true);
            self.chain.replay(&log);
            return Some(Work::Restore { pending, load: None });
        }
        let emptied = halt.is_some() && beside.is_none();
        match (&halt, beside) {
            (None, Some(old)) => {
                (self.chain.context.flat, self.chain.context.pending) = (old.flat, old.pending);
                m.runner.release(old.seq);
                m.snapshots.release_of(&mut m.runner, self.id(), Worth::TurnStart);
                self.disk.left_log();
                self.count_fetched_from_here(m);
            }
            (None, None) => self.count_fetched_from_here(m),
            (Some(_), Some(old)) => {
                self.replace_context(&mut m.runner, old);
                let _ = self.follow_eviction(m);
            }
            (Some(_), None) => self.reset_context(&mut m.runner, self.eviction),
        }
        if let Some(Halt::CacheFull(why) | Halt::Error(why)) = &halt {
            events.notice(format!("the rebuild stopped: {why}"));
        }
        let tokens = self.chain.context.len(&m.runner);
        m.trim();
        self.publish(m);
        events.event(Event::RebuildDone { cancelled: halt.is_some(), tokens });
        if !emptied {
            self.tell_log(events);
        }
        None
    }

    /// Begins to load the cache of a saved conversation, or to replay its log under its own
    /// toggles.
    pub fn begin_restore(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        request: RestoreRequest,
    ) -> (Work, Option<Halt>) {
        self.clear(m);
        let vocab = m.runner.config().vocab as Token;
        let known = |ids: &[Token]| ids.iter().all(|id| *id < vocab);
        self.replies = request.replies.into_iter().filter(|(_, ids)| known(ids)).collect();
        let pending = request.pending.filter(|id| *id < vocab);
        self.reported.clone_from(&request.log);
        let total = match m.check_log(&request.log) {
            Ok(total) => total,
            Err(why) => return (Work::Restore { pending, load: None }, Some(Halt::Error(why))),
        };
        self.reset_context(&mut m.runner, true);
        let load = request.cache.and_then(|path| begin_load(m, &path, &request.log, total, events));
        if load.is_none() {
            self.chain.replay(&request.log);
            self.disk.changed();
        }
        (Work::Restore { pending, load }, None)
    }

    /// Loads the next layer of a saved cache. After the last one, or if one cannot be used, the job
    /// continues as a restore: with nothing to feed, or with the whole log.
    pub fn continue_load(&mut self, m: &mut Loaded<B>) {
        let is_loading = |job: &mut Job| matches!(job.work, Work::Restore { load: Some(_), .. });
        let Some(mut job) = self.job.take_if(is_loading) else { return };
        if let Work::Restore { load, .. } = &mut job.work
            && let Some(mut from) = load.take()
        {
            let (context, far) = (&mut self.chain.context, &mut self.far_load);
            let mut step = (!job.cancelled).then(|| from.go_on(m, context, far));
            if step == Some(Ok(true)) && self.eviction != m.runner.cache.eviction(context.seq) {
                // The switch that follows brings far rows near.
                step = Some(far.finish(&mut m.runner).map(|()| true));
            }
            if step != Some(Ok(true)) && step != Some(Ok(false)) {
                self.far_load = FarLoad::default();
                self.reset_context(&mut m.runner, true);
            }
            match step {
                Some(Ok(true)) => {}
                Some(Ok(false)) => *load = Some(from),
                Some(Err(why)) => {
                    job.events.notice(not_used(&why, from.total()));
                    self.chain.replay(&from.log);
                    self.disk.changed();
                }
                None => job.halt = Some(Halt::Cancelled),
            }
        }
        self.job = Some(job);
    }

    pub fn end_restore(&mut self, m: &mut Loaded<B>, events: &EventSender, pending: Option<Token>, halt: Option<Halt>) {
        let cancelled = halt.is_some();
        self.end_replay(m, events, halt);
        // The reads of the saved answers are in their reports.
        self.chain.count_from(&m.runner, (0, 0));
        if !cancelled {
            let context = &mut self.chain.context;
            context.flat = flat_of(&m.vocabulary.tokenizer, context.tokens().chain(pending)).0;
            context.pending = pending;
            self.adopt_dial(m, events);
        }
        self.settle_eviction(m, events);
        let tokens = self.chain.context.len(&m.runner);
        m.trim();
        self.publish(m);
        events.event(Event::RebuildDone { cancelled, tokens });
    }

    /// Ends a replay. If it did not finish, the conversation is empty.
    pub fn end_replay(&mut self, m: &mut Loaded<B>, events: &EventSender, halt: Option<Halt>) {
        self.chain.stop();
        let Some(halt) = halt else { return self.count_fetched_from_here(m) };
        self.reset_context(&mut m.runner, self.eviction);
        if let Halt::CacheFull(why) | Halt::ContextFull(why) | Halt::Error(why) = halt {
            events.notice(format!("the conversation could not be loaded into the cache: {why}"));
        }
    }

    /// Lets figures count only the far pages that are fetched from here on: those that a replay has
    /// fetched are of earlier turns.
    pub fn count_fetched_from_here(&mut self, m: &Loaded<B>) {
        self.fetched_before = m.runner.cache.far_fetched(self.chain.context.seq).to_vec();
    }

    /// Goes back to the longest kept state whose text begins the rendering.
    pub fn rewind(&mut self, m: &mut Loaded<B>, events: &EventSender, pieces: &[Piece]) {
        let flat = flatten(pieces);
        if !flat.starts_with(&self.chain.context.flat) {
            self.go_back_to(m, events, &flat);
        }
        let rest = flat.get(self.chain.context.flat.len()..).unwrap_or_default();
        // Line breaks behind the last answer are no part of it.
        self.unread = if rest.trim().is_empty() { 0 } else { m.vocabulary.count_flat(rest) };
    }

    fn go_back_to(&mut self, m: &mut Loaded<B>, events: &EventSender, flat: &str) {
        self.disk.left_log();
        match m.snapshots.longest_prefix(self.id(), flat, |_| true) {
            Some(i) => {
                let kept = m.snapshots.take(i).context;
                self.leave_for(m, kept);
            }
            // The state that is left is kept, to come back to it; without a sequence it goes.
            None => match m.with_sequence(|runner| Context::new(runner, self.eviction)) {
                Ok(empty) => self.leave_for(m, empty),
                Err(_) => self.reset_context(&mut m.runner, self.eviction),
            },
        }
        // The start of the last turn stays what it is if the end of its prompt was a prefix.
        m.snapshots.leave_turn(&mut m.runner, self.id(), |start| flat.starts_with(&start.flat));
        if let Err(error) = self.follow_eviction_here(m, events) {
            events.notice(format!("eviction stays as it was: {error}"));
        }
        // The session and the cache on disk follow, unless nothing is left that they could hold.
        if self.chain.context.tokens().next().is_some() {
            self.tell_log(events);
        }
    }

    /// Makes a state the current one and keeps the one before.
    fn leave_for(&mut self, m: &mut Loaded<B>, state: Context) {
        let left = std::mem::replace(&mut self.chain.context, state);
        m.snapshots.insert(&mut m.runner, self.id(), Worth::Earlier, left);
    }
}
