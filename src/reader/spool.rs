//! Recordings that are elsewhere until their process ends ([`crate::file::spool`]), from the reader's side.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::liveness::{Liveness, liveness};
use super::{ReadError, Source, open_regular};
use crate::file::spool::{NOTE, NOTE_MAX, deliver, read_note};
use crate::system::{Descriptor, Errno};

/// What a note says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spooled {
    pub host: String,
    pub spool: PathBuf,
}

/// What the note in a file says. `None`: the file is no note.
pub(super) fn of(file: &File) -> Option<Spooled> {
    let mut start = [0; NOTE.len()];
    file.read_exact_at(&mut start, 0).ok()?;
    if start != NOTE {
        return None;
    }
    let mut bytes = vec![0; NOTE_MAX];
    let length = file.read_at(&mut bytes, 0).ok()?;
    let (host, spool) = read_note(&bytes[..length])?;
    Some(Spooled {
        host: host.to_string_lossy().into_owned(),
        spool: PathBuf::from(OsStr::from_bytes(spool.to_bytes())),
    })
}

/// What the note at `path` says. `None`: there is no file that is a note.
pub fn spooled(path: &Path) -> Option<Spooled> {
    of(&open_regular(path).ok()?)
}

impl Spooled {
    /// Opens the recording; `note` is the path of the note.
    pub(super) fn open(&self, note: &Path) -> Result<File, ReadError> {
        open_regular(&self.spool)
            .map_err(|error| ReadError::Spooled(note.to_path_buf(), self.host.clone(), self.spool.clone(), error))
    }

    /// Copies the recording to `note` in place of the note, if its process has ended without doing so; returns whether it has ended.
    ///
    /// # Errors
    /// The recording cannot be read, or cannot be copied.
    pub fn deliver(&self, note: &Path) -> Result<bool, ReadError> {
        let source = Source::open(note)?;
        if !matches!(liveness(&source.header()?, note), Liveness::Gone) {
            return Ok(false);
        }
        let [spool, destination] = [&self.spool, &note.to_path_buf()].map(|path| c_path(path));
        let copied = Descriptor::open(&spool, libc::O_RDONLY).and_then(|from| deliver(&from, &spool, &destination));
        copied.map(|()| true).map_err(|Errno(number)| {
            let error = std::io::Error::from_raw_os_error(number);
            ReadError::Io(note.to_path_buf(), error)
        })
    }
}

/// No path of a file contains a zero byte.
fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_else(|_| CStr::to_owned(c""))
}
