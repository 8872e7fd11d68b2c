//! Snapshots that somebody has taken before: snapshots, recordings and what the recorder kept beside them.
//!
//! One snapshot is read at a time and boiled down before the next, so that thousands of them fit into memory.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use culeak::analysis::program::Program;
use culeak::analysis::trend::{Options, Summary};

use super::TrendArgs;
use crate::errors::Failure;
use crate::load::{Loaded, Members, Place};
use crate::progress::{self, Progress, Unit};
use crate::{load, usage};

/// All that can be read, and how many cannot.
///
/// # Errors
/// When nothing can be read.
pub fn summaries(args: &TrendArgs, options: &Options) -> Result<(Vec<Summary>, usize), Failure> {
    let mut files = Vec::new();
    for input in &args.inputs {
        files.extend(expand(input)?);
    }
    let mut summaries = Vec::with_capacity(files.len());
    let mut unreadable = 0;
    let mut others = BTreeSet::new();
    let progress = Progress::over("reading", files.len() as u64, Unit::Of("snapshots"));
    for file in &files {
        let loaded = file.load();
        progress.advance(1);
        match loaded {
            Ok(item) if !is_wanted(args, &item) => {
                others.insert(Program::of(&item.snapshot).to_string());
            }
            Ok(mut item) => {
                usage::ask_driver(&mut item);
                args.names.name_frames(&mut item);
                summaries.push(Summary::of(&item.snapshot, item.source, options));
            }
            Err(failure) if files.len() == 1 => return Err(failure),
            Err(failure) => {
                unreadable += 1;
                progress::fail(&failure);
            }
        }
    }
    if let (true, Some(pattern), false) = (summaries.is_empty(), &args.only, others.is_empty()) {
        let others: Vec<_> = others.into_iter().collect();
        return Err(Failure::new(format!(
            "--only {pattern}: no such program; the snapshots are of {}; name one of these (* matches any characters)",
            others.join(", ")
        )));
    }
    if summaries.is_empty() {
        return Err(Failure::new(format!(
            "none of {} snapshots can be read (see above); check the files or take them again",
            files.len()
        )));
    }
    Ok((summaries, unreadable))
}

fn is_wanted(args: &TrendArgs, item: &Loaded) -> bool {
    let called = |pattern: &String| Program::of(&item.snapshot).matches(pattern);
    args.only.as_ref().is_none_or(called)
}

/// What an argument stands for: a folder for the snapshots in it, a recording also for those kept beside it.
fn expand(input: &OsStr) -> Result<Vec<Place>, Failure> {
    let path = Path::new(input);
    if path.is_dir() {
        let Members {
            mut recordings,
            snapshots,
        } = Members::of(path)?;
        recordings.extend(snapshots);
        recordings.sort();
        return Ok(recordings.into_iter().map(Place::File).collect());
    }
    let mut files = load::places(input)?;
    if let (Some(name), Some(true)) = (path.file_stem(), path.extension().map(|end| end == "culeak")) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let entries = fs::read_dir(folder.unwrap_or(Path::new(".")))
            .into_iter()
            .flatten()
            .flatten();
        let is_kept = |path: &PathBuf| {
            let file = path.file_name().unwrap_or_default().as_bytes();
            let rest = file.strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b".") && rest.ends_with(b".culeak-snapshot"))
        };
        let mut kept: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_kept).collect();
        kept.sort();
        files.extend(kept.into_iter().map(Place::File));
    }
    Ok(files)
}
