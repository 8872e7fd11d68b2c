//! The process that a recording belongs to, from the header alone: a fast filter over many files.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::liveness::{Liveness, liveness};
use super::process::host_name;
use super::{ReadError, Source};
use crate::file::spool;
use crate::format::{Header, RANK_VARIABLES, Section, Text};
use crate::system::{Descriptor, suspended_ns};

/// The unit of start times of processes (`USER_HZ`) on x86-64 and aarch64.
const TICK_NS: u64 = 10_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    pub parent_pid: u32,
    pub host: String,
    pub started_unix_ns: u64,
    /// When the process itself began, which may be long before its recording. If this machine was suspended since it booted, the
    /// earliest time possible: it is not known which suspends the recording's clock, which stops meanwhile, lacks.
    pub process_started_unix_ns: u64,
    /// The variables of launchers that it began with.
    pub ranks: BTreeMap<String, String>,
    /// The file says that the process has ended.
    pub has_ended: bool,
    /// It is an automatic snapshot, not a recording.
    pub is_dump: bool,
}

/// Reads the header of the recording at `path`, and the text section for the name of the host.
///
/// # Errors
/// As [`super::read`]; [`ReadError::Unfinished`] while the header is being written.
pub fn identity(path: &Path) -> Result<Identity, ReadError> {
    let source = Source::open(path)?;
    let header = source.header()?;
    let texts = source.section(&header, Section::Text)?;
    let text = |offset: usize| {
        let text = header.field::<Text>(offset).present()?;
        let start = text.offset as usize;
        let bytes = texts.bytes.get(start..start + text.bytes as usize)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let rank = |(nth, name): (usize, &&str)| {
        let value = text(offset_of!(Header, ranks) + nth * size_of::<Text>())?;
        Some(((*name).to_owned(), value))
    };
    let started_unix_ns: u64 = header.field(offset_of!(Header, started_unix_ns));
    let ticks: u64 = header.field(offset_of!(Header, process_start_ticks));
    let monotonic: u64 = header.field(offset_of!(Header, started_monotonic_ns));
    Ok(Identity {
        pid: header.field(offset_of!(Header, pid)),
        parent_pid: header.field(offset_of!(Header, parent_pid)),
        host: text(offset_of!(Header, host)).unwrap_or_default(),
        ranks: RANK_VARIABLES.iter().enumerate().filter_map(rank).collect(),
        has_ended: header.field::<u64>(offset_of!(Header, ended_ns)) != 0
            || header.field::<u32>(offset_of!(Header, seen_ended)) != 0,
        is_dump: header.field::<u64>(offset_of!(Header, dumped_plus_one)) != 0,
        started_unix_ns,
        process_started_unix_ns: started_unix_ns.saturating_sub(age_ns(ticks, monotonic, suspended_ns())),
    })
}

/// The age of a process that began this many ticks after boot, at most. Ticks include suspends, the monotonic clock does not.
fn age_ns(ticks: u64, monotonic: u64, suspended: u64) -> u64 {
    let since_boot = monotonic.saturating_add(suspended);
    since_boot.saturating_sub(ticks.saturating_mul(TICK_NS))
}

/// Whether the process of the recording at `path`, which was made on this host, runs.
///
/// # Errors
/// As [`identity`].
pub fn is_running(path: &Path) -> Result<bool, ReadError> {
    let header = Source::open(path)?.header()?;
    Ok(matches!(liveness(&header, path), Liveness::Running(_)))
}

/// Stores in the recording at `path` that its process has ended, if it ran here, is gone, and did not store that itself. So copies, and
/// readers on other hosts, know it. Nothing is stored in what is a copy already: its process may have recorded more.
///
/// # Errors
/// As [`identity`]; the file cannot be written.
pub fn note_end(path: &Path) -> Result<(), ReadError> {
    let is_of_here = host_name().is_some_and(|name| identity(path).is_ok_and(|of| of.host == name));
    let header = Source::open(path)?.header()?;
    let has_ended = header.field::<u64>(offset_of!(Header, ended_ns)) != 0;
    if has_ended || !is_of_here || is_early_copy(path)? || liveness(&header, path) != Liveness::Gone {
        return Ok(());
    }
    let file = File::options().write(true).open(path);
    let written = file.and_then(|file| file.write_all_at(&1u32.to_ne_bytes(), offset_of!(Header, seen_ended) as u64));
    written.map_err(|error| ReadError::Io(path.to_path_buf(), error))
}

/// Whether the recording at `path`, which was created here, is a copy that was made before the process ended: what the process recorded
/// afterwards is in another file. On file systems where every recording is a copy ([`spool`]) it is not known.
///
/// # Errors
/// As [`identity`].
pub fn is_early_copy(path: &Path) -> Result<bool, ReadError> {
    let source = Source::open(path)?;
    let header = source.header()?;
    let written: u64 = header.field(offset_of!(Header, file_number));
    let ended: u64 = header.field(offset_of!(Header, ended_ns));
    let file = source
        .file
        .metadata()
        .map_err(|error| ReadError::Io(path.to_path_buf(), error))?;
    let seen_ended: u32 = header.field(offset_of!(Header, seen_ended));
    let is_another = ended == 0 && seen_ended == 0 && written != 0 && written != file.ino();
    Ok(is_another && spool::is_suitable(&Descriptor::borrowed(source.file.as_raw_fd())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_began_after_a_suspend_is_not_younger_than_it_is() {
        const SECOND: u64 = 1_000_000_000;
        // It began 8 s before its recording, an hour after boot, most of which the machine was suspended.
        let (ticks, monotonic, suspended) = (360_000, 108 * SECOND, 3500 * SECOND);
        assert_eq!(age_ns(ticks, monotonic, suspended), 8 * SECOND);
        assert_eq!(age_ns(10_000, monotonic, 0), 8 * SECOND);
        // A suspend after the process began may be counted, and makes it older.
        assert_eq!(age_ns(10_000, monotonic, suspended), 3508 * SECOND);
    }
}
