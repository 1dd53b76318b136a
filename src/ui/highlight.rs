//! Colours for code: syntect's parser, and the theme's roles in place of syntect's own themes, so
//! that code has the terminal's colours like everything else.

use super::theme::{Role, Theme};
use ratatui::text::Span;
use std::sync::OnceLock;
use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxSet};

/// Longer code stays plain: nobody waits for colours.
const MAX_BYTES: usize = 100_000;
const MAX_LINE: usize = 2_000;

/// The lines of a code block, styled; plain where the language is unknown.
pub fn lines(language: &str, code: &str, theme: &Theme) -> Vec<Vec<Span<'static>>> {
    let plain = || code.split('\n').map(|l| vec![Span::styled(l.to_owned(), theme.style(Role::Code))]).collect();
    if ["diff", "patch", "udiff"].contains(&language) {
        return diff(code, theme);
    }
    if language.is_empty() || code.len() > MAX_BYTES || code.split('\n').any(|l| l.len() > MAX_LINE) {
        return plain();
    }
    highlighted(language, code, theme).unwrap_or_else(plain)
}

/// A unified diff: what was added and removed, and the lines that say where.
fn diff(code: &str, theme: &Theme) -> Vec<Vec<Span<'static>>> {
    let mut lines = code.split('\n').peekable();
    let mut out = Vec::new();
    let mut in_head = false;
    while let Some(line) = lines.next() {
        // A removed line may begin with three dashes too.
        let names = line.starts_with("--- ") && lines.peek().is_some_and(|next| next.starts_with("+++ "));
        let head = names || in_head || ["diff ", "index "].iter().any(|word| line.starts_with(word));
        in_head = names;
        let role = match line.chars().next() {
            _ if head => Role::CodeLabel,
            Some('+') => Role::DiffAdded,
            Some('-') => Role::DiffRemoved,
            Some('@') => Role::DiffHunk,
            _ => Role::Text,
        };
        out.push(vec![Span::styled(line.to_owned(), theme.style(role))]);
    }
    out
}

fn syntaxes() -> &'static SyntaxSet {
    static SYNTAXES: OnceLock<SyntaxSet> = OnceLock::new();
    SYNTAXES.get_or_init(SyntaxSet::load_defaults_newlines)
}

fn highlighted(language: &str, code: &str, theme: &Theme) -> Option<Vec<Vec<Span<'static>>>> {
    let syntaxes = syntaxes();
    let syntax = syntaxes.find_syntax_by_token(alias(language))?;
    let mut parser = ParseState::new(syntax);
    let mut stack = ScopeStack::new();
    let mut lines = Vec::new();
    for line in code.split('\n') {
        let full = format!("{line}\n");
        let operations = parser.parse_line(&full, syntaxes).ok()?;
        let mut spans: Vec<Span<'static>> = Vec::new();
        let mut from = 0;
        let mut push = |text: &str, stack: &ScopeStack| {
            let text = text.trim_end_matches('\n');
            if text.is_empty() {
                return;
            }
            let style = theme.style(role(stack));
            match spans.last_mut() {
                Some(last) if last.style == style => last.content.to_mut().push_str(text),
                _ => spans.push(Span::styled(text.to_owned(), style)),
            }
        };
        for (at, operation) in operations {
            push(full.get(from..at)?, &stack);
            from = at;
            stack.apply(&operation).ok()?;
        }
        push(full.get(from..)?, &stack);
        lines.push(spans);
    }
    Some(lines)
}

/// Names that people give to languages syntect knows under another one.
fn alias(language: &str) -> &str {
    match language {
        "shell" | "console" | "zsh" => "bash",
        "python3" => "python",
        "typescript" | "ts" | "tsx" | "jsx" => "js",
        "jsonc" | "json5" => "json",
        "c++" => "cpp",
        other => other,
    }
}

fn role(stack: &ScopeStack) -> Role {
    static TABLE: OnceLock<Vec<(Scope, Role)>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let rows = [
            ("comment", Role::SyntaxComment),
            ("string", Role::SyntaxString),
            ("constant.character", Role::SyntaxString),
            ("constant", Role::SyntaxNumber),
            ("entity.name.function", Role::SyntaxFunction),
            ("support.function", Role::SyntaxFunction),
            ("variable.function", Role::SyntaxFunction),
            ("entity.name.tag", Role::SyntaxKeyword),
            ("entity.name", Role::SyntaxType),
            ("entity.other.attribute-name", Role::SyntaxType),
            ("support.type", Role::SyntaxType),
            ("support.class", Role::SyntaxType),
            ("storage", Role::SyntaxKeyword),
            ("keyword.operator", Role::Text),
            ("keyword", Role::SyntaxKeyword),
        ];
        rows.iter().filter_map(|(scope, role)| Some((Scope::new(scope).ok()?, *role))).collect()
    });
    let scopes = stack.as_slice().iter().rev();
    scopes
        .flat_map(|s| table.iter().find(|(prefix, _)| prefix.is_prefix_of(*s)))
        .map(|(_, r)| *r)
        .next()
        .unwrap_or(Role::Text)
}

#[cfg(test)]
mod tests {
    use super::super::theme::Themes;
    use super::*;

    #[test]
    fn code_keeps_its_bytes_and_gets_colours() {
        let theme = Themes::default().load("dark").unwrap();
        let code = "// note\nfn main() {\n    let x = \"s\"; // 42\n}\n\n";
        let rows = lines("rust", code, &theme);
        let text: Vec<String> = rows.iter().map(|r| r.iter().map(|s| s.content.as_ref()).collect()).collect();
        assert_eq!(text.join("\n"), code);
        assert_eq!(rows[0][0].style, theme.style(Role::SyntaxComment));
        assert!(rows[1].iter().any(|s| s.content.contains("fn") && s.style == theme.style(Role::SyntaxKeyword)));
        for language in ["no-such", "", "python", "c++"] {
            assert_eq!(lines(language, code, &theme).len(), 6);
        }
    }
}
