//! The lives of memory as reports count them: which of it frameworks' blocks lay in, and which a filter accepts.

use std::collections::BTreeMap;

use foldhash::HashSet;

use crate::analysis::filter::{Filter, Filtering};
use crate::analysis::framework::{Watched, can_carry};
use crate::analysis::groups::Level;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::{Sieve, Suppressions};
use crate::kind::Place;
use crate::snapshot::{Allocations, Snapshot};
use crate::timeline::lives::{Life, Lives};
use crate::timeline::{Site, Timeline};

/// A timeline, and the final state that it was read with.
#[derive(Debug, Clone)]
pub struct Logged {
    pub timeline: Timeline,
    pub last: Allocations,
}

/// The lives of a timeline's memory. `snapshot` has the tables that the timeline was read with, and `last` the final state.
pub fn of(snapshot: &Snapshot, last: &Allocations, timeline: &Timeline, stacks: &CallStacks) -> Lives {
    let mut lives = Lives::of(&timeline.memory, timeline.since_ns, last);
    let watched = Watched::of(snapshot);
    let is_behind = |site: &Site| {
        let allocator = stacks.get(site.stack).allocator;
        let blocks_are_known = allocator.is_some_and(|allocator| watched.contains(allocator));
        Level::of(site.kind, allocator.is_some(), blocks_are_known) == Level::Behind
    };
    let behind: Vec<bool> = lives.sites.iter().map(is_behind).collect();
    for life in &mut lives.lives {
        life.behind = behind[life.site as usize];
    }
    for carrier in carriers(&lives) {
        lives.lives[carrier].behind = true;
    }
    lives
}

/// Memory that a block lay in at any time is behind blocks, even if its stack does not show that.
fn carriers(lives: &Lives) -> HashSet<usize> {
    let kind = |life: &Life| lives.sites[life.site as usize].kind;
    let is_block = |life: &Life| kind(life).place() == Place::Within;
    let may_carry = |life: &Life| !life.behind && can_carry(kind(life));
    let mut carriers = HashSet::default();
    if !lives.lives.iter().any(is_block) || !lives.lives.iter().any(may_carry) {
        return carriers;
    }
    let mut by_address: BTreeMap<u64, usize> = BTreeMap::new();
    let mut begin = |number: usize, life: &Life, by_address: &mut BTreeMap<u64, usize>| {
        if may_carry(life) {
            by_address.insert(life.address, number);
        } else if is_block(life)
            && let Some((_, &other)) = by_address.range(..=life.address).next_back()
        {
            let around: &Life = &lives.lives[other];
            if life.address < around.address.saturating_add(around.bytes) {
                carriers.insert(other);
            }
        }
    };
    // Memory first, then the blocks in it.
    for blocks in [false, true] {
        for (number, life) in lives.at_begin().filter(|(_, life)| is_block(life) == blocks) {
            begin(number, life, &mut by_address);
        }
    }
    for (_, change, life) in lives.changes() {
        let Some(number) = change.life() else { continue };
        if !change.is_free() {
            begin(number, life, &mut by_address);
        } else if by_address.get(&life.address) == Some(&number) {
            by_address.remove(&life.address);
        }
    }
    carriers
}

/// By site, whether some of its memory is not behind blocks, and whether some is.
pub fn levels(lives: &Lives) -> Vec<[bool; 2]> {
    let mut levels = vec![[false; 2]; lives.sites.len()];
    for life in &lives.lives {
        levels[life.site as usize][usize::from(life.behind)] = true;
    }
    levels
}

/// By site, whether it passes a filter, except for its time, and is not suppressed.
pub fn wanted(
    lives: &Lives,
    snapshot: &Snapshot,
    stacks: &CallStacks,
    filter: &Filter,
    suppressions: &Suppressions,
    threads: &[Option<usize>],
) -> Vec<bool> {
    let (mut filtering, mut sieve) = (Filtering::new(filter, snapshot), Sieve::new(suppressions));
    let passes = |(site, thread): (&Site, &Option<usize>)| {
        filtering.passes_site(site, *thread, stacks) && sieve.rule(site.stack, stacks).is_none()
    };
    lives.sites.iter().zip(threads).map(passes).collect()
}
