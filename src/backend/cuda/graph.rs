//! Decode steps as captured CUDA graphs: the kernels of a step are captured at its second run and
//! replayed from then on by one launch. Lengths, tables, tokens and sampling options lie in device
//! memory, so one graph serves all steps of its kind and number of sequences. Graphs are dropped
//! whenever device memory is allocated or freed.
//!
//! Falling back is always possible: launches that are captured do not run.

use super::super::{DeviceLost, StepKind};
use super::driver::Driver;
use super::error::failure;
use cudarc::driver::{CudaGraph, sys};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// A captured and instantiated graph.
pub(super) struct Graph {
    graph: CudaGraph,
    driver: Rc<Driver>,
}

impl Graph {
    /// Captures the launches of `issue`. On an error none of them has run, or will.
    fn capture(driver: &Rc<Driver>, issue: impl FnOnce()) -> Result<Self, String> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        failure(driver.stream().begin_capture(mode), "beginning a capture")?;
        let issued = driver.capturing(issue);
        let ended = driver.stream().end_capture(sys::CUgraphInstantiate_flags(0));
        issued?;
        let graph = failure(ended, "capturing")?.ok_or("capturing: there is no graph")?;
        Ok(Self { graph, driver: driver.clone() })
    }

    /// Launches a graph whose failure nobody can work around.
    pub fn launch_once(&self) {
        self.launch().unwrap_or_else(|why| std::panic::resume_unwind(Box::new(DeviceLost(why))));
    }

    fn launch(&self) -> Result<(), String> {
        // The memory that its kernels point to is live: a graph is dropped when any memory is
        // freed.
        failure(self.graph.launch(), "launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // The graph is destroyed next: nothing of it may run any more.
        self.driver.wait_ignoring_errors();
    }
}

/// The captured steps of one GPU.
pub(super) struct Graphs {
    enabled: Cell<bool>,
    /// Graphs by kind and number of sequences, or of rows if one sequence has several. `None` after
    /// the first run, in which the driver loads the kernels.
    captured: RefCell<HashMap<(StepKind, usize), Option<Graph>>>,
    /// Generation of the GPU's memory at the captures.
    generation: Cell<u64>,
    notice: Cell<Option<String>>,
}

impl Graphs {
    pub fn new(enabled: bool) -> Self {
        Self {
            enabled: enabled.into(),
            captured: RefCell::default(),
            generation: Cell::new(0),
            notice: Cell::default(),
        }
    }

    /// Whether steps are to be captured: until a capture or a launch of a graph fails.
    pub fn enabled(&self) -> bool {
        self.enabled.get()
    }

    /// Captures the launches of `issue`, if graphs are enabled and it is possible.
    pub fn capture(&self, driver: &Rc<Driver>, issue: impl FnOnce()) -> Option<Graph> {
        self.enabled().then(|| Graph::capture(driver, issue).ok()).flatten()
    }

    /// Number of captured steps.
    pub fn count(&self) -> usize {
        self.captured.borrow().values().flatten().count()
    }

    pub fn notice(&self) -> Option<String> {
        self.notice.take()
    }

    /// Runs a step of `kind` for `n` sequences or rows, whose kernels `issue` launches.
    pub fn run(&self, driver: &Rc<Driver>, kind: StepKind, n: usize, mut issue: impl FnMut()) {
        let mut captured = self.captured.borrow_mut();
        if self.generation.replace(driver.generation()) != driver.generation() {
            captured.clear();
        }
        let Some(graph) = captured.get_mut(&(kind, n)) else {
            captured.insert((kind, n), None);
            return issue();
        };
        let launched = match graph {
            Some(graph) => graph.launch(),
            None => Graph::capture(driver, &mut issue).and_then(|made| graph.insert(made).launch()),
        };
        if let Err(why) = launched {
            self.enabled.set(false);
            self.notice.set(Some(format!("CUDA graphs are off from here on; kernels are launched one by one: {why}")));
            captured.clear();
            issue();
        }
    }
}
