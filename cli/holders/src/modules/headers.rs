//! The program headers of an ELF file, in a file or in memory.

use std::ops::Range;

/// Reads exactly the buffer's length at an offset from the beginning of the file; false if that is not possible.
pub type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> bool;

const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// The most program headers that are read; real files have about 15.
const SEGMENTS: u16 = 512;

pub const LOAD: u32 = 1;
pub const DYNAMIC: u32 = 2;
pub const NOTE: u32 = 4;
/// What the loader makes read-only after it has written it.
pub const RELOCATED: u32 = 0x6474_e552;
const THREAD_LOCAL: u32 = 7;

/// What the loader needs to know about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    pub segments: Vec<Segment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub kind: u32,
    flags: u32,
    /// Where it begins in the file.
    pub offset: u64,
    /// Where it is loaded, without the bias.
    pub address: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
}

impl Segment {
    pub fn is_writable(&self) -> bool {
        self.flags & 2 != 0
    }

    pub fn is_executable(&self) -> bool {
        self.flags & 1 != 0
    }

    pub fn is_readable(&self) -> bool {
        self.flags & 4 != 0
    }

    /// A row of the table.
    pub fn of(row: &[u8]) -> Segment {
        Segment {
            kind: word4(row, 0),
            flags: word4(row, 4),
            offset: word(row, 8),
            address: word(row, 16),
            file_bytes: word(row, 32),
            memory_bytes: word(row, 40),
        }
    }

    /// Its addresses at run time; empty if they are impossible.
    pub fn memory(&self, bias: u64) -> Range<u64> {
        let start = bias.wrapping_add(self.address);
        start..start.checked_add(self.memory_bytes).unwrap_or(start)
    }
}

impl Headers {
    /// `None` unless it is a 64-bit little-endian ELF file with segments to load.
    pub fn read(read: Read) -> Option<Headers> {
        let mut header = [0; HEADER];
        if !read(0, &mut header) || !header.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let (offset, size, count) = (word(&header, 32), half(&header, 54), half(&header, 56));
        if usize::from(size) != SEGMENT || count > SEGMENTS || offset > 1 << 40 {
            return None;
        }
        let mut table = vec![0; usize::from(count) * SEGMENT];
        if !read(offset, &mut table) {
            return None;
        }
        let segments: Vec<Segment> = table.chunks_exact(SEGMENT).map(Segment::of).collect();
        let headers = Headers { segments };
        let exists = headers.loaded().next().is_some();
        exists.then_some(headers)
    }

    pub fn loaded(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == LOAD)
    }

    /// The bytes of its thread-local variables.
    pub fn thread_local_bytes(&self) -> Option<u64> {
        let mut segments = self.segments.iter().filter(|segment| segment.kind == THREAD_LOCAL);
        segments.next().map(|segment| segment.memory_bytes)
    }

    /// Runtime address minus the address in the file, if the beginning of the file is mapped at `start`.
    pub fn bias(&self, start: u64) -> u64 {
        let first = self.loaded().min_by_key(|segment| segment.offset);
        let (address, offset) = first.map_or((0, 0), |segment| (segment.address, segment.offset));
        start.wrapping_sub(address.wrapping_sub(offset))
    }

    /// The place in the file of an address without the bias, and the bytes that the file has from there on.
    pub fn in_file(&self, address: u64) -> Option<(u64, u64)> {
        self.loaded().find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            let left = segment.file_bytes.checked_sub(inside)?;
            Some((segment.offset.checked_add(inside)?, left)).filter(|_| left > 0)
        })
    }

    /// The build id, read with addresses that lack the bias; empty without one.
    pub fn build_id(&self, read: Read) -> Vec<u8> {
        const LONGEST: u64 = 1 << 16;
        let notes = self.segments.iter().filter(|segment| segment.kind == NOTE);
        for segment in notes {
            let mut bytes = vec![0; segment.file_bytes.min(LONGEST) as usize];
            if !read(segment.address, &mut bytes) {
                continue;
            }
            let mut rest = &bytes[..];
            while rest.len() >= 12 {
                let size = |at: usize| (word4(rest, at) as usize).min(rest.len());
                let (name, content, kind) = (size(0), size(4), word4(rest, 8));
                let start = 12 + name.next_multiple_of(4);
                let Some(found) = rest.get(start..start + content) else {
                    break;
                };
                const NT_GNU_BUILD_ID: u32 = 3;
                if kind == NT_GNU_BUILD_ID && rest[12..].starts_with(b"GNU\0") {
                    return found.to_vec();
                }
                rest = rest.get(start + content.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        Vec::new()
    }
}

/// The little-endian numbers at this offset, which is inside.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from(word4(bytes, at)) | u64::from(word4(bytes, at + 4)) << 32
}

pub fn word4(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

pub fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
