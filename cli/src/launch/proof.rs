//! Why a run has no recording: either no process requested memory from CUDA, or none could be recorded.
//!
//! `check` of a program must distinguish the two. The preload library records facts in a small file (`culeak::proof`), which is read
//! here after the program has ended. A descendant that removed the library from its environment leaves no trace;
//! `--require-recording` is for users who expect a recording. Descendants that still run are found by their environment.
//! Deliberately absent: hooks of `exec`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, process, ptr};

use culeak::proc::{self, Files, Mapping};
use culeak::proof::{BYTES, CREATED, Fact, NAME_BYTES};
use culeak::wildcard;
use nix::libc;
use tempfile::NamedTempFile;

use crate::escape::Escaped;

/// The file of facts; removed on drop.
pub struct Proof(NamedTempFile);

/// Why processes that may have used CUDA were not recorded.
#[derive(Debug)]
pub enum Gap {
    /// No library can be preloaded into the program; a warning was printed before it ran.
    Obstacle,
    NotCreated(io::Error),
    /// An option excludes the processes that used CUDA.
    NotChosen,
    Disabled,
    /// A process used CUDA, and no hook saw it.
    Bypassed,
    NotLoaded,
    /// The process replaced itself by the program of this name, in which the library was not loaded.
    Replaced(String),
    Unknown,
    /// This many recordings were created and have disappeared.
    Missing(u32),
}

impl Proof {
    /// # Errors
    /// The file cannot be created in the folder for temporary files.
    pub fn create() -> io::Result<Proof> {
        let mut file = tempfile::Builder::new().prefix("culeak-run-").tempfile()?;
        file.write_all(&[0; BYTES])?;
        Ok(Proof(file))
    }

    /// The value of `CULEAK_RUN`.
    pub fn setting(&self) -> OsString {
        let mut setting = OsString::from(format!("{}:", process::id()));
        setting.push(self.0.path());
        setting
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// How many recordings of this run are missing if `found` were found.
    pub fn missing(&self, found: usize) -> u32 {
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        self.facts().map_or(0, |bytes| created(&bytes).saturating_sub(found))
    }

    /// `None`: the file is missing or cut.
    fn facts(&self) -> Option<Vec<u8>> {
        fs::read(self.path()).ok().filter(|bytes| bytes.len() == BYTES)
    }

    /// The names and ids of processes of this run that still run and have no recording; `tag` is part of the names of its recordings,
    /// and `only` the pattern of programs that are recorded. Waits for those that are about to end. A forked process maps the recording
    /// of its parent, too, which is not its own.
    pub fn left_running(&self, tag: &str, only: Option<&str>) -> Vec<String> {
        /// A helper process of Python ends when it notices the end of its parent.
        const PATIENCE: Duration = Duration::from_secs(1);
        let until = Instant::now() + PATIENCE;
        let mut left = self.running(only);
        while !left.is_empty() && Instant::now() < until {
            sleep(Duration::from_millis(20));
            left.retain(|&pid| self.may_be_ours(pid));
            if left.is_empty() {
                left = self.running(only);
            }
        }
        left.retain(|&pid| self.is_ours(pid));
        let is_recorded = |&pid: &u32| {
            let own = format!(".{}.", proc::own_pid(pid).unwrap_or(pid));
            let recordings = Files::of(&proc::mappings(pid).unwrap_or_default()).recordings;
            let mut names = recordings.iter().map(|path| path.to_string_lossy());
            names.any(|name| name.split_once(tag).is_some_and(|(_, rest)| rest.contains(&own)))
        };
        left.retain(|pid| !is_recorded(pid));
        let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        left.iter()
            .map(|pid| format!("{} ({pid})", name(pid).trim_end()))
            .collect()
    }

    fn running(&self, only: Option<&str>) -> Vec<u32> {
        /// On a machine where processes are born all the time.
        const MOST: usize = 5;
        // One that was born after the list may be the child of one that had ended when it was asked.
        for _ in 0..MOST {
            let newest = newest_process();
            let found = self.listed(only);
            if !found.is_empty() || newest.is_some() && newest == newest_process() {
                return found;
            }
        }
        Vec::new()
    }

    fn listed(&self, only: Option<&str>) -> Vec<u32> {
        let pids = proc::numbers("/proc").into_iter().flatten();
        let is_chosen = |pid: u32| {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let program = program.file_name().unwrap_or_default().as_bytes().to_owned();
            only.is_none_or(|only| wildcard::matches(only.as_bytes(), &program))
        };
        let began = proc::start_ticks(process::id());
        let is_younger = |pid: u32| pid != process::id() && proc::start_ticks(pid) >= began;
        pids.filter(|&pid| is_younger(pid) && self.may_be_ours(pid) && is_chosen(pid))
            .collect()
    }

    /// Whether it is ours or just executes a program. If it did at the first look, it may have its environment at the second, so a third
    /// one decides.
    fn may_be_ours(&self, pid: u32) -> bool {
        self.is_ours(pid) || is_starting(pid) || self.is_ours(pid)
    }

    /// Whether the process runs in the environment of this run, or has mapped its file: some programs write their title over their
    /// environment. Both are empty of a process that has ended.
    fn is_ours(&self, pid: u32) -> bool {
        let mut entry = OsString::from(format!("{VARIABLE}="));
        entry.push(self.setting());
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|&byte| byte == 0);
        let maps = |mappings: Vec<Mapping>| mappings.iter().any(|mapping| mapping.file() == Some(self.path()));
        variables.any(|of| of == entry.as_bytes()) || proc::mappings(pid).is_ok_and(maps)
    }

    /// Why processes were not recorded, if that is known; `ended_as` is the name of the process when it ended.
    pub fn gap(&self, ended_as: Option<&str>) -> Option<Gap> {
        self.facts().map_or(Some(Gap::Unknown), |bytes| gap(&bytes, ended_as))
    }
}

/// The id that was given last.
fn newest_process() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().last().map(str::to_owned)
}

/// Whether the process is just executing a program, or has no environment at all. Both cannot be told apart.
fn is_starting(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ"));
    environment.is_ok_and(|bytes| bytes.is_empty()) && fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

const VARIABLE: &str = "CULEAK_RUN";

/// At the end of a run that is a part of another `culeak run`: that one does not find the recordings of this run, nor does it know which
/// processes have none.
impl Drop for Proof {
    fn drop(&mut self) {
        let outer = env::var_os(VARIABLE).unwrap_or_default();
        let path = outer.as_bytes().splitn(2, |&byte| byte == b':').nth(1);
        let outer = path.map(|path| map(Path::new(OsStr::from_bytes(path))));
        let (Some(Ok(facts)), Some(bytes)) = (outer, self.facts()) else {
            return;
        };
        // SAFETY: the offset is that of an aligned number in the mapping, which processes change as an atomic only.
        let count = unsafe { &*facts.add(CREATED).cast::<AtomicU32>() };
        count.fetch_add(created(&bytes), Relaxed);
        for fact in Fact::OF_PROCESSES
            .map(|fact| fact as usize)
            .into_iter()
            .filter(|&at| bytes[at] != 0)
        {
            // SAFETY: as above, of a byte.
            unsafe { &*facts.add(fact).cast::<AtomicU8>() }.store(bytes[fact], Relaxed);
        }
    }
}

/// Maps a file of facts, which is never unmapped: `BYTES` of atomics, aligned to a page.
///
/// # Errors
/// The file cannot be opened or mapped, or is none.
pub fn map(facts: &Path) -> io::Result<*const u8> {
    let file = File::options().read(true).write(true).open(facts)?;
    if file.metadata()?.len() != BYTES as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let flags = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that has this length.
    let address = unsafe { libc::mmap(ptr::null_mut(), BYTES, flags, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    match address == libc::MAP_FAILED {
        true => Err(io::Error::last_os_error()),
        false => Ok(address.cast_const().cast()),
    }
}

/// The number of recordings that were created.
fn created(bytes: &[u8]) -> u32 {
    let count = bytes[CREATED..].first_chunk().copied().unwrap_or_default();
    u32::from_ne_bytes(count)
}

fn gap(bytes: &[u8], ended_as: Option<&str>) -> Option<Gap> {
    let fact = |fact: Fact| bytes[fact as usize];
    let name = bytes[..NAME_BYTES].split(|&byte| byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    match fact(Fact::NotCreated) {
        0 => {}
        errno => return Some(Gap::NotCreated(io::Error::from_raw_os_error(errno.into()))),
    }
    if fact(Fact::Disabled) != 0 {
        return Some(Gap::Disabled);
    }
    if fact(Fact::Bypassed) != 0 {
        return Some(Gap::Bypassed);
    }
    if fact(Fact::NotChosen) != 0 {
        return Some(Gap::NotChosen);
    }
    if name.is_empty() {
        return Some(Gap::NotLoaded);
    }
    // A program may also rename itself. Its exit handlers then usually ran, which `Ended` shows.
    let replaced = ended_as.filter(|&ended_as| fact(Fact::Ended) == 0 && ended_as != name);
    replaced.map(|ended_as| Gap::Replaced(ended_as.to_owned()))
}

impl Gap {
    /// What happened and what to do; `folder` is the folder of recordings.
    pub fn sentence(&self, folder: &Path) -> String {
        match self {
            Gap::Obstacle => "the program could not be recorded (see the warning above)".to_owned(),
            Gap::NotCreated(error) => format!(
                "a process used CUDA, but its recording could not be created in {}: {error}; choose another folder \
                 with --output",
                folder.display()
            ),
            Gap::NotChosen => {
                "CUDA was used only by processes that --only or --no-follow-children excludes; remove the \
                               option, or change its pattern"
                    .to_owned()
            }
            Gap::Disabled => {
                "a process used CUDA with CULEAK_DISABLE set or with raised privileges; start it without either"
                    .to_owned()
            }
            Gap::Bypassed => {
                "a process used CUDA past the preload library: from a library opened with RTLD_DEEPBIND or in a namespace of dlmopen, or \
                 by functions that it looked up itself; record it with --record audit"
                    .to_owned()
            }
            Gap::NotLoaded => {
                "the preload library was not loaded into the program; see the loader's messages above, or run \
                               culeak doctor"
                    .to_owned()
            }
            Gap::Replaced(name) => format!(
                "the program replaced itself by {}, into which the preload library was not loaded; keep LD_PRELOAD in its \
                 environment",
                Escaped(name)
            ),
            Gap::Missing(count) => format!(
                "{} missing from {}: removed, moved, or written elsewhere because the program sets CULEAK_OUTPUT, clears its \
                 environment or starts culeak run; leave them in place until the run ends",
                crate::text::units::plural(
                    (*count).into(),
                    "recording of this run is",
                    "recordings of this run are"
                ),
                folder.display()
            ),
            Gap::Unknown => format!(
                "whether the preload library was loaded is unknown, since its file in {} is missing; set TMPDIR to a folder \
                 that the program can write",
                std::env::temp_dir().display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, known: &[(Fact, u8)]) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        known.iter().for_each(|&(fact, value)| bytes[fact as usize] = value);
        bytes
    }

    #[test]
    fn a_program_that_kept_the_library_to_its_end_has_no_gap() {
        assert!(gap(&facts("train", &[]), Some("train")).is_none());
        // It renamed itself.
        assert!(gap(&facts("python3", &[(Fact::Ended, 1)]), Some("worker 1")).is_none());
    }

    #[test]
    fn every_reason_for_a_missing_recording_is_a_gap() {
        assert!(matches!(gap(&facts("", &[]), Some("train")), Some(Gap::NotLoaded)));
        assert!(matches!(gap(&facts("env", &[]), Some("train")), Some(Gap::Replaced(name)) if name == "train"));
        assert!(matches!(
            gap(&facts("sh", &[(Fact::NotChosen, 1)]), Some("sh")),
            Some(Gap::NotChosen)
        ));
        assert!(matches!(
            gap(&facts("sh", &[(Fact::Disabled, 1)]), Some("sh")),
            Some(Gap::Disabled)
        ));
        assert!(matches!(
            gap(&facts("sh", &[(Fact::Bypassed, 1)]), Some("sh")),
            Some(Gap::Bypassed)
        ));
        let full = gap(
            &facts("sh", &[(Fact::NotCreated, 28), (Fact::NotChosen, 1)]),
            Some("sh"),
        );
        let Some(full @ Gap::NotCreated(_)) = full else {
            panic!("{full:?}")
        };
        assert!(full.sentence(Path::new("/out")).contains("/out: No space left"));
    }
}
