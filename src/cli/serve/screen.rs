//! The screen of `dmschat serve`: one line per request, the slots with their ratio, and the newest
//! lines of the log.

use crate::serve::board::{Board, Line, Stage, View};
use crate::ui::terminal::Screen;
use crate::ui::text::{clean, count, truncate};
use anyhow::Result;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Time between two frames.
const EVERY: Duration = Duration::from_millis(250);

/// Columns of the table: where each ends, and its name. All but the first two are numbers, which
/// end there.
const COLUMNS: [(u16, &str); 8] = [
    (5, "slot"),
    (28, "request"),
    (37, "prompt"),
    (46, "cached"),
    (55, "held"),
    (62, "tok/s"),
    (69, "cache"),
    (80, "  "),
];

/// What does not change.
#[derive(Clone, Debug)]
pub struct Facts {
    pub model: String,
    pub address: String,
    pub context: usize,
    pub slots: usize,
}

/// The screen, until it is dropped, and the keys that end the server.
pub struct Shown {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    ends: UnboundedReceiver<()>,
}

impl Shown {
    /// Waits for the next key that ends the server.
    pub async fn next_end(&mut self) {
        if self.ends.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Takes the terminal and draws until the returned value is dropped.
pub fn show(facts: Facts, board: Arc<Board>) -> Result<Shown> {
    let (send, ends) = unbounded_channel();
    let (taken, is_taken) = std::sync::mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&ended);
    let work = move || {
        let mut screen = match Screen::take(false) {
            Ok(screen) => screen,
            Err(why) => return drop(taken.send(Err(why))),
        };
        let _ = taken.send(Ok(()));
        let (began, mut asked) = (Instant::now(), false);
        while !until.load(Relaxed) {
            let view = board.view();
            let draw = |frame: &mut ratatui::Frame| {
                let area = frame.area();
                table(frame.buffer_mut(), area, &facts, &view, began.elapsed(), asked);
            };
            if screen.frame(draw).is_err() {
                let _ = send.send(());
                return;
            }
            let due = Instant::now() + EVERY;
            while !until.load(Relaxed) && event::poll(due.saturating_duration_since(Instant::now())).unwrap_or(false) {
                match event::read() {
                    Ok(Event::Key(key)) if ends_server(&key) => {
                        asked = true;
                        let _ = send.send(());
                        break;
                    }
                    Ok(Event::Resize(..)) => {
                        let _ = screen.redraw();
                        break;
                    }
                    Ok(_) => {}
                    // The terminal has gone.
                    Err(_) => {
                        let _ = send.send(());
                        return;
                    }
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("screen".into()).spawn(work)?;
    is_taken.recv()??;
    Ok(Shown { ended, thread: Some(thread), ends })
}

fn ends_server(key: &KeyEvent) -> bool {
    key.kind != KeyEventKind::Release
        && match key.code {
            KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
            KeyCode::Char('q') => true,
            _ => false,
        }
}

/// Draws all of it. `asked`: the server was asked to end.
fn table(buffer: &mut Buffer, area: Rect, facts: &Facts, view: &View, up: Duration, asked: bool) {
    let (plain, dim) = (Style::new(), Style::new().add_modifier(Modifier::DIM));
    let mut rows = Rows { buffer, area, used: 0 };
    let busy = view.lines.iter().filter(|line| line.slot.is_some()).count();
    let waits = view.lines.len() - busy;
    let end = if asked { "ending; q again ends at once" } else { "q ends" };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    rows.pair(&format!("dmschat serve  {}", facts.model), bold, end, plain);
    let load = format!("{busy} of {} slots, {waits} waiting, up {}", facts.slots, hours(up));
    rows.pair(&format!("{}  context {}", facts.address, count(facts.context as u64)), plain, &load, plain);
    rows.next();
    rows.cells(&COLUMNS.map(|(_, name)| name.trim().to_owned()), dim);
    // Half of the rows at most are slots, and lines of the log have the rest.
    let most = usize::from(area.height.saturating_sub(6) / 2).max(1);
    let mut lines: Vec<Option<&Line>> =
        (1..=facts.slots.max(busy)).map(|slot| view.lines.iter().find(|line| line.slot == Some(slot))).collect();
    let free = lines.iter().filter(|line| line.is_none()).count();
    let hides = lines.len() > most;
    if hides {
        lines.retain(Option::is_some);
    }
    for (slot, line) in (1..).zip(lines.iter().take(most)) {
        match line {
            Some(line) => rows.cells(&cells(line), plain),
            None => rows.cells(&[slot.to_string(), "free".to_owned()], dim),
        }
    }
    let more = lines.len().saturating_sub(most);
    if hides {
        let more = if more > 0 { format!("{more} more busy, ") } else { String::new() };
        rows.cells(&[String::new(), format!("{more}{free} free")], dim);
    }
    let waiting: Vec<&Line> = view.lines.iter().filter(|line| line.slot.is_none()).collect();
    for line in waiting.iter().take(3) {
        rows.cells(&cells(line), plain);
    }
    if waiting.len() > 3 {
        rows.cells(&["-".to_owned(), format!("{} more wait", waiting.len() - 3)], dim);
    }
    rows.next();
    let left = usize::from(area.height.saturating_sub(rows.used));
    for line in &view.log[view.log.len().saturating_sub(left)..] {
        rows.text(line, dim);
    }
}

fn cells(line: &Line) -> [String; 8] {
    let state = match line.stage {
        Stage::Waits => "waits".to_owned(),
        Stage::Reads { done, total } => format!("reads {} %", 100 * done / total.max(1)),
        Stage::Answers => "answers".to_owned(),
    };
    // Of one that waits no figure is known.
    let known = |figure: Option<String>| figure.filter(|_| line.slot.is_some()).unwrap_or_default();
    let tokens = |n: usize| known(Some(count(n as u64)));
    [
        line.slot.map_or("-".to_owned(), |slot| slot.to_string()),
        format!("#{} {}", line.number, line.form),
        tokens(line.prompt_tokens),
        tokens(line.cached),
        tokens(line.tokens),
        known(line.tok_s.map(|speed| format!("{speed:.1}"))),
        known(line.ratio.map(|ratio| format!("{ratio:.1}x"))),
        state,
    ]
}

/// `1:02:03`
fn hours(time: Duration) -> String {
    let s = time.as_secs();
    format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// Writes rows from the top.
struct Rows<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    used: u16,
}

impl Rows<'_> {
    fn next(&mut self) {
        self.used += 1;
    }

    fn put(&mut self, column: u16, text: &str, style: Style) {
        if self.used < self.area.height && column < self.area.width {
            let room = usize::from(self.area.width - column);
            self.buffer.set_stringn(self.area.x + column, self.area.y + self.used, text, room, style);
        }
    }

    fn text(&mut self, text: &str, style: Style) {
        let text = truncate(&clean(text), usize::from(self.area.width.saturating_sub(1)));
        self.put(1, &text, style);
        self.next();
    }

    /// A text on the left, and one on the right that goes where there is no room for both.
    fn pair(&mut self, left: &str, of_left: Style, right: &str, of_right: Style) {
        let width = usize::from(self.area.width);
        let room = width.saturating_sub(right.len() + 3);
        let left = truncate(&clean(left), if room > 20 { room } else { width.saturating_sub(1) });
        self.put(1, &left, of_left);
        if room > 20 {
            self.put(self.area.width - right.len() as u16 - 1, right, of_right);
        }
        self.next();
    }

    fn cells(&mut self, cells: &[String], style: Style) {
        for (at, (text, (end, _))) in cells.iter().zip(COLUMNS).enumerate() {
            let begin = if at == 0 { 1 } else { COLUMNS[at - 1].0 + 1 };
            let room = usize::from(end - begin);
            let text = truncate(&clean(text), room);
            // Numbers end at the end of their column.
            let is_number = (2..COLUMNS.len() - 1).contains(&at);
            let column = if is_number { end - text.len().min(room) as u16 } else { begin };
            self.put(column, &text, style);
        }
        self.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: u16, height: u16, slots: usize, view: &View, asked: bool) -> Vec<String> {
        let facts = Facts {
            model: "Qwen/Qwen3-8B".to_owned(),
            address: "http://127.0.0.1:8080/v1".to_owned(),
            context: 32_768,
            slots,
        };
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        table(&mut buffer, area, &facts, view, Duration::from_secs(3723), asked);
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect()
    }

    fn line(number: u64, slot: Option<usize>, stage: Stage) -> Line {
        let (prompt_tokens, cached, tokens) = (12_345, 11_000, 12_500);
        let form = "chat/completions";
        Line { number, form, stage, slot, prompt_tokens, cached, tokens, tok_s: Some(45.25), ratio: Some(4.06) }
    }

    #[test]
    fn requests_slots_and_the_log_fit_into_80_by_24() {
        let lines = vec![
            line(7, Some(2), Stage::Answers),
            Line { tok_s: None, ratio: None, ..line(8, Some(1), Stage::Reads { done: 450, total: 1345 }) },
            line(9, None, Stage::Waits),
        ];
        let log = (0..40).map(|n| format!("line {n}\x1b[2J")).collect();
        let rows = drawn(80, 24, 4, &View { lines, log }, false);
        let top = [
            " dmschat serve  Qwen/Qwen3-8B                                            q ends",
            " http://127.0.0.1:8080/v1  context 32,768     2 of 4 slots, 1 waiting, up 1:02:03",
            "",
            " slot request                  prompt   cached     held   tok/s  cache",
            " 1    #8 chat/completions      12,345   11,000   12,500                reads 33 %",
            " 2    #7 chat/completions      12,345   11,000   12,500    45.2   4.1x answers",
            " 3    free",
            " 4    free",
            " -    #9 chat/completions                                              waits",
            "",
        ];
        for (row, wanted) in rows.iter().zip(top) {
            assert_eq!(row.split_whitespace().collect::<Vec<_>>(), wanted.split_whitespace().collect::<Vec<_>>());
        }
        assert!(rows[4..6].iter().all(|row| row.find("12,345") == rows[4].find("12,345")), "{rows:?}");
        assert!(rows.iter().all(|row| row.chars().count() <= 80 && !row.contains('\x1b')), "{rows:?}");
        assert!(rows[10].contains("line 26") && rows[23].contains("line 39"), "{rows:?}");
    }

    #[test]
    fn many_slots_and_small_terminals_leave_something_out() {
        let lines: Vec<Line> = (1..=30).map(|n| line(n, Some(n as usize), Stage::Answers)).collect();
        let view = View { lines, log: vec!["the last line".to_owned()] };
        let rows = drawn(80, 24, 64, &view, true);
        assert!(rows[0].contains("q again ends at once") && rows[1].contains("30 of 64 slots"), "{rows:?}");
        assert!(rows[13].contains("21 more busy, 34 free") && rows[15].contains("the last line"), "{rows:?}");
        for (width, height) in [(1, 1), (7, 3), (30, 5), (200, 60)] {
            drawn(width, height, 4, &view, false);
        }
    }
}
