//! A saved conversation as one HTML page: no scripts, nothing loaded, colours for dark and light
//! screens.

use super::{Loaded, MERGED, PathPolicies, Retention, messages, remembered, stretches};
use crate::policy::PolicyKind;
use crate::ui::depth::Depth;
use crate::ui::heat;
use crate::ui::text::clean;
use crate::ui::theme::Theme;
use ratatui::style::Color;
use std::fmt::Write;

/// Steps of the colour scale, beside the first.
const STEPS: u8 = 20;

const STYLE: &str = "\
body { font: 16px/1.6 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h1, .role, .facts { overflow-wrap: anywhere; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font: 14px/1.7 ui-monospace, monospace; }
.text span { border-radius: 2px; }
.role { font-size: 0.85rem; margin: 1.4rem 0 0.3rem; } .facts, .scale, summary { font-size: 0.85rem; opacity: 0.8; }
.bar { display: inline-block; width: 8rem; height: 0.6rem; border-radius: 3px; background: var(--rule); margin-left: 0.6rem; }
.bar i { display: block; height: 100%; border-radius: 3px; }
.scale span { padding: 0.1rem 0.3rem; }
";

/// The page.
pub fn page(loaded: &Loaded, dark: &Theme, light: &Theme) -> String {
    let chat = &loaded.conversation;
    let policies = PathPolicies::of(loaded);
    let title = escaped(&chat.title_or_first_line());
    let mut out = format!(
        "<!doctype html>\n<html lang=\"\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"script-src 'none'; object-src 'none'; img-src 'none'; base-uri 'none'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{}@media (prefers-color-scheme: light) {{\n{}}}\n</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n<p class=\"facts\">{}</p>\n{}",
        colours(dark, "#14161a", "#d8dee9", "#333944"),
        colours(light, "#ffffff", "#1b1f24", "#dde3ea"),
        escaped(&facts(loaded, &policies)),
        scale(policies.merge()),
    );
    for (role, text, message, kept) in messages(loaded) {
        let _ = writeln!(
            out,
            "<p class=\"role\">{}: {}{}</p>",
            escaped(&policies.role(role, message)),
            remembered(kept, policies.merge()),
            bar(kept)
        );
        if let Some(reasoning) = message.and_then(|m| m.shown_reasoning()) {
            let text = escaped(reasoning);
            let _ = writeln!(out, "<details><summary>thoughts</summary><div class=\"text\">{text}</div></details>");
        }
        out += "<div class=\"text\">";
        for (part, percent) in stretches(text, kept) {
            let text = escaped(part);
            let _ = match percent {
                Some(p) => write!(out, "<span class=\"{}\" title=\"{p} %\">{text}</span>", class(p)),
                None => write!(out, "{text}"),
            };
        }
        out += "</div>\n";
    }
    out += "</body>\n</html>\n";
    out
}

/// Model, policies, ratio.
fn facts(loaded: &Loaded, policies: &PathPolicies) -> String {
    let header = &loaded.header;
    let mut facts = vec![header.model.name.clone()];
    facts.extend(Some(policies.names.join(", then ")).filter(|names| !names.is_empty()));
    // The window policy's window is its budget.
    let last = policies.last.as_ref().filter(|policy| policy.policy != PolicyKind::Window);
    facts.extend(last.and_then(|policy| policy.window).map(|w| format!("window {w}")));
    let report = loaded.conversation.path().into_iter().rev().find_map(|m| m.report.as_deref());
    facts.extend(report.and_then(|r| r.kv.ratio).map(|ratio| format!("compressed {ratio:.1}x")));
    let shown =
        if policies.merge() { MERGED } else { "how many of the KV heads still stored each token after the last turn" };
    facts.push(shown.to_owned());
    facts.join(" \u{b7} ")
}

fn class(percent: u8) -> String {
    format!("k{}", (u16::from(percent.min(100)) * u16::from(STEPS) + 50) / 100)
}

fn bar(kept: Option<&Retention>) -> String {
    kept.map_or(String::new(), |r| {
        let percent = (100.0 * r.share.clamp(0.0, 1.0)).round() as u8;
        format!("<span class=\"bar\"><i class=\"{}\" style=\"width:{percent}%\"></i></span>", class(percent))
    })
}

fn scale(merges: bool) -> String {
    let (none, all) = if merges { ("merged", "a slot in") } else { ("forgotten", "kept by") };
    let mut out = format!("<p class=\"scale\">{none} ");
    for percent in (0..=100).step_by(10) {
        let _ = write!(out, "<span class=\"{}\">{percent}</span>", class(percent));
    }
    let _ = writeln!(out, " % {all} all heads</p>");
    out
}

/// The colours of a theme for a page with this background, text and rule.
fn colours(theme: &Theme, background: &str, text: &str, rule: &str) -> String {
    let mut out = format!("body {{ background: {background}; color: {text}; --rule: {rule}; }}\n");
    for step in 0..=STEPS {
        let level = heat::level(f64::from(step) / f64::from(STEPS));
        let style = heat::text_on(theme, Depth::Rgb, level);
        if let (Some(fg), Some(bg)) = (style.fg.and_then(hex), style.bg.and_then(hex)) {
            let _ = writeln!(out, ".k{step} {{ background: {bg}; color: {fg}; }}");
        }
    }
    out
}

fn hex(colour: Color) -> Option<String> {
    match colour {
        Color::Rgb(r, g, b) => Some(format!("#{r:02x}{g:02x}{b:02x}")),
        _ => None,
    }
}

/// Text without control characters, as HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}
