//! Formats the cache's numbers for the panel, the status line and /stats, so that they agree. Draws
//! nothing.

use super::state::App;
use super::text::{FULL, bytes, clean_line, count, duration, plural, ratio};
use crate::chat::summary::WAY_OUT;
use crate::policy::PolicyKind;
use crate::protocol::{Download, DraftReport, FarStats, ModelInfo, Plan, Snapshot};

/// Number of the newest tokens that every head keeps, whatever it has decided: the window, or all
/// tokens of a dense cache.
pub fn undecided(app: &App) -> usize {
    match &app.engine.info {
        Some(info) if info.policy.keeps_all() => usize::MAX,
        Some(info) => info.window.map_or(0, |window| window + 1),
        None => 0,
    }
}

/// Retention in whole percent, as the cells show it.
pub fn percent(retention: f64) -> u64 {
    (retention * 100.0).round() as u64
}

/// Formats the progress of a download: `34 % of 16.4 GB, 85.1 MB/s, 2 min 7 s left, FILE 12 %`.
pub fn download(d: &Download) -> String {
    let percent = |done: u64, all: u64| (done as f64 * 100.0 / all.max(1) as f64) as u64;
    let speed = d.bytes_per_s.map(|s| format!(", {}/s", bytes(s as u64))).unwrap_or_default();
    let left = d.left_s.map(|s| format!(", {} left", duration(s))).unwrap_or_default();
    let (all, one) = (percent(d.done_bytes, d.total_bytes), percent(d.file_done_bytes, d.file_bytes));
    format!("{all} % of {}{speed}{left}, {} {one} %", bytes(d.total_bytes), clean_line(&d.file))
}

/// Returns the parts of the panel's headline: live bytes, bytes of a dense cache, ratio, and what
/// lies in the far tier, with the pages that the newest turn fetched of it. Empty before the first
/// token.
pub fn headline(app: &App) -> Vec<String> {
    let Some(kv) = app.engine.snapshot.as_ref().map(|s| &s.kv).filter(|kv| kv.dense_slots > 0) else {
        return Vec::new();
    };
    let mut parts = vec![format!("cache {}", bytes(kv.live_bytes)), format!("dense {}", bytes(kv.dense_bytes))];
    match kv.far.as_ref().filter(|far| far.rows > 0) {
        Some(far) => {
            parts.extend([format!("near {}", ratio(kv.ratio)), format!("far {}", bytes(far.bytes))]);
            parts.extend((far.fetched > 0).then(|| format!("fetched {}", plural(far.fetched, "page"))));
        }
        None => parts.push(ratio(kv.ratio)),
    }
    parts
}

/// Far pages that each head fetched in the newest turn, `[n_layers][n_kv_heads]`; `None` if no head
/// has far rows, and for layers that keep none.
pub fn fetched(app: &App) -> Option<Vec<Vec<Option<u32>>>> {
    let far = app.engine.snapshot.as_ref()?.kv.far.as_ref().filter(|far| far.rows > 0)?;
    let lanes = app.engine.info.as_ref().map_or(&[][..], |info| &info.lanes);
    let of_layer = |(layer, heads): (usize, &Vec<u32>)| {
        let keeps = lanes.get(layer).is_none_or(|lanes| lanes.decides());
        heads.iter().map(|&pages| keeps.then_some(pages)).collect()
    };
    let cells: Vec<Vec<Option<u32>>> = far.fetched_by_head.iter().enumerate().map(of_layer).collect();
    (!cells.is_empty()).then_some(cells)
}

/// Meanings of the panel's words, in its order. The help shows it.
pub const LEGEND: &[(&str, &str)] = &[
    (
        "slot",
        "place of one token's key and value in one head; a model trained with DMS marks tokens that it will not need, and with \
         eviction on their slots are given to new tokens once they leave the window",
    ),
    (
        "context",
        "tokens of the conversation so far, those that were evicted included, of the most that the model takes; eviction saves memory, not context",
    ),
    ("drafts +20 %", "answers come 20 % faster because guessed tokens are checked several at a time (/draft)"),
    ("cache", "bytes of the tokens that the heads still keep; while several chains answer, of a mean chain"),
    ("dense", "bytes of the same conversation if every head kept every token"),
    ("4.0x", "dense over cache: how many times smaller the cache is (the compression ratio)"),
    (
        "near 4.0x, far 2 MB",
        "with --far: how many times smaller the cache is, and host memory of what left it, which heads find again by the question",
    ),
    (
        "fetched 96 pages",
        "pages of 32 tokens that were found again in the newest turn, all heads together; /panel once more shows them by layer \
         and head",
    ),
    ("L0, h0", "a row per layer, a cell per KV head: percent of the tokens that it still keeps"),
    (
        "forgets most, keeps all",
        "the scale of the cells' colours; of fetched pages it goes from none to the most of a head",
    ),
    ("kept for undo", "memory of earlier states, so that /undo and /regen need not read the conversation again"),
    ("other chains", "memory of the chains beside the mean one (/parallel)"),
    ("twin", "memory of the copy that drops nothing (/twin, and /compare while it answers)"),
    ("free in pages", "room for more tokens in the pages of 16 that the heads hold already"),
    ("reserved", "pages that are free now and used again before new memory is taken"),
    ("GPU memory used", "all of this program on the GPU: weights, workspace and cache"),
    ("ratio 1x", "the compression ratio from the first token to now"),
    ("dms, dense, window", "the cache's policy: who decides which tokens leave (--policy)"),
    ("window 64", "the newest tokens, which every head keeps"),
    ("budget 96", "tokens that a head may keep, under a policy with a budget (--budget)"),
    ("f32, bf16, fp8", "how a token is stored; the model's weights have a format of their own"),
    ("bar beside a message", "how much of the message the heads still hold, in the colours of the scale"),
    ("reads", "of /stats: tokens that a head looked at for the last answer; fewer is faster"),
];

/// Returns the memory held beside the live slots, by purpose. With the live bytes it adds up to the
/// mapped bytes of the pool. Zeros are left out.
pub fn also_held(app: &App) -> Vec<(&'static str, String)> {
    let Some(s) = &app.engine.snapshot else { return Vec::new() };
    let own_pages = s.kv.bytes.saturating_sub(s.checkpoint_bytes + s.twin_bytes + s.chain_bytes);
    let held = [
        ("kept for undo", s.checkpoint_bytes),
        ("other chains", s.chain_bytes),
        ("twin", s.twin_bytes),
        ("free in pages", own_pages.saturating_sub(s.kv.live_bytes)),
        ("reserved", s.mapped_bytes.saturating_sub(s.kv.bytes)),
    ];
    let held = held.into_iter().filter(|(_, n)| *n > 0);
    held.chain(s.device_bytes.map(|n| ("GPU memory used", n))).map(|(name, n)| (name, bytes(n))).collect()
}

/// Returns the cache's settings in parts: `dms`, `window 64`, `f32`, `eviction on`.
pub fn cache_settings(app: &App) -> Vec<String> {
    let Some(info) = &app.engine.info else { return Vec::new() };
    let mut parts = vec![policy(info)];
    match (info.budget, info.window) {
        (Some(budget), _) => parts.push(format!("budget {budget}")),
        (None, Some(window)) => parts.push(format!("window {}", count(window as u64))),
        (None, None) => {}
    }
    parts.push(info.codec.to_string());
    parts.extend(state_layers(info));
    parts.extend(layers_with_window(info));
    parts.extend((!info.policy.keeps_all()).then(|| format!("eviction {}", eviction_word(app))));
    parts.extend(app.engine.twin.then(|| "twin on".to_owned()));
    parts.extend(weights(info).map(|weights| format!("weights {weights}")));
    parts
}

/// The policy, and whose decisions it follows: `dms, KVzap-mlp-Qwen3-8B`.
fn policy(info: &ModelInfo) -> String {
    let by = match (info.policy, info.dms.as_str()) {
        (PolicyKind::Dms, "adapter") => Some(info.adapter.as_deref().map_or("adapter", short_name)),
        (PolicyKind::Dms, "predictor") | (PolicyKind::TrimKv, _) => {
            info.identity.decisions.as_ref().map(|source| source.name.as_str())
        }
        _ => None,
    };
    by.map_or_else(|| info.policy.to_string(), |by| format!("{}, {}", info.policy, clean_line(by)))
}

/// `22 layers see the newest 512 tokens`, if there are any.
fn layers_with_window(info: &ModelInfo) -> Option<String> {
    let windows: Vec<usize> = info.lanes.iter().filter_map(|layer| layer.window).collect();
    let widest = windows.iter().max()?;
    Some(format!("{} layers see the newest {}", windows.len(), plural(*widest as u64, "token")))
}

/// The layers without attention, if there are any.
fn state_layers(info: &ModelInfo) -> Option<String> {
    (info.state_layers > 0).then(|| format!("{} layers have a state of fixed size", info.state_layers))
}

/// A model's name without its owner.
fn short_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// `int4 4.7 GB`, where they are on this machine.
fn weights(info: &ModelInfo) -> Option<String> {
    (!info.is_remote).then(|| format!("{} {}", clean_line(&info.weights.format), bytes(info.weights.bytes)))
}

/// `12,480 rows in 2.1 MB of 2 GB, 512 read, 3 pages fetched by the newest turn`
fn far_row(far: &FarStats) -> String {
    let held = format!("{} rows in {} of {}", count(far.rows), bytes(far.bytes), bytes(far.limit_bytes));
    let dropped = if far.dropped > 0 { format!(", {} dropped for good", count(far.dropped)) } else { String::new() };
    let fetched = plural(far.fetched, "page");
    format!("{held}, {} read, {fetched} fetched by the newest turn{dropped}", count(far.near))
}

/// What a server does not say.
pub const NOT_REPORTED: &str = "not reported by this server";

/// The rows of /stats: the panel's numbers and some more.
fn stats_rows(app: &App, s: &Snapshot) -> Vec<(&'static str, String)> {
    let kv = &s.kv;
    if let Some(info) = app.engine.info.as_ref().filter(|info| info.n_layers == 0) {
        return vec![
            ("tokens", context_use(app)),
            ("model", clean_line(&info.identity.name)),
            ("server", clean_line(&info.identity.device)),
            ("cache", NOT_REPORTED.to_owned()),
        ];
    }
    let mut rows = vec![
        ("cache", bytes(kv.live_bytes)),
        ("dense", bytes(kv.dense_bytes)),
        ("ratio", ratio(kv.ratio)),
        ("slots", format!("{} live, {} dense", count(kv.live_slots), count(kv.dense_slots))),
        ("tokens", context_use(app) + &unread(app).map_or_else(String::new, |unread| format!(", {unread}"))),
    ];
    rows.extend((s.pinned > 0).then(|| ("pinned", plural(s.pinned as u64, "token"))));
    if kv.reads > 0.0 {
        let [reads, most] = [kv.reads, kv.peak_slots].map(|slots| count(slots as u64));
        rows.push(("reads", format!("{reads} slots a head in the last answer, {most} at most stored")));
    }
    rows.extend(kv.far.as_ref().map(|far| ("far", far_row(far))));
    let draft = app.chat.path().last().and_then(|m| m.report.as_ref()?.draft);
    rows.extend(draft.map(|draft| ("drafts", drafts(&draft))));
    rows.extend(also_held(app));
    if let Some(info) = &app.engine.info {
        rows.push(("device", clean_line(&info.identity.device)));
        rows.extend(plan_rows(&info.plan));
        let own = info.policy == PolicyKind::Dms && info.dms == "borrowed";
        rows.push(("policy", if own { "dms, borrowed".to_owned() } else { policy(info) }));
        rows.extend(info.evicts_by.as_ref().map(|text| ("", clean_line(text))));
        rows.extend(info.budget.map(|budget| ("budget", budget.to_string())));
        rows.extend(info.window.map(|window| ("window", plural(window as u64, "token"))));
        rows.extend(layers_with_window(info).map(|layers| ("local", layers)));
        let state = |layers| ("state", format!("{} in each sequence: {layers}", bytes(info.state_bytes)));
        rows.extend(state_layers(info).map(state));
        rows.extend(weights(info).map(|weights| ("weights", weights)));
        rows.push(("codec", info.codec.to_string()));
        rows.push(("eviction", eviction_word(app).to_owned()));
        rows.extend(app.engine.dial.map(|keep| ("kept", kept(keep))));
    }
    rows
}

/// `148 of 150 right in 16 steps: 2.5x as fast`
fn drafts(report: &DraftReport) -> String {
    let [right, tried] = [report.accepted, report.drafted].map(count);
    let gain = report.gain().unwrap_or(1.0);
    format!("{right} of {tried} right in {}: {gain:.2}x as fast", plural(report.rounds, "step"))
}

/// Plan made before loading: memory beside the weights, and the tokens that fit.
fn plan_rows(plan: &Plan) -> Vec<(&'static str, String)> {
    let mut rows = Vec::from_iter((plan.workspace_bytes > 0).then(|| ("workspace", bytes(plan.workspace_bytes))));
    if let Some(budget) = plan.kv_budget_bytes {
        let [certain, expected] = [plan.certain_context, plan.expected_context].map(|n| count(n as u64));
        let about = if plan.expected_context > plan.certain_context {
            format!(", about {expected} with eviction")
        } else {
            String::new()
        };
        rows.push(("cache room", format!("{}, fits {certain} tokens (worst case){about}", bytes(budget))));
    }
    rows
}

/// Returns `on`, `off`, or `none (dense)`.
pub fn eviction_word(app: &App) -> &'static str {
    match &app.engine.info {
        Some(info) if info.policy.keeps_all() => "none (dense)",
        _ if app.engine.eviction => "on",
        _ => "off",
    }
}

/// Describes the share kept at a compression ratio, beside the model's own:
/// `about 1 token in 2.2 (by default 1 in 4.6)`.
pub fn kept((ratio, default): (f64, f64)) -> String {
    format!("about 1 token in {} (by default 1 in {})", short(ratio), short(default))
}

/// With one decimal, which a whole number does not need, nor one from 10 on.
pub fn short(number: f64) -> String {
    if number >= 9.95 {
        return format!("{number:.0}");
    }
    format!("{number:.1}").trim_end_matches(".0").to_owned()
}

/// Returns the text of /stats: the panel's numbers, the live slots of every layer and head, and
/// the pages that they fetched, if they did.
pub fn stats_note(app: &App) -> String {
    let Some(s) = &app.engine.snapshot else { return "no numbers yet: no model is loaded".to_owned() };
    let mut lines: Vec<String> = stats_rows(app, s).into_iter().map(|(k, v)| format!("{k:<15} {v}")).collect();
    lines.extend(table(&format!("live slots of {}", plural(s.kv.tokens(), "token")), &s.kv.live));
    if let Some(far) = s.kv.far.as_ref().filter(|far| far.fetched > 0) {
        lines.extend(table("far pages fetched by the newest turn", &far.fetched_by_head));
    }
    lines.join("\n")
}

/// A table of layers and heads, with an empty line above.
fn table(title: &str, cells: &[Vec<u32>]) -> Vec<String> {
    let widest = cells.iter().flatten().max().copied().unwrap_or(0).to_string().len().max(3);
    let heads = cells.iter().map(Vec::len).max().unwrap_or(0);
    let head: String = (0..heads).map(|h| format!(" {:>widest$}", format!("h{h}"))).collect();
    let mut lines = vec![String::new(), format!("{title}, by layer and head:"), format!("    {head}")];
    for (layer, row) in cells.iter().enumerate() {
        let cells: String = row.iter().map(|n| format!(" {n:>widest$}")).collect();
        lines.push(format!("{:<4}{cells}", format!("L{layer}")));
    }
    lines
}

/// `1,234/8,192`
pub fn context_use(app: &App) -> String {
    let used = count(app.tokens() as u64);
    match &app.engine.info {
        Some(info) => format!("{used}/{}", count(info.context as u64)),
        None => used,
    }
}

/// The tokens of the conversation that the figures do not count, because the cache does not hold
/// them: `35 more when you send`.
pub fn unread(app: &App) -> Option<String> {
    let snapshot = app.engine.snapshot.as_ref().filter(|s| app.turn.is_none() && s.tokens > 0)?;
    (snapshot.unread > 0).then(|| format!("{} more when you send", count(snapshot.unread as u64)))
}

/// Returns what to do where the context is nearly full and nothing runs.
pub fn offer_to_compact(app: &App) -> Option<String> {
    let context = app.engine.info.as_ref()?.context.max(1);
    if !context_is_short(app) || app.is_busy() || app.chat.turns() == 0 {
        return None;
    }
    Some(match (app.tokens() * 100 / context).min(100) {
        100 => format!("{FULL}: {WAY_OUT}"),
        percent => format!("the context is {percent} % full; /compact continues in a new conversation"),
    })
}

/// True if at least nine tenths of the context are used.
pub fn context_is_short(app: &App) -> bool {
    app.engine.info.as_ref().is_some_and(|i| app.tokens() * 10 >= i.context * 9)
}
