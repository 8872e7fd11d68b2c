//! Reads a recording into a [`Snapshot`], also while its process goes on writing.
//!
//! The file is read with `pread` and decoded from the copy: no mapping, so a file that is cut short under our hands
//! is an error and not a SIGBUS, and no trust, so lengths and references out of range are errors or "none". All sections
//! are copied whole but the records, which are turned into rows piece by piece (`records.rs`).
//!
//! A consistent snapshot without stopping anybody: if no event happened while the records were read, the snapshot is
//! exact. Else they are read again. One that was live with the same generation both times was not touched in between, so
//! its fields belong together and it was live during the whole read. On a busy process the read is repeated a few times,
//! and then the rows are those that were live throughout ([`Taken::events_during_read`] says so). Who only adds up and looks
//! again and again keeps a [`Follower`], which takes in what changed.

mod decode;
mod elapsed;
mod error;
mod follow;
mod identity;
mod liveness;
pub mod progress;
mod python;
mod python_line;
mod records;
mod regular;
mod stack_sums;
mod stacks;
mod totals;

pub use error::ReadError;
pub use follow::Follower;
pub use identity::{Identity, identity};
pub use liveness::{own_pid, start_ticks};
pub use python_line::python_line;
pub use regular::open_regular;
pub use stack_sums::{StackSums, Sum};

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::cuda_functions::Api;
use crate::format::{VERSION, *};
use crate::lockfree::segmented::extent_capacity;
use crate::lockfree::table::Record;
use crate::snapshot::Snapshot;
use decode::Order;
use elapsed::Elapsed;
use records::Records;

/// Reads of a process that keeps changing before the rows live throughout are taken.
const ATTEMPTS: u32 = 5;
/// With more records than this, reading takes so long that a busy process would not hold still the next time either.
const MANY: usize = 1 << 20;

/// Reads the recording at `path` as it is at this moment. Nothing is symbolized.
///
/// # Errors
/// [`ReadError`], whose text is one line fit for a user.
pub fn read(path: &Path) -> Result<Snapshot, ReadError> {
    read_until_still(path)?.into_snapshot(path, Order::OldestFirst, Totals::LeftOut)
}

/// As [`read`], with what every stack asked for in all ([`Snapshot::totals`]): more stacks than those that hold memory.
///
/// # Errors
/// As [`read`].
pub fn read_with_totals(path: &Path) -> Result<Snapshot, ReadError> {
    read_until_still(path)?.into_snapshot(path, Order::OldestFirst, Totals::Wanted)
}

/// Whether [`Snapshot::totals`] are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Totals {
    LeftOut,
    Wanted,
}

fn read_until_still(path: &Path) -> Result<RawSnapshot, ReadError> {
    let source = Source::open(path)?;
    let mut raw = source.raw()?;
    for _ in 1..ATTEMPTS {
        if raw.events_during_read == 0 || raw.records.rows.len() > MANY {
            break;
        }
        raw = source.raw()?;
    }
    Ok(raw)
}

/// Whether the file begins like a recording.
pub fn is_recording(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

/// All sections that are read whole.
const SECTIONS_BESIDE_RECORDS: [Section; 17] = [
    Section::Text,
    Section::Devices,
    Section::Contexts,
    Section::Threads,
    Section::Modules,
    Section::Frames,
    Section::Failures,
    Section::Counters,
    Section::Peaks,
    Section::Totals,
    Section::Apis,
    Section::Unhooked,
    Section::Domains,
    Section::Marks,
    Section::Allocators,
    Section::Codes,
    Section::Interpreters,
];

struct Source<'a> {
    path: &'a Path,
    file: File,
}

/// All sections as they were read, and what the header said before and after.
struct RawSnapshot {
    header: Bytes,
    sections: HashMap<u32, Bytes>,
    records: Records,
    /// When reading began, on the recording's clock; no limit where that is not known.
    began_ns: u64,
    events_during_read: u64,
}

/// A stretch of a section that lies in one place of the file.
struct Piece {
    /// Bytes from one element to the next.
    element: usize,
    count: usize,
    /// `None`: nobody ever made it, so it is zeros.
    offset: Option<u64>,
}

/// A copy of a piece of the file: an array of equal elements.
#[derive(PartialEq)]
struct Bytes {
    bytes: Vec<u8>,
    element: usize,
}

impl Bytes {
    /// As if the section were empty.
    fn none(section: Section) -> Bytes {
        Bytes {
            bytes: Vec::new(),
            element: known_element_bytes(section),
        }
    }

    fn len(&self) -> usize {
        self.bytes.len().checked_div(self.element).unwrap_or(0)
    }

    /// Word `word` of element `element`; 0 outside, which everywhere means "nothing there".
    fn word(&self, element: usize, word: usize) -> u64 {
        let at = element * self.element + word * 8;
        self.bytes
            .get(at..at + 8)
            .map_or(0, |eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()))
    }

    fn half(&self, at: usize) -> u32 {
        self.bytes
            .get(at..at + 4)
            .map_or(0, |four| u32::from_le_bytes(four.try_into().unwrap_or_default()))
    }
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Source<'a>, ReadError> {
        let file = open_regular(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => ReadError::Foreign(path.to_path_buf()),
            _ => ReadError::Io(path.to_path_buf(), error),
        })?;
        Ok(Source { path, file })
    }

    fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, ReadError> {
        let mut buffer = vec![0; bytes];
        self.read_into(offset, &mut buffer)?;
        Ok(buffer)
    }

    fn read_into(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let end = offset + buffer.len() as u64;
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    ReadError::Truncated(self.path.to_path_buf(), format!("it ends before byte {end}"))
                }
                _ => ReadError::Io(self.path.to_path_buf(), error),
            })
    }

    fn size(&self) -> Result<u64, ReadError> {
        self.file
            .metadata()
            .map(|m| m.size())
            .map_err(|error| ReadError::Io(self.path.to_path_buf(), error))
    }

    fn header(&self) -> Result<Bytes, ReadError> {
        let path = || self.path.to_path_buf();
        let size = self.size()?;
        if size == 0 {
            return Err(ReadError::Empty(path()));
        }
        let start = self.read(0, size.min(24) as usize)?;
        if !is_recording(&start) {
            // Zeros: allocated by us, but the magic, written last, never came.
            let ours = start.iter().take(8).all(|&byte| byte == 0) && size >= HEADER_BYTES as u64;
            return Err(if ours {
                ReadError::Unfinished(path())
            } else {
                ReadError::Foreign(path())
            });
        }
        let start = Bytes {
            bytes: start,
            element: 1,
        };
        let (version, order) = (start.half(8), start.half(12));
        if order == BYTE_ORDER.swap_bytes() {
            return Err(ReadError::OtherByteOrder(path()));
        }
        if version > VERSION {
            return Err(ReadError::Newer(path(), version));
        }
        if order != BYTE_ORDER || version == 0 || start.half(16) as usize != HEADER_BYTES {
            return Err(ReadError::Damaged(path(), "its header makes no sense".into()));
        }
        Ok(Bytes {
            bytes: self.read(0, HEADER_BYTES)?,
            element: 1,
        })
    }

    fn raw(&self) -> Result<RawSnapshot, ReadError> {
        let header = self.header()?;
        let began_ns = Elapsed::since_start(&header).latest_ns();
        let events_before = decode::events(&self.section(&header, Section::Counters)?);
        let lost = |header: &Bytes| decode::loss(header, Loss::Allocations);
        let pieces = self.pieces(&header, Section::Records)?;
        let mut records = Records::read(self, &pieces)?;
        let mut sections = HashMap::new();
        for section in SECTIONS_BESIDE_RECORDS {
            // The directory is read anew for what records may refer to: it only grows.
            sections.insert(section as u32, self.section(&self.header()?, section)?);
        }
        let mut after = self.header()?;
        let events = |header: &Bytes| Ok::<_, ReadError>(decode::events(&self.section(header, Section::Counters)?));
        // Each shard's counts only rise (a free that failed takes its own back), so equal sums mean that no event was
        // counted in between. One under way all the while may be in the rows or not: both are true of some instant.
        // A record that was lost has been a record for a moment.
        if events(&after)? == events_before && lost(&after) == lost(&header) {
            records.forget_records();
        } else {
            records.look_again(self, &pieces)?;
            after = self.header()?;
        }
        let mut raw = RawSnapshot {
            events_during_read: events(&after)?.wrapping_sub(events_before),
            header: after,
            sections,
            records,
            began_ns,
        };
        raw.drop_late_rows();
        Ok(raw)
    }

    /// Copies the elements of a section that are in use according to `header`.
    fn section(&self, header: &Bytes, section: Section) -> Result<Bytes, ReadError> {
        let known = known_element_bytes(section);
        let mut all = Bytes::none(section);
        for piece in self.pieces(header, section)? {
            match piece.offset {
                None => all.bytes.resize(all.bytes.len() + piece.count * known, 0),
                Some(offset) => {
                    let copy = self.read(offset, piece.count * piece.element)?;
                    let elements = copy.chunks_exact(piece.element);
                    elements.for_each(|element| all.bytes.extend_from_slice(&element[..known]));
                }
            }
        }
        Ok(all)
    }

    /// Where the elements of a section lie that are in use according to `header`.
    fn pieces(&self, header: &Bytes, section: Section) -> Result<Vec<Piece>, ReadError> {
        let (first, limit) = extent_sizes(section);
        let counts = std::mem::offset_of!(Header, counts);
        let mut left = header_word(header, counts + section as usize * 8);
        let extents = self.extents(header, section)?;
        let (mut pieces, mut gaps) = (Vec::new(), 0);
        for number in 0.. {
            if left == 0 {
                break;
            }
            let count = left.min(extent_capacity(number as usize, first, limit) as u64) as usize;
            left -= count as u64;
            let Some(candidates) = extents.get(&number) else {
                // Nobody came to make it: the disk was full, and then there is none behind it; or its makers left by a
                // jump, and the rows behind it are good. No recording has gaps as large as this.
                const GAPS: usize = 1 << 20;
                gaps += count;
                if extents.range(number..).next().is_none() || gaps > GAPS {
                    break;
                }
                let (element, offset) = (known_element_bytes(section), None);
                pieces.push(Piece { element, count, offset });
                continue;
            };
            let (element, offset) = self.chosen(candidates, count)?;
            let offset = Some(offset);
            pieces.push(Piece { element, count, offset });
        }
        Ok(pieces)
    }

    /// Element size and offset of every extent that the directory has of a section, by number.
    fn extents(&self, header: &Bytes, section: Section) -> Result<BTreeMap<u32, Vec<(usize, u64)>>, ReadError> {
        let damaged = |what: String| ReadError::Damaged(self.path.to_path_buf(), what);
        let (first, limit) = extent_sizes(section);
        let size = self.size()?;
        let mut extents: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
        for row in 0..DIRECTORY_CAPACITY {
            let at = DIRECTORY_OFFSET + row * size_of::<Extent>();
            if header.half(at) != section as u32 {
                continue;
            }
            let (number, element) = (header.half(at + 4), header.half(at + 8) as usize);
            let (offset, bytes) = (header_word(header, at + 16), header_word(header, at + 24));
            let needed =
                (extent_capacity(number.min(100_000) as usize, first, limit) as u64).checked_mul(element as u64);
            if element < known_element_bytes(section) || element > 4096 || needed.is_none_or(|needed| needed > bytes) {
                return Err(damaged(format!("directory row {row} has impossible sizes")));
            }
            if offset.checked_add(bytes).is_none_or(|end| end > size) {
                let what = format!(
                    "directory row {row} ends at byte {}, the file at {size}",
                    offset.saturating_add(bytes)
                );
                return Err(ReadError::Truncated(self.path.to_path_buf(), what));
            }
            extents.entry(number).or_default().push((element, offset));
        }
        Ok(extents)
    }

    /// Of two extents with one number, one lost the race to be used and holds zeros only.
    fn chosen(&self, candidates: &[(usize, u64)], count: usize) -> Result<(usize, u64), ReadError> {
        let mut chosen = candidates[0];
        for &(element, offset) in &candidates[1..] {
            if self.read(offset, count * element)?.iter().any(|&byte| byte != 0) {
                chosen = (element, offset);
            }
        }
        Ok(chosen)
    }
}

fn header_word(header: &Bytes, at: usize) -> u64 {
    header
        .bytes
        .get(at..at + 8)
        .map_or(0, |eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()))
}

/// Size of the part of an element that this version knows.
fn known_element_bytes(section: Section) -> usize {
    match section {
        Section::Text => 1,
        Section::Devices => size_of::<DeviceRow>(),
        Section::Contexts => size_of::<ContextRow>(),
        Section::Threads => size_of::<ThreadRow>(),
        Section::Modules => size_of::<ModuleRow>(),
        Section::Frames => size_of::<FrameRow>(),
        Section::Records => size_of::<Record>(),
        Section::Failures => size_of::<FailureRow>(),
        Section::Counters => size_of::<CounterRow>(),
        Section::Peaks => size_of::<PeakRow>(),
        Section::Apis | Section::Unhooked | Section::Domains => size_of::<NameRow>(),
        Section::Marks => size_of::<MarkRow>(),
        Section::Allocators => size_of::<AllocatorRow>(),
        Section::Codes => size_of::<CodeRow>(),
        Section::Totals => size_of::<TotalRow>(),
        Section::Interpreters => size_of::<InterpreterRow>(),
    }
}

const _: () = assert!(Api::COUNT <= 256, "the apis section holds 256 names");

#[cfg(test)]
pub(crate) mod tests;
