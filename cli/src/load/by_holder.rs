//! A process that was never recorded, for the live view and for diffs: what holds each block is in place of the stack that allocated it.

use culeak::analysis::why::OriginKey;
use culeak::analysis::why::words::path_text;
use culeak::snapshot::{HolderPath, Language, Location, Snapshot, Stack, Symbol};

use super::holders::{self, Wanted};
use super::{Place, unrecorded};
use crate::errors::Failure;

/// The snapshot, and what it lacks, in sentences.
///
/// # Errors
/// The process cannot be read, or it uses no allocator that can.
pub fn by_holder(pid: u32) -> Result<(Snapshot, Vec<String>), Failure> {
    let mut item = Place::Process(pid).load()?;
    holders::of_process(&mut item, pid, &Wanted::default())?;
    let mut snapshot = item.snapshot;
    let mut notes = unrecorded::noted(pid);
    notes.extend(
        snapshot
            .holders
            .iter()
            .flat_map(|holders| holders.search.limits.clone()),
    );
    name_by_holder(&mut snapshot);
    Ok((snapshot, notes))
}

/// Gives each block a stack of its holder and the path from there, without sizes, which change.
pub fn name_by_holder(snapshot: &mut Snapshot) {
    let Some(holders) = snapshot.holders.take() else { return };
    let mut stack = |frames: &[&str]| {
        let first = snapshot.locations.len();
        snapshot.locations.extend(frames.iter().map(|text| location(text)));
        snapshot.stacks.push(Stack {
            frames: (first..first + frames.len()).collect(),
            truncated: false,
        });
        snapshot.stacks.len() - 1
    };
    let of_path = |path: &HolderPath| {
        let possibly = if path.possibly { "possibly " } else { "" };
        let origin = OriginKey::of(path).text_without_type();
        stack(&[&format!("{possibly}{origin}"), &path_text(path)])
    };
    let stacks: Vec<usize> = holders.paths.iter().map(of_path).collect();
    let unknown = stack(&["not searched: allocated during the search"]);
    snapshot.allocations.change(|_, block, call| {
        if call.domain.is_some() {
            let at = holders.blocks.binary_search_by_key(&block.address, |held| held.address);
            block.stack = Some(at.map_or(unknown, |at| stacks[holders.blocks[at].path]));
        }
        // When it was allocated is not known.
        block.time_ns = u64::MAX;
    });
    snapshot.holders = Some(holders);
}

fn location(text: &str) -> Location {
    Location {
        module: None,
        address: 0,
        symbols: vec![Symbol {
            function: text.to_owned(),
            file: None,
            line: None,
            inlined: false,
        }],
        language: Language::Python,
    }
}
