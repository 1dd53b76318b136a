//! Work on many items at once.

use std::thread;

/// Applies `of` to every item, on all threads.
pub fn on_threads<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let share = items.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let of = &of;
        let part = |items| scope.spawn(move || <[T]>::iter(items).map(of).collect::<Vec<R>>());
        let parts: Vec<_> = items.chunks(share).map(part).collect();
        parts.into_iter().flat_map(|part| part.join().expect("no item panics")).collect()
    })
}
