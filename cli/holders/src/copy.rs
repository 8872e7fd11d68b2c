//! A copy of a process's writable memory, addressed as in the process.
//!
//! ```text
//! address ─► directory (1 GiB per entry) ─► page table ─► number of the page in the buffer
//! ```
//!
//! Private pages that exist and were written are copied at once, also if they are read-only by now. Other read-only pages
//! (virtual tables, names, type objects) are copied singly when they are first read. A word that is absent reads as 0, which
//! no structure takes for a pointer.
//!
//! Not copied: memory that is searched apart ([`apart`]), devices, and the recorder's own memory, which contains the address
//! of every block.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::parallel;
use crate::source::{Region, Source, Thread};

pub(crate) mod apart;
mod pages;
mod reading;
mod room;
pub(crate) mod selection;

pub use crate::source::PAGE;
use pages::{ABSENT, Pages, UNKNOWN};

/// Pages that can be added singly: 1 GiB.
const SINGLE_PAGES: u64 = 1 << 18;

/// Pages that are read again: 512 MiB. All others are as they were.
const AGAIN: u64 = 1 << 17;

/// The longest range that [`Image::bytes`] returns.
const LONGEST: u64 = 1 << 30;

/// Copied pages.
pub struct Image<'a> {
    regions: Arc<[Region]>,
    source: &'a dyn Source,
    pages: Pages,
    /// Where pages that are unknown here are found.
    older: Option<&'a Image<'a>>,
    /// What was copied at once.
    runs: Arc<[Range<u64>]>,
    /// The size of that.
    bytes: u64,
    /// Never copied.
    excluded: Arc<[Range<u64>]>,
    threads: Arc<[Thread]>,
}

impl<'a> Image<'a> {
    /// Copies the private written memory outside the excluded ranges, devices (`/dev/…`) and the recorder's own memory.
    ///
    /// # Errors
    /// The mappings cannot be read, nothing can be copied, the copy does not fit into memory, or there was no time for all of it.
    pub fn take(source: &'a dyn Source, excluded: &[Range<u64>]) -> Result<Image<'a>, Error> {
        let failed = |error| Error::Read("the memory map".to_owned(), error);
        let regions = source.regions().map_err(failed)?;
        let excluded = selection::excluded(source, &regions, excluded);
        let wanted = selection::written(source, &regions, &excluded);
        let count: u64 = wanted.iter().map(|run| (run.end - run.start) / PAGE).sum();
        let failed = |error| Error::Read(format!("{} MiB of memory", (count * PAGE) >> 20), error);
        let mut pages = Pages::new(count, SINGLE_PAGES).map_err(failed)?;
        for region in regions.iter().filter(|region| region.readable) {
            pages.may_have(&region.range);
        }
        let missing = reading::read(source, &wanted, pages.copied_mut());
        if source.is_late() {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        if missing.len() as u64 == count {
            // A process that has ended has no mappings.
            source.regions().map_err(failed)?;
            let error = std::io::Error::other("no page of it can be read");
            return Err(failed(error));
        }
        let runs = pages.enter(&wanted, &missing);
        let threads = source.threads();
        Ok(Image {
            regions: regions.into(),
            source,
            pages,
            older: None,
            bytes: runs.iter().map(|run| run.end - run.start).sum(),
            runs: runs.into(),
            excluded: excluded.into(),
            threads: threads.into(),
        })
    }

    /// The memory as it is now: what the older copy has copied at once, and what the process has got since, is read when it is asked for.
    ///
    /// # Errors
    /// There is no room for it among the addresses of this process.
    pub fn newer(older: &'a Image<'a>) -> io::Result<Image<'a>> {
        let mut pages = Pages::new(0, AGAIN)?;
        for region in older.regions.iter().filter(|region| region.readable) {
            pages.may_have(&region.range);
        }
        Ok(Image {
            regions: Arc::clone(&older.regions),
            source: older.source,
            pages,
            older: Some(older),
            runs: Arc::clone(&older.runs),
            bytes: older.bytes,
            excluded: Arc::clone(&older.excluded),
            threads: Arc::clone(&older.threads),
        })
    }

    /// Whether further pages can be read singly.
    pub fn has_room(&self) -> bool {
        self.pages.has_room()
    }

    /// Whether the page was copied at once, so was written.
    #[inline]
    pub fn has(&self, address: u64) -> bool {
        self.pages.is_copied(self.pages.number(address))
            || self.older.is_some_and(|older| older.has(address) || self.came(address))
    }

    /// Whether the process has got the page since the older copy was made: an array moved there when it grew.
    #[cold]
    fn came(&self, address: u64) -> bool {
        matches!(self.fetched(address), Place::Here(number) if number != ABSENT)
    }

    /// The word at this address, which need not be aligned; 0 if it is absent.
    #[inline]
    pub fn word(&self, address: u64) -> u64 {
        let number = self.pages.number(address);
        if number == UNKNOWN || address % PAGE > PAGE - 8 {
            return self.rare_word(address);
        }
        self.pages.word(number, address % PAGE)
    }

    /// A word of a page that is not known yet, or of two pages.
    #[cold]
    #[inline(never)]
    fn rare_word(&self, address: u64) -> u64 {
        if address % PAGE > PAGE - 8 {
            // Both aligned words around it are inside their pages.
            let (low, shift) = (self.word(address & !7), (address & 7) * 8);
            return match (address & !7).checked_add(8) {
                _ if shift == 0 => low,
                Some(next) => low >> shift | self.word(next) << (64 - shift),
                None => low >> shift,
            };
        }
        match self.fetched(address) {
            Place::Here(number) => self.pages.word(number, address % PAGE),
            Place::Older(older) => older.word(address),
        }
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

    /// The words of a page that was copied at once, as they were then.
    pub fn page(&self, address: u64) -> Option<&[u64; 512]> {
        let number = self.pages.number(address);
        if self.pages.is_copied(number) {
            return Some(self.pages.words(number));
        }
        self.older?.page(address)
    }

    /// The addresses and values of the copied words that begin in this range.
    pub(crate) fn words(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let pages = (range.start & !(PAGE - 1)..range.end).step_by(PAGE as usize);
        pages.flat_map(move |page| {
            let place = |address: u64| (address.clamp(page, page + PAGE) - page).div_ceil(8) as usize;
            let part = place(range.start)..place(range.end);
            let first = page + part.start as u64 * 8;
            let words = self.page(page).map_or(&[][..], |words| &words[part]);
            (first..).step_by(8).zip(words.iter().copied())
        })
    }

    /// The bytes of a range, if all are present; 1 GiB at most.
    pub fn bytes(&self, range: Range<u64>) -> Option<Vec<u8>> {
        if range.end < range.start || range.end - range.start > LONGEST {
            return None;
        }
        let mut bytes = Vec::new();
        let mut address = range.start;
        while address < range.end {
            let part = self.part(address)?;
            let part = &part[..part.len().min((range.end - address) as usize)];
            bytes.extend_from_slice(part);
            address += part.len() as u64;
        }
        Some(bytes)
    }

    /// As [`Image::bytes`], without a copy; `None` also if the range crosses the end of a page.
    pub(crate) fn slice(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        self.part(start)?.get(..usize::try_from(bytes).ok()?)
    }

    /// A C string, up to `limit` bytes. Empty if it is absent, contains control characters or is not UTF-8.
    pub fn text(&self, address: u64, limit: usize) -> String {
        let mut bytes = Vec::new();
        let mut next = address;
        while bytes.len() < limit {
            let Some(part) = self.part(next) else {
                return String::new();
            };
            let part = &part[..part.len().min(limit - bytes.len())];
            if let Some(end) = part.iter().position(|&byte| byte == 0) {
                bytes.extend_from_slice(&part[..end]);
                break;
            }
            bytes.extend_from_slice(part);
            next += part.len() as u64;
        }
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            // The limit may cut a character.
            Err(error) if bytes.len() == limit && error.error_len().is_none() => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(_) => return String::new(),
        };
        if text.chars().any(char::is_control) {
            return String::new();
        }
        text.to_owned()
    }

    /// The bytes from an address to the end of its page.
    fn part(&self, address: u64) -> Option<&[u8]> {
        match self.fetched(address) {
            Place::Here(ABSENT) => None,
            Place::Here(number) => Some(self.pages.bytes(number, address % PAGE)),
            Place::Older(older) => older.part(address),
        }
    }

    /// Where the page is, after it was copied if necessary and possible.
    fn fetched(&self, address: u64) -> Place<'a> {
        let number = self.pages.number(address);
        if number != UNKNOWN {
            return Place::Here(number);
        }
        let start = address & !(PAGE - 1);
        let page = start..start + PAGE;
        let region = self.region(address);
        let readable = match self.older {
            Some(older) if !self.pages.has_room() => return Place::Older(older),
            Some(older) if older.has(address) => true,
            Some(older) if !matches!(older.fetched(address), Place::Here(ABSENT)) => return Place::Older(older),
            Some(_) => {
                region.is_some_and(|region| selection::became_present(self.source, region, &page, &self.excluded))
            }
            None => region.is_some_and(|region| selection::read_singly(self.source, region, &page, &self.excluded)),
        };
        let read =
            |range: Range<u64>, buffer: &mut [u8]| readable && self.source.read(&[range], buffer) == buffer.len();
        let around = match region {
            Some(region) if readable && self.older.is_none() => selection::around(region, &page, &self.excluded),
            _ => page,
        };
        Place::Here(self.pages.add(start, &around, read))
    }

    /// The number of the 16 bytes that contain this address, if they were copied at once; less than [`Image::granules`].
    #[inline]
    pub fn granule(&self, address: u64) -> Option<usize> {
        if let Some(older) = self.older {
            return older.granule(address);
        }
        self.granule_in(self.pages.number(address), address)
    }

    #[inline]
    fn granule_in(&self, number: u32, address: u64) -> Option<usize> {
        let page = self.pages.place(number)?;
        Some(page * (PAGE / 16) as usize + (address % PAGE / 16) as usize)
    }

    /// Starts to load this address and what follows it into the processor's cache, if it was copied at once. Returns its
    /// granule, as [`Image::granule`].
    #[inline]
    pub(crate) fn prefetch(&self, address: u64) -> Option<usize> {
        if self.older.is_some() {
            return None;
        }
        let number = self.pages.number(address);
        let granule = self.granule_in(number, address)?;
        self.pages.prefetch(number, address % PAGE);
        Some(granule)
    }

    pub fn granules(&self) -> usize {
        self.oldest().pages.copied() as usize * (PAGE / 16) as usize
    }

    /// Bytes copied at once.
    pub fn copied_bytes(&self) -> u64 {
        self.bytes
    }

    fn oldest(&self) -> &Image<'a> {
        self.older.map_or(self, |older| older.oldest())
    }

    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub fn region(&self, address: u64) -> Option<&Region> {
        selection::containing(&self.regions, address, |region| region.range.clone())
    }

    /// The copied parts of the memory, whole pages in order of their addresses.
    pub fn runs(&self) -> Vec<Range<u64>> {
        self.runs.to_vec()
    }

    /// The first address from here on that is in one of the copied parts.
    pub fn next_copied(&self, address: u64) -> Option<u64> {
        let place = self.runs.partition_point(|run| run.end <= address);
        Some(self.runs.get(place)?.start.max(address))
    }

    /// As [`Image::runs`], in pieces of similar size, for several threads.
    pub(crate) fn pieces(&self) -> Vec<Vec<Range<u64>>> {
        pieces(self.runs.iter().cloned(), SEARCHED)
    }

    /// What `see` says of the address and value of each copied word that is near what is wanted, in order. Several threads search.
    pub(crate) fn search<R: Send>(
        &self,
        is_near: impl Fn(u64) -> bool + Sync,
        see: impl Fn(u64, u64) -> Option<R> + Sync,
    ) -> Vec<R> {
        parallel::flat_map(&self.pieces(), |piece| {
            let mut found = Vec::new();
            for page in piece.iter().flat_map(|run| run.clone().step_by(PAGE as usize)) {
                let Some(words) = self.page(page) else { continue };
                // Few pages have such words. Without a branch for each word, this is as fast as memory is read.
                if words.iter().fold(false, |any, value| any | is_near(*value)) {
                    let near = (page..).step_by(8).zip(words).filter(|(_, value)| is_near(**value));
                    found.extend(near.filter_map(|(address, value)| see(address, *value)));
                }
            }
            found
        })
    }

    /// The threads when the memory was copied.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    pub fn source(&self) -> &'a dyn Source {
        self.source
    }

    /// Memory that is searched for blocks which nothing else holds.
    pub(crate) fn apart(&self) -> apart::Apart {
        apart::Apart::find(self.source, &self.regions, &self.excluded, apart::MOST)
    }
}

/// A copy of a process that was stopped while it was made.
pub struct Stopped<'s> {
    pub copy: Image<'s>,
    /// How long the copy took.
    pub copied: Duration,
    /// How long the process was stopped.
    pub paused: Duration,
}

/// Starts to load this memory into the processor's cache. The address need not be valid.
#[inline]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which does nothing if the address is not valid.
    unsafe {
        std::arch::x86_64::_mm_prefetch(place.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Bytes that a thread searches in a row.
pub(crate) const SEARCHED: u64 = 2 << 20;

/// Divides ranges of whole pages into pieces of this many bytes, in the same order.
pub(crate) fn pieces(ranges: impl Iterator<Item = Range<u64>>, bytes: u64) -> Vec<Vec<Range<u64>>> {
    let (mut pieces, mut last, mut room) = (Vec::new(), Vec::new(), bytes);
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + room);
            last.push(start..end);
            room -= end - start;
            start = end;
            if room == 0 {
                pieces.push(std::mem::take(&mut last));
                room = bytes;
            }
        }
    }
    pieces.push(last);
    pieces
}

/// Which copy has a page.
enum Place<'a> {
    /// This one, under this number.
    Here(u32),
    Older(&'a Image<'a>),
}

#[cfg(test)]
mod tests;
