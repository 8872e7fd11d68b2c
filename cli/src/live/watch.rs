//! The watching thread: finds processes, reads their recordings in turn, looks up names, and sends the readings.
//!
//! Each refresh reads the process on the screen, then others in turn: at least one, and more until half of the interval
//! has passed. Recordings of ended processes are read once, and a recording that has not changed is not read again
//! (`culeak::reader::pulse`). Reading copies from the file, so it does not disturb the process. If a refresh takes
//! longer than half of the interval, the thread sleeps as long as it took. Names are looked up once each.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use culeak::reader::{self, Identity, Pulse, ReadError};
use culeak::snapshot::{ProcessState, Snapshot};

use super::Message;
use super::driver::{self, Asked, Driver};
use super::reading::Reading;
use super::state::State;
use crate::load;
use crate::load::NameArgs;
use crate::load::many::Symbols;
use crate::symbolize::{sentences, symbolize};

/// What the user asked to watch.
#[derive(Debug, Clone)]
pub enum Source {
    /// This process and those it starts.
    Process(u32),
    /// A recording and those of processes that the recorded one starts, or a folder of recordings. It need not exist yet.
    Path(PathBuf),
    /// The recordings of one run, identified by the mark in their names.
    Run { folder: PathBuf, mark: String },
}

impl Source {
    /// Text to show while there is nothing else.
    pub fn waiting(&self) -> String {
        match self {
            Source::Process(pid) if load::has_no_library(*pid) => {
                format!("process {pid} was started without culeak: searching for what holds its memory")
            }
            Source::Process(pid) => format!("waiting for the first CUDA call of process {pid}"),
            Source::Path(path) if path.is_dir() => {
                format!("waiting for recordings (*.culeak) in {}", path.display())
            }
            Source::Path(path) => format!("waiting for {}, which does not exist yet", path.display()),
            Source::Run { .. } => "waiting for the first CUDA call of the program".to_owned(),
        }
    }
}

/// Time between two searches for processes.
const SEARCH: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Target {
    recording: PathBuf,
    /// The root folder of the process, if it differs from ours.
    root: Option<PathBuf>,
    /// The last reading, if no record was about to change.
    last: Option<(Pulse, Instant, Arc<Reading>)>,
    /// What the driver said of its devices, and that no reading has paired it with the recording yet.
    usage: Option<Asked>,
    is_new: bool,
    /// The last reading with figures of the driver.
    paired: Option<Arc<Reading>>,
    ended: bool,
    /// The process was never recorded: its memory is read, and the rows are holders. When that began.
    unrecorded: Option<(u32, Instant)>,
}

/// Watches until the receiver of messages is gone. `chosen` receives the recording on the screen whenever it changes.
pub fn serve(
    source: &Source,
    interval: Duration,
    names: NameArgs,
    messages: &Sender<Message>,
    chosen: &Receiver<PathBuf>,
) {
    let mut search = Search::default();
    let mut targets: Vec<Target> = Vec::new();
    let mut on_screen: Option<PathBuf> = None;
    let mut searched: Option<Instant> = None;
    let (mut turns, mut driver, mut names) = (Turns::default(), Driver::default(), Names::new(names));
    loop {
        let began = Instant::now();
        if searched.is_none_or(|searched| searched.elapsed() >= SEARCH.min(interval * 2)) {
            searched = Some(began);
            let found = search.run(source, &targets);
            if targets.is_empty()
                && found.is_empty()
                && messages.send(Message::Waiting(search.waiting(source))).is_err()
            {
                return;
            }
            if targets.is_empty() && found.iter().any(|target| target.unrecorded.is_none()) {
                let text = "reading the recording and the names of its functions …".to_owned();
                let _ = messages.send(Message::Waiting(text));
            }
            targets.extend(found);
        }
        if let Some((recording, usage)) = driver.answer()
            && let Some(target) = targets.iter_mut().find(|target| target.recording == recording)
        {
            target.answered(usage);
        }
        let is_chosen = |target: &Target| Some(&target.recording) == on_screen.as_ref();
        let first = targets.iter().position(is_chosen).unwrap_or(0);
        let there_is_time = || began.elapsed() < interval / 2;
        let receiver_gone = turns.take(&mut targets, first, there_is_time, |target, is_first| {
            let message = target.read(&mut names);
            if let Some(Message::Reading(reading)) = message.as_ref().filter(|_| is_first) {
                driver.ask(reading);
            }
            let notes = Message::Notes(std::mem::take(&mut names.notes));
            message
                .into_iter()
                .chain([notes])
                .all(|message| messages.send(message).is_ok())
        });
        if receiver_gone {
            return;
        }
        let took = began.elapsed();
        let mut rest = interval.saturating_sub(took).max(took);
        // While there is nothing to show, search more often.
        if targets.is_empty() {
            rest = rest.min(Duration::from_millis(200));
        }
        match chosen.recv_timeout(rest) {
            Ok(path) => on_screen = Some(path),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reads every process once, with the driver's usage if it answers.
pub fn once(source: &Source, names: NameArgs) -> Vec<State> {
    let (mut search, mut names) = (Search::default(), Names::new(names));
    let mut targets = search.run(source, &[]);
    // Child processes record into the same folder.
    targets.extend(search.run(source, &targets));
    let read = |mut target: Target| {
        let mut message = target.read(&mut names)?;
        if let Message::Reading(reading) = &message
            && let Some((pid, uuids)) = driver::question(reading)
        {
            target.answered(Some(driver::asked(pid, uuids)));
            message = target.read(&mut names)?;
        }
        let mut state = State::new(source.waiting());
        match message {
            Message::Reading(reading) => state.add_reading(reading),
            Message::Unreadable(recording, why) => state.unreadable(&recording, why),
            _ => {}
        }
        Some(state)
    };
    targets.into_iter().filter_map(read).collect()
}

/// The order in which processes are read.
#[derive(Default)]
struct Turns {
    next: usize,
}

impl Turns {
    /// Reads the target `first`, then one other, then more while there is time, continuing where the last refresh
    /// stopped. Returns true if the receiver is gone.
    fn take(
        &mut self,
        targets: &mut [Target],
        first: usize,
        there_is_time: impl Fn() -> bool,
        mut read: impl FnMut(&mut Target, bool) -> bool,
    ) -> bool {
        if let Some(target) = targets.get_mut(first).filter(|target| !target.ended)
            && !read(target, true)
        {
            return true;
        }
        let mut turns = 0;
        for _ in 0..targets.len() {
            if turns > 0 && !there_is_time() {
                break;
            }
            let index = self.next % targets.len();
            self.next = index + 1;
            let target = &mut targets[index];
            if index == first || target.ended {
                continue;
            }
            if !read(target, false) {
                return true;
            }
            turns += 1;
        }
        false
    }
}

/// Looks up names once each, and keeps the new notes on modules without symbols.
struct Names {
    args: NameArgs,
    symbols: Symbols,
    notes: Vec<String>,
    noted: HashSet<String>,
}

impl Names {
    fn new(args: NameArgs) -> Names {
        Names {
            args,
            symbols: Symbols::default(),
            notes: Vec::new(),
            noted: HashSet::new(),
        }
    }

    fn look_up(&mut self, snapshot: &mut Snapshot, root: Option<PathBuf>) {
        let (places, mut notes) = (self.args.places(root), Vec::new());
        self.symbols.name_with(snapshot, |unknown| {
            notes = symbolize(unknown, &places);
            std::mem::take(unknown)
        });
        self.note(sentences(notes));
    }

    fn note(&mut self, notes: Vec<String>) {
        let new = notes.into_iter().filter(|note| self.noted.insert(note.clone()));
        self.notes.extend(new);
    }
}

impl Target {
    fn new(recording: PathBuf) -> Target {
        Target {
            recording,
            ..Target::default()
        }
    }

    fn unrecorded(pid: u32) -> Target {
        Target {
            unrecorded: Some((pid, Instant::now())),
            ..Target::new(PathBuf::from(pid.to_string()))
        }
    }

    /// Takes an answer of the driver, which the next reading is paired with, unless the last one is, with the same figures.
    fn answered(&mut self, usage: Option<Asked>) {
        if self.usage == usage
            && let Some(now) = self.unchanged()
            && let Some((.., last)) = &mut self.last
            && last.ledger_at_ns >= last.at_ns
        {
            Arc::make_mut(last).ledger_at_ns = now.at_ns;
            return;
        }
        (self.usage, self.is_new, self.last) = (usage, true, None);
    }

    /// A reading, or why there is none; `None`: the process is still creating its recording.
    fn read(&mut self, names: &mut Names) -> Option<Message> {
        if let Some((pid, began)) = self.unrecorded {
            return Some(self.search(pid, began, names));
        }
        let unchanged = self.unchanged();
        match unchanged.map_or_else(|| self.read_again(names), Ok) {
            Ok(reading) => {
                // A recording from another host or an automatic snapshot does not change either, but may still be copied here.
                self.ended = reading.finished;
                Some(Message::Reading(reading))
            }
            Err(ReadError::Empty(_) | ReadError::Unfinished(_)) => None,
            Err(error) => Some(Message::Unreadable(self.recording.clone(), error.to_string())),
        }
    }

    /// Reads a process that was never recorded. Each holder is a stack.
    fn search(&mut self, pid: u32, began: Instant, names: &mut Names) -> Message {
        let (mut snapshot, notes) = match load::by_holder(pid) {
            Ok(found) => found,
            Err(failure) => {
                self.ended = !load::process_lives(pid);
                return Message::Unreadable(self.recording.clone(), failure.to_string());
            }
        };
        names.note(notes);
        snapshot.taken.at_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut reading = Reading::of(&snapshot, self.recording.clone());
        // Of blocks in pools, the memory of the pool is not known.
        reading.devices.retain(|device| device.live.bytes > 0);
        Message::Reading(Arc::new(reading))
    }

    /// The last reading at the present time, if the process still runs and nothing was recorded since.
    fn unchanged(&self) -> Option<Arc<Reading>> {
        let (pulse, read, reading) = self.last.as_ref()?;
        let stays = reading.process.state == ProcessState::Running
            && reader::is_running(&self.recording).is_ok_and(|runs| runs)
            && reader::pulse(&self.recording).is_ok_and(|now| now == *pulse);
        stays.then(|| {
            let at_ns = reading.at_ns + u64::try_from(read.elapsed().as_nanos()).unwrap_or(0);
            Arc::new(Reading {
                at_ns,
                // A ledger without figures of the driver does not grow old.
                ledger_at_ns: self.paired.as_ref().map_or(at_ns, |_| reading.ledger_at_ns),
                ..Reading::clone(reading)
            })
        })
    }

    /// Reads the whole recording.
    fn read_again(&mut self, names: &mut Names) -> Result<Arc<Reading>, ReadError> {
        // Taken first, so that later changes show in the next one.
        let (pulse, read) = (reader::pulse(&self.recording)?, Instant::now());
        let mut snapshot = reader::read_once(&self.recording)?;
        names.look_up(&mut snapshot, self.root.clone());
        let is_running = snapshot.process.state == ProcessState::Running;
        // An answer without figures is of no instant.
        let usage = self
            .usage
            .as_ref()
            .filter(|(_, usage)| is_running && (self.is_new || usage.devices.is_empty()));
        snapshot.usage = usage.map(|(uuids, usage)| driver::of_devices(&snapshot.devices, uuids, usage));
        self.is_new = false;
        let mut reading = Reading::of(&snapshot, self.recording.clone());
        if let (true, None, Some(paired)) = (is_running, &snapshot.usage, &self.paired) {
            reading.keep_usage_of(paired);
        }
        let reading = Arc::new(reading);
        if snapshot.usage.is_some() {
            let has_figures = self.usage.as_ref().is_some_and(|(_, usage)| !usage.devices.is_empty());
            self.paired = has_figures.then(|| Arc::clone(&reading));
        }
        // An allocation whose free has begun may be restored, and then the counters are as before.
        let is_settled = snapshot.taken.in_flight == 0 && !reading.finished;
        self.last = is_settled.then(|| (pulse, read, Arc::clone(&reading)));
        Ok(reading)
    }
}

/// Finds recordings, and caches the identities of those it has read.
#[derive(Default)]
struct Search {
    seen: HashMap<PathBuf, Option<Identity>>,
    /// The process has ended and left no recording.
    gone: bool,
}

impl Search {
    fn waiting(&self, source: &Source) -> String {
        match source {
            Source::Process(pid) if self.gone => {
                format!("process {pid} has ended, and no recording of it can be found; press q to quit")
            }
            source => source.waiting(),
        }
    }

    /// New recordings, in the order in which their processes started.
    fn run(&mut self, source: &Source, known: &[Target]) -> Vec<Target> {
        let is_known = |path: &Path| known.iter().any(|target| target.recording == path);
        let mut found: Vec<Target> = match source {
            Source::Run { folder, mark } => {
                let is_ours = |path: &PathBuf| {
                    let name = path.file_name().unwrap_or_default();
                    name.to_string_lossy().contains(mark.as_str())
                };
                self.all(recordings(folder).into_iter().filter(is_ours))
            }
            Source::Path(path) if path.is_dir() => self.all(recordings(path)),
            Source::Path(path) if known.is_empty() => self.all(path.is_file().then(|| path.clone())),
            Source::Process(pid) if known.is_empty() => match load::recording_of(*pid) {
                Ok((recording, root)) => below(Some(&root), self.all([recording])),
                Err(_) if load::has_no_library(*pid) => vec![Target::unrecorded(*pid)],
                Err(_) => {
                    self.gone = !load::process_lives(*pid);
                    Vec::new()
                }
            },
            Source::Path(_) | Source::Process(_) => self.children(known),
        };
        found.retain(|target| !is_known(&target.recording));
        let started = |target: &Target| Some(self.seen.get(&target.recording)?.as_ref()?.started_unix_ns);
        found.sort_by_key(|target| (started(target), target.recording.clone()));
        found
    }

    /// The recordings whose header can be read; the other files are incomplete or no recordings.
    fn all(&mut self, paths: impl IntoIterator<Item = PathBuf>) -> Vec<Target> {
        let mut found = Vec::new();
        for path in paths {
            let identity = self.identity(&path);
            if identity.is_some() {
                found.push(Target::new(path));
            }
        }
        found
    }

    fn identity(&mut self, path: &Path) -> Option<Identity> {
        if let Some(known) = self.seen.get(path) {
            return known.clone();
        }
        match reader::identity(path) {
            Ok(identity) => {
                self.seen.insert(path.to_path_buf(), Some(identity.clone()));
                Some(identity)
            }
            // The file exists before its header is written: try again later.
            Err(ReadError::Empty(_) | ReadError::Unfinished(_) | ReadError::Io(..)) => None,
            Err(_) => {
                self.seen.insert(path.to_path_buf(), None);
                None
            }
        }
    }

    /// Recordings beside the known ones, made by processes that the recorded ones started.
    fn children(&mut self, known: &[Target]) -> Vec<Target> {
        let family: Vec<Identity> = known
            .iter()
            .filter_map(|target| self.identity(&target.recording))
            .collect();
        let folders: HashSet<&Path> = known.iter().filter_map(|target| target.recording.parent()).collect();
        let beside: Vec<PathBuf> = folders.into_iter().flat_map(recordings).collect();
        let mut found = self.all(beside);
        found.retain(|target| {
            let Some(Some(child)) = self.seen.get(&target.recording) else {
                return false;
            };
            let parents: Vec<&Identity> = family
                .iter()
                .filter(|parent| parent.host == child.host && parent.started_unix_ns <= child.started_unix_ns)
                .collect();
            ancestors(child.parent_pid).any(|pid| parents.iter().any(|parent| parent.pid == pid))
        });
        below(known.first().and_then(|target| target.root.as_ref()), found)
    }
}

/// Processes with this root folder.
fn below(root: Option<&PathBuf>, mut targets: Vec<Target>) -> Vec<Target> {
    targets.iter_mut().for_each(|target| target.root = root.cloned());
    targets
}

/// A process and its living ancestors.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    /// Limits chains that loop because process ids were reused.
    const MOST: usize = 64;
    let parent = |&pid: &u32| {
        let parent = culeak::proc::stat_of(pid)?.parent;
        (parent > 1).then_some(parent)
    };
    std::iter::successors((pid > 1).then_some(pid), parent).take(MOST)
}

fn recordings(folder: &Path) -> Vec<PathBuf> {
    load::in_folder(folder, |name| name.ends_with(".culeak"))
}

#[cfg(test)]
mod tests;
