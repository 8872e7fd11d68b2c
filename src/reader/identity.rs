//! The process that a recording belongs to, from the header alone: a fast filter over many files.

use std::mem::offset_of;
use std::path::Path;

use super::{ReadError, Source};
use crate::format::{Header, Section, Text};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    pub parent_pid: u32,
    pub host: String,
    pub started_unix_ns: u64,
}

/// Reads the header of the recording at `path`, and the text section for the name of the host.
///
/// # Errors
/// As [`super::read`]; [`ReadError::Unfinished`] while the header is being written.
pub fn identity(path: &Path) -> Result<Identity, ReadError> {
    let source = Source::open(path)?;
    let header = source.header()?;
    let texts = source.section(&header, Section::Text)?;
    let host: Text = header.field(offset_of!(Header, host));
    let start = host.offset as usize;
    let host = texts.bytes.get(start..start + host.bytes as usize);
    Ok(Identity {
        pid: header.field(offset_of!(Header, pid)),
        parent_pid: header.field(offset_of!(Header, parent_pid)),
        host: String::from_utf8_lossy(host.unwrap_or_default()).into_owned(),
        started_unix_ns: header.field(offset_of!(Header, started_unix_ns)),
    })
}
