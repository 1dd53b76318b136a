//! Steps recorded as CUDA graphs: what a decode step launches is recorded at its second run and from
//! then on launched at once. Lengths, tables, tokens and sampling lie in device memory, so one recording
//! serves all steps of its kind and number of sequences; it is dropped when memory is taken or given back.
//!
//! Falling back is always possible: what is being recorded does not run.

use super::super::{DeviceLost, StepKind};
use super::driver::{Driver, failure};
use cudarc::driver::sys;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ptr::null_mut;
use std::rc::Rc;

/// A recording, made ready to run.
pub(super) struct Graph {
    driver: Rc<Driver>,
    exec: sys::CUgraphExec,
}

impl Graph {
    /// Records what `issue` launches. On an error nothing has run, or will.
    fn record(driver: &Rc<Driver>, issue: impl FnOnce()) -> Result<Self, String> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (stream, mut graph, mut exec) = (driver.stream(), null_mut(), null_mut());
        // SAFETY: the stream is the driver's own.
        failure(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }, "beginning to record")?;
        let issued = driver.recording(issue);
        // SAFETY: as above; the pointer is to a live handle.
        let ended = failure(unsafe { sys::cuStreamEndCapture(stream, &mut graph) }, "recording");
        let made = issued.and(ended).and_then(|()| {
            // SAFETY: the graph was just recorded; the pointer is to a live handle.
            failure(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) }, "making a graph")
        });
        if !graph.is_null() {
            // SAFETY: the graph is destroyed once, and what was made of it does not need it.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        made.map(|()| Self { driver: driver.clone(), exec })
    }

    /// Of a recording that has run, or can.
    pub fn launch_once(&self) {
        self.launch().unwrap_or_else(|why| std::panic::resume_unwind(Box::new(DeviceLost(why))));
    }

    fn launch(&self) -> Result<(), String> {
        // SAFETY: graph and stream are live; what its kernels point to is, for a recording is dropped
        // when any memory is given back.
        failure(unsafe { sys::cuGraphLaunch(self.exec, self.driver.stream()) }, "launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.driver.quiet();
        // SAFETY: nothing runs any more; the handle is given back once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}

/// The recordings of one card.
pub(super) struct Graphs {
    wanted: Cell<bool>,
    /// `None` after the first run, which shows that all kernels are loaded.
    recorded: RefCell<HashMap<(StepKind, usize), Option<Graph>>>,
    /// State of the card's memory that the recordings are of.
    generation: Cell<u64>,
    notice: Cell<Option<String>>,
}

impl Graphs {
    pub fn new(wanted: bool) -> Self {
        Self { wanted: wanted.into(), recorded: RefCell::default(), generation: Cell::new(0), notice: Cell::default() }
    }

    pub fn wanted(&self) -> bool {
        self.wanted.get()
    }

    /// Records what `issue` launches, where recording is wanted and possible.
    pub fn record(&self, driver: &Rc<Driver>, issue: impl FnOnce()) -> Option<Graph> {
        self.wanted().then(|| Graph::record(driver, issue).ok()).flatten()
    }

    /// Steps that were recorded.
    pub fn count(&self) -> usize {
        self.recorded.borrow().values().flatten().count()
    }

    pub fn notice(&self) -> Option<String> {
        self.notice.take()
    }

    /// Runs a step of `kind` for so many sequences.
    pub fn run(&self, driver: &Rc<Driver>, kind: StepKind, n: usize, mut issue: impl FnMut()) {
        let mut recorded = self.recorded.borrow_mut();
        if self.generation.replace(driver.generation()) != driver.generation() {
            recorded.clear();
        }
        let Some(graph) = recorded.get_mut(&(kind, n)) else {
            recorded.insert((kind, n), None);
            return issue();
        };
        let launched = match graph {
            Some(graph) => graph.launch(),
            None => Graph::record(driver, &mut issue).and_then(|made| graph.insert(made).launch()),
        };
        if let Err(why) = launched {
            self.wanted.set(false);
            self.notice.set(Some(format!("steps run kernel by kernel from here on: {why}")));
            recorded.clear();
            issue();
        }
    }
}
