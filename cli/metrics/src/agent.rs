//! What is read again, and when: recordings that changed, within a part of the time, and growth over all of it.
//!
//! ```text
//! each pass:  folders ─► recordings ─► pulse ─ unchanged ─► the samples of the last pass
//!                                            └ changed ───► read ─► report ─► samples
//!                                                               └─► history ─► growth
//! ```
//!
//! At rest a pass costs a few system calls for each process. Reading takes at most a tenth of the time between
//! passes, after the first pass, which reads everything; the recording that was read longest ago is read first. What failed is tried
//! again after a while. The driver is asked about one process in a pass at most. Deliberately absent: sleeping and
//! writing; the caller does both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use culeak::analysis::report::{Options, Report};
use culeak::analysis::trend::{self, History, Summary};
use culeak::proc::start_ticks;
use culeak::reader::{self, Pulse, ReadError};
use culeak::snapshot::{DeviceUsage, ProcessState, Snapshot, Usage};

use crate::choice::Choice;
use crate::families::Name;
use crate::find::Recordings;
use crate::page::{Page, ProcessSamples, Sample, Value};
use crate::process::{Growth, Shown, growth_samples, samples};

/// What the agent cannot do itself.
pub trait Inputs {
    /// Reads a recording or a snapshot file as `culeak report` does by default, with the names of its frames.
    ///
    /// # Errors
    /// Why it cannot be read, in one line.
    fn read(&mut self, path: &Path) -> Result<Snapshot, String>;

    /// Stores the driver's figures in the snapshot of a running process.
    fn ask_driver(&mut self, snapshot: &mut Snapshot);

    /// Whether the pass is to end early: its result is not used.
    fn is_stopping(&mut self) -> bool {
        false
    }
}

/// Receives what a pass found, for instance to serve, write or push it.
pub trait Outlet {
    /// # Errors
    /// What failed, in one line. The next pass calls again.
    fn updated(&mut self, update: &Update) -> Result<(), String>;
}

/// The result of a pass.
#[derive(Debug)]
pub struct Update {
    pub page: Page,
    /// What failed, and did not in the pass before.
    pub failures: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub folders: Vec<PathBuf>,
    pub files: Vec<PathBuf>,
    pub job_id: String,
    /// Call sites with series of their own, for each process.
    pub top: usize,
    /// Processes with series of their own.
    pub processes: usize,
    /// Ended processes are left out after this time, unless their file is named.
    pub forget: Option<Duration>,
    /// Between two passes.
    pub interval: Duration,
}

/// Time between two questions to the driver about one process, and after a question without an answer.
const ASK_EVERY: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// Time between two looks whether a process that has its pid and start time still maps its recording: an exec keeps both.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// A process of another host, whose end is not seen, has series of growth until its recording has not changed for this time.
const GROWS_FOR: Duration = Duration::from_secs(600);
/// The wait before something is tried again that failed.
const AGAIN: Duration = Duration::from_secs(30);

pub struct Agent {
    settings: Settings,
    targets: BTreeMap<PathBuf, Target>,
    /// The driver's figures by UUID.
    gpus: BTreeMap<String, (u64, u64)>,
    no_driver_until: Option<Instant>,
    /// What failed in the last pass.
    known_failures: BTreeSet<String>,
    is_first: bool,
}

/// A recording or a snapshot file.
#[derive(Default)]
struct Target {
    state: Option<Seen>,
    /// As of the last read.
    samples: Option<ProcessSamples>,
    failure: Option<String>,
    /// Ended, and longer ago than processes are shown.
    forgotten: bool,
    process: Option<Watched>,
    choice: Choice,
    history: History,
    growth: Growth,
    read_at: Option<Instant>,
    asked_at: Option<Instant>,
    /// When it is tried again if it failed, on the clock of the caller.
    again_at: Duration,
}

/// What a file looked like when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Pulse(Pulse),
    /// Of a file that does not change any more, or is no recording: device, inode, bytes, time.
    File(u64, u64, u64, i64),
}

/// The process of a recording.
#[derive(Debug)]
struct Watched {
    state: ProcessState,
    /// Pid and start time here, while it runs.
    here: Option<(u32, u64)>,
    looked_at: Instant,
    /// On the recording's clock, when it was read.
    at_ns: u64,
    ended_unix_ns: u64,
}

impl Agent {
    pub fn new(settings: Settings) -> Agent {
        Agent {
            settings,
            targets: BTreeMap::new(),
            gpus: BTreeMap::new(),
            no_driver_until: None,
            known_failures: BTreeSet::new(),
            is_first: true,
        }
    }

    /// Brings everything up to date. `now_unix_ns`: wall clock.
    pub fn pass(&mut self, inputs: &mut dyn Inputs, now_unix_ns: u64) -> Update {
        let began = Instant::now();
        let mut failures = Vec::new();
        let found = Recordings::below(&self.settings.folders);
        for (folder, reason) in &found.failures {
            failures.push(format!("{}: cannot be searched: {reason}", folder.display()));
        }
        let mut paths = found.paths;
        paths.extend(self.settings.files.iter().cloned());
        self.targets.retain(|path, _| paths.contains(path));
        for path in paths {
            self.targets.entry(path).or_default();
        }
        let now = Duration::from_nanos(now_unix_ns);
        let changed = self.changed(now);
        let budget = (!self.is_first).then_some(self.settings.interval / 10);
        let has_time = || budget.is_none_or(|budget| began.elapsed() < budget);
        let mut may_ask = true;
        for (nth, path) in changed.into_iter().enumerate() {
            if inputs.is_stopping() || nth > 0 && !has_time() {
                break;
            }
            self.read(&path, inputs, now_unix_ns, &mut may_ask);
        }
        self.judge();
        for (path, target) in &self.targets {
            let shown = path.display().to_string();
            failures.extend(target.failure.iter().map(|failure| match failure.contains(&shown) {
                true => failure.clone(),
                false => format!("{shown}: {failure}"),
            }));
        }
        self.is_first = false;
        let failures: BTreeSet<String> = failures.into_iter().collect();
        let new = failures.difference(&self.known_failures).cloned().collect();
        self.known_failures = failures;
        Update {
            page: self.page(now_unix_ns, began),
            failures: new,
        }
    }

    /// The inputs that have changed, and those that failed and are tried again; those that were read longest ago first.
    fn changed(&mut self, now: Duration) -> Vec<PathBuf> {
        let mut changed: Vec<(Option<Instant>, PathBuf)> = Vec::new();
        for (path, target) in &mut self.targets {
            let again = target.failure.is_some() && now >= target.again_at;
            if again || target.has_changed(path) {
                changed.push((target.read_at, path.clone()));
            }
        }
        changed.sort();
        changed.into_iter().map(|(_, path)| path).collect()
    }

    fn read(&mut self, path: &Path, inputs: &mut dyn Inputs, now_unix_ns: u64, may_ask: &mut bool) {
        let Some(target) = self.targets.get_mut(path) else {
            return;
        };
        target.read_at = Some(Instant::now());
        // Before the read: what changes meanwhile is read in the next pass.
        let (seen, recording) = match look(path) {
            Ok(seen) => seen,
            Err(ReadError::Empty(_) | ReadError::Unfinished(_)) => {
                target.failure = None;
                return;
            }
            Err(error) => return target.fail(path, error.to_string(), now_unix_ns),
        };
        let mut snapshot = match inputs.read(path) {
            Ok(snapshot) => snapshot,
            Err(reason) => return target.fail(path, reason, now_unix_ns),
        };
        target.failure = None;
        let is_new = target.process.is_none();
        target.know(&snapshot);
        let runs = snapshot.process.state == ProcessState::Running && recording;
        // A finished recording does not change any more; that of another host may.
        let is_final = snapshot.process.state.has_ended();
        target.state = if is_final {
            file_state(path).or(Some(seen))
        } else {
            Some(seen)
        };
        target.forgotten = is_final
            && !self.settings.files.iter().any(|file| file == path)
            && self.settings.forget.is_some_and(|forget| {
                let ended = target.process.as_ref().map_or(0, |process| process.ended_unix_ns);
                u128::from(now_unix_ns.saturating_sub(ended)) > forget.as_nanos()
            });
        if target.forgotten {
            target.samples = None;
            target.history = History::default();
            return;
        }
        let wait = target.asked_at.is_some_and(|asked| asked.elapsed() < ASK_EVERY);
        let no_driver = self.no_driver_until.is_some_and(|until| Instant::now() < until);
        if runs && *may_ask && !wait && !no_driver && !snapshot.devices.is_empty() {
            *may_ask = false;
            target.asked_at = Some(Instant::now());
            inputs.ask_driver(&mut snapshot);
            let answered = learn(&mut self.gpus, &snapshot);
            self.no_driver_until = (!answered).then(|| Instant::now() + ASK_AGAIN);
        }
        if is_new {
            let spacing = u64::try_from(self.settings.interval.as_nanos()).unwrap_or(u64::MAX);
            target.history = History::spaced(spacing * 9 / 10);
        }
        let fresh = snapshot.usage.take();
        snapshot.usage = remembered(&self.gpus, &snapshot);
        target
            .history
            .add(Summary::of(&snapshot, String::new(), &trend::Options::default()));
        snapshot.usage = fresh;
        target.growth = judged(&target.history);
        let report = Report::of(&snapshot, &Options::default());
        let shown = Shown {
            job_id: &self.settings.job_id,
            top: self.settings.top,
        };
        let mut now = samples(&snapshot, &report, &target.growth, shown, &mut target.choice);
        // The end of a script is shown once it has ended, and by then more had happened.
        target.samples.iter().for_each(|before| now.never_fall(before));
        target.samples = Some(now);
    }

    /// Adds points to the history of processes that did not change, and judges those again that grew.
    fn judge(&mut self) {
        for target in self.targets.values_mut() {
            let (Some(process), Some(samples)) = (&target.process, &mut target.samples) else {
                continue;
            };
            let since_read = target.read_at.map_or(Duration::ZERO, |read| read.elapsed());
            let at_ns = process
                .at_ns
                .saturating_add(u64::try_from(since_read.as_nanos()).unwrap_or(u64::MAX));
            if process.state == ProcessState::Unknown && since_read >= GROWS_FOR {
                samples.growth.clear();
            }
            if process.state != ProcessState::Running || !target.history.wants(at_ns) {
                continue;
            }
            target.history.repeat(at_ns);
            // A flat line makes nothing grow.
            if target.growth.trend.as_ref().is_some_and(trend::Trend::is_growing) {
                target.growth = judged(&target.history);
            }
            target.growth.points = target.history.points();
            samples.growth = growth_samples(&target.growth, self.settings.top);
        }
    }

    fn page(&mut self, now_unix_ns: u64, began: Instant) -> Page {
        let mut page = Page::default();
        let all = self.targets.values().filter_map(|target| target.samples.as_ref());
        let exported = page.add_processes(all, self.settings.processes);
        let count = |wanted: fn(&Target) -> bool| self.targets.values().filter(|target| wanted(target)).count();
        let states = [
            ("exported", exported.exported),
            ("duplicate", exported.duplicates),
            ("left_out", exported.left_out + count(|target| target.forgotten)),
            ("unreadable", count(|target| target.failure.is_some())),
        ];
        for (state, number) in states {
            page.add(Sample::new(Name::Recordings, [state.to_owned()], Value(number as f64)));
        }
        let mut node = |of, value: f64| page.add(Sample::new(of, [], Value(value)));
        node(Name::LeftOut, exported.series_left_out as f64);
        node(Name::Updated, now_unix_ns as f64 / 1e9);
        node(Name::UpdateTime, began.elapsed().as_secs_f64());
        for (labels, figures) in self.gpus_in_use() {
            page.add(Sample::new(Name::GpuUsed, labels.clone(), Value(figures.0 as f64)));
            page.add(Sample::new(Name::GpuTotal, labels, Value(figures.1 as f64)));
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        page.add(Sample::new(Name::BuildInfo, [version], Value(1.0)));
        page
    }

    /// Host and UUID of the devices of running processes, with the driver's figures.
    fn gpus_in_use(&self) -> BTreeMap<[String; 2], (u64, u64)> {
        let all = self.targets.values().filter_map(|target| target.samples.as_ref());
        let running = all.filter(|process| process.running);
        let devices = running.flat_map(|process| {
            let infos = process.samples.iter().filter(|sample| sample.of == Name::DeviceInfo);
            infos.map(|info| [process.identity.0[1].clone(), info.labels[1].clone()])
        });
        devices
            .filter_map(|labels| Some((labels.clone(), *self.gpus.get(&labels[1])?)))
            .collect()
    }
}

impl Target {
    fn has_changed(&mut self, path: &Path) -> bool {
        match self.state {
            None => true,
            Some(known @ Seen::File(..)) => file_state(path) != Some(known),
            Some(known @ Seen::Pulse(_)) => {
                let runs_on = match &mut self.process {
                    Some(process) if process.state == ProcessState::Running => process.runs_on(),
                    _ => true,
                };
                !runs_on || reader::pulse(path).map_or(true, |pulse| Seen::Pulse(pulse) != known)
            }
        }
    }

    fn fail(&mut self, path: &Path, reason: String, now_unix_ns: u64) {
        // What failed for another reason, such as too many open files, changes no file.
        self.state = file_state(path);
        self.failure = Some(reason);
        self.again_at = Duration::from_nanos(now_unix_ns) + AGAIN;
    }

    fn know(&mut self, snapshot: &Snapshot) {
        let process = &snapshot.process;
        let is_running = process.state == ProcessState::Running;
        let here = start_ticks(process.number()).filter(|_| is_running);
        self.process = Some(Watched {
            state: process.state,
            here: here.map(|ticks| (process.number(), ticks)),
            looked_at: Instant::now(),
            at_ns: snapshot.taken.lasted_ns.unwrap_or(snapshot.taken.at_ns),
            ended_unix_ns: process
                .started_unix_ns
                .saturating_add(snapshot.taken.lasted_ns.unwrap_or(snapshot.taken.at_ns)),
        });
    }
}

impl Watched {
    /// Whether the process still runs, as far as a short look tells.
    fn runs_on(&self) -> bool {
        let is_there = self.here.is_some_and(|(pid, ticks)| start_ticks(pid) == Some(ticks));
        is_there && self.looked_at.elapsed() < LOOK_EVERY
    }
}

/// The state of a file, and whether it is a recording.
fn look(path: &Path) -> Result<(Seen, bool), ReadError> {
    match reader::pulse(path) {
        Ok(pulse) => Ok((Seen::Pulse(pulse), true)),
        Err(ReadError::Foreign(_)) => match file_state(path) {
            Some(state) => Ok((state, false)),
            None => Err(ReadError::Foreign(path.to_path_buf())),
        },
        Err(error) => Err(error),
    }
}

fn file_state(path: &Path) -> Option<Seen> {
    let metadata = fs::metadata(path).ok()?;
    Some(Seen::File(
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
    ))
}

fn judged(history: &History) -> Growth {
    Growth {
        points: history.points(),
        trend: history.trend(&trend::Options::default()),
    }
}

/// Remembers the driver's figures; whether there were any.
fn learn(gpus: &mut BTreeMap<String, (u64, u64)>, snapshot: &Snapshot) -> bool {
    let usages = snapshot.usage.iter().flat_map(|usage| &usage.devices);
    let mut any = false;
    for usage in usages {
        if let Some(device) = snapshot.devices.get(usage.device) {
            gpus.insert(device.uuid.clone(), (usage.used_bytes, usage.total_bytes));
            any = true;
        }
    }
    any
}

/// The driver's figures as they were last, for the devices of a snapshot.
fn remembered(gpus: &BTreeMap<String, (u64, u64)>, snapshot: &Snapshot) -> Option<Usage> {
    let usage = |(device, uuid): (usize, &str)| {
        let &(used_bytes, total_bytes) = gpus.get(uuid)?;
        Some(DeviceUsage {
            device,
            total_bytes,
            used_bytes,
            ..DeviceUsage::default()
        })
    };
    let devices = snapshot.devices.iter().map(|device| device.uuid.as_str()).enumerate();
    let devices: Vec<DeviceUsage> = devices.filter_map(usage).collect();
    (!devices.is_empty()).then(|| Usage {
        devices,
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests;
