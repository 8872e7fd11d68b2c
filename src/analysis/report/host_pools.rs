//! Rows of pools in host memory. Their blocks cannot be recorded ([`crate::analysis::opaque`]), so a row is all memory that a call
//! site made the pool take, in use or not. A search may know who holds it.

use std::collections::{BTreeMap, HashSet};

use super::{Report, Row};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::site::Fingerprint;
use crate::analysis::why::{SiteHolder, SiteHolders};
use crate::kind::{Kind, Place};
use crate::snapshot::Class;
use crate::tally::Tally;

/// Less than this of a pool without a sure holder is not worth a row: PyTorch alone keeps 4 bytes for a seed.
const SMALL: u64 = 1 << 20;

/// The call sites, by fingerprint, of whose memory in a pool a search found a sure holder of at least a part. A site that has other
/// memory, too, is none of them: the holder may be of that.
pub fn surely_held(rows: &[Row], held_by: &[SiteHolders]) -> HashSet<Fingerprint> {
    let is_sure = |site: &&SiteHolders| {
        let mut holders = site.holders.iter();
        holders.any(|holder| holder.class == Class::Held && !holder.possibly)
    };
    let of_others: HashSet<Fingerprint> = rows.iter().filter(|row| !row.pool).filter_map(fingerprint).collect();
    let sure = held_by.iter().filter(is_sure).map(|site| site.site_fingerprint);
    sure.filter(|site| !of_others.contains(site)).collect()
}

/// The call sites, by fingerprint, of whose memory in a pool a search found no holder but the pool itself: it is not in use.
pub fn unused(held_by: &[SiteHolders]) -> HashSet<Fingerprint> {
    // PyTorch's object with the records of all blocks of the pool.
    let is_pool = |holder: &SiteHolder| {
        holder.class == Class::Held && holder.also.is_empty() && holder.origin.contains("caching_host_allocator")
    };
    let is_unused = |site: &&SiteHolders| {
        !site.holders.is_empty() && site.holders.iter().all(is_pool) && site.not_searched == Tally::default()
    };
    let unused = held_by.iter().filter(is_unused);
    unused.map(|site| site.site_fingerprint).collect()
}

fn fingerprint(row: &Row) -> Option<Fingerprint> {
    row.stacks.first().map(|first| first.stack.site_fingerprint)
}

/// Whether the row is of one of these call sites.
pub fn is_of(row: &Row, sites: &HashSet<Fingerprint>) -> bool {
    fingerprint(row).is_some_and(|site| sites.contains(&site))
}

fn is_on_host(row: &Row) -> bool {
    let mut kinds = row.kinds.keys().filter_map(|kind| Kind::from_name(kind));
    row.pool && kinds.all(|kind| kind.place() == Place::Host)
}

/// Takes out the rows of pools in host memory that are not in use, and those of which no search found a sure holder, if all of a
/// pool are small together.
pub fn take_minor<'a>(rows: &mut Vec<Row<'a>>, held_by: &[SiteHolders]) -> Vec<Row<'a>> {
    let (held, unused) = (surely_held(rows, held_by), unused(held_by));
    let mut taken: Vec<Row> = rows
        .extract_if(.., |row| is_on_host(row) && is_of(row, &unused))
        .collect();
    let is_unsure = |row: &Row| is_on_host(row) && !is_of(row, &held);
    let mut of_owner: BTreeMap<_, u64> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_unsure(row)) {
        let sum = of_owner.entry(row.allocator).or_default();
        *sum = sum.saturating_add(row.bytes);
    }
    let is_minor = |row: &mut Row| is_unsure(row) && of_owner[&row.allocator] < SMALL;
    taken.extend(rows.extract_if(.., is_minor));
    taken
}

impl Report<'_> {
    /// The part of each pool in host memory that is in [`Report::pools`], by the pool's owner.
    pub fn minor_pools(&self) -> Vec<OpaquePool> {
        let rows = self.pools.iter().filter(|row| is_on_host(row));
        OpaquePool::merged(rows.filter_map(|row| Some(OpaquePool::new(row.allocator?, true, row.tally()))))
    }

    /// The pools of which more than that is in unknown use.
    pub fn unknown_pools(&self) -> impl Iterator<Item = &OpaquePool> {
        let minor = self.minor_pools();
        let is_minor = move |pool: &OpaquePool| {
            let of_owner = minor.iter().filter(|part| pool.on_host && part.owner == pool.owner);
            Tally::total(of_owner.map(|part| part.tally)) == pool.tally
        };
        self.opaque_pools.iter().filter(move |pool| !is_minor(pool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::report::Options;
    use crate::sample::{MAIN, MIB, RUNTIME, Sample};
    use crate::snapshot::{HeldBlock, HolderPath, Holders, Search, Snapshot};

    /// A block of the program, and blocks of PyTorch's pool in host memory, the first of which is surely held or not.
    fn pinned(own: u64, sizes: &[u64], is_held_surely: bool) -> Snapshot {
        let mut sample = Sample::new();
        let line = sample.stack(&[RUNTIME, MAIN]);
        sample.holds(Kind::Device, "cudaMalloc", own, 1, line);
        for (nth, size) in sizes.iter().enumerate() {
            let inside = (
                "at::CachingHostAllocatorImpl<int>::allocate(unsigned long)",
                "",
                "/libtorch_cuda.so",
            );
            let place = format!("/home/me/data.py:{nth}");
            let line = sample.stack(&[RUNTIME, inside, ("load", &place, crate::sample::PYTHON), MAIN]);
            sample.holds(Kind::HostPinned, "cudaHostAlloc", *size, 1, line);
        }
        let block = sample.0.allocations.at(1);
        sample.0.holders = Some(Holders {
            search: Search {
                at_ns: 59_000_000_000,
                ..Search::default()
            },
            paths: vec![HolderPath {
                class: Class::Held,
                origin: "__main__.kept".to_owned(),
                possibly: !is_held_surely,
                ..HolderPath::default()
            }],
            blocks: vec![HeldBlock {
                address: block.address,
                time_ns: block.time_ns,
                bytes: block.bytes,
                path: 0,
                retainer: None,
                module: None,
                tensor: None,
            }],
            retainers: Vec::new(),
            modules: Vec::new(),
            tensors: Vec::new(),
            objects: Vec::new(),
        });
        sample.finish(own, 0)
    }

    /// The sizes of the rows, and of the pools beside them.
    fn sizes(snapshot: &Snapshot) -> (Vec<u64>, Vec<u64>) {
        let options = Options {
            without_minor_rows: true,
            ..Options::default()
        };
        let report = Report::of(snapshot, &options);
        let minor = report.minor_pools().into_iter().map(|pool| pool.tally.bytes);
        (report.rows.iter().map(|row| row.bytes).collect(), minor.collect())
    }

    #[test]
    fn only_small_pools_without_a_sure_holder_have_no_rows() {
        for (blocks, is_held_surely, rows, minor) in [
            (&[4][..], false, &[1000][..], &[4][..]),
            (&[4], true, &[1000, 4], &[]),
            // Small together, or not.
            (&[MIB / 2, MIB / 4], false, &[1000], &[MIB / 4 * 3]),
            (&[MIB / 2, MIB / 2], false, &[1000, MIB / 2, MIB / 2], &[]),
            (&[MIB / 2, MIB / 2], true, &[MIB / 2, 1000], &[MIB / 2]),
        ] {
            let expected = (rows.to_vec(), minor.to_vec());
            assert_eq!(sizes(&pinned(1000, blocks, is_held_surely)), expected, "{blocks:?}");
        }
    }

    #[test]
    fn memory_that_only_the_pool_itself_holds_has_no_row() {
        let mut snapshot = pinned(1000, &[3 * MIB, 2 * MIB], false);
        assert_eq!(sizes(&snapshot).0, [1000, 3 * MIB, 2 * MIB]);
        let holders = snapshot.holders.as_mut().expect("holders");
        holders.paths[0].origin =
            "at::cuda::(anonymous namespace)::caching_host_allocator in libtorch_cuda.so".to_owned();
        assert_eq!(sizes(&snapshot), (vec![1000, 2 * MIB], vec![3 * MIB]));
    }

    #[test]
    fn memory_of_a_pool_that_a_tensor_surely_holds_is_ranked_by_its_size() {
        assert_eq!(
            sizes(&pinned(1000, &[3 * MIB, 2 * MIB], true)).0,
            [3 * MIB, 1000, 2 * MIB]
        );
        assert_eq!(
            sizes(&pinned(1000, &[3 * MIB, 2 * MIB], false)).0,
            [1000, 3 * MIB, 2 * MIB]
        );
    }
}
