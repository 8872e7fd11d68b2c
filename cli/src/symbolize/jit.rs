//! Names of code that a program generated while it ran, from the files that its compiler writes for `perf`.
//!
//! ```text
//! /tmp/perf-PID.map   START SIZE NAME, one line each                   .NET, Java, Node.js
//! jit-PID.dump        records of name, address and code; the program   .NET, agents of Java, LLVM (Julia)
//!                     maps the file as code, so that perf finds it
//! ```
//!
//! A file is read only if it belongs to the recorded process: it has the owner of the recording, and was last written after the
//! process began and before it ended. Otherwise it may be of another process that had the same pid. A recording's clock stops while
//! the machine is suspended, so on a machine that was, both limits are wider by as much. If an address was given several names, the
//! last one counts, as in perf.
//!
//! Deliberately absent: lines, which compilers write by different conventions; code that was moved; and the trampolines of
//! CPython's `-X perf` (`py::`), whose functions are in the stacks as Python frames already.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use culeak::proc;
use culeak::reader::{host_name, identity, is_running, open_regular};
use culeak::snapshot::{Snapshot, Symbol};
use culeak::system::suspended_ns;

use super::{Note, Places};

/// How much of a file is read; those of .NET and Java have some megabytes.
const LONGEST: u64 = 1 << 30;
/// The longest name, in bytes.
const LONGEST_NAME: u64 = 4096;
/// How often names may be given to addresses.
const MOST_NAMINGS: usize = 1 << 27;
/// How many names are kept.
const MOST_NAMES: usize = 1 << 20;
/// How many folders are searched for a dump.
const FOLDERS: usize = 1000;
/// The kernel's clock for files is coarser than that for processes.
const COARSE_NS: u64 = 100_000_000;
/// What a process may still write after the last event of its recording.
const AFTER_THE_END_NS: u64 = 60_000_000_000;
const PERF_TRAMPOLINE: &str = "py::";

/// Adds names to frames in generated code; the notes say which files were not used, and why.
pub fn name(snapshot: &mut Snapshot, places: &Places) -> Vec<Note> {
    let is_unnamed = |&location: &usize| {
        let location = &snapshot.locations[location];
        let is_nowhere = location.module.is_none() && location.address > 0;
        is_nowhere && location.symbols.is_empty() && location.language.is_native()
    };
    let unnamed: Vec<usize> = (0..snapshot.locations.len()).filter(is_unnamed).collect();
    let belonging = if unnamed.is_empty() {
        None
    } else {
        Belonging::of(snapshot)
    };
    let Some(belonging) = belonging else { return Vec::new() };
    // A frame holds a return address: the call is one byte before it.
    let mut names = Names::of(unnamed.iter().map(|&location| snapshot.locations[location].address - 1));
    let mut notes = Vec::new();
    let mut read = |path: &Path, read: &dyn Fn(&mut Names, BufReader<File>) -> io::Result<()>| {
        let result = belonging
            .open(path)
            .and_then(|file| read(&mut names, BufReader::new(file)));
        if let Err(error) = result
            && error.kind() != io::ErrorKind::NotFound
        {
            let module = path.display().to_string();
            let problem = format!("{error}, so it may not name all generated code");
            notes.push(Note::Doubtful { module, problem });
        }
    };
    let (root, pid) = (places.root.as_deref().unwrap_or(Path::new("/")), snapshot.process.pid);
    read(&root.join(format!("tmp/perf-{pid}.map")), &Names::read_map);
    for dump in dumps(root, pid, belonging.running) {
        read(&dump, &|names, file| names.read_dump(file, pid));
    }
    for location in unnamed {
        let location = &mut snapshot.locations[location];
        location
            .symbols
            .extend(names.get(location.address - 1).map(|name| Symbol {
                function: name.to_owned(),
                file: None,
                line: None,
                inlined: false,
            }));
    }
    notes
}

/// Where the dump of a process may be: where it has it mapped, or where compilers write it by default.
fn dumps(root: &Path, pid: u32, running: Option<u32>) -> Vec<PathBuf> {
    let name = OsString::from(format!("jit-{pid}.dump"));
    let mut dumps = vec![root.join("tmp").join(&name)];
    if let Some(running) = running {
        let mappings = proc::mappings(running).unwrap_or_default();
        let files = mappings.iter().filter_map(proc::Mapping::file);
        let mapped = files.filter(|file| file.file_name() == Some(&name));
        dumps.extend(mapped.map(|file| root.join(file.strip_prefix("/").unwrap_or(file))));
    } else if let Some(home) = env::var_os("JITDUMPDIR").or_else(|| env::var_os("HOME")) {
        // One folder for each run.
        let runs = fs::read_dir(Path::new(&home).join(".debug/jit")).into_iter().flatten();
        dumps.extend(runs.take(FOLDERS).flatten().map(|run| run.path().join(&name)));
    }
    dumps.sort();
    dumps.dedup();
    dumps
}

/// What identifies the files of a process.
struct Belonging {
    owner: u32,
    /// When it was last written, in nanoseconds since 1970.
    written: std::ops::RangeInclusive<u64>,
    /// The pid here, if the process runs.
    running: Option<u32>,
}

impl Belonging {
    /// `None` if the process ran on another machine, or its recording is gone.
    fn of(snapshot: &Snapshot) -> Option<Belonging> {
        let (process, taken) = (&snapshot.process, &snapshot.taken);
        let recording = Path::new(&process.recording);
        let found = identity(recording).ok()?;
        let is_it = (found.pid, found.started_unix_ns) == (process.pid, process.started_unix_ns);
        if !is_it || host_name().is_none_or(|host| host != found.host) {
            return None;
        }
        let running = is_running(recording).ok()?.then(|| process.number());
        let lasted = taken.lasted_ns.unwrap_or(taken.at_ns);
        let until = match running {
            Some(_) => u64::MAX,
            None => last_written(process.started_unix_ns, lasted, suspended_ns()),
        };
        Some(Belonging {
            owner: fs::metadata(recording).ok()?.uid(),
            written: found.process_started_unix_ns.saturating_sub(COARSE_NS)..=until,
            running,
        })
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        if fs::symlink_metadata(path)?.is_symlink() {
            return Err(io::Error::other("is a symbolic link"));
        }
        let file = open_regular(path)?;
        let metadata = file.metadata()?;
        if metadata.uid() != self.owner {
            return Err(io::Error::other("has another owner than the recording"));
        }
        let written = metadata
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(metadata.mtime_nsec());
        let written = u64::try_from(written).unwrap_or(0);
        if written < *self.written.start() {
            return Err(io::Error::other("is older than the process"));
        }
        if written > *self.written.end() {
            return Err(io::Error::other("was written after the recording ended"));
        }
        Ok(file)
    }
}

/// When a process that ended may have written a file at the latest. Its recording lasted this long without suspends.
fn last_written(started_unix_ns: u64, lasted: u64, suspended: u64) -> u64 {
    [lasted, suspended, AFTER_THE_END_NS]
        .into_iter()
        .fold(started_unix_ns, u64::saturating_add)
}

/// Names by address.
pub struct Names {
    /// In order.
    addresses: Vec<u64>,
    /// Index into `names`, for each address.
    name_of: Vec<Option<u32>>,
    names: Vec<String>,
    namings: usize,
}

impl Names {
    pub fn of(addresses: impl Iterator<Item = u64>) -> Names {
        let mut addresses: Vec<u64> = addresses.collect();
        addresses.sort_unstable();
        addresses.dedup();
        Names {
            name_of: vec![None; addresses.len()],
            addresses,
            names: Vec::new(),
            namings: 0,
        }
    }

    pub fn get(&self, address: u64) -> Option<&str> {
        let nth = self.addresses.binary_search(&address).ok()?;
        Some(&self.names[self.name_of[nth]? as usize])
    }

    fn give(&mut self, start: u64, bytes: u64, name: &[u8]) -> io::Result<()> {
        let end = start.saturating_add(bytes);
        let from = self.addresses.partition_point(|&address| address < start);
        let within = self.addresses[from..].partition_point(|&address| address < end);
        let name = String::from_utf8_lossy(name);
        let name = name.trim();
        if within == 0 || name.is_empty() || name.starts_with(PERF_TRAMPOLINE) {
            return Ok(());
        }
        self.namings += within;
        if self.namings > MOST_NAMINGS || self.names.len() >= MOST_NAMES {
            return Err(io::Error::other(
                "is damaged: too much of its code is at the same addresses",
            ));
        }
        self.name_of[from..from + within].fill(u32::try_from(self.names.len()).ok());
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Reads a perf map. Lines of another form are skipped, and so is a last line that is still being written.
    ///
    /// # Errors
    /// The file cannot be read, or is so damaged that reading takes too long.
    pub fn read_map(&mut self, file: impl BufRead) -> io::Result<()> {
        let mut file = file.take(LONGEST);
        let mut line = Vec::new();
        loop {
            line.clear();
            file.by_ref().take(LONGEST_NAME).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') && file.skip_until(b'\n')? == 0 {
                return Ok(());
            }
            let mut fields = line.splitn(3, |&byte| byte == b' ');
            let mut hex = || {
                let text = str::from_utf8(fields.next()?).ok()?;
                u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
            };
            if let (Some(start), Some(bytes)) = (hex(), hex())
                && let Some(name) = fields.next()
            {
                self.give(start, bytes, name)?;
            }
        }
    }

    /// Reads a dump in the format of perf's `jitdump`, of the process with this pid in its own namespace. It may still be written.
    ///
    /// # Errors
    /// The file cannot be read, is none of this process, or is damaged.
    pub fn read_dump(&mut self, file: impl BufRead, pid: u32) -> io::Result<()> {
        const MAGIC_AND_VERSION: [u32; 2] = [0x4a69_5444, 1];
        const LOAD: u32 = 0;
        let mut file = file.take(LONGEST);
        let Some(header) = fields::<10>(&mut file)? else {
            return Ok(());
        };
        if header[..2] != MAGIC_AND_VERSION || header[5] != pid {
            return Err(io::Error::other("is no dump of this process"));
        }
        skip(&mut file, u64::from(header[2]).saturating_sub(40))?;
        while let Some([id, bytes, ..]) = fields::<4>(&mut file)? {
            // Not written yet.
            if bytes == 0 {
                return Ok(());
            }
            let damaged = || io::Error::other("is damaged");
            let rest = bytes.checked_sub(16).ok_or_else(damaged)?;
            let mut record = file.by_ref().take(rest.into());
            if id == LOAD
                && let Some(load) = fields::<10>(&mut record)?
            {
                let wide = |nth: usize| u64::from(load[nth]) | u64::from(load[nth + 1]) << 32;
                let mut name = Vec::new();
                record.by_ref().take(LONGEST_NAME).read_until(0, &mut name)?;
                self.give(wide(4), wide(6), name.strip_suffix(&[0]).unwrap_or(&name))?;
            }
            skip(&mut record, u64::MAX)?;
        }
        Ok(())
    }
}

/// The next words of a file; `None` if it ends before.
fn fields<const COUNT: usize>(file: &mut impl Read) -> io::Result<Option<[u32; COUNT]>> {
    let mut words = [0; COUNT];
    for word in &mut words {
        let mut bytes = [0; 4];
        match file.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        *word = u32::from_le_bytes(bytes);
    }
    Ok(Some(words))
}

fn skip(file: &mut impl Read, bytes: u64) -> io::Result<()> {
    io::copy(&mut file.take(bytes), &mut io::sink()).map(drop)
}

#[cfg(test)]
pub mod tests;
