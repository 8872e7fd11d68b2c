//! Claims about one snapshot, each a sentence.

use std::collections::BTreeSet;

use culeak::kind::Kind;
use culeak::snapshot::{Allocation, Counter, PagePool, Pages, Snapshot};

pub trait Claims {
    /// Nothing is left: no memory, no handle, no mapping.
    fn expect_no_leaks(&self) -> &Self;
    /// Nothing is left, and nothing was lost.
    fn expect_clean(&self) -> &Self {
        self.expect_no_leaks().expect_nothing_lost()
    }
    /// `count` blocks of the kind are live, with `bytes` bytes in total.
    fn expect_live(&self, kind: Kind, count: usize, bytes: u64) -> &Self;
    /// The rows of a kind, in order.
    fn of_kind(&self, kind: Kind) -> Vec<Allocation<'_>>;
    /// Exactly one block of this kind is live.
    fn only(&self, kind: Kind) -> Allocation<'_>;
    /// The kinds that are live.
    fn expect_kinds(&self, kinds: &[Kind]) -> &Self;
    /// Nothing was lost, and no free was of unknown memory.
    fn expect_nothing_lost(&self) -> &Self;
    /// A kind's counters, added up over all devices.
    fn counted(&self, kind: Kind) -> Counter;
    /// The only pool of pages is of this domain, and has pages of this size in these states.
    fn only_pool(&self, domain: &str, page_bytes: u64, states: Pages) -> &PagePool;
    /// The functions of an allocation's stack, innermost first; needs a symbolized snapshot.
    fn functions(&self, allocation: Allocation) -> Vec<String>;
}

impl Claims for Snapshot {
    #[track_caller]
    fn only_pool(&self, domain: &str, page_bytes: u64, states: Pages) -> &PagePool {
        let [pool] = &self.page_pools[..] else {
            panic!("{:?}", self.page_pools);
        };
        assert_eq!(
            (pool.domain.as_str(), pool.page_bytes, pool.pages),
            (domain, page_bytes, states)
        );
        pool
    }

    #[track_caller]
    fn expect_no_leaks(&self) -> &Snapshot {
        assert!(self.allocations.is_empty(), "{:#?}", self.allocations);
        self
    }

    #[track_caller]
    fn expect_live(&self, kind: Kind, count: usize, bytes: u64) -> &Snapshot {
        let rows = self.of_kind(kind);
        let live: u64 = rows.iter().map(|a| a.bytes).sum();
        let shown: Vec<_> = self.allocations.iter().take(20).collect();
        assert_eq!(
            (rows.len(), live),
            (count, bytes),
            "live {} memory\n{shown:#?}",
            kind.name()
        );
        self
    }

    fn of_kind(&self, kind: Kind) -> Vec<Allocation<'_>> {
        self.allocations.iter().filter(|a| a.kind == kind).collect()
    }

    #[track_caller]
    fn only(&self, kind: Kind) -> Allocation<'_> {
        let rows = self.of_kind(kind);
        assert_eq!(rows.len(), 1, "live {} memory\n{:#?}", kind.name(), self.allocations);
        rows[0]
    }

    #[track_caller]
    fn expect_kinds(&self, kinds: &[Kind]) -> &Snapshot {
        let live: BTreeSet<Kind> = self.allocations.iter().map(|a| a.kind).collect();
        assert_eq!(live, kinds.iter().copied().collect(), "{:#?}", self.allocations);
        self
    }

    #[track_caller]
    fn expect_nothing_lost(&self) -> &Snapshot {
        let losses = &self.losses;
        let lost = (
            losses.lost_allocations,
            losses.lost_stacks,
            losses.lost_details,
            losses.vanished,
            losses.unknown_frees,
        );
        assert_eq!(lost, (0, 0, 0, 0, 0), "{losses:#?}");
        self
    }

    fn counted(&self, kind: Kind) -> Counter {
        let zero = Counter {
            device: None,
            kind,
            live_bytes: 0,
            live_count: 0,
            peak_bytes: 0,
            peak_ns: 0,
            total_bytes: 0,
            total_count: 0,
            freed_count: 0,
            failed_count: 0,
        };
        self.counters
            .iter()
            .filter(|counter| counter.kind == kind)
            .fold(zero, |sum, counter| Counter {
                live_bytes: sum.live_bytes + counter.live_bytes,
                live_count: sum.live_count + counter.live_count,
                peak_bytes: sum.peak_bytes + counter.peak_bytes,
                total_bytes: sum.total_bytes + counter.total_bytes,
                total_count: sum.total_count + counter.total_count,
                freed_count: sum.freed_count + counter.freed_count,
                failed_count: sum.failed_count + counter.failed_count,
                ..sum
            })
    }

    #[track_caller]
    fn functions(&self, allocation: Allocation) -> Vec<String> {
        let stack = &self.stacks[allocation.stack.expect("the allocation has a stack")];
        let symbols = stack.frames.iter().flat_map(|&frame| &self.locations[frame].symbols);
        symbols.map(|symbol| symbol.function.clone()).collect()
    }
}
