//! The objects without an address that existed at a time.
//!
//! They are those of the final state that are old enough, and those that were destroyed later. A walk over the later events,
//! from the last to the first, finds the latter.

use foldhash::HashMap;

use super::{Op, Timeline};
use crate::snapshot::at::unknown_thread;
use crate::snapshot::{Allocation, Allocations, Gathering, Snapshot, Thread};

/// The lowest 48 bits of the handle, and the site, which has the kind.
type Key = (u64, u32);

impl Timeline {
    /// The objects that existed at `at_ns`. Those that were destroyed later have the lowest 48 bits of their handle and the time
    /// of their creation exact to 0.1 % of their age; their thread is not known.
    pub(crate) fn objects_at(&self, snapshot: &Snapshot, threads: &mut Vec<Thread>, at_ns: u64) -> Allocations {
        let mut existed = snapshot.objects.clone();
        existed.retain(|row| row.time_ns <= at_ns);
        let events = &self.objects.events;
        let later = events.partition_point(|event| event.time_ns <= at_ns);
        let mut created_ns: HashMap<Key, u64> = HashMap::default();
        let mut restored: HashMap<Key, u64> = HashMap::default();
        for event in events[later..].iter().rev().map(|event| event.event()) {
            let key = (event.address, event.site);
            match event.op {
                Op::Allocated => {
                    created_ns.remove(&key);
                }
                Op::Restored => *restored.entry(key).or_default() += 1,
                // A destruction that failed is undone right after it.
                Op::Freed if restored.get(&key).is_some_and(|&count| count > 0) => {
                    restored.entry(key).and_modify(|count| *count -= 1);
                }
                Op::Freed => {
                    created_ns.insert(key, event.time_ns.saturating_sub(event.lifetime_ns));
                }
            }
        }
        if created_ns.is_empty() {
            return existed;
        }
        let thread = unknown_thread(threads);
        let mut destroyed_later = Gathering::default();
        for (&(address, site), &time_ns) in &created_ns {
            let site = &self.objects.sites[site as usize];
            destroyed_later.add(Allocation {
                address,
                bytes: 0,
                requested: 0,
                time_ns: time_ns.min(at_ns),
                stack: site.stack,
                call: &site.call(thread),
            });
        }
        existed.join(&destroyed_later.finish());
        existed
    }
}
