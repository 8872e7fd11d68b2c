//! `culeak diff` over several processes: what changed between two states of a job.

use std::process::ExitCode;

use culeak::analysis::filter::{Filter, only_objects};
use culeak::analysis::job::Options;
use culeak::analysis::job::diff::{JobDiff, Side, diff};
use culeak::analysis::job::sites::Sites;
use culeak::analysis::report;

use super::diff::DiffArgs;
use crate::document;
use crate::errors::{Failure, USAGE};
use crate::load::many::{self, How};
use crate::load::{self, Found};
use crate::options::rows_shown;
use crate::{progress, text};

/// Compares every input that can be read; any other input makes the exit code 2.
///
/// # Errors
/// No input of a side can be read, no process is on both sides, or an option applies to two processes only.
pub fn execute(args: &DiffArgs, sides: [Found; 2]) -> Result<ExitCode, Failure> {
    suits(args)?;
    let mut unreadable = 0;
    let mut sites = Sites::default();
    let ats = [args.at.first(), args.at.last()];
    let names = [&args.before, args.after.as_ref().unwrap_or(&args.before)];
    let mut read: Vec<Side> = Vec::with_capacity(2);
    for ((found, at), name) in sides.into_iter().zip(ats).zip(names) {
        let how = How {
            names: &args.names,
            at,
            report: report::Options {
                filter: Filter {
                    kinds: args.kind.clone(),
                    ..Filter::default()
                },
                ..report::Options::default()
            },
        };
        found.failures.iter().for_each(progress::fail);
        unreadable += found.failures.len();
        let (side, known) = many::side(&found.places, &how, sites);
        sites = known;
        const SHOWN: usize = 10;
        for input in side.unreadable.iter().take(SHOWN) {
            progress::fail(&Failure::new(format!("{}: {}", input.source, input.reason)));
        }
        let more = side.unreadable.len().saturating_sub(SHOWN);
        if more > 0 {
            progress::fail(&Failure::new(format!(
                "{more} more inputs cannot be read; --json lists them"
            )));
        }
        unreadable += side.unreadable.len();
        if side.processes.is_empty() {
            return Err(Failure::new(format!(
                "{}: no process can be read (see above); name a folder of recordings or snapshots",
                name.display()
            )));
        }
        read.push(side);
    }
    let [before, after] = <[Side; 2]>::try_from(read).unwrap_or_default();
    let options = Options {
        top: rows_shown(args.top, !args.json),
        min_bytes: args.min_bytes,
        ..Options::default()
    };
    let diff = JobDiff {
        kinds: args.kind.iter().map(|kind| kind.name()).collect(),
        ..diff(before, after, &sites, &options)
    };
    if diff.pairs.is_empty() {
        return Err(Failure::new(format!(
            "{} and {} have no process in common: processes are compared by rank, or by the name of their recording if they have \
             none; name the recordings of two processes to compare these",
            names[0].display(),
            names[1].display()
        )));
    }
    match args.json {
        true => text::print_json(&diff)?,
        false => document::print(|| text::job::diff::page(&diff, options.top))?,
    }
    Ok(ExitCode::from(if unreadable > 0 { USAGE } else { 0 }))
}

/// Refuses options that apply to two processes.
fn suits(args: &DiffArgs) -> Result<(), Failure> {
    load::segments::refuse(&args.kind, "culeak diff of several processes")?;
    let of_two = [
        ("--tree", args.tree),
        ("--flamegraph", args.flamegraph.is_some()),
        ("--html", args.html.is_some()),
        ("--stacks", args.stacks),
        ("--full-stacks", args.full_stacks),
        ("--all", args.all),
        ("--sort count", args.sort != "bytes"),
        ("--kind of objects alone", only_objects(&args.kind)),
    ];
    match of_two.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::new(format!(
            "{option} applies to two processes, but there are several on a side; name one process on each side, or leave it out"
        ))),
    }
}
