//! Progress of quantization on stderr: one line that is redrawn on a terminal, else one notice.

use super::output::{StatusLine, notice};
use crate::quantize::convert::Report;
use std::io::IsTerminal;

#[derive(Default)]
pub struct Quantizing {
    line: StatusLine,
    /// The latest work begun.
    begun: Option<&'static str>,
}

impl Quantizing {
    /// Shows layers measured or quantized so far, of `total`.
    pub fn layers(&mut self, measuring: bool, done: usize, total: usize) {
        let doing = if measuring { "measuring which weights matter" } else { "packing the weights" };
        if std::io::stderr().is_terminal() {
            self.line.show(&format!("dmschat: {doing}, layer {done} of {total}"));
        } else if self.begun != Some(doing) {
            notice(&format!("{doing}: {}", crate::ui::text::plural(total as u64, "layer")));
        }
        self.begun = Some(doing);
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        self.line.clear();
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
