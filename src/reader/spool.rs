//! Recordings that are elsewhere until their process ends ([`crate::file::spool`]), from the reader's side.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::liveness::{Liveness, liveness};
use super::{ReadError, Source, open_regular};
use crate::file::spool::{NOTE, NOTE_MAX, deliver, read_note, remove_part, with_host};
use crate::format::{Header, recorded_bytes};
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
    /// Anybody may write a note. So nothing is copied or removed but a recording of this user, for a note of this user.
    ///
    /// # Errors
    /// The recording cannot be read, cannot be copied, or is another user's or another host's.
    pub fn deliver(&self, note: &Path) -> io::Result<bool> {
        let file = self.own()?;
        belongs_to_this_user(&open_regular(note)?, "the note")?;
        let source = Source { path: note, file };
        let header = source.header().map_err(io::Error::other)?;
        if !matches!(liveness(&header, note), Liveness::Gone) {
            return Ok(false);
        }
        // A recording has its space allocated, but for what was released when the disk was full. A damaged directory may name a
        // range that takes years to read.
        const RELEASED_MAX: u64 = 1 << 30;
        let status = source.file.metadata()?;
        let length = recorded_bytes(&header.bytes).min(status.len());
        if length > status.blocks() * 512 + RELEASED_MAX {
            return Err(io::Error::other("the recording is damaged: most of it is missing"));
        }
        let [spool, destination] = [&self.spool, note].map(c_path);
        deliver(&Descriptor::borrowed(source.file.as_raw_fd()), &spool, &destination)
            .map_err(|Errno(number)| io::Error::from_raw_os_error(number))?;
        remove_part(&destination, header.field(offset_of!(Header, pid)));
        Ok(true)
    }

    /// Whether the recording is here and its header can be read.
    pub fn is_readable(&self) -> bool {
        let path = &self.spool;
        self.own().is_ok_and(|file| Source { path, file }.header().is_ok())
    }

    /// Opens the recording if it is this user's and this host's. The descriptor is used for everything that follows: what is at the
    /// path may change.
    fn own(&self) -> io::Result<File> {
        let here = with_host(|host| host.to_string_lossy().into_owned());
        if here != self.host {
            return Err(io::Error::other(format!("it is on host {}", self.host)));
        }
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&self.spool)?;
        belongs_to_this_user(&file, "the file that the note names")?;
        Ok(file)
    }
}

fn belongs_to_this_user(file: &File, what: &str) -> io::Result<()> {
    let status = file.metadata()?;
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    if !status.is_file() {
        return Err(io::Error::other(format!("{what} is no regular file")));
    }
    if status.uid() != user {
        let owner = status.uid();
        return Err(io::Error::other(format!(
            "{what} belongs to user {owner}, not to user {user}"
        )));
    }
    Ok(())
}

/// No path of a file contains a zero byte.
fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}
