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
        match self {
            ReadError::Io(path, error) => {
                let remedy = match error.kind() {
                    std::io::ErrorKind::NotFound => "check the name; recordings end in .culeak",
                    std::io::ErrorKind::PermissionDenied => {
                        "recordings belong to the user who ran the program: read it as that user"
                    }
                    std::io::ErrorKind::IsADirectory => "name a recording in it",
                    _ => "copy it to a local disk and read the copy",
                };
                write!(f, "{}: cannot be read: {error}; {remedy}", path.display())
            }
            ReadError::Empty(path) => {
                write!(
                    f,
                    "{}: empty; the disk was full when recording began, record again elsewhere (-o DIR)",
                    path.display()
                )
            }
            ReadError::Foreign(path) => {
                write!(
                    f,
                    "{}: not a culeak recording; make one with: culeak run -- PROGRAM",
                    path.display()
                )
            }
            ReadError::Unfinished(path) => write!(
                f,
                "{}: the process ended while it created this recording, so it holds nothing; record again",
                path.display()
            ),
            ReadError::OtherByteOrder(path) => {
                write!(
                    f,
                    "{}: recorded on a machine of the other byte order; make a snapshot there and read that",
                    path.display()
                )
            }
            ReadError::OtherVersion(path, version) => {
                let release = if *version > VERSION { "newer" } else { "older" };
                write!(
                    f,
                    "{}: written by format {version}, this build reads format {VERSION}; record again or use the {release} release",
                    path.display()
                )
            }
            ReadError::Truncated(path, what) => {
                write!(f, "{}: truncated: {what}; copy the file again", path.display())
            }
            ReadError::Damaged(path, what) => {
                write!(
                    f,
                    "{}: damaged: {what}; copy the file again or record again",
                    path.display()
                )
            }
        }
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
