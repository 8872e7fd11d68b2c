//! Pools of pages, as servers keep for the KV cache: how many are live, how many a cache would give up, and who holds them.
//!
//! A gauge of "used" pages mixes those of requests with those that the prefix cache keeps, so a cache looks like a leak. Deliberately
//! absent: which pages an owner holds, since owners share them.

use std::cmp::Reverse;

use serde::Serialize;

use crate::snapshot::{PagePool, Pages, Snapshot};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PagesOfPool<'a> {
    /// The name of the allocator.
    pub domain: &'a str,
    pub page_bytes: u64,
    pub pages: Pages,
    /// Held pages (live or waiting) that no owner holds, at least: owners may share pages. 0 if the program never named an owner.
    pub unowned: u64,
    /// Those that hold pages: first those that have ended, then the others; oldest first.
    pub owners: Vec<OwnerOfPages<'a>>,
    /// Number of owners that `--top` cut off.
    pub hidden_owners: usize,
}

/// An owner of pages, such as a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnerOfPages<'a> {
    pub name: &'a str,
    pub pages: Pages,
    /// Since it began.
    pub age_ns: u64,
    /// Since it ended; `None`: it has not.
    pub ended_age_ns: Option<u64>,
}

/// The pools, largest first. `top`: the most owners of each.
pub(super) fn pools(snapshot: &Snapshot, top: Option<usize>) -> Vec<PagesOfPool<'_>> {
    let now = snapshot.taken.at_ns;
    let mut pools: Vec<_> = (snapshot.page_pools.iter())
        .map(|pool| of_pool(pool, now, top))
        .collect();
    pools.sort_by_key(|pool| Reverse(pool.page_bytes.saturating_mul(pool.pages.total())));
    pools
}

fn of_pool(pool: &PagePool, now: u64, top: Option<usize>) -> PagesOfPool<'_> {
    let holders = pool.owners.iter().filter(|owner| owner.pages.held() > 0);
    let owned = holders
        .clone()
        .fold(0u64, |sum, owner| sum.saturating_add(owner.pages.held()));
    let mut owners: Vec<OwnerOfPages> = holders
        .map(|owner| OwnerOfPages {
            name: &owner.name,
            pages: owner.pages,
            age_ns: now.saturating_sub(owner.begin_ns),
            ended_age_ns: owner.end_ns.map(|end| now.saturating_sub(end)),
        })
        .collect();
    owners.sort_by_key(|owner| (owner.ended_age_ns.is_none(), Reverse(owner.age_ns)));
    let hidden_owners = top.map_or(0, |top| owners.len().saturating_sub(top));
    owners.truncate(owners.len() - hidden_owners);
    PagesOfPool {
        domain: &pool.domain,
        page_bytes: pool.page_bytes,
        pages: pool.pages,
        unowned: match pool.owners_begun {
            0 => 0,
            _ => pool.pages.held().saturating_sub(owned),
        },
        owners,
        hidden_owners,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::PageOwner;

    fn live(pages: u64) -> Pages {
        Pages {
            live: pages,
            ..Pages::default()
        }
    }

    fn owner(name: &str, begin_ns: u64, end_ns: Option<u64>, pages: u64) -> PageOwner {
        PageOwner {
            name: name.to_owned(),
            begin_ns,
            end_ns,
            pages: live(pages),
        }
    }

    fn snapshot(held: u64, owners_begun: u64, owners: Vec<PageOwner>) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        snapshot.taken.at_ns = 100;
        snapshot.page_pools.push(PagePool {
            domain: "engine".to_owned(),
            page_bytes: 2,
            pages: live(held),
            owners_begun,
            owners,
        });
        snapshot
    }

    #[test]
    fn owners_that_have_ended_come_first_and_those_without_pages_are_left_out() {
        let owners = vec![
            owner("old", 10, None, 1),
            owner("empty", 20, None, 0),
            owner("ended", 30, Some(90), 2),
            owner("new", 40, None, 3),
            owner("ended later", 50, Some(95), 1),
        ];
        let snapshot = snapshot(9, 5, owners);
        let names = |top| -> (Vec<String>, usize) {
            let pool = pools(&snapshot, top).remove(0);
            let names = pool.owners.iter().map(|of| of.name.to_owned()).collect();
            (names, pool.hidden_owners)
        };
        let all: Vec<String> = ["ended", "ended later", "old", "new"].map(str::to_owned).into();
        assert_eq!(names(Some(3)), (all[..3].to_vec(), 1));
        assert_eq!(names(None), (all, 0));
        let pool = pools(&snapshot, Some(0)).remove(0);
        assert_eq!(pool.unowned, 2, "owners that are cut off hold pages all the same");
    }

    #[test]
    fn held_pages_are_of_no_owner_only_if_the_program_names_owners() {
        for (held, begun, owned, unowned) in [(9, 0, None, 0), (9, 7, None, 9), (3, 1, Some(4), 0)] {
            let owners = owned.map(|pages| owner("sharing", 0, None, pages));
            let snapshot = snapshot(held, begun, owners.into_iter().collect());
            assert_eq!(pools(&snapshot, None)[0].unowned, unowned);
        }
    }
}
