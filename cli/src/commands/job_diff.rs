//! `culeak diff` over several processes: what changed between two states of a job.

use std::path::PathBuf;
use std::process::ExitCode;

use culeak::analysis::categories::Categories;
use culeak::analysis::job::diff::{JobDiff, Side, diff};
use culeak::analysis::job::sites::Sites;
use culeak::analysis::libraries::{self, LibraryChange};
use culeak::analysis::report::{self, By};

use super::diff::DiffArgs;
use crate::errors::{Failure, USAGE};
use crate::load::many::{self, How};
use crate::load::{Place, Sources, packages};
use crate::options::output::Form;
use crate::{progress, text};

/// Compares every input that can be read; any other input makes the exit code 2.
///
/// # Errors
/// No input of a side can be read, or no process is on both sides.
pub fn execute(args: &DiffArgs, sides: [Sources; 2], form: Form) -> Result<ExitCode, Failure> {
    let mut unreadable = 0;
    // In a job, stacks are not told apart.
    let by = args.view.by.filter(|by| *by == By::Forward).unwrap_or_default();
    let mut sites = Sites::by(by);
    let ats = [args.selection.at.first(), args.selection.at.last()];
    let names = [&args.before, args.after.as_ref().unwrap_or(&args.before)];
    let mut read = |found: Sources, nth: usize| -> Result<Side, Failure> {
        let how = How {
            names: &args.names,
            at: ats[nth],
            report: report::Options {
                by,
                filter: args.selection.filter(&Categories::none()),
                ..report::Options::default()
            },
        };
        found.failures.iter().for_each(progress::fail);
        unreadable += found.failures.len();
        let side;
        (side, sites) = many::side(&found.places, &how, std::mem::take(&mut sites));
        many::fail_unreadable(&side.unreadable);
        unreadable += side.unreadable.len();
        if side.processes.is_empty() {
            return Err(Failure::new(format!(
                "{}: no process can be read (see above); name a folder of recordings or snapshots",
                names[nth].display()
            )));
        }
        Ok(side)
    };
    let [before, after] = sides;
    let (before, after) = (read(before, 0)?, read(after, 1)?);
    let options = args.selection.of_job(form != Form::Json);
    let diff = diff(before, after, &sites, &options);
    let diff = JobDiff {
        kinds: args.selection.kind.iter().map(|kind| kind.name()).collect(),
        libraries: of_other_versions(&diff),
        ..diff
    };
    if diff.pairs.is_empty() {
        return Err(Failure::new(format!(
            "{} and {} have no process in common: processes are compared by rank, or by the name of their recording if they have \
             none; name the recordings of two processes to compare these",
            names[0].display(),
            names[1].display()
        )));
    }
    let (selected, filter) = (
        args.selection.again(),
        args.selection.filter(&Categories::none()).options(),
    );
    let page = || text::job::diff::page(&diff, options.top, &selected, &filter);
    args.output.page(form, "culeak diff: job", &diff, page)?;
    Ok(ExitCode::from(if unreadable > 0 { USAGE } else { 0 }))
}

/// The libraries that have other versions in the first pairs: the processes of a run usually have the same. None if one of the two is no
/// file, which alone can be read again.
fn of_other_versions(diff: &JobDiff) -> Vec<LibraryChange> {
    /// Both recordings of each are read again.
    const PAIRS: usize = 8;
    let read = |source: &String| {
        let mut item = Place::File(PathBuf::from(source)).load_without_peaks().ok()?;
        packages::add(&mut item.snapshot, item.root.as_deref());
        Some(item.snapshot)
    };
    let mut all: Vec<LibraryChange> = Vec::new();
    for pair in diff.pairs.iter().filter(|_| !diff.same_processes).take(PAIRS) {
        let Some((before, after)) = read(&pair.before.source).zip(read(&pair.after.source)) else {
            continue;
        };
        let changes = libraries::changes(&before, &after).into_iter();
        let new: Vec<LibraryChange> = changes.filter(|change| !all.contains(change)).collect();
        all.extend(new);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{self, NameArgs};
    use crate::text::sample::leaky;
    use culeak::analysis::job::Options;

    #[test]
    fn a_library_that_differs_in_another_pair_than_the_first_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let side = |name: &str, pid: u32, versions: [&str; 2]| {
            let folder = folder.path().join(name);
            std::fs::create_dir(&folder).expect("made");
            for (rank, version) in (0..).zip(versions) {
                let mut snapshot = leaky();
                snapshot.process.pid = pid + rank;
                snapshot.process.ranks.insert("RANK".to_owned(), rank.to_string());
                let packages = &mut snapshot.process.packages;
                packages.insert("torch".to_owned(), version.to_owned());
                let path = folder.join(format!("{rank}.json"));
                std::fs::write(path, serde_json::to_vec(&snapshot).expect("JSON")).expect("written");
            }
            load::places(&folder).places
        };
        let names = NameArgs {
            no_symbol_cache: true,
            ..NameArgs::default()
        };
        let how = How {
            names: &names,
            at: None,
            report: report::Options::default(),
        };
        let before = side("before", 100, ["2.9.0", "2.9.0"]);
        let after = side("after", 200, ["2.9.0", "2.10.0"]);
        let (before, sites) = many::side(&before, &how, Sites::by(By::Site));
        let (after, sites) = many::side(&after, &how, sites);
        let diff = diff(before, after, &sites, &Options::default());
        let changes = of_other_versions(&diff);
        let named = |change: &LibraryChange| (change.name.as_str() == "torch").then(|| change.after.clone());
        let named: Vec<_> = changes.iter().filter_map(named).collect();
        assert_eq!(named, [Some("2.10.0".to_owned())], "{changes:?}");
    }
}
