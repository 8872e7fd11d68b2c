//! Reads a recording into a [`Snapshot`], also while its process is still writing.
//!
//! The file is read with `pread` and decoded from the copy. Nothing is mapped, so a file that is truncated during the read
//! causes an error and not a SIGBUS. Nothing is trusted: impossible lengths are errors, and references out of range are
//! treated as absent. All sections are copied whole except the records, which are decoded piece by piece (`records.rs`).
//!
//! A snapshot is consistent although no thread is stopped. If no event was counted while the records were read, the snapshot
//! is exact. Otherwise the records are read a second time: a record that is live with the same generation both times did
//! not change in between, so its fields belong together and it was live during the whole read. For a busy process the read
//! is repeated a few times; after that the rows are those that were live throughout, and [`Capture::events_during_read`]
//! counts the events that may be missing.
//!
//! ```text
//! reader        the sections of a recording, and when to read them again
//! records       records of live allocations, as rows
//! decode        all other sections, as a snapshot
//!   details       devices, contexts, threads and modules
//!   counters      counters and peaks, by kind and device
//!   process       who and where the process is
//!   stacks        stacks, from the stack trie
//!   python        Python frames and the interpreter
//!   python_line   the source line of a Python instruction, from its function's line table
//!   totals        total allocations of each stack, and what was live at the peaks
//!   ends          the end of the program's own work
//!   phases        ranges of time that the program named
//!   pages         pools of pages and their owners
//!   sanity        what no recording can contain
//! events        the event log, as a timeline
//! identity      which process a recording belongs to
//! liveness      whether that process still runs
//! elapsed       how long ago the recording began
//! progress      progress of long work
//! pulse         whether a recording has changed
//! spool         recordings that are elsewhere until their process ends
//! regular       opening files that may be something else
//! error         why a file cannot be read
//! ```
//!
//! [`Capture::events_during_read`]: crate::snapshot::Capture::events_during_read

mod counters;
mod decode;
mod details;
mod elapsed;
mod ends;
mod error;
mod events;
mod identity;
mod liveness;
mod pages;
mod phases;
mod process;
pub mod progress;
mod pulse;
mod python;
mod python_line;
mod records;
mod regular;
mod sanity;
mod spool;
mod stacks;
mod totals;

pub use error::ReadError;
pub use identity::{Identity, identity, is_early_copy, is_running, note_end};
pub use process::host_name;
pub use pulse::{Pulse, pulse};
pub use python_line::{BEFORE_FIRST, python_line};
pub use regular::{open_no_link, open_regular};
pub use spool::{Spooled, spooled};

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use memchr::memmem;

use crate::cuda_functions::Api;
use crate::format::*;
use crate::lockfree::segmented::extent_capacity;
use crate::snapshot::Snapshot;
use crate::timeline::Timeline;
use elapsed::Elapsed;
use records::Records;

/// The most reads of a process that keeps changing.
const ATTEMPTS: u32 = 5;
/// The most bytes of an element, in this version and later ones.
const fn element_max(section: Section) -> usize {
    match section {
        Section::Events => 1 << 20,
        _ => 4096,
    }
}
/// With more records than this a read takes so long that another one would not be exact either.
const MANY: usize = 1 << 20;

/// Reads the current state of the recording at `path`, without symbols.
///
/// # Errors
/// [`ReadError`], whose text is one line for the user.
pub fn read(path: &Path) -> Result<Snapshot, ReadError> {
    read_until_still(path)?.into_snapshot(path, Totals::LeftOut)
}

/// As [`read`], with the total allocations of every stack ([`Snapshot::totals`]), including stacks that hold no memory.
///
/// # Errors
/// As [`read`].
pub fn read_with_totals(path: &Path) -> Result<Snapshot, ReadError> {
    read_until_still(path)?.into_snapshot(path, Totals::Wanted)
}

/// As [`read`], with the events of the process. `None`: they were not logged. The snapshot has the stacks of all events.
///
/// # Errors
/// As [`read`].
pub fn read_timeline(path: &Path) -> Result<(Snapshot, Option<Timeline>), ReadError> {
    events::read(path)
}

/// As [`read`], without what was live at the peaks and the totals of segments, which cost as much time as all the rest.
///
/// # Errors
/// As [`read`].
pub fn read_without_peaks(path: &Path) -> Result<Snapshot, ReadError> {
    read_sections_until_still(path, |section| section != Section::Totals)?.into_snapshot(path, Totals::Unread)
}

/// As [`read_without_peaks`], for a caller that reads again soon: the read of a busy process is not repeated.
///
/// # Errors
/// As [`read`].
pub fn read_once(path: &Path) -> Result<Snapshot, ReadError> {
    let raw = Source::open(path)?.raw(|section| section != Section::Totals)?;
    raw.into_snapshot(path, Totals::Unread)
}

/// As [`read_without_peaks`], with a key of each stack that equal stacks of other processes have too. Stacks whose key is
/// `known` are left empty: most of the time of a read goes into stacks. `known` is called with a key and whether the process
/// has recorded tensors.
///
/// # Errors
/// As [`read`].
pub fn read_unknown_stacks(path: &Path, known: &dyn Fn(u64, bool) -> bool) -> Result<(Snapshot, Vec<u64>), ReadError> {
    let raw = read_sections_until_still(path, |section| section != Section::Totals)?;
    let decoded = raw.into_snapshot_with_sites(path, Totals::Unread, &[], Some(known))?;
    Ok((decoded.snapshot, decoded.stack_keys))
}

/// Whether [`Snapshot::totals`] are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Totals {
    /// Nor what was live at the peaks.
    Unread,
    LeftOut,
    Wanted,
}

fn read_until_still(path: &Path) -> Result<RawSnapshot, ReadError> {
    read_sections_until_still(path, |_| true)
}

/// Sections that are not wanted are empty.
fn read_sections_until_still(path: &Path, wanted: fn(Section) -> bool) -> Result<RawSnapshot, ReadError> {
    let source = Source::open(path)?;
    let mut raw = source.raw(wanted)?;
    for _ in 1..ATTEMPTS {
        if raw.events_during_read == 0 || raw.records.rows.len() > MANY {
            break;
        }
        raw = source.raw(wanted)?;
    }
    Ok(raw)
}

/// Whether a file that begins with these bytes is a recording.
pub fn is_recording(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

/// The sections that are read whole. Events are read on request.
fn sections_except_records() -> impl Iterator<Item = Section> {
    let all = Section::ALL.iter().copied();
    all.filter(|section| !matches!(section, Section::Records | Section::Events))
}

struct Source<'a> {
    path: &'a Path,
    file: File,
}

/// A copy of all sections, with the header as it was afterwards.
struct RawSnapshot {
    header: Bytes,
    sections: HashMap<u32, Bytes>,
    records: Records,
    /// When the read began, on the recording's clock; `u64::MAX` if the clocks cannot be compared.
    began_ns: u64,
    events_during_read: u64,
}

/// Consecutive elements of a section.
struct Piece {
    /// Bytes from one element to the next.
    element: usize,
    count: usize,
    /// `None`: the extent is missing, so the elements are zeros.
    offset: Option<u64>,
}

/// A copy of a part of the file: an array of equal elements.
#[derive(PartialEq)]
struct Bytes {
    bytes: Vec<u8>,
    element: usize,
}

impl Bytes {
    /// An empty section.
    fn none(section: Section) -> Bytes {
        Bytes {
            bytes: Vec::new(),
            element: section.element_bytes(),
        }
    }

    fn len(&self) -> usize {
        self.bytes.len().checked_div(self.element).unwrap_or(0)
    }

    /// The element with this number; zeros, which always mean "not published", if there is none.
    fn row<R: Row>(&self, number: usize) -> R::Values {
        debug_assert_eq!(self.element, size_of::<R>());
        let at = number.saturating_mul(self.element);
        R::read(self.bytes.get(at..at.saturating_add(self.element)).unwrap_or_default())
    }

    /// All elements, in order.
    fn rows<R: Row>(&self) -> impl Iterator<Item = R::Values> {
        debug_assert_eq!(self.element, size_of::<R>());
        self.bytes.chunks_exact(self.element).map(R::read)
    }

    /// The field of the header at this offset.
    fn field<F: Field>(&self, offset: usize) -> F {
        F::read(self.bytes.get(offset..).unwrap_or_default())
    }
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Source<'a>, ReadError> {
        let file = open_regular(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => ReadError::Foreign(path.to_path_buf()),
            _ => ReadError::Io(path.to_path_buf(), error),
        })?;
        let file = match spool::of(&file) {
            Some(spooled) => spooled.open(path)?,
            None => file,
        };
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
            // Zeros: a recording whose process ended before it wrote the magic, which comes last.
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
        let order: u32 = start.field(offset_of!(Header, byte_order));
        if order == BYTE_ORDER.swap_bytes() {
            return Err(ReadError::OtherByteOrder(path()));
        }
        let version: u32 = start.field(offset_of!(Header, version));
        let header_bytes: u32 = start.field(offset_of!(Header, header_bytes));
        if order != BYTE_ORDER || version == 0 {
            return Err(ReadError::Damaged(path(), "its header makes no sense".into()));
        }
        if version != VERSION {
            return Err(ReadError::OtherVersion(path(), version));
        }
        if header_bytes as usize != HEADER_BYTES {
            return Err(ReadError::Damaged(path(), "its header makes no sense".into()));
        }
        let bytes = self.read(0, HEADER_BYTES)?;
        // The name of the program is written before the magic.
        if extents(&bytes).next().is_none() {
            return Err(ReadError::Damaged(path(), "its directory is empty".into()));
        }
        Ok(Bytes { bytes, element: 1 })
    }

    /// Refuses a file that is cut off, or that two recordings were joined into, even if both: only a part would be read.
    fn refuse_other_length(&self, header: &Bytes) -> Result<(), ReadError> {
        const EXTENT_MOST: u64 = 4 << 30;
        const AT_ONCE: usize = 1 << 20;
        let (began, size) = (recorded_bytes(&header.bytes), self.size()?);
        let damaged = |what: String| Err(ReadError::Damaged(self.path.to_path_buf(), what));
        if size < began {
            let what = format!("it has {size} of {began} bytes");
            return Err(ReadError::Truncated(self.path.to_path_buf(), what));
        }
        // Behind the extents that the directory names, at most one is about to be added.
        if size.saturating_sub(began) > EXTENT_MOST {
            return damaged(format!("{} bytes follow the last of its rows", size - began));
        }
        let magic = memmem::Finder::new(&MAGIC);
        let order = offset_of!(Header, byte_order);
        let is_header = |bytes: &[u8]| {
            let order = bytes.get(order..order + 4).and_then(|order| order.try_into().ok());
            order
                .map(u32::from_ne_bytes)
                .is_some_and(|order| [BYTE_ORDER, BYTE_ORDER.swap_bytes()].contains(&order))
        };
        let mut buffer = vec![0; AT_ONCE + order + 4];
        for start in (0..size).step_by(AT_ONCE) {
            let bytes = &mut buffer[..(AT_ONCE + order + 4).min((size - start) as usize)];
            self.read_into(start, bytes)?;
            let places = magic.find_iter(bytes).filter(|place| is_header(&bytes[*place..]));
            if let Some(at) = places.map(|place| start + place as u64).find(|at| *at > 0) {
                return damaged(format!("another recording begins at byte {at}; split the file there"));
            }
        }
        Ok(())
    }

    fn raw(&self, wanted: fn(Section) -> bool) -> Result<RawSnapshot, ReadError> {
        let header = self.header()?;
        self.refuse_other_length(&header)?;
        let began_ns = Elapsed::since_start(&header).latest_ns();
        let events_before = counters::events(&self.section(&header, Section::Counters)?);
        let lost = |header: &Bytes| decode::loss(header, Loss::Allocations);
        let pieces = self.pieces(&header, Section::Records)?;
        let mut records = Records::read(self, &pieces)?;
        let mut sections = HashMap::new();
        for section in sections_except_records() {
            let bytes = match wanted(section) {
                // A fresh header for each section: rows that the records refer to may have been added meanwhile.
                true => self.section(&self.header()?, section)?,
                false => Bytes::none(section),
            };
            sections.insert(section as u32, bytes);
        }
        let mut after = self.header()?;
        let events = |header: &Bytes| Ok::<_, ReadError>(counters::events(&self.section(header, Section::Counters)?));
        // Each shard's counts only rise (a failed free subtracts what it added itself), so equal sums mean that no event was
        // counted in between. An event that was under way during the whole read may be in the rows or not: each is the
        // state at some instant. Lost allocations are compared too, since each occupied a record before it was lost.
        if events(&after)? == events_before && lost(&after) == lost(&header) {
            records.forget_generations();
        } else {
            records.verify(self, &pieces)?;
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

    /// Copies the elements of a section that `header` counts.
    fn section(&self, header: &Bytes, section: Section) -> Result<Bytes, ReadError> {
        let known = section.element_bytes();
        let mut all = Bytes::none(section);
        for piece in self.pieces(header, section)? {
            match piece.offset {
                None => all.bytes.resize(all.bytes.len() + piece.count * known, 0),
                Some(offset) if piece.element == known => {
                    let from = all.bytes.len();
                    all.bytes.resize(from + piece.count * known, 0);
                    self.read_into(offset, &mut all.bytes[from..])?;
                }
                Some(offset) => {
                    let copy = self.read(offset, piece.count * piece.element)?;
                    let elements = copy.chunks_exact(piece.element);
                    elements.for_each(|element| all.bytes.extend_from_slice(&element[..known]));
                }
            }
        }
        Ok(all)
    }

    /// The pieces of a section that `header` counts.
    fn pieces(&self, header: &Bytes, section: Section) -> Result<Vec<Piece>, ReadError> {
        let (first, limit) = section.extent_sizes();
        let counts = offset_of!(Header, counts);
        let mut left: u64 = header.field(counts + section as usize * 8);
        let extents = self.extents(header, section)?;
        let (mut pieces, mut gaps) = (Vec::new(), 0);
        for number in 0.. {
            if left == 0 {
                break;
            }
            let count = left.min(extent_capacity(number as usize, first, limit) as u64) as usize;
            left -= count as u64;
            let Some(candidates) = extents.get(&number) else {
                // The extent is missing. Either the disk was full, and then no later extent exists; or the threads that were to
                // make it left by a jump, and the rows of later extents are valid. No recording has larger gaps than `GAPS`.
                const GAPS: usize = 1 << 20;
                gaps += count;
                if extents.range(number..).next().is_none() || gaps > GAPS {
                    break;
                }
                let (element, offset) = (section.element_bytes(), None);
                pieces.push(Piece { element, count, offset });
                continue;
            };
            let (element, offset) = self.chosen(candidates, count)?;
            let offset = Some(offset);
            pieces.push(Piece { element, count, offset });
        }
        Ok(pieces)
    }

    /// Element size and offset of every extent that the directory lists for a section, by number.
    fn extents(&self, header: &Bytes, section: Section) -> Result<BTreeMap<u32, Vec<(usize, u64)>>, ReadError> {
        let damaged = |what: String| ReadError::Damaged(self.path.to_path_buf(), what);
        let (first, limit) = section.extent_sizes();
        let size = self.size()?;
        let mut extents: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
        let mut used = Vec::new();
        for row in 0..DIRECTORY_CAPACITY {
            let at = DIRECTORY_OFFSET + row * size_of::<Extent>();
            let extent = Extent::read(&header.bytes[at..]);
            if extent.section != section as u32 {
                continue;
            }
            let (number, element) = (extent.number, extent.element_bytes as usize);
            let capacity = extent_capacity(number.min(100_000) as usize, first, limit) as u64;
            let needed = capacity.checked_mul(element as u64);
            if element < section.element_bytes()
                || element > element_max(section)
                || needed.is_none_or(|needed| needed > extent.bytes)
            {
                return Err(damaged(format!("directory row {row} has impossible sizes")));
            }
            let end = extent.offset.saturating_add(extent.bytes);
            if end == u64::MAX || end > size {
                let what = format!("directory row {row} ends at byte {end}, the file at {size}");
                return Err(ReadError::Truncated(self.path.to_path_buf(), what));
            }
            used.push((extent.offset, end));
            extents.entry(number).or_default().push((element, extent.offset));
        }
        // A small file could claim the same bytes again and again.
        used.sort_unstable();
        if used.windows(2).any(|pair| pair[1].0 < pair[0].1) {
            return Err(damaged(format!("two extents of section {} overlap", section as u32)));
        }
        Ok(extents)
    }

    /// Of two extents with the same number, the one that lost the race for publication holds only zeros.
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

const _: () = assert!(Api::COUNT <= 512, "the apis section holds 512 names");

#[cfg(test)]
pub(crate) mod tests;
