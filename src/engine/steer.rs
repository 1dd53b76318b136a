//! Steering of the tokens that a conversation keeps: the dial, and dropping slots if memory runs
//! out.

use super::conversation::{Conversation, Forgotten};
use super::dials::for_each_slot;
use super::loaded::Loaded;
use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::policy::{Dms, Far, Policy, SINKS, STRENGTHS};
use crate::protocol::{Dial, Event, EventSender, LogChange, LogEntry, WhenFull, count};

/// Denominator of the share of a sequence's pages that are freed at once when memory runs out.
const FREED_SHARE: usize = 8;
/// Number of newest tokens that a cache without decisions always keeps.
const NEWEST: usize = 64;

/// What is dropped where memory runs out.
enum Drops {
    /// The slots that the heads marked most strongly, by this rule.
    Weakest(Dms),
    /// The oldest tokens.
    Oldest,
}

impl Drops {
    fn words(&self) -> &'static str {
        match self {
            Self::Weakest(_) => "that the heads need least",
            Self::Oldest => "that is oldest after the first tokens",
        }
    }
}

impl<B: Backend> Loaded<B> {
    /// What is dropped where memory runs out; `None` if the turn ends there.
    fn drops(&self) -> Option<Drops> {
        match (self.when_full, self.runner.cache.geometry().policy) {
            (WhenFull::Forget | WhenFull::Window, Policy::Dms(rule)) => Some(Drops::Weakest(rule)),
            (WhenFull::Window, Policy::Dense) => Some(Drops::Oldest),
            _ => None,
        }
    }

    /// What follows if the cache holds more than its limit.
    pub(super) fn when_over(&self) -> String {
        self.drops().map_or_else(
            || "no message fits; /set kv_limit raises the limit, /new starts over".to_owned(),
            |drops| format!("your next message drops the part {}", drops.words()),
        )
    }
}

impl<B: Backend> Conversation<B> {
    /// Sets how much is kept of the tokens that follow.
    pub fn set_dial(&mut self, m: &mut Loaded<B>, events: &EventSender, to: Dial) {
        match m.dial_for(self.dial, to) {
            Err(why) => events.refuse("forget", why),
            Ok(None) => self.measure_first(m, events, to),
            Ok(Some((dial, ratio, trained))) => {
                self.dial = dial;
                self.chain.context.set_dial(&mut m.runner, dial);
                let at_token = self.chain.context.len(&m.runner);
                events.event(Event::DialSet { ratio, trained, at_token });
                self.tell_log(events);
            }
        }
    }

    /// Takes over the dial of a loaded log, and reports it if its ratio is already known. The ratio
    /// is not measured for that.
    pub fn adopt_dial(&mut self, m: &mut Loaded<B>, events: &EventSender) {
        let dial = m.runner.cache.dial(self.chain.context.seq);
        if dial == self.dial {
            return;
        }
        self.dial = dial;
        let at_token = self.chain.context.len(&m.runner);
        match m.dial_table() {
            Ok(Some(table)) => {
                events.event(Event::DialSet { ratio: table.ratio(dial), trained: table.ratio(0.0), at_token });
            }
            Ok(None) => {
                events.notice("the dial is set as it was saved; /forget trained|N changes it and says how much")
            }
            Err(_) => {}
        }
    }

    /// Drops the slots that the heads marked most strongly, or the oldest tokens of a cache without
    /// decisions, so that a turn can continue after memory ran out. Returns false if nothing can be
    /// dropped or the turn must end.
    pub fn forget(&mut self, m: &mut Loaded<B>) -> bool {
        let (Some(_), Some(drops)) = (&self.job, m.drops()) else { return false };
        if self.chain.context.awaits_far && !self.settle_far(m) {
            // Its pages are free: it is read again.
            return true;
        }
        let context = &mut self.chain.context;
        let live = m.runner.cache.stats(m.runner.backend(), context.seq).live_slots;
        let entry = match &drops {
            Drops::Weakest(rule) => {
                threshold(&m.runner, context.seq, rule).map(|threshold| LogEntry::Forget { forget: threshold })
            }
            Drops::Oldest => oldest(&m.runner, context.seq).map(|oldest| LogEntry::Drop { drop: oldest }),
        };
        let (Some(entry), what) = (entry, drops.words()) else { return false };
        let Ok((_, dropped)) = context.apply(&mut m.runner, entry) else { return false };
        if self.forgotten.times == 0 {
            self.forgotten.untold = Some(format!(
                "the cache is full: dropped the {} of it {what} ({} slots); with --when-full stop the turn ends instead",
                percent(dropped as f64 / live.max(1) as f64),
                count(dropped as usize)
            ));
        }
        if B::IN_POOL && m.runner.keeps_far() {
            // What was moved frees pages at a choice.
            self.chain.context.choose(&mut m.runner, Far::QUERIES);
        }
        self.forgotten.times += 1;
        self.forgotten.slots += dropped;
        dropped > 0
    }

    /// Reports the dropped slots once the job has continued.
    pub fn tell_dropped(&mut self) {
        if let (Some(text), Some(job)) = (self.forgotten.untold.take(), &self.job) {
            job.events.notice(text);
        }
    }

    /// Reports the slots that a finished job dropped, unless the first notice already covered them.
    /// Returns their number. `kept`: whether the turn stays in the context; otherwise the cache is
    /// restored to its state before the turn.
    pub fn tell_forgotten(&mut self, events: &EventSender, kept: bool) -> u64 {
        let Forgotten { times, slots, untold } = std::mem::take(&mut self.forgotten);
        let dropped = count(slots as usize);
        match (times, kept) {
            (0, _) => {}
            // The turn did not continue, so the first notice was never sent.
            (_, false) if untold.is_some() => {}
            (_, false) => events.notice(format!("the {dropped} slots that this turn dropped are back")),
            (1, true) => {}
            (_, true) => events.notice(format!(
                "the cache was full {times} times in this turn, and {dropped} slots were dropped in all"
            )),
        }
        if kept { slots } else { 0 }
    }

    /// Reports a change of the log that no turn will report.
    pub fn tell_log(&mut self, events: &EventSender) {
        let context = &self.chain.context;
        let is_known = |log: &[LogEntry]| log.iter().any(|entry| entry.token().is_some());
        // Entries before the first token belong to the first turn.
        if self.job.is_some() || context.log == self.reported || !(is_known(&context.log) || is_known(&self.reported)) {
            return;
        }
        let (log_base, log) = self.untold();
        events.event(Event::LogChanged(Box::new(LogChange { log_base, log, pending: context.pending })));
        self.reported.clone_from(&self.chain.context.log);
        self.disk.changed();
    }

    /// Entries of the log that the front end has not received, with the number of entries before
    /// them.
    pub fn untold(&self) -> (usize, Vec<LogEntry>) {
        let log = &self.chain.context.log;
        let known = log.iter().zip(&self.reported).take_while(|(a, b)| a == b).count();
        (known, log[known..].to_vec())
    }
}

/// Formats a share in percent, with one more digit below 1 %.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent < 1.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Positions of the oldest tokens of a dense sequence, after the sinks, that free a share of its
/// pages. `None` if this would include the newest tokens.
fn oldest<B: Backend>(runner: &Runner<B>, seq: SeqId) -> Option<[u32; 2]> {
    let geometry = runner.cache.geometry();
    // Deciding lanes of a dense cache all store the same tokens, so one of them is enough.
    let lane = geometry.deciding_lanes().next()?;
    let metas = runner.cache.slot_metas(runner.backend(), seq, lane.layer, lane.head);
    let mut stored: Vec<usize> = metas.iter().map(|meta| meta.position()).collect();
    stored.sort_unstable();
    let page_slots = geometry.of_layer(lane.layer).page_slots;
    let pages = stored.len().div_ceil(page_slots);
    let goal = pages.div_ceil(FREED_SHARE).max(1);
    let left = pages.checked_sub(goal)? * page_slots;
    let end = SINKS + stored.len() - left;
    (left >= SINKS + NEWEST).then(|| [stored[SINKS] as u32, stored[end - 1] as u32 + 1])
}

/// Largest strength threshold that frees a share of a sequence's pages, or all that can be freed if
/// that is less. `None` if nothing can be freed.
fn threshold<B: Backend>(runner: &Runner<B>, seq: SeqId, rule: &Dms) -> Option<u16> {
    let lanes = Lanes::read(runner, seq, rule);
    let pages: usize = lanes.live.iter().map(|live| live.div_ceil(lanes.page_slots)).sum();
    // At least one page per lane, so that the next step can run.
    let goal = (pages / FREED_SHARE).max(runner.cache.geometry().seq_lanes()).min(pages);
    let (mut low, mut high) = (1, STRENGTHS);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if lanes.freed(middle) >= goal { low = middle } else { high = middle }
    }
    (lanes.freed(low) > 0).then_some(low as u16)
}

/// Droppable slots by strength, of the lanes whose tokens the policy chooses.
struct Lanes {
    page_slots: usize,
    /// Stored slots of each lane.
    live: Vec<usize>,
    /// `[lane][strength]`: droppable slots of at least this strength.
    at_least: Vec<Vec<u32>>,
}

impl Lanes {
    fn read<B: Backend>(runner: &Runner<B>, seq: SeqId, rule: &Dms) -> Self {
        let (g, n) = (runner.cache.geometry(), runner.cache.len(seq));
        let lanes = g.deciding_lanes().count();
        // They have the same heads.
        let page_slots = g.deciding_lanes().next().map_or(g.page_slots, |lane| g.of_layer(lane.layer).page_slots);
        let mut out = Self { page_slots, live: vec![0; lanes], at_least: vec![vec![0; STRENGTHS + 1]; lanes] };
        for_each_slot(runner, seq, |lane, meta| {
            out.live[lane] += 1;
            if rule.drops(n, meta, 1) {
                // A marked slot is dropped at any threshold.
                let strength = if meta.marked() { STRENGTHS } else { meta.strength() };
                out.at_least[lane][strength] += 1;
            }
        });
        for counts in &mut out.at_least {
            for strength in (0..STRENGTHS).rev() {
                counts[strength] += counts[strength + 1];
            }
        }
        out
    }

    /// Pages that become free if all slots of at least this strength are dropped.
    fn freed(&self, threshold: usize) -> usize {
        let pages = |slots: usize| slots.div_ceil(self.page_slots);
        let lanes = self.live.iter().zip(&self.at_least);
        lanes.map(|(&live, counts)| pages(live) - pages(live - counts[threshold] as usize)).sum()
    }
}
