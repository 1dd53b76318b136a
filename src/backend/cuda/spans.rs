//! The shape of the current step in device memory: its spans, and the span of every row.

use super::super::{OutOfMemory, Span};
use super::abi::DeviceSpan;
use super::driver::Driver;
use super::memory::Buf;
use std::rc::Rc;

/// A step's spans as kernels take them.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Device address of `[n_spans]` [`DeviceSpan`]s.
    pub spans: u64,
    /// Device address of `[n_rows]` indices of spans.
    pub span_of_row: u64,
    pub n_spans: usize,
    /// One past the last row of any span.
    pub n_rows: usize,
}

#[derive(Default)]
pub(super) struct Spans {
    /// What device memory holds now.
    current: Vec<Span>,
    memory: Option<(Buf<DeviceSpan>, Buf<i32>)>,
    rows: usize,
}

impl Spans {
    /// Makes room for steps of up to `rows` rows.
    pub fn reserve(&mut self, driver: &Rc<Driver>, rows: usize) -> Result<(), OutOfMemory> {
        if rows > self.rows {
            self.memory = Some((Buf::new(driver, rows)?, Buf::new(driver, rows)?));
            self.rows = rows;
            self.current.clear();
        }
        Ok(())
    }

    /// The spans that were sent last.
    pub fn current(&self) -> &[Span] {
        &self.current
    }

    /// Copies the spans to the GPU unless they are there: all layers of a step have the same.
    pub fn send(&mut self, spans: &[Span]) -> Shape {
        let n_rows = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
        assert!(n_rows <= self.rows && spans.len() <= self.rows, "a step of {n_rows} rows for {}", self.rows);
        let (on_gpu, of_row) = self.memory.as_mut().expect("activations were made before a step");
        if self.current != spans {
            let device =
                |s: &Span| DeviceSpan { seq: s.seq as i32, start: s.start as i32, len: s.len as i32, unused: 0 };
            on_gpu.write(0, &spans.iter().map(device).collect::<Vec<_>>());
            let mut rows = vec![0; n_rows];
            for (i, span) in spans.iter().enumerate() {
                rows[span.start..span.start + span.len].fill(i as i32);
            }
            of_row.write(0, &rows);
            self.current = spans.to_vec();
        }
        Shape { spans: on_gpu.ptr(), span_of_row: of_row.ptr(), n_spans: spans.len(), n_rows }
    }
}
