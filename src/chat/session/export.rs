//! Exports a conversation as Markdown with front matter. Opens no file.

use super::record::Policy;
use super::{Loaded, Policies};
use crate::chat::conversation::{Conversation, Mark, Message, MessageId, Role};
use crate::chat::places::line_after;
use crate::protocol::{ModelIdentity, ModelInfo, Snapshot};
use std::fmt::Write;

/// The active path as a Markdown document. `policies`: the policies of the turns; the front matter
/// has the last one. `now`: the figures of the cache if the conversation is open; otherwise the
/// last turn's figures count.
pub fn markdown(chat: &Conversation, info: &ModelInfo, policies: &Policies, now: Option<&Snapshot>) -> String {
    document(chat, (&info.identity, &Policy::of(info)), None, policies, now)
}

/// A saved session as such a document. Its front matter has the session's id.
pub fn markdown_of(loaded: &Loaded, id: &str) -> String {
    let own = (loaded.model(), &Policy::first(&loaded.header));
    document(&loaded.conversation, own, Some(id), &loaded.policies(), None)
}

fn document(
    chat: &Conversation,
    (model, own): (&ModelIdentity, &Policy),
    session: Option<&str>,
    policies: &Policies,
    now: Option<&Snapshot>,
) -> String {
    let path = chat.path();
    let of_turn = |message: &&Message| message.turn.and_then(|turn| policies.get(&turn));
    let last = path.iter().rev().find_map(of_turn).cloned().unwrap_or_else(|| own.clone());
    let changed = path.iter().filter_map(of_turn).any(|policy| *policy != last);
    let mut out = front_matter(chat, &path, (model, &last), (session, now));
    let retention = chat.retention();
    let kept = |out: &mut String, id: Option<MessageId>| {
        let Some(r) = retention.iter().find(|r| r.message == id) else { return };
        let (percent, tokens) = (100.0 * r.share, n_of(r.tokens as u64, "token"));
        // A slot is at its newest token: the others are not forgotten.
        let _ = match last.policy.merges() {
            true => write!(out, "\n*its {tokens} are in {percent:.0} % as many slots*\n"),
            false => write!(out, "\n*{percent:.0} % of its {tokens} remembered{}*\n", r.far_words()),
        };
    };
    if let Some(system) = chat.system() {
        let _ = write!(out, "\n## System\n\n{system}\n");
        kept(&mut out, None);
    }
    let marks = chat.shown_marks();
    for message in &path {
        match message.role {
            Role::User => {
                let _ = write!(out, "\n## User\n\n{}\n", message.text.trim_end());
            }
            Role::Assistant => assistant(&mut out, chat, message, of_turn(message).filter(|_| changed)),
        }
        kept(&mut out, Some(message.id));
        let after = marks.iter().filter(|m| m.after == Some(message.id) && m.within.is_none());
        after.for_each(|mark| toggle(&mut out, mark));
    }
    out
}

fn toggle(out: &mut String, mark: &Mark) {
    let state = if mark.eviction { "on" } else { "off" };
    let dropped = n_of(mark.dropped_slots, "slot");
    let _ = write!(out, "\n*eviction {state} at token {}, {dropped} dropped*\n", mark.at_token);
}

/// The answer, with each toggle after the line in which it happened.
fn answer(out: &mut String, chat: &Conversation, message: &Message) {
    let text = message.shown();
    let lead = message.text.len() - message.text.trim_start_matches('\n').len();
    let marks = chat.shown_marks();
    let within = marks.iter().filter(|m| m.after == Some(message.id));
    let mut from = 0;
    let write = |out: &mut String, part: &str| {
        if !part.trim().is_empty() {
            let _ = write!(out, "\n{}\n", part.trim_matches('\n'));
        }
    };
    for (mark, at) in within.filter_map(|m| Some((m, m.within?))) {
        let at = line_after(text, at.saturating_sub(lead)).max(from);
        write(out, &text[from..at]);
        toggle(out, mark);
        from = at;
    }
    write(out, &text[from..]);
}

/// `1 slot`, `2 slots`.
fn n_of(n: u64, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// `policy`: the turn's policy, if the conversation has several.
fn assistant(out: &mut String, chat: &Conversation, message: &Message, policy: Option<&Policy>) {
    out.push_str("\n## Assistant\n");
    if let Some(reasoning) = message.shown_reasoning() {
        let tokens = message.report.as_ref().map_or(0, |r| r.reasoning_tokens);
        let tokens = n_of(tokens as u64, "token");
        let _ = write!(out, "\n<details><summary>thought for {tokens}</summary>\n\n{reasoning}\n\n</details>\n");
    }
    answer(out, chat, message);
    let Some(report) = &message.report else { return };
    let ratio = report.kv.ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
    let _ = write!(
        out,
        "\n*{}{} | {} + {} | ratio {ratio}{} | {} KV bytes | seed {}*\n",
        report.stop_reason.name(),
        if report.in_context { "" } else { ", not part of the context" },
        report.prompt_tokens,
        n_of((report.answer_tokens + report.reasoning_tokens) as u64, "token"),
        policy.map_or_else(String::new, |policy| format!(", policy {}", policy.name())),
        report.kv.live_bytes,
        report.seed,
    );
}

/// Rounds to the given number of decimals.
fn rounded(number: Option<f64>, decimals: i32) -> Option<f64> {
    let scale = 10f64.powi(decimals);
    number.map(|number| (number * scale).round() / scale)
}

fn front_matter(
    chat: &Conversation,
    path: &[&Message],
    (model, policy): (&ModelIdentity, &Policy),
    (session, now): (Option<&str>, Option<&Snapshot>),
) -> String {
    let mut out = "---\n".to_owned();
    let mut field = |name: &str, value: serde_json::Value| {
        // JSON strings are valid YAML.
        let _ = writeln!(out, "{name}: {value}");
    };
    if let Some(id) = session {
        field("session", id.into());
    }
    field("title", chat.title_or_first_line().into());
    if !chat.tags().names().is_empty() {
        field("tags", chat.tags().names().into());
    }
    field("date", jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string().into());
    field("program", concat!("dmschat ", env!("CARGO_PKG_VERSION")).into());
    field("model", model.name.clone().into());
    if let Some(revision) = model.reference.as_ref().and_then(|reference| reference.revision.as_ref()) {
        field("revision", revision.clone().into());
    }
    field("model_fingerprint", model.model_fingerprint.clone().into());
    field("tokenizer_fingerprint", model.tokenizer_fingerprint.clone().into());
    field("device", model.device.clone().into());
    field("policy", policy.policy.name().into());
    if let Some(budget) = policy.budget {
        field("budget", budget.to_string().into());
    }
    field("window", policy.window.into());
    let reports: Vec<_> = path.iter().filter_map(|m| m.report.as_deref()).collect();
    field("turns", reports.len().into());
    field("generated_tokens", reports.iter().map(|r| r.answer_tokens + r.reasoning_tokens).sum::<usize>().into());
    if let Some(last) = reports.last() {
        field("prompt_tokens", last.prompt_tokens.into());
        field("seed", last.seed.into());
        let filled = now.filter(|now| now.tokens > 0);
        let kv = filled.map_or(&last.kv, |now| &now.kv);
        field("eviction", now.map_or(last.eviction, |now| now.eviction).into());
        field("codec", kv.codec.name().into());
        field("ratio", rounded(kv.ratio, 2).into());
        field("live_slots", kv.live_slots.into());
        field("dense_slots", kv.dense_slots.into());
        field("kv_bytes", kv.live_bytes.into());
        field("dense_bytes", kv.dense_bytes.into());
        if let Some(bytes) = filled.map_or(last.device_bytes, |now| now.device_bytes) {
            field("device_bytes", bytes.into());
        }
        field("decode_tok_s", rounded(last.decode_tok_s, 1).into());
    }
    out.push_str("---\n");
    let _ = write!(out, "\n# {}\n", chat.title_or_first_line());
    out
}
