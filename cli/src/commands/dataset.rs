//! The facts of many processes as a Parquet dataset: `export -f dataset` writes one, and `watch --dataset` adds to it.
//!
//! ```text
//! places ─► one thread per core: read ─► names, known ones first ─► the dataset's files of the process
//! ```

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use culeak::analysis::categories::Categories;
use culeak::point::Point;

use crate::errors::Failure;
use crate::load::NameArgs;

/// The options that a dataset alone has.
#[derive(Debug, Clone, Default, Args)]
pub struct DatasetArgs {
    /// Dataset: leave out the table of single blocks, by far the largest
    #[arg(long)]
    pub no_blocks: bool,
}

/// What is sent, or written to a dataset.
#[cfg_attr(
    not(all(feature = "parquet", feature = "push")),
    allow(dead_code, reason = "a build that lacks one of them refuses it")
)]
pub struct Wanted<'a> {
    pub inputs: &'a [OsString],
    /// Again and again, until all processes have ended.
    pub every: Option<Duration>,
    pub job: Option<&'a str>,
    /// Of what is sent: call sites with metrics of their own.
    pub top: Option<usize>,
    /// Of a dataset; without it, each process as reports show it, and at its peak.
    pub at: Option<&'a Point>,
    pub with_blocks: bool,
    pub categories: Categories,
    pub names: &'a NameArgs,
}

/// # Errors
/// This build cannot write Parquet.
#[cfg(not(feature = "parquet"))]
pub fn write(_: &Path, _: Wanted) -> Result<ExitCode, Failure> {
    Err(Failure::new(crate::errors::not_in_this_build("cannot write Parquet")))
}

#[cfg(feature = "parquet")]
pub use with_parquet::write;

#[cfg(feature = "parquet")]
mod with_parquet {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Mutex, PoisonError};
    use std::time::Instant;

    use culeak_dataset::About;
    use culeak_dataset::store::{Problem, Store};

    use super::*;
    use crate::errors::USAGE;
    use crate::escape::Escaped;
    use crate::load::many::{self, Symbols, lock};
    use crate::load::{self, Place, Sources};
    use crate::progress;
    use crate::signals;
    use crate::text::units::plural;

    /// What became of an input: whether its process has ended, or why it cannot be read.
    type Outcome = Result<bool, Failure>;

    struct Work<'a> {
        wanted: Wanted<'a>,
        store: Store,
        symbols: Mutex<Symbols>,
    }

    /// # Errors
    /// There is no input, or the dataset cannot be written.
    pub fn write(folder: &Path, wanted: Wanted) -> Result<ExitCode, Failure> {
        if folder.as_os_str() == "-" {
            return Err(Failure::new("-: a dataset is a folder; name one with -o"));
        }
        if wanted.at == Some(&Point::Peak) {
            return Err(Failure::new(
                "--at peak: a dataset has the peak of every process anyway; leave out --at",
            ));
        }
        let work = Work {
            wanted,
            store: Store::open(folder).map_err(|problem| unusable(&problem))?,
            symbols: Mutex::default(),
        };
        match work.wanted.every {
            None => {
                let mut found = Sources::each(work.wanted.inputs);
                let outcomes = work.add(&found.places)?;
                found.failures.extend(outcomes.into_values().filter_map(Result::err));
                found.failures.iter().for_each(progress::fail);
                Ok(ExitCode::from(if found.failures.is_empty() { 0 } else { USAGE }))
            }
            Some(every) => {
                // Engines may read it before the job begins.
                work.store.create().map_err(|problem| unusable(&problem))?;
                let signals = signals::block()?;
                let mut rounds = Rounds::default();
                let began = Instant::now();
                for nth in 1_u32.. {
                    if rounds.one(&work)? {
                        eprintln!("culeak: the job has ended; {}", rounds.summary());
                        break;
                    }
                    // A round may take longer than the interval: the next one is due then.
                    let next = (began + every.saturating_mul(nth)).max(Instant::now());
                    if let Some(signal) = signals::wait(&signals, next) {
                        eprintln!("culeak: {signal}: stopped; {}", rounds.summary());
                        break;
                    }
                }
                Ok(ExitCode::from(if rounds.failed.is_empty() { 0 } else { USAGE }))
            }
        }
    }

    fn unusable(problem: &Problem) -> Failure {
        Failure::new(format!(
            "{}: the dataset cannot be used ({}); choose another folder with -o, or make room",
            problem.path.display(),
            problem.reason
        ))
    }

    /// What earlier rounds have seen, by the names of inputs.
    #[derive(Default)]
    struct Rounds {
        number: u64,
        /// Those whose last state is in the dataset.
        ended: BTreeSet<String>,
        added: BTreeSet<String>,
        /// Those that cannot be read, each reported once.
        failed: BTreeSet<String>,
        is_waiting: bool,
    }

    impl Rounds {
        fn summary(&self) -> String {
            let points = plural(self.number, "point in time", "points in time");
            let ended = plural(self.ended.len() as u64, "process", "processes");
            format!("{points}, {ended} that ended")
        }

        /// Adds a point of every process; whether all have ended.
        fn one(&mut self, work: &Work) -> Result<bool, Failure> {
            let found = Sources::each(work.wanted.inputs);
            // A folder has no recordings before the job begins.
            if let (false, Some(failure)) = (self.is_waiting, found.failures.first()) {
                progress::note(format_args!("note: {failure}; looking again every interval"));
                self.is_waiting = true;
            }
            let mut places = found.places;
            let any = !places.is_empty();
            places.retain(|place| !self.ended.contains(&place.to_string()));
            if places.is_empty() {
                return Ok(any);
            }
            let outcomes = work.add(&places)?;
            self.number += u64::from(outcomes.values().any(Result::is_ok));
            for (number, outcome) in outcomes {
                let (place, source) = (&places[number], places[number].to_string());
                match outcome {
                    Ok(ended) => {
                        self.failed.remove(&source);
                        self.added.insert(source.clone());
                        self.ended.extend(ended.then_some(source));
                    }
                    // A process id names nothing once its process has ended; its recording does.
                    Err(_) if matches!(place, Place::Process(_)) && self.added.contains(&source) => {
                        self.ended.insert(source);
                    }
                    Err(failure) => {
                        if self.failed.insert(source) {
                            progress::fail(&failure);
                        }
                    }
                }
            }
            // What cannot be read is not waited for.
            let is_done = |source: &String| self.ended.contains(source) || self.failed.contains(source);
            Ok(!self.ended.is_empty() && places.iter().map(Place::to_string).all(|source| is_done(&source)))
        }
    }

    impl Work<'_> {
        /// Reads the places and adds them. The outcomes are by the number of the place.
        fn add(&self, places: &[Place]) -> Result<BTreeMap<usize, Outcome>, Failure> {
            let shared = Mutex::new(Ok(BTreeMap::new()));
            many::in_parallel(places, &|number, place| {
                if lock(&shared).is_err() {
                    return;
                }
                let read = self.one(place);
                let mut shared = lock(&shared);
                match (read, &mut *shared) {
                    (Ok(outcome), Ok(outcomes)) => drop(outcomes.insert(number as usize, outcome)),
                    (Err(problem), _) => *shared = Err(unusable(&problem)),
                    (Ok(_), Err(_)) => {}
                }
            });
            shared.into_inner().unwrap_or_else(PoisonError::into_inner)
        }

        /// Adds a process. An error: the dataset cannot be written.
        fn one(&self, place: &Place) -> Result<Outcome, Problem> {
            let wanted = &self.wanted;
            let mut item = match place.load() {
                Ok(item) => item,
                Err(failure) => return Ok(Err(failure)),
            };
            let process = &item.snapshot.process;
            let ended = process.state.has_ended() && item.snapshot.taken.automatic.is_none();
            let source = item.source.clone();
            let about = About {
                job: wanted.job,
                source: &source,
                is_running: wanted.every.is_some() && !ended,
                blocks: wanted.with_blocks,
                categories: &wanted.categories,
                escape: |text| Escaped(text).to_string(),
            };
            if let Some(Point::Mark(_) | Point::Time(_)) = wanted.at {
                return match load::at::show(&mut item, wanted.at, wanted.names) {
                    Ok(()) => self.store.add(&item.snapshot, &about).map(|()| Ok(ended)),
                    Err(failure) => Ok(Err(failure)),
                };
            }
            lock(&self.symbols).name(&mut item, wanted.names);
            let point = wanted.at.cloned().unwrap_or_else(|| item.snapshot.usual_point());
            let has_peak = item.snapshot.taken.point.is_none() && !item.snapshot.at_peaks.is_empty();
            if wanted.at.is_none()
                && has_peak
                && let Ok(peak) = item.snapshot.clone().into_at(&Point::Peak)
            {
                self.store.add(&peak, &about)?;
            }
            match item.snapshot.into_at(&point) {
                Ok(snapshot) => self.store.add(&snapshot, &about).map(|()| Ok(ended)),
                Err(error) => Ok(Err(Failure::new(format!("{source}: {error}")))),
            }
        }
    }
}
