//! Progress of quantization on stderr: one line that is redrawn on a terminal, else one notice.

use super::output::notice;
use crate::checkpoint::convert::Report;
use std::io::{IsTerminal, Write};

#[derive(Default)]
pub struct Quantizing {
    /// Columns of the line on the terminal.
    drawn: usize,
    /// What was last begun.
    begun: Option<&'static str>,
}

impl Quantizing {
    /// Shows layers measured or quantized so far, of `total`.
    pub fn layers(&mut self, measuring: bool, done: usize, total: usize) {
        let doing = if measuring { "measuring what quantization may round" } else { "quantizing" };
        let line = format!("dmschat: {doing}, layer {done} of {total}");
        if std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r{line:0$}", self.drawn);
            self.drawn = line.len();
        } else if self.begun != Some(doing) {
            notice(&format!("{doing}: {}", crate::ui::text::plural(total as u64, "layer")));
        }
        self.begun = Some(doing);
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.drawn > 0 {
            let _ = write!(std::io::stderr(), "\r{:1$}\r", "", self.drawn);
        }
        self.drawn = 0;
    }

    /// Shows a report. Ctrl+C ends the program, so there is nothing to stop.
    pub fn report(&mut self, report: Report) -> bool {
        match report {
            Report::Measuring { done, total } => self.layers(true, done, total),
            Report::Layers { done, total } => self.layers(false, done, total),
            Report::Waiting => {}
            Report::Notice(text) => {
                self.clear();
                notice(&text);
            }
        }
        true
    }
}
