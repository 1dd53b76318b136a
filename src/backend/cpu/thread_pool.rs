//! A thread pool for short data-parallel loops. A decode step has about a hundred of them, each
//! some dozen microseconds long; waking a sleeping thread for each would cost more than the work.
//!
//! Workers spin on a counter for a moment after each loop and then sleep. A worker that comes late
//! finds the loop closed and is not waited for; the caller works too, so a loop ends even when
//! every worker sleeps. Each worker has a range of neighbouring tasks and then steals from others.
//! The result of a task does not depend on the worker, so results are bit-identical for any timing.
//!
//! `unsafe` is needed for two things: a task borrows from the caller's stack, and tasks write to
//! different tiles of one matrix.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker spins before it sleeps: longer than the pause between two decode steps, short
/// enough that an idle chat uses no CPU time.
const SPIN: Duration = Duration::from_micros(500);

/// `(worker, task)`; the caller is worker 0.
type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

pub(in crate::backend) struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held while a loop runs.
    running: Mutex<()>,
}

struct Shared {
    /// Grows by one with every loop and when the pool ends.
    epoch: AtomicU64,
    /// Number of workers inside the loop, plus `CLOSED`.
    inside: AtomicUsize,
    n_tasks: AtomicUsize,
    /// Next task of each worker's share.
    shares: Box<[Share]>,
    job: Mutex<Option<&'static Job<'static>>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    /// True once the pool ends.
    ended: Mutex<bool>,
    wake: Condvar,
}

const CLOSED: usize = 1 << 32;

/// Panics reach the caller through `Shared::panic`, so a poisoned lock is still usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadPool {
    /// A pool of `size` threads, the caller among them.
    pub fn new(size: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            inside: AtomicUsize::new(CLOSED),
            n_tasks: AtomicUsize::new(0),
            shares: (0..size.max(1)).map(|_| Share::default()).collect(),
            job: Mutex::new(None),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            ended: Mutex::new(false),
            wake: Condvar::new(),
        });
        let spawn = |worker| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("cpu-{worker}")).spawn(move || shared.work(worker)).ok()
        };
        // Where the system refuses a thread, the pool is smaller.
        let threads = (1..size.max(1)).filter_map(spawn).collect();
        Self { shared, threads, running: Mutex::new(()) }
    }

    pub fn size(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `job(worker, task)` once for every task below `n_tasks` and returns when all are done.
    /// Panics if a task does. A task must not call `run`.
    pub fn run(&self, n_tasks: usize, job: &Job<'_>) {
        if n_tasks <= 1 || self.threads.is_empty() {
            return (0..n_tasks).for_each(|task| job(0, task));
        }
        let _running = lock(&self.running);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the job between a successful `enter` and
        // the end of `leave`; this function closes the loop and waits until none is inside before
        // it returns or unwinds, so the borrow outlives every use.
        *lock(&shared.job) = Some(unsafe { std::mem::transmute::<&Job<'_>, &'static Job<'static>>(job) });
        shared.n_tasks.store(n_tasks, Ordering::Relaxed);
        for (worker, share) in shared.shares.iter().enumerate() {
            share.0.store(shared.share(worker).start, Ordering::Relaxed);
        }
        shared.inside.store(0, Ordering::Release);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        shared.wake_sleepers();
        let own = catch_unwind(AssertUnwindSafe(|| shared.run_tasks(0, job)));
        shared.inside.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.inside.load(Ordering::Acquire) != CLOSED {
            spins += 1;
            if spins < 4096 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        *lock(&shared.job) = None;
        let panic = lock(&shared.panic).take();
        if let Some(panic) = own.err().or(panic) {
            resume_unwind(panic);
        }
    }

    /// Calls `job(worker, tile)` for tiles of at most `rows x cols` that cover `out`.
    pub fn tiles<T: Send>(
        &self,
        out: &mut Tile<'_, T>,
        rows: usize,
        cols: usize,
        job: impl Fn(usize, &mut Tile<'_, T>) + Sync,
    ) {
        let (across, down) = (out.cols.div_ceil(cols), out.rows.div_ceil(rows));
        let whole = Shareable(out.data);
        let (width, n_rows, n_cols) = (out.width, out.rows, out.cols);
        self.run(across * down, &|worker, task| {
            let (row, col) = (task / across * rows, task % across * cols);
            let whole = &whole;
            let mut tile = Tile {
                // SAFETY: `row` and `col` lie inside `out`.
                data: unsafe { whole.0.add(row * width + col) },
                width,
                rows: rows.min(n_rows - row),
                cols: cols.min(n_cols - col),
                first_row: row,
                first_col: col,
                owner: PhantomData,
            };
            job(worker, &mut tile);
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        *lock(&self.shared.ended) = true;
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            match self.wait(seen) {
                Some(epoch) => seen = epoch,
                None => return,
            }
            if !self.enter() {
                continue;
            }
            let job = *lock(&self.job);
            if let Some(job) = job
                && let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run_tasks(worker, job)))
            {
                lock(&self.panic).get_or_insert(panic);
            }
            self.inside.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for the next epoch after `seen`; `None` when the pool ends.
    fn wait(&self, seen: u64) -> Option<u64> {
        let start = Instant::now();
        loop {
            for _ in 0..256 {
                let epoch = self.epoch.load(Ordering::Acquire);
                if epoch != seen {
                    return (!*lock(&self.ended)).then_some(epoch);
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        let mut ended = lock(&self.ended);
        // Ordered against `run`, which grows the epoch and then looks for sleepers.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.epoch.load(Ordering::SeqCst) == seen && !*ended {
            ended = self.wake.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        (!*ended).then(|| self.epoch.load(Ordering::Acquire))
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // While the lock is held, no worker is between its last look at the epoch and its
            // sleep.
            drop(lock(&self.ended));
            self.wake.notify_all();
        }
    }

    fn enter(&self) -> bool {
        let enter = |inside: usize| (inside & CLOSED == 0).then_some(inside + 1);
        self.inside.fetch_update(Ordering::AcqRel, Ordering::Relaxed, enter).is_ok()
    }

    /// Range of tasks that `worker` does first: neighbours, so that it reads memory sequentially.
    fn share(&self, worker: usize) -> Range<usize> {
        let (n, size) = (self.n_tasks.load(Ordering::Relaxed), self.shares.len());
        n * worker / size..n * (worker + 1) / size
    }

    /// Runs the worker's own share, then steals from the others'.
    fn run_tasks(&self, worker: usize, job: &Job<'_>) {
        let size = self.shares.len();
        for owner in (worker..size).chain(0..worker) {
            let end = self.share(owner).end;
            loop {
                let task = self.shares[owner].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                job(worker, task);
            }
        }
    }
}

/// A counter on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Share(AtomicUsize);

/// A block of a row-major matrix with exclusive write access.
pub(in crate::backend) struct Tile<'a, T = f32> {
    data: *mut T,
    /// Elements from one row to the next.
    width: usize,
    rows: usize,
    cols: usize,
    first_row: usize,
    first_col: usize,
    owner: PhantomData<&'a mut T>,
}

struct Shareable<T>(*mut T);

// SAFETY: the pointer is used by `tiles` alone, which makes tiles that do not overlap from it.
unsafe impl<T: Send> Sync for Shareable<T> {}

impl<'a, T> Tile<'a, T> {
    /// The first `rows` rows of a matrix `[_, width]`.
    pub fn new(data: &'a mut [T], rows: usize, width: usize) -> Self {
        assert!(rows * width <= data.len(), "a tile of {rows} x {width} from {} values", data.len());
        Self { data: data.as_mut_ptr(), width, rows, cols: width, first_row: 0, first_col: 0, owner: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of the matrix that was split.
    pub fn row_range(&self) -> Range<usize> {
        self.first_row..self.first_row + self.rows
    }

    pub fn col_range(&self) -> Range<usize> {
        self.first_col..self.first_col + self.cols
    }

    /// Row `i` of the tile.
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows);
        // SAFETY: the row lies inside the matrix, and this tile alone may write it.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(i * self.width), self.cols) }
    }

    /// The columns `cols` of the tile, as a tile.
    pub fn narrow(&mut self, cols: Range<usize>) -> Tile<'_, T> {
        assert!(cols.start <= cols.end && cols.end <= self.cols);
        Tile {
            // SAFETY: `cols.start` lies inside the row or at its end.
            data: unsafe { self.data.add(cols.start) },
            width: self.width,
            rows: self.rows,
            cols: cols.len(),
            first_row: self.first_row,
            first_col: self.first_col + cols.start,
            owner: PhantomData,
        }
    }

    /// The first `rows` rows of the tile, as a tile.
    pub fn first_rows(&mut self, rows: usize) -> Tile<'_, T> {
        assert!(rows <= self.rows);
        Tile { rows, ..self.narrow(0..self.cols) }
    }

    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_visited_once() {
        let pool = ThreadPool::new(3);
        let mut data = vec![0u32; 37 * 53];
        for _ in 0..200 {
            data.fill(0);
            pool.tiles(&mut Tile::new(&mut data, 37, 53), 5, 7, |_, tile| {
                for i in 0..tile.rows() {
                    let first = (tile.row_range().start + i) * 53 + tile.col_range().start;
                    tile.row_mut(i).iter_mut().enumerate().for_each(|(j, v)| *v += (first + j) as u32);
                }
            });
            assert!(data.iter().enumerate().all(|(i, &v)| v == i as u32));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(2);
        for bad in 0..20 {
            let run = || pool.run(20, &|_, task| assert!(task != bad, "task {task}"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let sum = AtomicUsize::new(0);
            pool.run(20, &|_, task| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 190);
        }
    }

    #[test]
    fn sleepers_wake() {
        let pool = ThreadPool::new(2);
        for _ in 0..3 {
            std::thread::sleep(4 * SPIN);
            let woken = std::sync::atomic::AtomicBool::new(false);
            let patience = Instant::now() + Duration::from_secs(60);
            // The first one waits for the other, however busy the machine is.
            pool.run(8, &|worker, _| {
                woken.fetch_or(worker == 1, Ordering::SeqCst);
                while !woken.load(Ordering::SeqCst) {
                    assert!(Instant::now() < patience, "the worker slept on");
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
        }
    }
}
