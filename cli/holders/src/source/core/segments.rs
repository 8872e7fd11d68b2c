//! The program headers of a core file: which memory it contains.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::modules::headers::{LOAD, NOTE, Segment, half, word, word4};
use crate::source::PAGE;
use crate::source::registers::Machine;

const HEADER: usize = 64;
const ROW: usize = 56;
const SECTION: usize = 64;
/// A process has at most 2^31 mappings, by default 65,530.
const MOST: u32 = 1 << 22;

type Parsed = (Machine, Vec<Segment>, Vec<Range<u64>>);

/// The processor, the mappings by address, and where the notes are in the file.
///
/// # Errors
/// Why the file cannot be used.
pub fn read(file: &File, bytes: u64) -> Result<Parsed, String> {
    let mut header = [0; HEADER];
    let read = file.read_at(&mut header, 0).unwrap_or(0);
    let machine = checked_header(&header[..read])?;
    let (offset, count) = (word(&header, 32), count(file, &header)?);
    let table_bytes = u64::from(count) * ROW as u64;
    if offset.checked_add(table_bytes).is_none_or(|end| end > bytes) {
        return Err(truncated(offset.saturating_add(table_bytes), bytes));
    }
    let mut table = vec![0; table_bytes as usize];
    file.read_exact_at(&mut table, offset)
        .map_err(|error| format!("its program headers cannot be read: {error}"))?;
    let (mut segments, mut notes) = (Vec::new(), Vec::new());
    let mut needed = 0;
    for segment in table.chunks_exact(ROW).map(Segment::of) {
        let end =
            (segment.offset.checked_add(segment.file_bytes)).ok_or("damaged: a segment has an impossible size")?;
        match segment.kind {
            LOAD if segment.memory_bytes > 0 => {
                let (start, bytes) = (segment.address, segment.memory_bytes);
                if start.checked_add(bytes).is_none() {
                    return Err("damaged: a segment has an impossible address".to_owned());
                }
                if start % PAGE != 0 || bytes % PAGE != 0 || segment.file_bytes > bytes {
                    return Err(format!("damaged: the segment at {start:#x} is not made of pages"));
                }
                segments.push(segment);
            }
            NOTE => notes.push(segment.offset..end),
            _ => continue,
        }
        if segment.file_bytes > 0 {
            needed = needed.max(end);
        }
    }
    if needed > bytes {
        return Err(truncated(needed, bytes));
    }
    segments.sort_by_key(|segment| segment.address);
    if let Some(pair) = (segments.windows(2)).find(|pair| pair[0].memory(0).end > pair[1].address) {
        return Err(format!("damaged: two segments contain {:#x}", pair[1].address));
    }
    Ok((machine, segments, notes))
}

fn truncated(needed: u64, bytes: u64) -> String {
    format!(
        "truncated: it has {} KiB of {} KiB; remove the limit before the crash (`ulimit -c unlimited`), and see that the disk \
         has room",
        bytes >> 10,
        needed >> 10
    )
}

/// Checks that this is a core file of a supported processor.
fn checked_header(header: &[u8]) -> Result<Machine, String> {
    let compressed: [(&[u8], &str); 4] = [
        (b"\x28\xb5\x2f\xfd", "zstd -d"),
        (b"\x04\x22\x4d\x18", "lz4 -d"),
        (b"\xfd7zXZ\0", "xz -d"),
        (b"\x1f\x8b", "gzip -d"),
    ];
    if let Some((_, command)) = compressed.iter().find(|(magic, _)| header.starts_with(magic)) {
        return Err(format!(
            "compressed; decompress it first (`{command}`, or `coredumpctl dump`)"
        ));
    }
    if header.len() < HEADER || !header.starts_with(b"\x7fELF") {
        return Err("not a core file".to_owned());
    }
    if header[4..6] != [2, 1] {
        return Err("a file of a 32-bit or big-endian processor, which is not supported".to_owned());
    }
    const CORE: u16 = 4;
    if half(header, 16) != CORE {
        return Err("a program or library, not a core file".to_owned());
    }
    match half(header, 18) {
        62 => Ok(Machine::X86_64),
        183 => Ok(Machine::Aarch64),
        other => Err(format!(
            "a core file of processor {other} (e_machine); x86-64 and aarch64 are supported"
        )),
    }
}

/// The number of program headers. If it does not fit into the header, it is in the first section header.
fn count(file: &File, header: &[u8]) -> Result<u32, String> {
    const ELSEWHERE: u16 = 0xffff;
    let count = half(header, 56);
    if half(header, 54) as usize != ROW {
        return Err("damaged: its program headers have an unknown size".to_owned());
    }
    if count != ELSEWHERE {
        return Ok(u32::from(count));
    }
    let mut section = [0; SECTION];
    file.read_exact_at(&mut section, word(header, 40))
        .map_err(|error| format!("damaged: the number of its segments cannot be read: {error}"))?;
    match word4(&section, 44) {
        count if count <= MOST => Ok(count),
        count => Err(format!("damaged: it claims to have {count} segments")),
    }
}
