//! Markdown to styled rows, for answers. Built on pulldown-cmark; keeps single line breaks, and
//! leaves the asterisks of `5*b - 3*c` alone. Tables are in [`table`], code colours in
//! [`super::highlight`].

mod finished;
mod formula;
mod latex;
mod table;

use super::text::{clean, truncate, wrap};
use super::theme::{Role, Theme};
use super::{highlight, links};
pub use finished::finished_prefix;
use formula::Shielded;
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use std::ops::Range;
use table::Table;

/// Most columns of prose: longer rows are hard to read. Code and tables may be wider.
pub const PROSE: usize = 100;

const OPTIONS: Options = Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);

/// Renders a whole text to rows of at most `width` columns. URLs are added to `links`, and the
/// spans that show them have their numbers. `blocks` counts the code blocks, which show it.
pub fn render(
    text: &str,
    width: usize,
    theme: &Theme,
    links: &mut Vec<String>,
    blocks: &mut usize,
) -> Vec<Line<'static>> {
    let text = clean(text);
    let shielded = Shielded::new(&text, OPTIONS);
    let mut renderer = Renderer::new(&shielded, width, theme, links, blocks);
    for (event, range) in Parser::new_ext(&shielded.text, OPTIONS).into_offset_iter() {
        renderer.event(event, range);
    }
    renderer.end_block();
    renderer.lines
}

/// The fenced and indented code blocks of a text, as written.
pub fn code_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    // Read as it is rendered, so that the numbers are those on the screen.
    let shielded = Shielded::new(text, OPTIONS);
    for event in Parser::new_ext(&shielded.text, OPTIONS) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => open = Some(String::new()),
            Event::Text(t) => {
                if let Some(block) = &mut open {
                    block.push_str(&shielded.restored(&t));
                }
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
            _ => {}
        }
    }
    blocks
}

/// Longest name of a code block's language.
const LABEL: usize = 24;

enum Container {
    Quote,
    List { next: Option<u64> },
    Item { indent: usize, marker: Option<String> },
}

struct Renderer<'a> {
    shielded: &'a Shielded<'a>,
    source: &'a str,
    theme: &'a Theme,
    /// Columns of prose, and of what may be wider.
    width: usize,
    full: usize,
    lines: Vec<Line<'static>>,
    links: &'a mut Vec<String>,
    blocks: &'a mut usize,
    /// Logical lines of the paragraph being collected.
    inline: Vec<Vec<Span<'static>>>,
    styles: Vec<Style>,
    containers: Vec<Container>,
    code: Option<(String, String)>,
    table: Option<Table>,
    link: Option<String>,
    /// A blank row precedes the next block.
    gap: bool,
}

impl<'a> Renderer<'a> {
    fn new(
        shielded: &'a Shielded<'a>,
        width: usize,
        theme: &'a Theme,
        links: &'a mut Vec<String>,
        blocks: &'a mut usize,
    ) -> Self {
        Self {
            shielded,
            source: &shielded.text,
            theme,
            width: width.min(PROSE),
            full: width,
            lines: Vec::new(),
            links,
            blocks,
            inline: vec![Vec::new()],
            styles: vec![theme.style(Role::Text)],
            containers: Vec::new(),
            code: None,
            table: None,
            link: None,
            gap: false,
        }
    }

    fn event(&mut self, event: Event, range: Range<usize>) {
        match event {
            Event::Start(tag) => self.start(tag, range),
            Event::End(tag) => self.end(tag, range),
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&self.shielded.restored(&text)),
                None => self.text(&text),
            },
            Event::Code(text) | Event::InlineMath(text) | Event::DisplayMath(text) => {
                let style = self.style().patch(self.theme.style(Role::Code));
                self.push(&self.shielded.restored(&text), style);
            }
            Event::Html(text) | Event::InlineHtml(text) => self.text(&text),
            Event::FootnoteReference(name) => self.text(&format!("[^{name}]")),
            Event::SoftBreak | Event::HardBreak => self.inline.push(Vec::new()),
            Event::Rule => {
                self.begin_block();
                let rule = self.theme.glyphs().horizontal.repeat(self.width.min(24));
                self.emit(&[Span::styled(rule, self.theme.style(Role::Border))]);
                self.gap = true;
            }
            Event::TaskListMarker(done) => self.task(if done { "[x] " } else { "[ ] " }),
        }
    }

    fn start(&mut self, tag: Tag, range: Range<usize>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.begin_block(),
            Tag::Heading { level, .. } => {
                self.begin_block();
                let mut style = self.theme.style(Role::Heading);
                if level == HeadingLevel::H1 {
                    style = style.add_modifier(ratatui::style::Modifier::UNDERLINED);
                }
                self.styles.push(style);
            }
            Tag::BlockQuote(_) => {
                self.begin_block();
                self.containers.push(Container::Quote);
                self.styles.push(self.theme.style(Role::Quote));
            }
            Tag::CodeBlock(kind) => {
                self.begin_block();
                let language = match kind {
                    CodeBlockKind::Fenced(info) => info.split([' ', ',', '{']).next().unwrap_or("").to_owned(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::List(next) => {
                self.end_block();
                if !self.in_item() {
                    self.begin_block();
                }
                self.containers.push(Container::List { next });
            }
            Tag::Item => self.start_item(),
            Tag::Emphasis => self.emphasis(range, Role::Emphasis),
            Tag::Strong => self.emphasis(range, Role::Strong),
            Tag::Strikethrough => self.emphasis(range, Role::Strike),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.styles.push(links::linked(
                    self.theme.style(Role::Link),
                    &self.shielded.restored(&dest_url),
                    self.links,
                ));
                self.link = Some(self.shielded.restored(&dest_url).into_owned());
            }
            Tag::Table(alignments) => {
                self.begin_block();
                self.table = Some(Table::new(alignments));
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.start_row();
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, range: Range<usize>) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.end_block(),
            TagEnd::Heading(_) => {
                self.end_block();
                self.pop_style();
            }
            TagEnd::BlockQuote(_) => {
                self.end_block();
                self.containers.pop();
                self.pop_style();
                self.gap = true;
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => {
                self.end_block();
                self.containers.pop();
                self.gap = !self.in_item();
            }
            TagEnd::Item => {
                self.end_block();
                // An item without text still shows its mark.
                if matches!(self.containers.last(), Some(Container::Item { marker: Some(_), .. })) {
                    self.emit(&[]);
                }
                self.containers.pop();
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough if self.is_literal(&range) => {
                self.text(mark_of(&self.source[range]));
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => self.pop_style(),
            TagEnd::Link | TagEnd::Image => self.end_link(),
            TagEnd::TableCell => {
                let cell = std::mem::replace(&mut self.inline, vec![Vec::new()]);
                let cell = links::mark(cell.into_iter().flatten().collect(), self.theme.style(Role::Link), self.links);
                if let Some(table) = &mut self.table {
                    table.push_cell(cell);
                }
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    let room = self.full.saturating_sub(self.prefix_width());
                    for row in table.render(room, self.theme) {
                        let (first, rest) = self.prefixes();
                        self.lines.extend(wrap(&row.spans, self.full, &first, &rest));
                    }
                    self.gap = true;
                }
            }
            _ => {}
        }
    }

    fn start_item(&mut self) {
        self.end_block();
        let bullet = self.theme.glyphs().bullet;
        let marker = match self.containers.last_mut() {
            Some(Container::List { next: Some(n) }) => {
                *n += 1;
                format!("{}. ", *n - 1)
            }
            _ => format!("{bullet} "),
        };
        if self.gap && !self.lines.is_empty() {
            self.blank();
        }
        self.gap = false;
        let indent = super::text::width(&marker);
        self.containers.push(Container::Item { indent, marker: Some(marker) });
    }

    /// The box of a task takes the place of the item's bullet, and follows its number.
    fn task(&mut self, checkbox: &str) {
        let bullet = format!("{} ", self.theme.glyphs().bullet);
        match self.containers.last_mut() {
            Some(Container::Item { indent, marker: Some(marker) }) if *marker == bullet => {
                *indent = checkbox.len();
                *marker = checkbox.to_owned();
            }
            _ => self.text(checkbox),
        }
    }

    fn emphasis(&mut self, range: Range<usize>, role: Role) {
        if self.is_literal(&range) {
            self.text(mark_of(&self.source[range]));
        } else {
            self.styles.push(self.style().patch(self.theme.style(role)));
        }
    }

    /// Asterisks inside a formula are not emphasis.
    fn is_literal(&self, range: &Range<usize>) -> bool {
        let before = self.source[..range.start].chars().next_back();
        let after = self.source[range.end..].chars().next();
        let touches_before = before.is_some_and(|c| c.is_ascii_alphanumeric() || c == ')');
        let touches_after = after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '(');
        match mark_of(&self.source[range.clone()]) {
            "*" => touches_before || touches_after,
            "**" | "__" => touches_before && touches_after,
            "~" => true,
            _ => false,
        }
    }

    fn end_link(&mut self) {
        self.pop_style();
        let Some(url) = self.link.take() else { return };
        let shown: String = self.inline.last().into_iter().flatten().map(|s| s.content.as_ref()).collect();
        if !url.is_empty() && !shown.ends_with(url.trim_start_matches("mailto:")) {
            let style = self.theme.style(Role::Dim);
            let linked = links::linked(style, &url, self.links);
            self.push(" (", style);
            self.push(&super::text::clean_line(&url), linked);
            self.push(")", style);
        }
    }

    /// A code block: its language and number on a row of their own, and a quiet background as wide
    /// as prose, or as the code where that is wider.
    fn end_code(&mut self) {
        let Some((language, code)) = self.code.take() else { return };
        let block = self.theme.style(Role::CodeBlock);
        let indent = Span::styled("  ", block);
        *self.blocks += 1;
        let label = truncate(&super::text::clean_line(&language), LABEL);
        let label = format!("{} {}", if label.is_empty() { "code" } else { &label }, self.blocks);
        let label = Some(vec![Span::styled(label, self.theme.style(Role::CodeLabel))]);
        let code = highlight::lines(&language, code.strip_suffix('\n').unwrap_or(&code), self.theme);
        let from = self.lines.len();
        for spans in label.into_iter().chain(code) {
            let (mut first, mut rest) = self.prefixes();
            first.push(indent.clone());
            rest.push(indent.clone());
            let spans: Vec<Span> = spans.into_iter().map(|s| Span::styled(s.content, block.patch(s.style))).collect();
            self.lines.extend(wrap(&spans, self.full, &first, &rest));
        }
        if block.bg.is_some() {
            let widest = self.lines[from..].iter().map(|l| columns(l)).max().unwrap_or(0);
            let width = self.width.max(widest + 1).min(self.full);
            for line in &mut self.lines[from..] {
                line.spans.push(Span::styled(" ".repeat(width.saturating_sub(columns(line))), block));
            }
        }
        self.gap = true;
    }

    fn in_item(&self) -> bool {
        matches!(self.containers.last(), Some(Container::Item { .. }))
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn pop_style(&mut self) {
        if self.styles.len() > 1 {
            self.styles.pop();
        }
    }

    fn text(&mut self, text: &str) {
        let style = self.style();
        let text = if self.theme.ascii { self.shielded.restored(text) } else { self.shielded.shown(text) };
        for (n, part) in text.split('\n').enumerate() {
            if n > 0 {
                self.inline.push(Vec::new());
            }
            self.push(part, style);
        }
    }

    fn push(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        // Entities of the source may stand for anything.
        let text = clean(text).into_owned();
        if let Some(line) = self.inline.last_mut() {
            line.push(Span::styled(text, style));
        }
    }

    fn begin_block(&mut self) {
        self.end_block();
        if self.gap && !self.lines.is_empty() {
            self.blank();
        }
        self.gap = false;
    }

    fn blank(&mut self) {
        let (_, rest) = self.prefixes();
        self.lines.push(Line::from(rest));
    }

    /// Wraps what was collected into rows.
    fn end_block(&mut self) {
        let mut lines = std::mem::replace(&mut self.inline, vec![Vec::new()]);
        if lines.iter().all(Vec::is_empty) {
            return;
        }
        while lines.last().is_some_and(Vec::is_empty) {
            lines.pop();
        }
        for line in lines {
            let line = links::mark(line, self.theme.style(Role::Link), self.links);
            self.emit(&line);
        }
        // Tight items have no paragraph, and no gap between them.
        self.gap = !self.in_item();
    }

    fn emit(&mut self, spans: &[Span<'static>]) {
        let (first, rest) = self.prefixes();
        self.lines.extend(wrap(spans, self.width, &first, &rest));
    }

    fn prefix_width(&self) -> usize {
        let width = |container: &Container| match container {
            Container::Quote => 2,
            Container::List { .. } => 0,
            Container::Item { indent, .. } => *indent,
        };
        self.containers.iter().map(width).sum()
    }

    /// Prefix of the next row and of those after it. Takes the item's mark.
    fn prefixes(&mut self) -> (Vec<Span<'static>>, Vec<Span<'static>>) {
        let (quote, list) = (self.theme.style(Role::Quote), self.theme.style(Role::List));
        let bar = format!("{} ", self.theme.glyphs().quote);
        let (mut first, mut rest) = (Vec::new(), Vec::new());
        for container in &mut self.containers {
            match container {
                Container::Quote => {
                    first.push(Span::styled(bar.clone(), quote));
                    rest.push(Span::styled(bar.clone(), quote));
                }
                Container::List { .. } => {}
                Container::Item { indent, marker } => {
                    let space = " ".repeat(*indent);
                    first.push(marker.take().map_or_else(|| Span::raw(space.clone()), |m| Span::styled(m, list)));
                    rest.push(Span::raw(space));
                }
            }
        }
        (first, rest)
    }
}

/// Columns of a row.
fn columns(line: &Line) -> usize {
    line.spans.iter().map(|s| super::text::width(&s.content)).sum()
}

/// The mark that an emphasis begins with.
fn mark_of(source: &str) -> &str {
    ["**", "__", "~~", "*", "_", "~"].into_iter().find(|m| source.starts_with(m)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::super::text::width;
    use super::super::theme::Themes;
    use super::*;

    fn theme() -> Theme {
        Themes::default().load("dark").unwrap()
    }

    fn plain(text: &str, columns: usize) -> String {
        let lines = render(text, columns, &theme(), &mut Vec::new(), &mut 0);
        let rows = lines.iter().map(|l| l.spans.iter().map(|s| s.content.as_ref()).collect::<String>());
        rows.map(|r| r.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn formulas_keep_their_asterisks() {
        for text in [
            "5*b - 2355 = -50*b - 2740",
            "(a+b)*c = d*(e+f)",
            "2**3 + 4**5",
            "3 * x = 4 * y",
            "~5 and ~6~",
            "a*b*c and x*y",
        ] {
            assert_eq!(plain(text, 60), text);
        }
        assert_eq!(
            plain("an *emphasised* and **strong** word, これは**太字**です", 60),
            "an emphasised and strong word, これは太字です"
        );
        assert_eq!(plain("a = 1\nb = 2", 60), "a = 1\nb = 2");
    }

    #[test]
    fn blocks_are_spaced_and_indented() {
        let text = "# Title\nText\nmore\n\n- one\n- two\n  - deep\n1. first\n2. second\n\n> quoted\n> text\n\n```rust\nfn f() {}\n```\n---\nend";
        insta::assert_snapshot!(plain(text, 40), @r"
        Title

        Text
        more

        • one
        • two
          • deep

        1. first
        2. second

        ▎ quoted
        ▎ text

          rust 1
          fn f() {}

        ────────────────────────

        end
        ");
    }

    #[test]
    fn the_box_of_a_task_is_its_bullet() {
        assert_eq!(
            plain("- [x] done\n- [ ] open\n- item\n1. [x] first", 40),
            "[x] done\n[ ] open\n• item\n\n1. [x] first"
        );
    }

    #[test]
    fn tables_fit_or_become_lists() {
        let text = "| name | value |\n|:--|--:|\n| alpha | 1 |\n| 日本語 | 22 |";
        insta::assert_snapshot!(plain(text, 40), @r"
        name   │ value
        ───────┼──────
        alpha  │     1
        日本語 │    22
        ");
        insta::assert_snapshot!(plain(text, 8), @r"
        name:
        alpha
        value: 1
        name: 日
        本語
        value:
        22
        ");
    }

    #[test]
    fn any_text_fits_any_width_and_has_no_control() {
        let nasty = "# A\x1b[31m `b\x07` *c\u{202e}*\n\n| x | y |\n|-|-|\n| \x1b]0;t\x07 | 漢字漢字 |\n\n> - 1. a\n>   b\n\n```\nx\ty\n```\n&#27;[2J &#x9b; [l\x1b](http://a\x1bb)";
        for columns in 2..70 {
            for line in render(nasty, columns, &theme(), &mut Vec::new(), &mut 0) {
                let row: String = line.spans.iter().map(|s| s.content.as_ref()).collect();
                assert!(!row.chars().any(char::is_control), "{row:?}");
                assert!(columns < 14 || width(&row) <= columns, "{columns}: {row:?}");
            }
        }
    }

    #[test]
    fn prose_is_at_most_100_columns_and_code_has_a_background() {
        let long = "word ".repeat(60);
        let text =
            format!("{long}\n\n- {long}\n\n```diff\n--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n{}\n```", "x".repeat(130));
        let rows = render(&text, 160, &theme(), &mut Vec::new(), &mut 0);
        let (code, prose): (Vec<_>, Vec<_>) = rows.iter().partition(|l| l.spans.iter().any(|s| s.style.bg.is_some()));
        assert!(prose.iter().all(|l| columns(l) <= PROSE));
        assert!(prose.iter().any(|l| columns(l) > 90));
        // The language, and the code as wide as its longest line.
        assert_eq!(code.len(), 7);
        assert!(code.iter().all(|l| columns(l) == 133), "{:?}", code.iter().map(|l| columns(l)).collect::<Vec<_>>());
        let style = |row: usize| code[row].spans[1].style.fg;
        assert_eq!(code[0].spans[1].content, "diff 1");
        assert_eq!((style(4), style(5)), (theme().style(Role::DiffRemoved).fg, theme().style(Role::DiffAdded).fg));
        assert_eq!((style(1), style(3)), (theme().style(Role::CodeLabel).fg, theme().style(Role::DiffHunk).fg));
        // Short code is as wide as prose, and never wider than there is room.
        for (room, expected) in [(160, 100), (60, 60)] {
            let rows = render("```\nx\n```", room, &theme(), &mut Vec::new(), &mut 0);
            assert_eq!(rows.iter().map(columns).collect::<Vec<_>>(), [expected; 2]);
        }
    }
}
