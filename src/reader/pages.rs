//! Pools of pages and their owners.

use std::collections::HashMap;

use super::RawSnapshot;
use super::details::{bytes_of, until_zero};
use crate::format::{PagesRow, PagesState, PagesValues, Section, halves, pack};
use crate::snapshot::{PageOwner, PagePool, Pages};

impl RawSnapshot {
    pub fn page_pools(&self) -> Vec<PagePool> {
        let used = |row: &PagesValues| halves(row.state).0 == PagesState::Used as u32;
        let mut rows: Vec<_> = self.rows::<PagesRow>(Section::Pages, used).collect();
        rows.sort_by_key(|(number, row)| (row.begin_ns, *number));
        let (pools, owners): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.pool == 0);
        let mut of_pool: HashMap<u64, Vec<PageOwner>> = HashMap::new();
        for (_, row) in &owners {
            of_pool.entry(row.pool).or_default().push(owner(row));
        }
        let pools = pools.into_iter().map(|(number, row)| {
            let id = pack(number + 1, halves(row.state).1);
            PagePool {
                domain: until_zero(&bytes_of(&row.name)),
                page_bytes: row.page_bytes,
                pages: pages(&row),
                owners_begun: row.owners,
                owners: of_pool.remove(&id).unwrap_or_default(),
            }
        });
        pools.collect()
    }
}

fn pages(row: &PagesValues) -> Pages {
    let [live, reclaimable, waiting, free] = row.pages;
    Pages {
        live,
        reclaimable,
        waiting,
        free,
    }
}

fn owner(row: &PagesValues) -> PageOwner {
    PageOwner {
        name: until_zero(&bytes_of(&row.name)),
        begin_ns: row.begin_ns,
        end_ns: row.end_plus_one.checked_sub(1).map(|end| end.max(row.begin_ns)),
        pages: pages(row),
    }
}

#[cfg(test)]
mod tests {
    use crate::format::Loss;
    use crate::reader::read;
    use crate::reader::tests::{Folder, record};
    use crate::recording::Recording;
    use crate::snapshot::PagePool;

    fn pools(folder: &Folder) -> Vec<PagePool> {
        read(&folder.0.join("a.culeak")).unwrap().page_pools
    }

    /// Name, live and waiting pages, and whether it has ended, of the owners in the first pool.
    fn owners(folder: &Folder) -> Vec<(String, u64, u64, bool)> {
        let owners = pools(folder).swap_remove(0).owners;
        let owner = |of: crate::snapshot::PageOwner| (of.name, of.pages.live, of.pages.waiting, of.end_ns.is_some());
        owners.into_iter().map(owner).collect()
    }

    fn expected<const N: usize>(rows: [(&str, u64, u64, bool); N]) -> Vec<(String, u64, u64, bool)> {
        rows.map(|(name, live, waiting, has_ended)| (name.to_owned(), live, waiting, has_ended))
            .into()
    }

    fn recording(name: &str) -> (Folder, &'static Recording) {
        let folder = Folder::new(name);
        let recording = record(&folder.0.join("a.culeak"));
        (folder, recording)
    }

    #[test]
    fn an_owner_is_a_row_until_it_has_ended_and_holds_nothing() {
        let (folder, recording) = recording("pages-rows");
        let pool = recording.begin_pages(None, b"engine", 4096).unwrap();
        recording.set_pages(pool, [7, 3, 2, 88]);
        let running = recording.begin_pages(Some(pool), b"running", 0).unwrap();
        let ended = recording
            .begin_pages(Some(pool), "長".repeat(100).as_bytes(), 0)
            .unwrap();
        let gone = recording.begin_pages(Some(pool), b"gone", 0).unwrap();
        recording.set_pages(running, [5, 0, 0, 0]);
        recording.set_pages(ended, [0, 0, 2, 0]);
        recording.end_pages(ended);
        recording.end_pages(gone);
        let found = pools(&folder);
        assert_eq!((&*found[0].domain, found[0].page_bytes), ("engine", 4096));
        assert_eq!((found[0].pages.held(), found[0].pages.total()), (9, 100));
        let long = "長".repeat(37);
        let rows = [("running", 5, 0, false), (long.as_str(), 0, 2, true)];
        assert_eq!(owners(&folder), expected(rows));
        // The last page of an owner that has ended, and none of one that has not.
        recording.set_pages(ended, [0; 4]);
        recording.set_pages(running, [0; 4]);
        assert_eq!(owners(&folder), expected([("running", 0, 0, false)]));
        // Its row is another owner's now, which its id does not change.
        let next = recording.begin_pages(Some(pool), b"next", 0).unwrap();
        for stale in [ended, gone] {
            assert_ne!(stale, next);
            recording.set_pages(stale, [9; 4]);
            recording.end_pages(stale);
        }
        assert_eq!(owners(&folder)[1], ("next".to_owned(), 0, 0, false));
        recording.end_pages(pool);
        assert!(pools(&folder).is_empty());
        let other = recording.begin_pages(None, b"other", 1).unwrap();
        assert!(pools(&folder)[0].owners.is_empty(), "its owners ended with the pool");
        recording.end_main();
        recording.end_pages(other);
        assert_eq!(pools(&folder).len(), 1, "what was there at the end stays");
    }

    #[test]
    fn the_number_of_rows_is_bounded_by_the_owners_at_one_time() {
        let (folder, recording) = recording("pages-bounded");
        let pool = recording.begin_pages(None, b"engine", 1).unwrap();
        let bytes = || std::fs::metadata(folder.0.join("a.culeak")).unwrap().len();
        for _ in 0..99 {
            recording.begin_pages(Some(pool), b"stays", 0).unwrap();
        }
        assert_eq!(recording.begin_pages(Some(pool), b"too many", 0), None);
        assert_eq!(recording.loss(Loss::Details), 1);
        recording.end_pages(pool);
        let before = bytes();
        let pool = recording.begin_pages(None, b"engine", 1).unwrap();
        let stay: Vec<_> = (0..40)
            .filter_map(|_| recording.begin_pages(Some(pool), b"stays", 0))
            .collect();
        assert_eq!(stay.len(), 40);
        for number in 0..5_000 {
            let name = format!("request {number}");
            let owner = recording.begin_pages(Some(pool), name.as_bytes(), 0).unwrap();
            recording.set_pages(owner, [1, 0, 0, 0]);
            recording.end_pages(owner);
            recording.set_pages(owner, [0; 4]);
        }
        assert_eq!((bytes(), recording.loss(Loss::Details)), (before, 1));
        assert_eq!(owners(&folder).len(), 40);
    }

    #[test]
    fn few_owners_at_one_time_need_few_rows_however_many_of_them_stay() {
        let (folder, recording) = recording("pages-few");
        let pool = recording.begin_pages(None, b"engine", 1).unwrap();
        for _ in 0..40 {
            recording.begin_pages(Some(pool), b"stays", 0).unwrap();
        }
        for _ in 0..1_000 {
            let owner = recording.begin_pages(Some(pool), b"passes", 0).unwrap();
            recording.end_pages(owner);
        }
        assert_eq!(owners(&folder).len(), 40);
        let rows = recording
            .elements(crate::format::Section::Pages)
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(rows, 42);
    }

    #[test]
    fn threads_have_rows_of_their_own() {
        let (folder, recording) = recording("pages-threads");
        let pool = recording.begin_pages(None, b"engine", 1).unwrap();
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let barrier = &barrier;
                scope.spawn(move || {
                    let name = format!("thread {thread}");
                    for _ in 0..2_000 {
                        let owner = recording.begin_pages(Some(pool), name.as_bytes(), 0).unwrap();
                        recording.set_pages(owner, [1, 0, 0, 0]);
                        recording.end_pages(owner);
                        recording.set_pages(owner, [0; 4]);
                    }
                    barrier.wait();
                    let owner = recording.begin_pages(Some(pool), name.as_bytes(), 0).unwrap();
                    recording.set_pages(owner, [thread + 1, 0, 0, 0]);
                    recording.end_pages(owner);
                });
            }
        });
        let mut found = owners(&folder);
        found.sort();
        let expected = (0..4).map(|thread| (format!("thread {thread}"), thread + 1, 0, true));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}
