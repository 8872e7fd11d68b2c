//! Snapshots taken earlier: snapshot files, recordings, and the automatic snapshots beside recordings.
//!
//! Each snapshot is reduced to a summary before the next is read, so that thousands fit into memory.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use culeak::analysis::program::Program;
use culeak::analysis::trend::{Options, Summary};

use super::TrendArgs;
use crate::errors::Failure;
use crate::load::{Members, Place, Sources};
use crate::{load, progress};

/// Summaries of all readable inputs, and the number of unreadable ones.
///
/// # Errors
/// No input can be read, or `--only` matches none.
pub fn summaries(args: &TrendArgs, options: &Options) -> Result<(Vec<Summary>, usize), Failure> {
    let (mut files, mut unreadable) = (Sources::default(), 0);
    for input in &args.inputs {
        let mut found = expand(input);
        if let Some(failure) = found.failures.pop_if(|_| found.places.is_empty()) {
            return Err(failure);
        }
        match args.fail_on {
            // What prevents a pass is no warning.
            Some(_) => {
                unreadable += found.left_out.len();
                let failures =
                    (found.left_out.iter()).map(|left_out| Failure::new(format!("--fail-on growing: {left_out}")));
                failures.for_each(|failure| progress::fail(&failure));
            }
            None => load::warn_of(&found.left_out),
        }
        unreadable += found.failures.len();
        found.failures.iter().for_each(progress::fail);
        files.places.extend(found.places);
    }
    let mut others = BTreeSet::new();
    let read = files.read(|file| {
        let item = file.load()?;
        let program = Program::of(&item.snapshot);
        if args.only.as_ref().is_some_and(|pattern| !program.matches(pattern)) {
            others.insert(program.to_string());
            return Ok(None);
        }
        Ok(Some(args.summary(item, options)))
    });
    if let Some(failure) = files.failures.pop_if(|_| files.places.len() == 1) {
        return Err(failure);
    }
    unreadable += files.failures.len();
    files.failures.iter().for_each(progress::fail);
    let summaries: Vec<Summary> = read.into_iter().flatten().collect();
    if let (true, Some(pattern), false) = (summaries.is_empty(), &args.only, others.is_empty()) {
        let others: Vec<_> = others.into_iter().collect();
        return Err(Failure::new(format!(
            "--only {pattern}: no such program; the snapshots are from {}; name one of these (* matches any characters)",
            others.join(", ")
        )));
    }
    if summaries.is_empty() {
        return Err(Failure::new(format!(
            "none of {} snapshots can be read (see above); check the files, or take the snapshots again",
            files.places.len()
        )));
    }
    Ok((summaries, unreadable))
}

/// The files that an argument names: those in a folder, or a recording and the automatic snapshots beside it.
fn expand(input: &OsStr) -> Sources {
    let path = Path::new(input);
    if path.is_dir() {
        let Members {
            mut recordings,
            snapshots,
            failures,
            left_out,
            unrecorded,
        } = Members::of(path);
        recordings.extend(snapshots);
        recordings.sort();
        return Sources {
            places: recordings.into_iter().map(Place::File).collect(),
            failures,
            left_out: left_out.into_iter().chain(unrecorded).collect(),
        };
    }
    let mut found = load::places(input);
    let snapshots = load::at::automatic_snapshots(path).into_iter();
    found.places.extend(snapshots.map(Place::File));
    found
}
