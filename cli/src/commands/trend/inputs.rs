//! Pictures that somebody has taken before: snapshots, recordings and what the recorder kept beside them.
//!
//! One snapshot is read at a time and boiled down before the next, so that thousands of them fit into memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use culeak::program::Program;
use culeak::trend::{Options, Picture};

use super::TrendArgs;
use crate::errors::Failure;
use crate::load::Loaded;
use crate::progress::{self, Progress, Unit};
use crate::{load, usage};

/// All that can be read, and how many cannot.
///
/// # Errors
/// When nothing can be read.
pub fn pictures(args: &TrendArgs, options: &Options) -> Result<(Vec<Picture>, usize), Failure> {
    let mut files = Vec::new();
    for input in &args.inputs {
        files.extend(expand(input)?);
    }
    let mut pictures = Vec::with_capacity(files.len());
    let mut unreadable = 0;
    let mut others = BTreeSet::new();
    let progress = Progress::over("reading", files.len() as u64, Unit::Of("snapshots"));
    for file in &files {
        let loaded = load::one(file);
        progress.advance(1);
        match loaded {
            Ok(item) if !is_wanted(args, &item) => {
                others.insert(Program::of(&item.snapshot).to_string());
            }
            Ok(mut item) => {
                usage::ask_driver(&mut item);
                args.names.name_frames(&mut item);
                pictures.push(Picture::of(&item.snapshot, item.source, options));
            }
            Err(failure) if files.len() == 1 => return Err(failure),
            Err(failure) => {
                unreadable += 1;
                progress::fail(&failure);
            }
        }
    }
    if let (true, Some(pattern), false) = (pictures.is_empty(), &args.only, others.is_empty()) {
        let others: Vec<_> = others.into_iter().collect();
        return Err(Failure::new(format!(
            "--only {pattern}: no such program; the snapshots are of {}; name one of these (* matches any characters)",
            others.join(", ")
        )));
    }
    if pictures.is_empty() {
        return Err(Failure::new(format!(
            "none of {} snapshots can be read (see above); check the files or take them again",
            files.len()
        )));
    }
    Ok((pictures, unreadable))
}

fn is_wanted(args: &TrendArgs, item: &Loaded) -> bool {
    let called = |pattern: &String| Program::of(&item.snapshot).is_called(pattern);
    args.only.as_ref().is_none_or(called)
}

/// What an argument stands for: a folder for the pictures in it, a recording also for those kept beside it.
fn expand(input: &str) -> Result<Vec<String>, Failure> {
    let path = Path::new(input);
    if path.is_dir() {
        let found = files_in(path, |name| {
            name.ends_with(".culeak") || name.ends_with(".culeak-kept") || name.ends_with(".json")
        })?;
        // Other people's JSON may lie there too.
        let found: Vec<String> = found
            .into_iter()
            .filter(|file| !file.ends_with(".json") || is_snapshot(file))
            .collect();
        if found.is_empty() {
            return Err(Failure::new(format!(
                "{input}: a folder without recordings (*.culeak), automatic snapshots (*.culeak-kept) or snapshots (*.json); name another"
            )));
        }
        return Ok(found);
    }
    let mut files = vec![input.to_owned()];
    if let (Some(name), Some("culeak")) = (
        path.file_stem().and_then(|name| name.to_str()),
        path.extension().and_then(|extension| extension.to_str()),
    ) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let kept = |file: &str| {
            file.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('.') && rest.ends_with(".culeak-kept"))
        };
        files.extend(files_in(folder.unwrap_or(Path::new(".")), kept).unwrap_or_default());
    }
    Ok(files)
}

fn files_in(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| {
        Failure::new(format!(
            "{}: the folder cannot be read: {error}; check its permissions",
            folder.display()
        ))
    })?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut paths: Vec<PathBuf> = names
        .filter(|name| wanted(name))
        .map(|name| folder.join(name))
        .collect();
    paths.sort();
    Ok(paths.iter().map(|path| path.display().to_string()).collect())
}

/// Whether a file begins as a snapshot does; its first field says so.
fn is_snapshot(file: &str) -> bool {
    use std::io::Read;
    let mut start = [0; 256];
    let read = fs::File::open(file).and_then(|mut file| file.read(&mut start));
    read.is_ok_and(|length| String::from_utf8_lossy(&start[..length]).contains(culeak::snapshot::FORMAT))
}
