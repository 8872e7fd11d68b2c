//! Several processes as one job: inputs are read in parallel and dropped once they are added up.
//!
//! ```text
//! places ─► one thread per core: read ─► keys of stacks ─┬─ all known ─────────────► sums ─► Job
//!                                                        └─ some unknown ─► names ─►
//! ```
//!
//! Names are looked up once for all processes. An input that cannot be read is kept with the reason, and does not spoil the
//! rest. The result does not depend on which thread reads what, except for the names of call sites beyond the most that a job
//! keeps.

use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use culeak::analysis::job::diff::Side;
use culeak::analysis::job::sites::{Keys, ProcessSums, Sites};
use culeak::analysis::job::{Job, JobReport, Options, Unreadable, earlier};
use culeak::analysis::report::{self, Report};
use culeak::point::Point;
use culeak::snapshot::{Location, ProcessState, Snapshot, Symbol};

use super::names::NameArgs;
use super::{Loaded, Place, at};
use crate::errors::Failure;
use crate::progress::{self, Progress, Unit};
use crate::usage;

/// The most stacks of a call site that are distinguished in one process.
const STACKS_KEPT: usize = 64;

/// How the processes of a job are read.
pub struct How<'a> {
    pub names: &'a NameArgs,
    pub at: Option<&'a Point>,
    /// What rows are by, their filter and suppressions, and categories; the rest is ignored.
    pub report: report::Options,
}

/// Reads all places and judges them as one job.
pub fn job(places: &[Place], how: &How, options: &Options) -> JobReport {
    let job = Mutex::new(Job::default());
    let add = |number, sums| lock(&job).add(number, sums);
    let mut work = Work::over(how, Sites::by(how.report.by), &add);
    work.read(places, &|_| true);
    let earlier = lock(&job).earlier();
    if !earlier.is_empty() {
        // Rare: several snapshots of one process. A process cannot be taken out of its sums again.
        *lock(&job) = Job::default();
        work.elsewhere = AtomicUsize::new(0);
        let mut skipped: HashSet<u32> = earlier.iter().copied().collect();
        skipped.extend(lock(&work.unreadable).iter().map(|(number, _)| *number));
        work.read(places, &|number| !skipped.contains(&number));
    }
    let elsewhere = *work.elsewhere.get_mut();
    let (sites, unreadable) = work.finish();
    JobReport {
        earlier_snapshots: earlier.len(),
        elsewhere,
        unreadable,
        ..job
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .finish(&sites, options)
    }
}

/// Reads all places and keeps the sums of each process: of several snapshots of one, those of the latest. `sites` has the call
/// sites that are known already, so that several sides number them alike.
pub fn side(places: &[Place], how: &How, sites: Sites) -> (Side, Sites) {
    let kept = Mutex::new(Vec::new());
    let keep = |number: u32, sums: ProcessSums| lock(&kept).push((number, sums));
    let work = Work::over(how, sites, &keep);
    work.read(places, &|_| true);
    let (sites, unreadable) = work.finish();
    let mut kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    kept.sort_by_key(|(number, _)| *number);
    let skipped: HashSet<u32> = earlier(kept.iter().map(|(number, sums)| (&sums.row, *number)))
        .into_iter()
        .collect();
    kept.retain(|(number, _)| !skipped.contains(number));
    let side = Side {
        processes: kept.into_iter().map(|(_, sums)| sums).collect(),
        earlier_snapshots: skipped.len(),
        unreadable,
    };
    (side, sites)
}

/// A panic of another thread ends the command, or the question of `culeak mcp`.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands out the places, with their numbers, to one thread per core.
pub fn in_parallel(places: &[Place], read: &(dyn Fn(u32, &Place) + Sync)) {
    let progress = Progress::over("reading", places.len() as u64, Unit::Of("processes"));
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(places.len());
    let read_some = || {
        // Relaxed: the number alone is shared.
        while let Some((number, place)) = numbered(places, next.fetch_add(1, Ordering::Relaxed)) {
            read(number, place);
            progress.advance(1);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(read_some);
        }
        read_some();
    });
}

/// What the threads share.
struct Work<'a> {
    how: &'a How<'a>,
    /// Takes the sums of a process and its number.
    take: &'a (dyn Fn(u32, ProcessSums) + Sync),
    sites: RwLock<Sites>,
    symbols: Mutex<Symbols>,
    unreadable: Mutex<Vec<(u32, Unreadable)>>,
    /// The contents of pipes, which can be read only once.
    piped: Mutex<HashMap<u32, Snapshot>>,
    /// Processes that use none of the devices that the filter selects.
    elsewhere: AtomicUsize,
}

impl<'a> Work<'a> {
    fn over(how: &'a How, sites: Sites, take: &'a (dyn Fn(u32, ProcessSums) + Sync)) -> Work<'a> {
        Work {
            how,
            take,
            sites: RwLock::new(sites),
            symbols: Mutex::default(),
            unreadable: Mutex::default(),
            piped: Mutex::default(),
            elsewhere: AtomicUsize::new(0),
        }
    }

    /// The sites, and the inputs that could not be read, in their order.
    fn finish(self) -> (Sites, Vec<Unreadable>) {
        let mut unreadable = self.unreadable.into_inner().unwrap_or_else(PoisonError::into_inner);
        unreadable.sort_by_key(|(number, _)| *number);
        let sites = self.sites.into_inner().unwrap_or_else(PoisonError::into_inner);
        (sites, unreadable.into_iter().map(|(_, why)| why).collect())
    }

    fn read(&self, places: &[Place], wanted: &(dyn Fn(u32) -> bool + Sync)) {
        in_parallel(places, &|number, place| {
            if wanted(number) {
                self.one(number, place);
            }
        });
    }

    fn one(&self, number: u32, place: &Place) {
        let loaded = self.load(number, place);
        if let Ok((item, _)) = &loaded
            && !self.how.report.filter.concerns(&item.snapshot)
        {
            // Relaxed: the threads have ended when it is read.
            self.elsewhere.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match loaded.and_then(|item| self.sums(item)) {
            Ok(sums) => (self.take)(number, sums),
            Err(failure) => {
                lock(&self.unreadable).push((number, unreadable_input(place.to_string(), &failure)));
            }
        }
    }

    /// Reads a place, with the keys of its stacks if known stacks were left empty.
    fn load(&self, number: u32, place: &Place) -> Result<(Loaded, Option<Vec<u64>>), Failure> {
        let piped = || lock(&self.piped);
        let known = piped().remove(&number);
        if let Some(snapshot) = known {
            return Ok((Loaded::of(snapshot, place.to_string()), None));
        }
        let is_pipe = place.is_pipe();
        if !is_pipe && !self.needs_reports() {
            let sites = || self.sites.read().unwrap_or_else(PoisonError::into_inner);
            let (item, keys) = place.load_unknown_stacks(&|stack, tensors| sites().knows(stack, tensors))?;
            // A report of a running process shows its stacks.
            if keys.is_none() || !is_running(&item.snapshot) {
                return Ok((item, keys));
            }
        }
        let item = match self.how.at {
            Some(Point::Peak) => place.load()?,
            _ => place.load_without_peaks()?,
        };
        if is_pipe {
            piped().insert(number, item.snapshot.clone());
        }
        Ok((item, None))
    }

    /// Whether sums need a whole report of each process.
    fn needs_reports(&self) -> bool {
        self.is_filtered() || matches!(self.how.at, Some(Point::Mark(_) | Point::Time(_) | Point::Peak))
    }

    fn is_filtered(&self) -> bool {
        let options = &self.how.report;
        !options.filter.is_empty() || !options.suppressions.is_empty()
    }

    fn sums(&self, (mut item, stacks): (Loaded, Option<Vec<u64>>)) -> Result<ProcessSums, Failure> {
        let point = self.how.at.cloned().unwrap_or_else(|| item.snapshot.usual_point());
        let is_elsewhere = matches!(point, Point::Mark(_) | Point::Time(_));
        if is_elsewhere || self.is_filtered() || is_running(&item.snapshot) {
            return self.sums_of_report(item, &point);
        }
        item.snapshot = item
            .snapshot
            .into_at(&point)
            .map_err(|error| Failure::new(error.to_string()))?;
        let keys = match stacks {
            Some(stacks) => Keys::with(stacks, &item.snapshot),
            None => Keys::of(&item.snapshot),
        };
        let look_up = || self.sites.read().unwrap_or_else(PoisonError::into_inner).named(&keys);
        let mut named = look_up();
        if !named.is_complete() {
            lock(&self.symbols).name(&mut item, self.how.names);
            let mut sites = self.sites.write().unwrap_or_else(PoisonError::into_inner);
            sites.learn(&item.snapshot, &keys);
            drop(sites);
            named = look_up();
        }
        Ok(ProcessSums::of(&item.snapshot, &named, item.source))
    }

    /// The slow way: a whole report of the process, as far as filters, the driver's figures and other points need one.
    fn sums_of_report(&self, mut item: Loaded, point: &Point) -> Result<ProcessSums, Failure> {
        at::show(&mut item, Some(point), self.how.names)?;
        if item.snapshot.taken.point.is_none() {
            usage::ask_driver(&mut item);
        }
        let options = report::Options {
            source: item.source.clone(),
            points: item.points.clone(),
            top: None,
            min_bytes: 0,
            stacks_kept: Some(STACKS_KEPT),
            ..self.how.report.clone()
        };
        let report = Report::of(&item.snapshot, &options);
        let mut sites = self.sites.write().unwrap_or_else(PoisonError::into_inner);
        Ok(ProcessSums::of_report(&item.snapshot, &report, &mut sites))
    }
}

fn is_running(snapshot: &Snapshot) -> bool {
    snapshot.process.state == ProcessState::Running && snapshot.taken.automatic.is_none()
}

fn numbered(places: &[Place], nth: usize) -> Option<(u32, &Place)> {
    Some((u32::try_from(nth).ok()?, places.get(nth)?))
}

/// A failure names its input; beside the input it need not.
pub fn unreadable_input(source: String, failure: &Failure) -> Unreadable {
    let reason = failure.to_string();
    let rest = reason.strip_prefix(&source).and_then(|rest| rest.strip_prefix(": "));
    Unreadable {
        reason: rest.unwrap_or(&reason).to_owned(),
        source,
    }
}

/// Symbols by module (path and build id) and address. Misses are kept too.
#[derive(Default)]
pub struct Symbols(HashMap<(String, String), HashMap<u64, Vec<Symbol>>>);

impl Symbols {
    /// Looks up the names of a snapshot's frames.
    pub fn name(&mut self, item: &mut Loaded, names: &NameArgs) {
        let (root, source) = (item.root.clone(), item.source.clone());
        self.name_with(&mut item.snapshot, |part| {
            let mut part = Loaded::of(std::mem::take(part), source).below(root);
            names.name_frames(&mut part);
            part.snapshot
        });
    }

    /// As [`Symbols::name`]. `look_up` names all frames of a snapshot without memory.
    pub fn name_with(&mut self, snapshot: &mut Snapshot, look_up: impl FnOnce(&mut Snapshot) -> Snapshot) {
        let key = |location: &Location| {
            let module = &snapshot.modules[location.module.filter(|_| location.symbols.is_empty())?];
            Some((module.path.clone(), module.build_id.clone()))
        };
        let keys: Vec<Option<(String, String)>> = snapshot.locations.iter().map(key).collect();
        let mut unknown: Vec<usize> = Vec::new();
        for (nth, key) in keys.iter().enumerate() {
            let Some(key) = key else { continue };
            let location = &mut snapshot.locations[nth];
            match self.0.get(key).and_then(|module| module.get(&location.address)) {
                Some(symbols) => location.symbols.clone_from(symbols),
                None => unknown.push(nth),
            }
        }
        if unknown.is_empty() {
            return;
        }
        let mut part = Snapshot {
            taken: snapshot.taken.clone(),
            process: snapshot.process.clone(),
            modules: snapshot.modules.clone(),
            locations: unknown.iter().map(|&nth| snapshot.locations[nth].clone()).collect(),
            ..Snapshot::empty()
        };
        let part = look_up(&mut part);
        for (nth, location) in unknown.into_iter().zip(part.locations) {
            if let Some(key) = &keys[nth] {
                let module = self.0.entry(key.clone()).or_default();
                module.insert(location.address, location.symbols.clone());
            }
            snapshot.locations[nth].symbols = location.symbols;
        }
    }
}

/// Reports inputs that cannot be read, or have no answer; JSON lists all.
pub fn fail_unreadable(inputs: &[Unreadable]) {
    const SHOWN: usize = 10;
    let reasons = by_reason(inputs);
    for reason in reasons.iter().take(SHOWN) {
        progress::fail(&Failure::new(reason.as_str()));
    }
    let more = reasons.len().saturating_sub(SHOWN);
    if more > 0 {
        progress::fail(&Failure::new(format!(
            "inputs are left out for {more} more reasons; --json lists them"
        )));
    }
}

/// Each reason once: with its input, or with one of them and their number.
fn by_reason(unreadable: &[Unreadable]) -> Vec<String> {
    let mut different: Vec<(String, &Unreadable, usize)> = Vec::new();
    for input in unreadable {
        // A reason may name its input, as in a command to type.
        let general = match input.source.is_empty() {
            true => input.reason.clone(),
            false => input.reason.replace(&input.source, "\0"),
        };
        match different.iter_mut().find(|(known, ..)| *known == general) {
            Some((_, _, count)) => *count += 1,
            None => different.push((general, input, 1)),
        }
    }
    let text = |(_, first, count): (String, &Unreadable, usize)| match (first.source.as_str(), count) {
        ("", 1) => first.reason.clone(),
        ("", count) => format!("{count} times: {}", first.reason),
        (source, 1) => format!("{source}: {}", first.reason),
        (source, count) => format!("{count} inputs, such as {source}: {}", first.reason),
    };
    different.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_many_inputs_is_said_once() {
        let mut inputs: Vec<Unreadable> = (0..64)
            .map(|rank| Unreadable {
                source: format!("runs/{rank}.culeak"),
                reason: format!("not searched; use culeak why --core FILE runs/{rank}.culeak"),
            })
            .collect();
        inputs.push(Unreadable {
            source: "runs/x.culeak".to_owned(),
            reason: "empty".to_owned(),
        });
        let said = by_reason(&inputs);
        assert_eq!(
            said,
            [
                "64 inputs, such as runs/0.culeak: not searched; use culeak why --core FILE runs/0.culeak",
                "runs/x.culeak: empty"
            ]
        );
    }
}
