//! A dataset of many processes: what `culeak export --partition` and `culeak collect` share.
//!
//! ```text
//! places ─► one thread per core: read ─► names, known ones first ─► rows of each process ─► its files
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{num::NonZero, thread};

use culeak::analysis::categories::Categories;
use culeak::point::Point;
use culeak::snapshot::ProcessState;
use culeak_dataset::marker::Problem;
use culeak_dataset::store::Store;
use culeak_dataset::take::{About, Batch};

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::load::many::Symbols;
use crate::load::{self, Place};
use crate::options::NameArgs;
use crate::options::dataset::DatasetArgs;
use crate::progress::{Progress, Unit};

/// How processes are read and written.
pub struct Work<'a> {
    pub args: &'a DatasetArgs,
    pub names: &'a NameArgs,
    pub categories: Categories,
    pub at: Option<Point>,
    /// Processes may still run, so each reading is a point in time of its own.
    pub collects: bool,
}

/// What became of the inputs.
#[derive(Debug, Default)]
pub struct Outcome {
    /// By number of the place, in order.
    pub failures: Vec<(usize, Failure)>,
    /// Numbers of those that have ended, in order.
    pub ended: Vec<usize>,
    pub added: usize,
}

/// Opens a dataset for writing.
///
/// # Errors
/// The folder is something else, or cannot be written.
pub fn open(folder: &Path, partition: Option<&[String]>) -> Result<Store, Failure> {
    if folder.as_os_str() == "-" {
        return Err(Failure::new("-: a dataset is a folder; name one with -o"));
    }
    Store::open(folder, partition).map_err(|problem| failure(&problem))
}

pub fn failure(problem: &Problem) -> Failure {
    Failure::new(format!(
        "{}: the dataset cannot be used ({}); choose another folder with -o, or make room",
        problem.path.display(),
        problem.reason
    ))
}

impl Work<'_> {
    /// Reads the places and adds them.
    ///
    /// # Errors
    /// The dataset cannot be written; what was added before stays.
    pub fn add(&self, store: &Store, symbols: &Mutex<Symbols>, places: &[Place]) -> Result<Outcome, Failure> {
        let progress = Progress::over("reading", places.len() as u64, Unit::Of("processes"));
        let next = AtomicUsize::new(0);
        let shared = Mutex::new(Ok(Outcome::default()));
        let read_some = || {
            // Relaxed: the number alone is shared.
            while let Some((number, place)) = numbered(places, next.fetch_add(1, Ordering::Relaxed)) {
                let read = self.read(place, symbols);
                let written = match &read {
                    Ok((_, batches)) => batches.iter().try_for_each(|batch| store.add(batch)),
                    Err(_) => Ok(()),
                };
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let Ok(outcome) = &mut *shared else { return };
                match (written, read) {
                    (Err(problem), _) => *shared = Err(failure(&problem)),
                    (Ok(()), Err(failure)) => outcome.failures.push((number, failure)),
                    (Ok(()), Ok((ended, _))) => {
                        outcome.added += 1;
                        outcome.ended.extend(ended.then_some(number));
                    }
                }
                progress.advance(1);
            }
        };
        thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(1, NonZero::get);
            for _ in 1..threads.min(places.len()) {
                scope.spawn(read_some);
            }
            read_some();
        });
        let mut outcome = shared.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        outcome.failures.sort_by_key(|(number, _)| *number);
        outcome.ended.sort_unstable();
        Ok(outcome)
    }

    /// The rows of one process; whether it has ended.
    fn read(&self, place: &Place, symbols: &Mutex<Symbols>) -> Result<(bool, Vec<Batch>), Failure> {
        let mut item = place.load()?;
        let process = &item.snapshot.process;
        let ended = matches!(process.state, ProcessState::Exited | ProcessState::Ended)
            && item.snapshot.taken.automatic.is_none();
        let source = item.source.clone();
        let about = About {
            job: self.args.job.as_deref(),
            source: &source,
            is_running: self.collects && !ended,
            blocks: !self.args.no_blocks,
            categories: &self.categories,
            escape: |text| Escaped(text).to_string(),
        };
        if let Some(Point::Mark(_) | Point::Time(_)) = self.at {
            load::at::show(&mut item, self.at.as_ref(), self.names)?;
            return Ok((ended, vec![Batch::of(&item.snapshot, &about)]));
        }
        symbols
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .name(&mut item, self.names);
        let point = self.at.clone().unwrap_or_else(|| item.snapshot.usual_point());
        let mut batches = Vec::new();
        if self.at.is_none() && item.snapshot.taken.point.is_none() && !item.snapshot.at_peaks.is_empty() {
            let peak = item.snapshot.clone().into_at(&Point::Peak);
            batches.extend(peak.map(|peak| Batch::of(&peak, &about)));
        }
        let snapshot = item
            .snapshot
            .into_at(&point)
            .map_err(|error| Failure::new(format!("{source}: {error}")))?;
        batches.push(Batch::of(&snapshot, &about));
        Ok((ended, batches))
    }
}

fn numbered(places: &[Place], nth: usize) -> Option<(usize, &Place)> {
    Some((nth, places.get(nth)?))
}
