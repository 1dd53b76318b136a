//! Progress of quantization on stderr: one line that is redrawn on a terminal, else one notice.

use super::output::notice;
use crate::checkpoint::weight_cache::Report;
use std::io::{IsTerminal, Write};

#[derive(Default)]
pub struct Quantizing {
    /// Columns of the line on the terminal.
    drawn: usize,
    begun: bool,
}

impl Quantizing {
    /// Shows layers quantized so far, of `total`.
    pub fn layers(&mut self, done: usize, total: usize) {
        let line = format!("dmschat: quantizing {done} of {total}");
        if std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r{line:0$}", self.drawn);
            self.drawn = line.len();
        } else if !self.begun {
            notice(&format!("quantizing {}", crate::ui::text::plural(total as u64, "layer")));
        }
        self.begun = true;
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
            Report::Layers { done, total } => self.layers(done, total),
            Report::Waiting => {}
            Report::Notice(text) => {
                self.clear();
                notice(&text);
            }
        }
        true
    }
}
