//! The shape of the step under way, on the card: spans, and the span of every row.

use super::super::{OutOfMemory, Span};
use super::abi::DeviceSpan;
use super::driver::Driver;
use super::memory::Buf;
use std::rc::Rc;

/// What a kernel needs of a step's spans.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub spans: u64,
    pub span_of_row: u64,
    pub n_spans: usize,
    /// Rows up to the last one of a span.
    pub n_rows: usize,
}

#[derive(Default)]
pub(super) struct Spans {
    /// What the card holds now.
    current: Vec<Span>,
    memory: Option<(Buf<DeviceSpan>, Buf<i32>)>,
    rows: usize,
}

impl Spans {
    /// Room for steps of up to `rows` rows.
    pub fn reserve(&mut self, driver: &Rc<Driver>, rows: usize) -> Result<(), OutOfMemory> {
        if rows > self.rows {
            self.memory = Some((Buf::new(driver, rows)?, Buf::new(driver, rows)?));
            self.rows = rows;
            self.current.clear();
        }
        Ok(())
    }

    /// What was sent last.
    pub fn current(&self) -> &[Span] {
        &self.current
    }

    /// Sends the spans unless they are there already: all layers of a step have the same.
    pub fn send(&mut self, spans: &[Span]) -> Shape {
        let n_rows = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
        assert!(n_rows <= self.rows && spans.len() <= self.rows, "a step of {n_rows} rows for {}", self.rows);
        let (on_card, of_row) = self.memory.as_mut().expect("activations were made before a step");
        if self.current != spans {
            let device =
                |s: &Span| DeviceSpan { seq: s.seq as i32, start: s.start as i32, len: s.len as i32, unused: 0 };
            on_card.write(0, &spans.iter().map(device).collect::<Vec<_>>());
            let mut rows = vec![0; n_rows];
            for (i, span) in spans.iter().enumerate() {
                rows[span.start..span.start + span.len].fill(i as i32);
            }
            of_row.write(0, &rows);
            self.current = spans.to_vec();
        }
        Shape { spans: on_card.ptr(), span_of_row: of_row.ptr(), n_spans: spans.len(), n_rows }
    }
}
