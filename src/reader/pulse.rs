//! Whether a recording has changed, at the price of its header and its counters.
//!
//! An agent that looks at many recordings again and again reads only those with another pulse. Memory maps are written without
//! a change of the file's times, so these say nothing. Deliberately absent: what has changed.

use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use foldhash::quality::FixedState;
use std::hash::BuildHasher;

use super::{ReadError, Source};
use crate::format::{Header, Loss, Section};

/// The state of a recording's header and counters. Every event changes it, and so does the end of the process by `exit`; the end
/// by a signal does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// Device and inode: another file of the same name is another recording.
    file: (u64, u64),
    content: u64,
}

/// Reads the pulse of the recording at `path`.
///
/// # Errors
/// As [`super::read`].
pub fn pulse(path: &Path) -> Result<Pulse, ReadError> {
    let source = Source::open(path)?;
    let metadata = source.file.metadata();
    let metadata = metadata.map_err(|error| ReadError::Io(path.to_path_buf(), error))?;
    let mut header = source.header()?;
    let counters = source.section(&header, Section::Counters)?;
    // The recorder's own time is not an event.
    let clock = offset_of!(Header, losses) + Loss::RecorderNs as usize * 8;
    header.bytes[clock..clock + 8].fill(0);
    Ok(Pulse {
        file: (metadata.dev(), metadata.ino()),
        content: FixedState::default().hash_one((header.bytes, counters.bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Folder, entry, key, record};
    use super::*;
    use crate::format::NONE;

    #[test]
    fn every_event_changes_the_pulse_and_nothing_else_does() {
        let folder = Folder::new("pulse");
        let path = folder.0.join("a.culeak");
        let recording = record(&path);
        let now = || pulse(&path).expect("a recording");
        let before = now();
        assert_eq!(before, now());
        assert!(recording.allocated(key(0x1000), &entry(recording, 64, NONE, 0)));
        let held = now();
        assert_ne!(before, held);
        assert_eq!(held, now());
        let withdrawn = recording.withdraw(key(0x1000), 0).expect("live");
        recording.commit(withdrawn, 0);
        assert_ne!(held, now());
    }

    #[test]
    fn what_is_no_recording_has_no_pulse() {
        let folder = Folder::new("pulse-foreign");
        let path = folder.0.join("a.culeak");
        std::fs::write(&path, "text").expect("a file");
        assert!(matches!(pulse(&path), Err(ReadError::Foreign(_))));
    }
}
