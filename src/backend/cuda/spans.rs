//! The shape of the current step in device memory: its spans, and the span of every row.

use super::super::{OutOfMemory, Span};
use super::abi;
use super::driver::Driver;
use super::kinds::Kind;
use super::memory::Buf;
use std::rc::Rc;

/// A step's spans as kernels take them.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Device address of `[n_spans]` [`abi::Span`]s.
    pub spans: u64,
    /// Device address of `[n_rows]` indices of spans.
    pub span_of_row: u64,
    pub n_spans: usize,
    /// One past the last row of any span.
    pub n_rows: usize,
}

/// Decode tokens staged in the layers so far, from the first layer on, of each
/// [kind](super::kinds::Kind) of layers. `kept`: as rows of a step that is committed later.
#[derive(Clone, Copy, Default)]
pub(super) struct Staged {
    pub layers: [usize; 2],
    pub kept: bool,
}

impl Staged {
    /// The same with a layer of a kind.
    pub fn with(mut self, kind: Kind, layer: usize, kept: bool) -> Self {
        let layers = &mut self.layers[kind as usize];
        (*layers, self.kept) = ((*layers).max(layer + 1), kept);
        self
    }

    /// The same without the layers of a kind.
    pub fn without(mut self, kind: Kind) -> Self {
        self.layers[kind as usize] = 0;
        self
    }
}

#[derive(Default)]
pub(super) struct Spans {
    /// Contents of device memory.
    current: Vec<Span>,
    memory: Option<(Buf<abi::Span>, Buf<i32>)>,
    /// Rows that [`Self::send_rows`] sent last, and their address.
    current_rows: Vec<Span>,
    rows_memory: Option<Buf<abi::Span>>,
    rows: usize,
}

impl Spans {
    /// Makes room for steps of up to `rows` rows.
    pub fn reserve(&mut self, driver: &Rc<Driver>, rows: usize) -> Result<(), OutOfMemory> {
        if rows > self.rows {
            self.memory = Some((Buf::new(driver, rows)?, Buf::new(driver, rows)?));
            self.rows_memory = Some(Buf::new(driver, rows)?);
            self.rows = rows;
            self.current.clear();
            self.current_rows.clear();
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
                |s: &Span| abi::Span { seq: s.seq as i32, start: s.start as i32, len: s.len as i32, before: 0 };
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

    /// Copies every row of the spans to the GPU if it is not there: the first rows of all spans,
    /// then the second rows, and so on. Returns the device address of the [`abi::Span`]s, and the
    /// number of rows per round. A row has the length of its span.
    pub fn send_rows(&mut self, spans: &[Span]) -> (u64, Vec<usize>) {
        let longest = spans.iter().map(|s| s.len).max().unwrap_or(0);
        let turns = (0..longest).map(|i| spans.iter().filter(|s| i < s.len).count()).collect();
        let on_gpu = self.rows_memory.as_mut().expect("activations were made before a step");
        if self.current_rows != spans {
            let row = |s: &Span, i: usize| abi::Span {
                seq: s.seq as i32,
                start: (s.start + i) as i32,
                len: s.len as i32,
                before: i as i32,
            };
            let of_turn = |i| spans.iter().filter(move |s| i < s.len).map(move |s| row(s, i));
            on_gpu.write(0, &(0..longest).flat_map(of_turn).collect::<Vec<_>>());
            self.current_rows = spans.to_vec();
        }
        (on_gpu.ptr(), turns)
    }
}
