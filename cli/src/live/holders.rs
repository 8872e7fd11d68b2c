//! What holds the memory of the process on the screen. A search takes up to some seconds, so each has a thread of its own.

use std::time::Instant;

use culeak::analysis::filter::Filter;
use culeak::analysis::groups::Groups;
use culeak::analysis::site::CallStacks;
use culeak::analysis::why::{SiteHolders, by_site};

use crate::errors::Failure;
use crate::load::holders::{Wanted, of_process};
use crate::load::{self, NameArgs, Place};
use crate::symbolize::symbolize;

/// The answer to a search.
#[derive(Debug, Clone, Default)]
pub struct Holders {
    /// On the recording's clock.
    pub at_ns: u64,
    pub took_ns: u64,
    /// What holds the memory of each call site.
    pub sites: Vec<SiteHolders>,
    /// What was not searched, in sentences.
    pub limits: Vec<String>,
}

/// Searches the memory of a process, which keeps running.
///
/// # Errors
/// The process or its recording cannot be read.
pub fn search(pid: u32, names: &NameArgs) -> Result<Holders, Failure> {
    if load::has_no_library(pid) {
        return Err(Failure::new("each row is a holder; enter shows the paths from it"));
    }
    let began = Instant::now();
    let mut item = Place::Process(pid).load()?;
    // The thread that reads recordings shows the notes of this.
    symbolize(&mut item.snapshot, &names.places(item.root.clone()));
    of_process(&mut item, pid, &Wanted::default())?;
    let snapshot = &item.snapshot;
    let stacks = CallStacks::of(snapshot);
    let sites = by_site(snapshot, &stacks, &Groups::of(snapshot, &stacks), &Filter::default());
    let limits = snapshot
        .holders
        .iter()
        .flat_map(|holders| holders.search.limits.clone());
    Ok(Holders {
        at_ns: snapshot.taken.at_ns,
        took_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        sites,
        limits: limits.collect(),
    })
}
