//! Copies the memory of processes that wait for it (`culeak::hold`), searches the copy for holders, and writes them beside the
//! recording.
//!
//! ```text
//! main thread       forwards signals; all signals are blocked in the other threads
//! copying thread    slot ─► Copied, and the process goes on ─┐
//! searching thread                                           └─► search ─► file beside the recording
//! ```
//!
//! A process waits for copies only, not for a search. Processes that wait at the same time are copied one after the other; if
//! memory is short, the copy waits for the searches before it.
//!
//! Deliberately absent: processes that begin to wait after the program has ended; they go on at once.

use std::any::Any;
use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use culeak::hold::{self, Holds, Moment, SLOTS, Slot, State, Waiting};
use culeak::point::Point;
use culeak::proc;
use culeak::proof::HOLDS;
use culeak_holders::source::copied::MemoryCopy;
use culeak_holders::source::{Source, live};
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};

use super::proof;
use crate::errors::Failure;
use crate::load::{self, Loaded, NameArgs, holders, sidecar};
use crate::symbolize::symbolize;

/// How long a process waits at most.
pub const LIMIT: Duration = Duration::from_secs(10);
/// How often it is checked whether waiting processes have died.
const LOOK_MS: u32 = 1000;
/// How long a process that waits for its copy, and cannot be stopped, may take to sleep.
const SETTLES: Duration = Duration::from_millis(200);

/// The threads that serve.
pub struct Serving {
    thread: JoinHandle<Vec<Served>>,
    area: &'static Holds,
    is_over: Arc<AtomicBool>,
}

/// A process that waited.
pub struct Served {
    pub process: String,
    /// Why there are no holders.
    pub failure: Option<String>,
}

impl Serving {
    /// Serves processes that map the file of facts: each waits until `limit`, and is searched until `search_limit`; `None`: the
    /// engine's default.
    ///
    /// # Errors
    /// The file cannot be mapped, or no thread can be started.
    pub fn start(facts: &Path, limit: Duration, search_limit: Option<Duration>) -> Result<Serving, Failure> {
        let failed =
            |error: io::Error| Failure::new(format!("--why: processes cannot be held: {error}; leave out --why"));
        let area = map(facts).map_err(failed)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (facts, ending) = (facts.to_owned(), Arc::clone(&is_over));
        // The new thread inherits a mask that leaves all signals to the main thread.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let (ready, is_ready) = mpsc::channel();
        let (copies, to_search) = mpsc::channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let searched = Arc::clone(&pending);
        let spawn_search = thread::Builder::new().name("why-search".to_owned());
        let wanted = holders::Wanted {
            limit: search_limit,
            ..holders::Wanted::default()
        };
        let searching = spawn_search.spawn(move || search_all(to_search, &wanted, &searched, area));
        let thread = searching.and_then(|searching| {
            thread::Builder::new().name("why".to_owned()).spawn(move || {
                own(area);
                let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
                area.limit_ms.store(limit.max(1), Release);
                let _ = ready.send(());
                let copying = Copying {
                    area,
                    copy: |waiting| Copied::of(waiting, &facts),
                    is_gone: |pid| find(pid, &facts).is_none(),
                    has_room: |pid| find(pid, &facts).is_none_or(has_room),
                    pending: &pending,
                    copies,
                };
                let mut served = copying.serve(&ending);
                area.owner.store(0, Release);
                served.extend(without_slot(area));
                served.extend(searching.join().unwrap_or_default());
                served
            })
        });
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        let thread = thread.map_err(failed)?;
        // The program starts after that, so its first process is served.
        let _ = is_ready.recv();
        Ok(Serving { thread, area, is_over })
    }

    /// Waits for the searches that have begun.
    pub fn finish(self) -> Vec<Served> {
        self.is_over.store(true, Release);
        self.area.bell.fetch_add(1, Release);
        hold::wake(&self.area.bell);
        self.thread.join().unwrap_or_default()
    }
}

fn map(facts: &Path) -> io::Result<&'static Holds> {
    let facts = proof::map(facts)?;
    // SAFETY: the area lies at this offset of the mapping and consists of atomics.
    Ok(unsafe { &*facts.add(HOLDS).cast::<Holds>() })
}

/// `struct robust_list_head` of the kernel.
#[repr(C)]
struct RobustList {
    next: *const RobustList,
    offset: libc::c_long,
    pending: *const libc::c_void,
}

/// Makes the kernel mark the area when this thread dies, by any signal too. The list of the C library is replaced, which is
/// empty: this thread has no robust mutex.
fn own(area: &'static Holds) {
    let list: &'static mut RobustList = Box::leak(Box::new(RobustList {
        next: ptr::null(),
        offset: 0,
        pending: area.owner.as_ptr().cast(),
    }));
    list.next = ptr::from_ref(list);
    // SAFETY: the list is never freed, is empty, and names a word that is never unmapped. The other call has no preconditions.
    let thread = unsafe {
        libc::syscall(
            libc::SYS_set_robust_list,
            ptr::from_ref(list),
            mem::size_of::<RobustList>(),
        );
        libc::syscall(libc::SYS_gettid)
    };
    area.owner.store(thread as u32, Release);
}

/// Copies the memory of waiting processes.
struct Copying<'a, C, Copy, Gone, Room> {
    area: &'a Holds,
    copy: Copy,
    /// No process has this id and waits.
    is_gone: Gone,
    /// There is memory for a copy of this process beside the copies that are pending.
    has_room: Room,
    /// How many copies are not searched yet.
    pending: &'a AtomicUsize,
    /// Dropped at the end, which ends the search.
    copies: Sender<(Waiting, C)>,
}

impl<C, Copy, Gone, Room> Copying<'_, C, Copy, Gone, Room>
where
    Copy: Fn(Waiting) -> Result<C, String>,
    Gone: Fn(u32) -> bool,
    Room: Fn(u32) -> bool,
{
    /// Returns the processes that were not copied.
    fn serve(self, is_over: &AtomicBool) -> Vec<Served> {
        let mut served = Vec::new();
        loop {
            let bell = self.area.bell.load(Acquire);
            // Acquire: pairs with the Release in `finish`. A process that waited before the end is served in this round.
            let is_last = is_over.load(Acquire);
            let mut is_put_off = false;
            for slot in self.area.slots() {
                match self.attend(slot) {
                    Attended::Done => {}
                    Attended::PutOff => is_put_off = true,
                    Attended::Failed(failed) => served.push(failed),
                }
            }
            if is_last && !is_put_off {
                return served;
            }
            hold::pause(&self.area.bell, bell, LOOK_MS);
        }
    }

    fn attend(&self, slot: &Slot) -> Attended {
        let Some((waiting, state)) = slot.read() else {
            return Attended::Done;
        };
        let failed = |reason| Attended::Failed(Served::of(waiting, Some(reason)));
        let late = || "went on before its memory was copied; raise --why-limit".to_owned();
        match state {
            // Acquire: pairs with the Release in `search_all`, so the memory of a copy that was searched is free.
            State::Waiting if self.pending.load(Acquire) > 0 && !(self.has_room)(waiting.pid) => {
                return Attended::PutOff;
            }
            State::Waiting if slot.change(waiting, State::Waiting, State::Copying) => {}
            State::Left => {
                slot.change(waiting, State::Left, State::Free);
                return failed(late());
            }
            // It died before it freed its slot.
            State::Done if (self.is_gone)(waiting.pid) => {
                slot.change(waiting, State::Done, State::Free);
                return Attended::Done;
            }
            _ => return Attended::Done,
        }
        let copied = caught(|| (self.copy)(waiting));
        if !slot.change(waiting, State::Copying, State::Done) {
            slot.change(waiting, State::Left, State::Free);
            return failed(copied.err().unwrap_or_else(late));
        }
        match copied {
            Ok(copied) => {
                self.pending.fetch_add(1, Relaxed);
                match self.copies.send((waiting, copied)) {
                    Ok(()) => Attended::Done,
                    Err(_) => failed("its memory could not be searched: the thread that searches has ended".to_owned()),
                }
            }
            Err(reason) => failed(reason),
        }
    }
}

enum Attended {
    /// The process is copied, or there is nothing to do.
    Done,
    /// The copy waits for memory.
    PutOff,
    Failed(Served),
}

impl Served {
    fn of(waiting: Waiting, failure: Option<String>) -> Served {
        Served {
            process: format!("process {}", waiting.pid),
            failure,
        }
    }
}

/// Processes that found all slots taken until their limit.
fn without_slot(area: &Holds) -> Option<Served> {
    let (count, pids) = area.without_slot();
    let mut process = match count {
        0 => return None,
        1 => "process".to_owned(),
        _ => "processes".to_owned(),
    };
    for (nth, pid) in pids.iter().enumerate() {
        let _ = write!(process, "{} {pid}", if nth > 0 { "," } else { "" });
    }
    match count as usize - pids.len().min(count as usize) {
        0 => {}
        more => {
            let _ = write!(process, " and {more} more");
        }
    }
    let failure = format!(
        "went on before memory was copied, while {SLOTS} others waited for that at the same time; raise --why-limit"
    );
    Some(Served {
        process,
        failure: Some(failure),
    })
}

/// Searches copies until no more can come.
fn search_all(
    copies: Receiver<(Waiting, Copied)>,
    wanted: &holders::Wanted,
    pending: &AtomicUsize,
    area: &Holds,
) -> Vec<Served> {
    let search = |(waiting, copied): (Waiting, Copied)| {
        let served = Served::of(waiting, caught(|| copied.search(wanted)).err());
        // Release: pairs with the Acquire in `attend`.
        pending.fetch_sub(1, Release);
        // A copy may wait for the memory.
        area.bell.fetch_add(1, Release);
        hold::wake(&area.bell);
        served
    };
    copies.into_iter().map(search).collect()
}

/// Whether half of the free memory is enough for a copy of the process. True if that is not known.
fn has_room(pid: u32) -> bool {
    let kib_of = |path: &str, name: &str| -> Option<u64> {
        let text = fs::read_to_string(path).ok()?;
        proc::words(&text, name)?.next()?.parse().ok()
    };
    let resident = kib_of(&format!("/proc/{pid}/status"), "VmRSS:");
    let free = kib_of("/proc/meminfo", "MemAvailable:");
    match (resident, free) {
        (Some(resident), Some(free)) => resident < free / 2,
        _ => true,
    }
}

/// A defect of the search must not stop the program's signals and report.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let reason = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown");
        format!("its memory could not be searched, by a defect of culeak ({text}); please report it")
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(reason(panic)))
}

/// The memory of a process while it waited.
struct Copied {
    item: Loaded,
    taken: MemoryCopy,
    /// The point of the recording; `None`: an automatic snapshot, which has no other.
    point: Option<Point>,
    took: Duration,
    /// How long none of its threads ran; zero if its other threads ran meanwhile.
    stood: Duration,
}

impl Copied {
    fn of(waiting: Waiting, facts: &Path) -> Result<Copied, String> {
        let began = Instant::now();
        let pid = find(waiting.pid, facts).ok_or("cannot be found: it has ended, or its id here is not known")?;
        let (recording, _) = load::recording_of(pid).map_err(|failure| reason(pid, failure))?;
        let (path, point) = match waiting.moment {
            Moment::End => (recording, Some(Point::End)),
            Moment::Exit => (recording, Some(Point::Exit)),
            Moment::OutOfMemory => {
                let ending = format!("out-of-memory-{}.culeak-snapshot", waiting.number);
                (sidecar::named_after(&recording, &ending), None)
            }
        };
        let source = live::Process::new(pid).map_err(|error| without_process(pid, &error.to_string()))?;
        // Its other threads would go on between the reading of the recording and the copy. Without the permission, they do. The
        // waiting thread may be about to wait, and shows its stack pointer only when it is stopped or waits.
        let stopping = Instant::now();
        let is_alone = source.threads().len() <= 1;
        let is_stopped = source.pause(true).is_ok();
        while !is_stopped
            && stopping.elapsed() < SETTLES
            && source.threads().iter().any(|one| one.stack_pointer.is_none())
        {
            thread::sleep(Duration::from_millis(1));
        }
        let item = load::Place::File(path).load().map_err(|failure| failure.message)?;
        let taken = MemoryCopy::of(&source, &holders::excluded(&item.snapshot));
        if is_stopped {
            let _ = source.pause(false);
        }
        let stood = match is_alone || is_stopped {
            true => stopping.elapsed(),
            false => Duration::ZERO,
        };
        let taken = taken.map_err(|error| format!("its memory cannot be copied: {error}"))?;
        let took = began.elapsed();
        Ok(Copied {
            item,
            taken,
            point,
            took,
            stood,
        })
    }

    /// Searches the copy, and writes the result beside the recording.
    fn search(mut self, wanted: &holders::Wanted) -> Result<(), String> {
        let began = Instant::now();
        // Modules without names are mentioned in the report.
        symbolize(&mut self.item.snapshot, &NameArgs::default().places(self.taken.root()));
        let live = holders::live_blocks(&self.item.snapshot);
        if self.point == Some(Point::End) {
            let snapshot = mem::take(&mut self.item.snapshot);
            self.item.snapshot = snapshot.into_at(&Point::End).map_err(|error| error.to_string())?;
        }
        let snapshot = &mut self.item.snapshot;
        let failed = |failure: Failure| failure.message.trim_start_matches("core file: ").to_owned();
        holders::attach(snapshot, &mut self.taken, wanted).map_err(failed)?;
        let mut found = snapshot.holders.take().unwrap_or_default();
        // Other threads may have freed blocks since the end of the script.
        holders::drop_all_but(&mut found, &live);
        found.search.point = self.point;
        found.search.paused_ns = self.stood.as_nanos() as u64;
        found.search.copy_ns = self.took.as_nanos() as u64;
        found.search.took_ns = (self.took + began.elapsed()).as_nanos() as u64;
        sidecar::write(Path::new(&self.item.source), snapshot, found).map_err(|failure| failure.message)
    }
}

/// The reason alone: [`Served`] has the process.
fn reason(pid: u32, failure: Failure) -> String {
    without_process(pid, &failure.message)
}

fn without_process(pid: u32, message: &str) -> String {
    let process = format!("process {pid}: ");
    message.strip_prefix(&process).unwrap_or(message).to_owned()
}

/// The id here of a process with this id in its own namespace, which maps the file of facts. If its main thread has ended, the
/// kernel shows its memory by the ids of other threads only: then that of one of these.
fn find(own_pid: u32, facts: &Path) -> Option<u32> {
    let name = facts.file_name()?.as_encoded_bytes();
    let maps = |id: &u32| {
        let mappings = proc::mappings(*id).unwrap_or_default();
        let is_of_facts = |file: &Path| file.file_name().is_some_and(|own| own.as_encoded_bytes() == name);
        mappings.iter().filter_map(proc::Mapping::file).any(is_of_facts)
    };
    let numbers = |folder: &str| proc::numbers(folder).into_iter().flatten();
    let is_named = |pid: u32| proc::own_pid(pid).unwrap_or(pid) == own_pid;
    let thread_of = |pid: u32| match maps(&pid) {
        true => Some(pid),
        false => numbers(&format!("/proc/{pid}/task")).find(maps),
    };
    let known = Some(own_pid).filter(|&pid| is_named(pid)).and_then(thread_of);
    known.or_else(|| numbers("/proc").filter(|&pid| is_named(pid)).find_map(thread_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        io::Write::write_all(&mut file, &[0; culeak::proof::BYTES]).expect("written");
        file
    }

    #[test]
    fn a_reason_does_not_repeat_the_process() {
        assert_eq!(without_process(7, "process 7: no such process"), "no such process");
        assert_eq!(without_process(7, "process 70: gone"), "process 70: gone");
    }

    #[test]
    fn a_process_that_cannot_be_read_goes_on_and_is_reported() {
        let file = facts();
        let serving = Serving::start(file.path(), LIMIT, None).expect("serves");
        let area = map(file.path()).expect("mapped");
        assert!(area.is_served());
        let waiting = Waiting {
            pid: u32::MAX,
            moment: Moment::End,
            number: 0,
        };
        let slot = area.claim(waiting).expect("a slot");
        while slot.read().map(|(_, state)| state) != Some(State::Done) {
            slot.pause(waiting, State::Waiting, 10);
        }
        assert!(slot.change(waiting, State::Done, State::Free));
        let served = serving.finish();
        assert_eq!(served.len(), 1);
        let failure = served[0].failure.as_deref().expect("no such process");
        assert!(failure.contains("cannot be found"), "{failure}");
        assert!(!area.is_served(), "nothing is served after the end");
    }

    #[test]
    fn a_process_that_left_frees_its_slot_and_is_reported() {
        let file = facts();
        let area = map(file.path()).expect("mapped");
        let waiting = Waiting {
            pid: 1,
            moment: Moment::OutOfMemory,
            number: 1,
        };
        let slot = area.claim(waiting).expect("a slot");
        assert!(slot.change(waiting, State::Waiting, State::Left));
        let served = Serving::start(file.path(), LIMIT, None).expect("serves").finish();
        assert!(
            served[0]
                .failure
                .as_deref()
                .is_some_and(|reason| reason.contains("--why-limit"))
        );
        assert_eq!(slot.read(), None);
    }

    #[test]
    fn processes_that_found_no_slot_are_named() {
        let file = facts();
        let area = map(file.path()).expect("mapped");
        area.limit_ms.store(1, Relaxed);
        area.owner.store(1, Relaxed);
        let waiting = |pid| Waiting {
            pid,
            moment: Moment::End,
            number: 0,
        };
        for pid in 1..=SLOTS as u32 {
            assert!(area.claim(waiting(pid)).is_some());
        }
        assert!(without_slot(area).is_none());
        let clock = AtomicUsize::new(0);
        let now = || clock.fetch_add(1_000_000, Relaxed) as u64;
        area.wait(waiting(100), now);
        assert_eq!(
            without_slot(area).map(|served| served.process).as_deref(),
            Some("process 100")
        );
        (101..120).for_each(|pid| area.wait(waiting(pid), now));
        let served = without_slot(area).expect("20 processes");
        assert_eq!(
            served.process,
            "processes 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115 and 4 more"
        );
    }

    /// No thread searches in this test, so a process that waits for a search never goes on.
    #[test]
    fn processes_wait_for_copies_and_not_for_searches() {
        let file = facts();
        let area = map(file.path()).expect("mapped");
        let (copies, to_search) = mpsc::channel();
        let pending = AtomicUsize::new(0);
        let copying = |has_room: bool| Copying {
            area,
            copy: |waiting: Waiting| Ok(waiting.pid),
            is_gone: |_| false,
            has_room: move |_| has_room,
            pending: &pending,
            copies: copies.clone(),
        };
        let waits = |pid| {
            let waiting = Waiting {
                pid,
                moment: Moment::End,
                number: 0,
            };
            area.claim(waiting).expect("a slot")
        };
        let state = |slot: &Slot| slot.read().map(|(_, state)| state);
        let slots: Vec<&Slot> = (1..=8).map(waits).collect();
        assert!(copying(true).serve(&AtomicBool::new(true)).is_empty());
        assert!(slots.iter().all(|slot| state(slot) == Some(State::Done)));
        assert_eq!(to_search.try_iter().map(|(_, pid)| pid).sum::<u32>(), 36);
        assert_eq!(pending.load(Relaxed), 8);
        // Without memory for another copy, a process waits for the searches before it.
        let slot = waits(9);
        assert!(matches!(copying(false).attend(slot), Attended::PutOff));
        assert_eq!(state(slot), Some(State::Waiting));
        pending.store(0, Relaxed);
        assert!(matches!(copying(false).attend(slot), Attended::Done));
        assert_eq!(state(slot), Some(State::Done), "the only copy needs no room");
    }

    #[test]
    fn a_process_whose_size_is_not_known_has_room() {
        assert!(has_room(std::process::id()), "a small process");
        assert!(has_room(u32::MAX), "no such process");
    }

    #[test]
    fn a_panic_is_a_reason() {
        let failure = caught(|| -> Result<(), String> { panic!("index 7") }).expect_err("a panic");
        assert!(failure.contains("index 7"), "{failure}");
    }
}
