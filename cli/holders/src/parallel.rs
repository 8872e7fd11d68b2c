//! Work that several threads share. Results are in the order of the items, so they do not depend on the number of threads.

use std::num::NonZero;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// More threads gain nothing: the work is limited by memory.
const MOST_THREADS: usize = 16;

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// What `work` returns for each item.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    map_by(cores().min(MOST_THREADS), items, work)
}

/// As [`map`], by this many threads at most.
pub(crate) fn map_by<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::with_capacity(items.len()));
    let run = || {
        let mut own = Vec::new();
        loop {
            let place = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(place) else { break };
            own.push((place, work(item)));
        }
        all.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread, this one does all.
            let _ = thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_unstable_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, result)| result).collect()
}

/// As [`map`], all results in one list.
pub(crate) fn flat_map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Vec<R> + Sync) -> Vec<R> {
    map(items, work).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..1000).collect();
        assert_eq!(
            map(&items, |item| item * 2),
            (0..1000).map(|item| item * 2).collect::<Vec<_>>()
        );
        assert_eq!(flat_map(&[1, 2, 3], |count| vec![*count; *count]), [1, 2, 2, 3, 3, 3]);
        assert!(map(&[0; 0], |item| *item).is_empty());
    }
}
