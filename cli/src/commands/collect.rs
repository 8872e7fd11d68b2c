//! `culeak collect`: a running job as a dataset, one point in time after another.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::errors::Failure;
use crate::options::NameArgs;
use crate::options::categories::CategoryArgs;
use crate::options::dataset::DatasetArgs;
use crate::text;

/// Add the memory of a running job to a dataset at an interval, until the job ends
#[derive(Debug, Args)]
#[command(after_help = "\
The inputs are looked up again each time, so processes that start later are included. The command ends when all processes that it \
has seen have ended, or at SIGINT or SIGTERM. Start it again to continue. docs/dataset.md describes the tables.

Examples:
  culeak collect runs/ -o dataset --job train-7 --every 10m")]
#[cfg_attr(
    not(feature = "parquet"),
    allow(dead_code, reason = "such a build refuses the command")
)]
pub struct CollectArgs {
    /// Process ids, recordings, folders, patterns
    #[arg(value_name = "PID|RECORDING|FOLDER", required = true)]
    pub inputs: Vec<OsString>,
    /// Folder of the dataset; created if it is missing
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Interval between points, e.g. 30s, 10m
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = text::units::parse_duration)]
    pub every: Duration,
    /// Columns that folders are named after, some of job,host,rank [default: the dataset's own; job for a new dataset]
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub partition: Vec<String>,
    #[command(flatten)]
    pub dataset: DatasetArgs,
    #[command(flatten)]
    pub categories: CategoryArgs,
    #[command(flatten)]
    pub names: NameArgs,
}

/// # Errors
/// This build cannot write Parquet.
#[cfg(not(feature = "parquet"))]
pub fn execute(_: &CollectArgs) -> Result<ExitCode, Failure> {
    Err(Failure::new(crate::errors::not_in_this_build("cannot write Parquet")))
}

#[cfg(feature = "parquet")]
pub use with_parquet::execute;

#[cfg(feature = "parquet")]
mod with_parquet {
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::time::Instant;

    use culeak_dataset::store::Store;

    use super::*;
    use crate::commands::dataset::{self, Work};
    use crate::errors::USAGE;
    use crate::load::many::Symbols;
    use crate::load::{self, Place};
    use crate::options::dataset::partition;
    use crate::text::units::plural;
    use crate::{progress, signals};

    const SHORTEST: Duration = Duration::from_millis(100);

    /// # Errors
    /// The dataset cannot be written, or an option is wrong.
    pub fn execute(args: &CollectArgs) -> Result<ExitCode, Failure> {
        if args.every < SHORTEST {
            return Err(Failure::new(
                "--every: the shortest interval is 100ms; name a longer one",
            ));
        }
        let partition = match args.partition.is_empty() {
            true => None,
            false => Some(partition(&args.partition)?),
        };
        let work = Work {
            args: &args.dataset,
            names: &args.names,
            categories: args.categories.read()?,
            at: None,
            collects: true,
        };
        let signals = signals::block().map_err(|error| {
            Failure::new(format!(
                "cannot wait for signals: {error}; export the recordings with `culeak export --partition`"
            ))
        })?;
        let store = dataset::open(&args.output, partition.as_deref())?;
        let mut rounds = Rounds::default();
        let symbols = Mutex::default();
        let began = Instant::now();
        for nth in 1_u32.. {
            if rounds.one(args, &work, &store, &symbols)? {
                eprintln!("culeak: the job has ended; {}", rounds.summary());
                break;
            }
            // A round may take longer than the interval: the next one is due then.
            let next = (began + args.every.saturating_mul(nth)).max(Instant::now());
            if let Some(signal) = signals::wait(&signals, next) {
                eprintln!("culeak: {signal}: stopped; {}", rounds.summary());
                break;
            }
        }
        Ok(ExitCode::from(if rounds.failed.is_empty() { 0 } else { USAGE }))
    }

    /// What earlier rounds have seen.
    #[derive(Default)]
    struct Rounds {
        number: u64,
        /// Those whose last state is in the dataset.
        ended: BTreeSet<String>,
        /// Inputs of which a point was added.
        added: BTreeSet<String>,
        /// Inputs that cannot be read, each reported once.
        failed: BTreeSet<String>,
        is_waiting: bool,
    }

    impl Rounds {
        fn summary(&self) -> String {
            format!(
                "{}, {} that ended",
                plural(self.number, "point in time", "points in time"),
                plural(self.ended.len() as u64, "process", "processes")
            )
        }

        /// Adds a point of every process; whether all have ended.
        fn one(
            &mut self,
            args: &CollectArgs,
            work: &Work,
            store: &Store,
            symbols: &Mutex<Symbols>,
        ) -> Result<bool, Failure> {
            let mut places: Vec<Place> = Vec::new();
            for argument in &args.inputs {
                let found = load::places(argument);
                places.extend(found.places);
                // A folder has no recordings before the job begins.
                if let (false, Some(failure)) = (self.is_waiting, found.failures.first()) {
                    progress::note(format_args!("note: {failure}; looking again every interval"));
                    self.is_waiting = true;
                }
            }
            let is_new = |place: &Place| !self.ended.contains(&place.to_string());
            let (fresh, known): (Vec<Place>, Vec<Place>) = places.into_iter().partition(is_new);
            if fresh.is_empty() {
                return Ok(!known.is_empty());
            }
            let outcome = work.add(store, symbols, &fresh)?;
            self.number += u64::from(outcome.added > 0);
            let failed: Vec<usize> = outcome.failures.iter().map(|(number, _)| *number).collect();
            for (number, place) in fresh.iter().enumerate() {
                if !failed.contains(&number) {
                    self.failed.remove(&place.to_string());
                    self.added.insert(place.to_string());
                }
            }
            for (number, failure) in &outcome.failures {
                let source = fresh[*number].to_string();
                // A process id names nothing once its process has ended; its recording does.
                if let (Place::Process(_), true) = (&fresh[*number], self.added.contains(&source)) {
                    self.ended.insert(source);
                } else if self.failed.insert(source) {
                    progress::fail(failure);
                }
            }
            for number in &outcome.ended {
                let source = fresh[*number].to_string();
                self.ended.insert(source);
            }
            // What cannot be read is not waited for.
            let is_done = |place: &Place| {
                let source = place.to_string();
                self.ended.contains(&source) || self.failed.contains(&source)
            };
            Ok(!self.ended.is_empty() && fresh.iter().all(is_done))
        }
    }
}
