//! Why a file cannot be read as a recording, in words for the user.

use std::path::PathBuf;

use crate::format::VERSION;

/// Why a file could not be read as a recording: what was tried, on which file, and what to do next.
#[derive(Debug)]
pub enum ReadError {
    Io(PathBuf, std::io::Error),
    Empty(PathBuf),
    /// The magic is missing.
    Foreign(PathBuf),
    /// The process died while it created the file.
    Unfinished(PathBuf),
    /// The file is a note: the recording is in another file (host and path), which cannot be read here.
    Spooled(PathBuf, String, PathBuf, std::io::Error),
    OtherByteOrder(PathBuf),
    /// Written by this version of the format, which is not [`VERSION`].
    OtherVersion(PathBuf, u32),
    /// The file ends before something that is needed.
    Truncated(PathBuf, String),
    /// Impossible lengths or numbers.
    Damaged(PathBuf, String),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (path, what) = match self {
            ReadError::Io(path, error) => {
                let remedy = match error.kind() {
                    std::io::ErrorKind::NotFound => "check the name; recordings end in .culeak",
                    std::io::ErrorKind::PermissionDenied => {
                        "recordings belong to the user who ran the program: read it as that user"
                    }
                    std::io::ErrorKind::IsADirectory => "name a recording in it",
                    _ => "copy it to a local disk and read the copy",
                };
                (path, format!("cannot be read: {error}; {remedy}"))
            }
            ReadError::Empty(path) => (
                path,
                "empty; the disk may have been full when recording began; record again elsewhere (-o DIR)".to_owned(),
            ),
            ReadError::Foreign(path) => (
                path,
                "not a culeak recording; make one with: culeak run -- PROGRAM".to_owned(),
            ),
            ReadError::Unfinished(path) => (
                path,
                "the process ended while it created this recording, so it holds nothing; record again".to_owned(),
            ),
            ReadError::Spooled(path, host, spool, error) => (
                path,
                format!(
                    "until its process ends, this recording is {} on host {host}, which cannot be read here: {error}; read it on that \
                     host, or wait for the end",
                    spool.display()
                ),
            ),
            ReadError::OtherByteOrder(path) => (
                path,
                "recorded on a machine of the other byte order; make a snapshot there and read that".to_owned(),
            ),
            ReadError::OtherVersion(path, version) => {
                let release = if *version > VERSION { "newer" } else { "older" };
                let formats = format!("written by format {version}, this build reads format {VERSION}");
                (path, format!("{formats}; record again or use the {release} release"))
            }
            ReadError::Truncated(path, what) => (path, format!("truncated: {what}; copy the file again")),
            ReadError::Damaged(path, what) => (path, format!("damaged: {what}; copy the file again or record again")),
        };
        write!(f, "{}: {what}", path.display())
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io(_, error) => Some(error),
            _ => None,
        }
    }
}
