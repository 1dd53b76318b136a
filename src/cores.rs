//! Work on several threads at once. What it computes does not depend on their number.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Cores that this process may use.
pub fn count() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Number of threads where `asked` are asked for; 0 is one per core.
pub fn threads(asked: usize) -> usize {
    if asked == 0 { count() } else { asked }
}

/// Does `work` on each of `parts`, the first ones first, on as many threads as [`threads`] says.
pub fn each<T: Send>(parts: Vec<T>, asked: usize, work: impl Fn(T) + Sync) {
    let threads = threads(asked).min(parts.len()).max(1);
    let queue = Mutex::new(parts.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    rayon::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|_| {
                while let Some(part) = next() {
                    work(part);
                }
            });
        }
    });
}

/// Applies `of` to every item, on all cores.
pub fn map<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    map_on(0, items, of)
}

/// [`map`] on as many threads as [`threads`] says.
pub fn map_on<T: Sync, R: Send>(asked: usize, items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut out: Vec<Option<R>> = items.iter().map(|_| None).collect();
    each(items.iter().zip(&mut out).collect(), asked, |(item, out)| *out = Some(of(item)));
    out.into_iter().flatten().collect()
}
