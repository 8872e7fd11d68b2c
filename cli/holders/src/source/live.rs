//! A live process, read with `process_vm_readv`.
//!
//! Reading needs the permission to trace the process: the same user, not forbidden by Yama, or `CAP_SYS_PTRACE`. The
//! process does not notice it. Pages that do not exist are never read, because that would create them in the process.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use culeak::proc;

use super::{Region, Source, Thread, read_at};
use crate::Error;

mod pages;
mod pause;
mod permission;

use pause::Pause;

/// The most ranges of one system call; the kernel's limit is 1,024.
const RANGES: usize = 512;
/// The most bytes of one system call.
const BATCH: u64 = 64 << 20;

/// A running process that may be read.
pub struct Process {
    pid: u32,
    /// Identifies the process if its number is reused.
    started: Option<u64>,
    pagemap: Option<File>,
    /// `/proc/PID/mem`, for systems that forbid `process_vm_readv`.
    memory: Option<File>,
    only_file: AtomicBool,
    pause: Mutex<Option<Pause>>,
    limits: Mutex<Vec<String>>,
    until: Option<Instant>,
}

impl Process {
    /// # Errors
    /// There is no such process, or this user may not read its memory.
    pub fn new(pid: u32) -> Result<Process, Error> {
        let process = Process {
            pid,
            started: proc::start_ticks(pid),
            pagemap: File::open(format!("/proc/{pid}/pagemap")).ok(),
            memory: File::open(format!("/proc/{pid}/mem")).ok(),
            only_file: AtomicBool::new(false),
            pause: Mutex::default(),
            limits: Mutex::default(),
            until: None,
        };
        let failed = |error| Error::Read(format!("process {pid}"), permission::explained(pid, error));
        let regions = process.regions().map_err(failed)?;
        // A page of a loaded file shows whether memory can be read.
        let readable = |region: &&Region| region.readable && region.name.starts_with('/') && !region.shared;
        let mut buffer = [0; 16];
        let mut refused = None;
        for region in regions.iter().filter(readable).take(16) {
            let header = region.range.start..region.range.start + buffer.len() as u64;
            match process.read_some(std::slice::from_ref(&header), &mut buffer) {
                Ok(_) => return Ok(process),
                Err(error) => refused = Some(error),
            }
            if process.read_file(&header, &mut buffer) == buffer.len() {
                process.only_file.store(true, Relaxed);
                return Ok(process);
            }
        }
        match refused {
            Some(error) => Err(failed(error)),
            None => Ok(process),
        }
    }

    /// The same process; from this time on, nothing more of it is read.
    #[must_use]
    pub fn until(self, at: Instant) -> Process {
        Process {
            until: Some(at),
            ..self
        }
    }

    /// One system call for a part of these ranges: the bytes that were copied.
    fn read_some(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> io::Result<usize> {
        let mut wanted = 0;
        let mut remote = Vec::with_capacity(ranges.len().min(RANGES));
        for range in ranges.iter().take(RANGES) {
            let bytes = (range.end - range.start)
                .min(BATCH - wanted)
                .min(buffer.len() as u64 - wanted);
            if bytes == 0 && wanted > 0 {
                break;
            }
            remote.push(libc::iovec {
                iov_base: range.start as *mut libc::c_void,
                iov_len: bytes as usize,
            });
            wanted += bytes;
        }
        let local = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: wanted as usize,
        };
        let pid = self.pid as libc::pid_t;
        // SAFETY: the kernel writes `wanted` bytes at most, which the buffer has; remote addresses need not be valid.
        let copied =
            unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0) };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }

    /// Reads one range through `/proc/PID/mem`; returns the bytes before the first that cannot be read.
    fn read_file(&self, range: &Range<u64>, buffer: &mut [u8]) -> usize {
        let Some(file) = &self.memory else { return 0 };
        let wanted = buffer.len().min((range.end - range.start) as usize);
        read_at(file, &mut buffer[..wanted], range.start)
    }

    fn limit(&self, sentence: String) {
        let mut limits = locked(&self.limits);
        if !limits.contains(&sentence) {
            limits.push(sentence);
        }
    }

    /// Bytes of memory that the process occupies.
    fn resident(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.pid)).unwrap_or_default();
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0) * crate::source::PAGE
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source for Process {
    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn regions(&self) -> io::Result<Vec<Region>> {
        let mappings = proc::mappings(self.pid).map_err(|error| permission::explained(self.pid, error))?;
        let regions: Vec<Region> = mappings.into_iter().map(Region::from).collect();
        if regions.is_empty() || proc::start_ticks(self.pid) != self.started {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "has no memory: it has ended, or is a part of the kernel",
            ));
        }
        Ok(regions)
    }

    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let known = self.pagemap.as_ref().and_then(|file| pages::present(file, &range));
        if let Some(known) = known {
            return known;
        }
        // A mapping that is larger than everything the process occupies is a reservation.
        if range.end - range.start <= self.resident() {
            return vec![range];
        }
        self.limit(format!(
            "{} MiB at {:#x} were not searched: /proc/{}/pagemap, which says what of them exists, cannot be read.",
            (range.end - range.start) >> 20,
            range.start,
            self.pid
        ));
        Vec::new()
    }

    fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let known = self.pagemap.as_ref().and_then(|file| pages::written(file, &range));
        known.unwrap_or_default()
    }

    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
        let mut done = 0;
        if self.is_late() {
            return done;
        }
        let mut rest = ranges.to_vec();
        let mut next = 0;
        while next < rest.len() && done < buffer.len() {
            // After a part of a batch, the next call begins with the byte that failed.
            let copied = match self.only_file.load(Relaxed) {
                true => 0,
                false => self.read_some(&rest[next..], &mut buffer[done..]).unwrap_or(0),
            };
            // Memory that the process made inaccessible can be read as a file only.
            let copied = match copied {
                0 => self.read_file(&rest[next], &mut buffer[done..]),
                copied => copied,
            };
            if copied == 0 && !rest[next].is_empty() {
                break;
            }
            done += copied;
            next = advance(&mut rest, next, copied as u64);
        }
        done
    }

    fn threads(&self) -> Vec<Thread> {
        if let Some(pause) = &*locked(&self.pause) {
            return pause.threads().to_vec();
        }
        let thread = |id| Thread {
            id,
            name: pause::name(self.pid, id),
            is_main: id == self.pid,
            stack_pointer: stack_pointer(self.pid, id),
            ..Thread::default()
        };
        pause::ids(self.pid).into_iter().map(thread).collect()
    }

    fn file(&self, path: &Path) -> PathBuf {
        let inside = Path::new(&format!("/proc/{}/root", self.pid)).join(path.strip_prefix("/").unwrap_or(path));
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        match (identity(&inside), identity(path)) {
            // The process may see another file than this one under the same path.
            (Some(theirs), ours) if ours != Some(theirs) => inside,
            _ => path.to_path_buf(),
        }
    }

    fn pause(&self, paused: bool) -> io::Result<()> {
        let mut pause = locked(&self.pause);
        if !paused {
            *pause = None;
        } else if pause.is_none() {
            *pause = Some(Pause::begin(self.pid).map_err(|error| permission::explained(self.pid, error))?);
        }
        Ok(())
    }

    fn is_running(&self) -> bool {
        locked(&self.pause).is_none()
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|at| Instant::now() >= at)
    }

    fn limits(&self) -> Vec<String> {
        locked(&self.limits).clone()
    }
}

/// Leaves out this many bytes at the beginning of ranges, from one of them on. Returns the first range with something left.
pub(crate) fn advance(ranges: &mut [Range<u64>], mut from: usize, mut bytes: u64) -> usize {
    while let Some(range) = ranges.get_mut(from).filter(|range| bytes >= range.end - range.start) {
        bytes -= range.end - range.start;
        from += 1;
    }
    if let Some(range) = ranges.get_mut(from) {
        range.start += bytes;
    }
    from
}

/// The stack pointer of a thread that waits in the kernel; `None` if it runs.
fn stack_pointer(pid: u32, thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok()?;
    // The last two words are the stack pointer and the instruction; "running" has no second one.
    let pointer = text.split_whitespace().rev().nth(1)?;
    let pointer = u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()?;
    (pointer != 0).then_some(pointer)
}

#[cfg(test)]
mod tests;
