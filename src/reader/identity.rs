//! Whose recording a file is, from its header alone: for those who look through many files.

use std::mem::offset_of;
use std::path::Path;

use super::{Bytes, ReadError, Source, header_word};
use crate::format::{Header, Section, halves};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    pub parent_pid: u32,
    pub host: String,
    pub started_unix_ns: u64,
}

/// Reads the header of the recording at `path`, and of the rest only the name of the host.
///
/// # Errors
/// As [`super::read`]; [`ReadError::Unfinished`] while the header is being written.
pub fn identity(path: &Path) -> Result<Identity, ReadError> {
    let source = Source::open(path)?;
    let header = source.header()?;
    let text = source.section(&header, Section::Text)?;
    Ok(Identity {
        pid: header.half(offset_of!(Header, pid)),
        parent_pid: header.half(offset_of!(Header, parent_pid)),
        host: piece(&text, header_word(&header, offset_of!(Header, host))),
        started_unix_ns: header_word(&header, offset_of!(Header, started_unix_ns)),
    })
}

fn piece(text: &Bytes, word: u64) -> String {
    let (offset, bytes) = halves(word);
    let piece = text.bytes.get(offset as usize..offset as usize + bytes as usize);
    String::from_utf8_lossy(piece.unwrap_or_default()).into_owned()
}
