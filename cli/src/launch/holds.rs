//! Copies the memory of processes that wait for it (`culeak::hold`), searches the copy for holders, and writes them beside the
//! recording.
//!
//! One thread serves, while the main thread forwards signals: all signals are blocked in it. A process waits until its memory
//! is copied; the search follows while it runs on. Processes that wait at the same time are served one after the other.
//! Deliberately absent: processes that begin to wait after the program has ended; they go on at once.

use std::any::Any;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use culeak::hold::{self, Holds, Moment, Slot, State, Waiting};
use culeak::point::Point;
use culeak::proof::{BYTES, HOLDS};
use culeak::reader;
use culeak_holders::source::live;
use culeak_holders::source::taken::Taken;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::errors::Failure;
use crate::load::{self, Loaded, holders, sidecar};
use crate::options::NameArgs;
use crate::symbolize::symbolize;

/// How long a process waits at most.
pub const LIMIT: Duration = Duration::from_secs(10);
/// How often it is checked whether waiting processes have died.
const LOOK_MS: u32 = 1000;

/// The thread that serves.
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
    /// Serves processes that map the file of facts.
    ///
    /// # Errors
    /// The file cannot be mapped, or no thread can be started.
    pub fn start(facts: &Path, limit: Duration) -> Result<Serving, Failure> {
        let failed =
            |error: io::Error| Failure::new(format!("--why: processes cannot be held: {error}; leave out --why"));
        let area = map(facts).map_err(failed)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (facts, ending) = (facts.to_owned(), Arc::clone(&is_over));
        // The new thread inherits a mask that leaves all signals to the main thread.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::Builder::new().name("why".to_owned()).spawn(move || {
            own(area);
            let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            area.limit_ms.store(limit.max(1), Release);
            let _ = ready.send(());
            let served = serve(area, &facts, &ending);
            area.owner.store(0, Release);
            served
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

/// Maps the area, which is never unmapped.
fn map(facts: &Path) -> io::Result<&'static Holds> {
    let file = File::options().read(true).write(true).open(facts)?;
    let flags = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that has this length.
    let address = unsafe { libc::mmap(ptr::null_mut(), BYTES, flags, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the area lies at this offset of the mapping and consists of atomics.
    Ok(unsafe { &*address.cast::<u8>().add(HOLDS).cast::<Holds>() })
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

fn serve(area: &Holds, facts: &Path, is_over: &AtomicBool) -> Vec<Served> {
    let mut served = Vec::new();
    loop {
        let bell = area.bell.load(Acquire);
        // Acquire: pairs with the Release in `finish`. What waits before the end is served in the following round.
        let is_last = is_over.load(Acquire);
        for slot in area.slots() {
            served.extend(attend(slot, facts));
        }
        if is_last {
            return served;
        }
        hold::pause(&area.bell, bell, LOOK_MS);
    }
}

fn attend(slot: &Slot, facts: &Path) -> Option<Served> {
    let (waiting, state) = slot.read()?;
    let failed = |reason: String| {
        Some(Served {
            process: format!("process {}", waiting.pid),
            failure: Some(reason),
        })
    };
    let late = || "went on before its memory was copied; raise --why-limit".to_owned();
    match state {
        State::Waiting if slot.change(waiting, State::Waiting, State::Copying) => {}
        State::Left => {
            slot.change(waiting, State::Left, State::Free);
            return failed(late());
        }
        // It died before it freed its slot.
        State::Done if find(waiting.pid, facts).is_none() => {
            slot.change(waiting, State::Done, State::Free);
            return None;
        }
        _ => return None,
    }
    let copied = caught(|| Copied::of(waiting, facts));
    if !slot.change(waiting, State::Copying, State::Done) {
        slot.change(waiting, State::Left, State::Free);
        return failed(copied.err().unwrap_or_else(late));
    }
    let process = format!("process {}", waiting.pid);
    let failure = copied.and_then(|copied| caught(|| copied.search())).err();
    Some(Served { process, failure })
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
    taken: Taken,
    /// The point of the recording; `None`: an automatic snapshot, which has no other.
    point: Option<Point>,
    took: Duration,
}

impl Copied {
    fn of(waiting: Waiting, facts: &Path) -> Result<Copied, String> {
        let began = Instant::now();
        let pid = find(waiting.pid, facts).ok_or("cannot be found: it has ended, or its id here is not known")?;
        let (recording, _) = load::recording_of(pid).map_err(|failure| failure.message)?;
        let (path, point) = match waiting.moment {
            Moment::End => (recording, Some(Point::End)),
            Moment::Exit => (recording, Some(Point::Exit)),
            Moment::OutOfMemory => {
                let ending = format!("out-of-memory-{}.culeak-snapshot", waiting.number);
                (recording.with_extension(ending), None)
            }
        };
        let item = load::Place::File(path).load().map_err(|failure| failure.message)?;
        let source = live::Process::new(pid).map_err(|error| error.to_string())?;
        let taken = Taken::of(&source, &holders::excluded(&item.snapshot));
        let taken = taken.map_err(|error| format!("its memory cannot be copied: {error}"))?;
        let took = began.elapsed();
        Ok(Copied {
            item,
            taken,
            point,
            took,
        })
    }

    /// Searches the copy, and writes the result beside the recording.
    fn search(mut self) -> Result<(), String> {
        let began = Instant::now();
        // Modules without names are mentioned in the report.
        symbolize(&mut self.item.snapshot, &NameArgs::default().places(self.taken.root()));
        if self.point == Some(Point::End) {
            let snapshot = mem::take(&mut self.item.snapshot);
            self.item.snapshot = snapshot.into_at(&Point::End).map_err(|error| error.to_string())?;
        }
        let snapshot = &mut self.item.snapshot;
        let failed = |failure: Failure| failure.message.trim_start_matches("core file: ").to_owned();
        holders::attach(snapshot, &mut self.taken, &holders::Wanted::default()).map_err(failed)?;
        let mut found = snapshot.holders.take().unwrap_or_default();
        found.search.point = self.point;
        found.search.copy_ns = self.took.as_nanos() as u64;
        found.search.took_ns = (self.took + began.elapsed()).as_nanos() as u64;
        sidecar::write(Path::new(&self.item.source), snapshot, found).map_err(|failure| failure.message)
    }
}

/// The id here of a process with this id in its own namespace, which maps the file of facts.
fn find(own_pid: u32, facts: &Path) -> Option<u32> {
    let name = facts.file_name()?.as_encoded_bytes();
    let maps = |pid: u32| {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.windows(name.len()).any(|part| part == name)
    };
    let is_it = |pid: u32| reader::own_pid(pid).unwrap_or(pid) == own_pid && maps(pid);
    if is_it(own_pid) {
        return Some(own_pid);
    }
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|&pid| is_it(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        io::Write::write_all(&mut file, &[0; BYTES]).expect("written");
        file
    }

    #[test]
    fn a_process_that_cannot_be_read_goes_on_and_is_reported() {
        let file = facts();
        let serving = Serving::start(file.path(), LIMIT).expect("serves");
        let area = map(file.path()).expect("mapped");
        assert!(area.is_served());
        let waiting = Waiting {
            pid: u32::MAX,
            moment: Moment::End,
            number: 0,
        };
        let slot = area.wait(waiting).expect("a slot");
        while slot.read().map(|(_, state)| state) != Some(State::Done) {
            slot.pause(waiting, State::Waiting, 10);
        }
        assert!(slot.change(waiting, State::Done, State::Free));
        let served = serving.finish();
        assert_eq!(served.len(), 1);
        let failure = served[0].failure.as_deref().expect("no such process");
        assert!(failure.contains("cannot be found"), "{failure}");
        assert!(!area.is_served(), "nobody serves after the end");
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
        let slot = area.wait(waiting).expect("a slot");
        assert!(slot.change(waiting, State::Waiting, State::Left));
        let served = Serving::start(file.path(), LIMIT).expect("serves").finish();
        assert!(
            served[0]
                .failure
                .as_deref()
                .is_some_and(|reason| reason.contains("--why-limit"))
        );
        assert_eq!(slot.read(), None);
    }

    #[test]
    fn a_panic_is_a_reason() {
        let failure = caught(|| -> Result<(), String> { panic!("index 7") }).expect_err("a panic");
        assert!(failure.contains("index 7"), "{failure}");
    }
}
