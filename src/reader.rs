//! Reads a recording into a [`Snapshot`], also while its process is still writing.
//!
//! The file is read with `pread` and decoded from the copy. Nothing is mapped, so a file that is truncated during the read
//! causes an error and not a SIGBUS. Nothing is trusted: impossible lengths are errors, and references out of range are
//! treated as absent. All sections are copied whole except the records, which are decoded piece by piece (`records.rs`).
//!
//! A snapshot is consistent although no thread is stopped. If no event was counted while the records were read, the snapshot
//! is exact. Otherwise the records are read a second time: a record that is live with the same generation both times did
//! not change in between, so its fields belong together and it was live during the whole read. For a busy process the read
//! is repeated a few times; after that the rows are those that were live throughout, and [`Capture::events_during_read`]
//! counts the events that may be missing.
//!
//! ```text
//! reader        the entry points
//! source        the file: its header, and where the elements of its sections are
//! bytes         a copy of a part of it
//! raw           all sections, and when to read them again
//! records       records of live allocations, as rows
//! decode        all other sections, as a snapshot
//!   details       devices, contexts, threads and modules
//!   counters      counters and peaks, by kind and device
//!   process       who and where the process is
//!   stacks        stacks, from the stack trie
//!   python        Python frames and the interpreter
//!   python_line   the source line of a Python instruction, from its function's line table
//!   totals        total allocations of each stack, and what was live at the peaks
//!   ends          the end of the program's own work
//!   phases        ranges of time that the program named
//!   pages         pools of pages and their owners
//!   sanity        what no recording can contain
//! events        the event log, as a timeline
//! identity      which process a recording belongs to
//! liveness      whether that process still runs
//! elapsed       how long ago the recording began
//! progress      progress of long work
//! pulse         whether a recording has changed
//! spool         recordings that are elsewhere until their process ends
//! regular       opening files that may be something else
//! error         why a file cannot be read
//! ```
//!
//! [`Capture::events_during_read`]: crate::snapshot::Capture::events_during_read

mod bytes;
mod counters;
mod decode;
mod details;
mod elapsed;
mod ends;
mod error;
mod events;
mod identity;
mod liveness;
mod pages;
mod phases;
mod process;
pub mod progress;
mod pulse;
mod python;
mod python_line;
mod raw;
mod records;
mod regular;
mod sanity;
mod source;
mod spool;
mod stacks;
mod totals;

pub use error::ReadError;
pub use identity::{Identity, identity, is_early_copy, is_running, note_end};
pub use process::host_name;
pub use pulse::{Pulse, pulse};
pub use python_line::{BEFORE_FIRST, python_line};
pub use regular::{open_no_link, open_regular};
pub use source::is_recording;
pub use spool::{Spooled, spooled};

use std::path::Path;

use bytes::Bytes;
use decode::Totals;
use raw::{RawSnapshot, read_sections_until_still, read_until_still};
use source::{Piece, Source};

use crate::cuda_functions::Api;
use crate::format::Section;
use crate::snapshot::Snapshot;
use crate::timeline::Timeline;

/// Reads the current state of the recording at `path`, without symbols.
///
/// # Errors
/// [`ReadError`], whose text is one line for the user.
pub fn read(path: &Path) -> Result<Snapshot, ReadError> {
    read_until_still(path)?.into_snapshot(path, Totals::LeftOut)
}

/// As [`read`], with the total allocations of every stack ([`Snapshot::totals`]), including stacks that hold no memory.
///
/// # Errors
/// As [`read`].
pub fn read_with_totals(path: &Path) -> Result<Snapshot, ReadError> {
    read_until_still(path)?.into_snapshot(path, Totals::Wanted)
}

/// As [`read`], with the events of the process. `None`: they were not logged. The snapshot has the stacks of all events.
///
/// # Errors
/// As [`read`].
pub fn read_timeline(path: &Path) -> Result<(Snapshot, Option<Timeline>), ReadError> {
    events::read(path)
}

/// As [`read`], without what was live at the peaks and the totals of segments, which cost as much time as all the rest.
///
/// # Errors
/// As [`read`].
pub fn read_without_peaks(path: &Path) -> Result<Snapshot, ReadError> {
    read_sections_until_still(path, |section| section != Section::Totals)?.into_snapshot(path, Totals::Unread)
}

/// As [`read_without_peaks`], for a caller that reads again soon: the read of a busy process is not repeated.
///
/// # Errors
/// As [`read`].
pub fn read_once(path: &Path) -> Result<Snapshot, ReadError> {
    let raw = Source::open(path)?.raw(|section| section != Section::Totals)?;
    raw.into_snapshot(path, Totals::Unread)
}

/// As [`read_without_peaks`], with a key of each stack that equal stacks of other processes have too. Stacks whose key is
/// `known` are left empty: most of the time of a read goes into stacks. `known` is called with a key and whether the process
/// has recorded tensors.
///
/// # Errors
/// As [`read`].
pub fn read_unknown_stacks(path: &Path, known: &dyn Fn(u64, bool) -> bool) -> Result<(Snapshot, Vec<u64>), ReadError> {
    let raw = read_sections_until_still(path, |section| section != Section::Totals)?;
    let decoded = raw.into_snapshot_with_sites(path, Totals::Unread, &[], Some(known))?;
    Ok((decoded.snapshot, decoded.stack_keys))
}

const _: () = assert!(Api::COUNT <= 512, "the apis section holds 512 names");

#[cfg(test)]
pub(crate) mod tests;
