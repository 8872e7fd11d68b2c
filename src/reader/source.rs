//! The file of a recording: its header, and where the elements of its sections are.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use memchr::memmem;

use super::{Bytes, ReadError, open_regular, spool};
use crate::format::*;
use crate::lockfree::segmented::extent_capacity;

/// The most bytes of an element, in this version and later ones.
const fn element_max(section: Section) -> usize {
    match section {
        Section::Events => 1 << 20,
        _ => 4096,
    }
}

/// Whether a file that begins with these bytes is a recording.
pub fn is_recording(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

/// A recording, open.
pub(super) struct Source<'a> {
    pub path: &'a Path,
    pub file: File,
}

/// Consecutive elements of a section.
pub(super) struct Piece {
    /// Bytes from one element to the next.
    pub element: usize,
    pub count: usize,
    /// `None`: the extent is missing, so the elements are zeros.
    pub offset: Option<u64>,
}

impl<'a> Source<'a> {
    pub fn open(path: &'a Path) -> Result<Source<'a>, ReadError> {
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

    pub fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, ReadError> {
        let mut buffer = vec![0; bytes];
        self.read_into(offset, &mut buffer)?;
        Ok(buffer)
    }

    pub fn read_into(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
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

    pub fn header(&self) -> Result<Bytes, ReadError> {
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
    pub fn refuse_other_length(&self, header: &Bytes) -> Result<(), ReadError> {
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

    /// Copies the elements of a section that `header` counts.
    pub fn section(&self, header: &Bytes, section: Section) -> Result<Bytes, ReadError> {
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
    pub fn pieces(&self, header: &Bytes, section: Section) -> Result<Vec<Piece>, ReadError> {
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
