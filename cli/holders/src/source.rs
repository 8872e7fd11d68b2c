//! Where memory is read from: a live process, or a core file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use culeak::proc::Mapping;

pub mod copied;
pub mod core;
pub mod live;
mod registers;

/// The bytes of a page.
pub const PAGE: u64 = 4096;

/// A mapping of the process, as in `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    pub range: Range<u64>,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// Changes are visible to other processes.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Path of the file, `[heap]`, `[stack]`; empty if anonymous.
    pub name: String,
}

impl Region {
    /// Whether a mapped file begins here, which may be a library.
    pub(crate) fn is_start_of_file(&self) -> bool {
        self.offset == 0 && self.readable && self.name.starts_with('/')
    }
}

impl From<Mapping> for Region {
    fn from(mapping: Mapping) -> Region {
        let [readable, writable, executable, shared] = mapping.permissions;
        Region {
            range: mapping.range,
            readable: readable == b'r',
            writable: writable == b'w',
            executable: executable == b'x',
            shared: shared == b's',
            offset: mapping.offset,
            name: String::from_utf8_lossy(&mapping.name).into_owned(),
        }
    }
}

/// A thread when the memory was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    pub id: u32,
    pub name: String,
    /// The first thread of a process, whose stack the kernel made; not known in a core file.
    pub is_main: bool,
    /// `None` if the thread runs and was not stopped: its stack is then searched as a whole.
    pub stack_pointer: Option<u64>,
    /// General registers, if known.
    pub registers: Vec<u64>,
    /// The base of thread-local storage, if known.
    pub thread_pointer: Option<u64>,
}

/// The mappings of a process.
///
/// # Errors
/// Why they cannot be read, as a part of a sentence.
pub(crate) fn regions_of(source: &dyn Source) -> Result<Vec<Region>, String> {
    let regions = source.regions();
    regions.map_err(|error| format!("its memory map cannot be read ({error})"))
}

/// Reads up to the end of the file, or to what cannot be read; returns the bytes.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// A process, alive or dead. Addresses are those of the process. A large copy is read by several threads.
pub trait Source: Sync {
    /// `None` for a core file.
    fn pid(&self) -> Option<u32> {
        None
    }

    /// Its mappings, by address.
    ///
    /// # Errors
    /// They cannot be read.
    fn regions(&self) -> io::Result<Vec<Region>>;

    /// The parts of a range whose pages exist, whole pages in order. Reading an absent page of a live process would create
    /// it. Everything if that is not known.
    fn present(&self, range: Range<u64>) -> Vec<Range<u64>>;

    /// As [`Source::present`], without the pages that are as in the file that is mapped there.
    fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.present(range)
    }

    /// Bytes of shared memory in this range that exist, but were not copied, so cannot be read.
    fn left_out(&self, _range: &Range<u64>) -> u64 {
        0
    }

    /// Copies these ranges into the buffer one after the other. Returns the bytes copied before the first that cannot be
    /// read.
    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
        let mut done = 0;
        for range in ranges {
            let mut address = range.start;
            let end = buffer.len().min(done + (range.end - range.start) as usize);
            while done < end {
                let part = self.read_part(address, &mut buffer[done..end]);
                if part == 0 {
                    return done;
                }
                (address, done) = (address + part as u64, done + part);
            }
        }
        done
    }

    /// Copies what begins at this address, all or a part of it. Returns the bytes copied; 0 if nothing is there.
    fn read_part(&self, _address: u64, _buffer: &mut [u8]) -> usize {
        0
    }

    fn threads(&self) -> Vec<Thread>;

    /// Where a file that the process sees under this path can be opened.
    fn file(&self, path: &Path) -> PathBuf;

    /// Stops all threads, or lets them go on; nothing for a core file.
    ///
    /// # Errors
    /// The process cannot be stopped.
    fn pause(&self, _paused: bool) -> io::Result<()> {
        Ok(())
    }

    /// Whether the memory changes while it is read.
    fn is_running(&self) -> bool {
        false
    }

    /// Whether the time for it is over: nothing was read since then.
    fn is_late(&self) -> bool {
        false
    }

    /// What could not be read, in sentences.
    fn limits(&self) -> Vec<String> {
        Vec::new()
    }
}
