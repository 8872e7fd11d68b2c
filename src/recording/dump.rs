//! A copy of the recording as it is now, in a file of its own: a snapshot that stays when the program goes on.
//!
//! It is made in the process itself, with plain reads and writes: the program may be about to die (it has just run out of
//! memory), and there may be no supervisor. No lock is taken and nothing waits, so other threads go on changing records
//! meanwhile. The copy is consistent all the same, in the way a reader's snapshot of a running process is:
//!
//! ```text
//! header ─► records ─► header again ─► everything records may refer to ─► records again ─► header written
//!   └ time, events         └ rows only ever grow                              └ state words compared, events again
//! ```
//!
//! A record whose state word is not the same on the second look changed in between; it is taken out of the copy, and so
//! is one that began after the first look. What remains was live during the whole copy and was not touched. If no event
//! happened meanwhile the copy is exact, and otherwise it says how many did (`Header::dump_events`). A file without
//! the magic, which is written last, was never finished.
//!
//! Pages of zeros are not written: most of a young recording is room for more.

use std::ffi::CStr;
use std::mem::offset_of;

use super::Recording;
use crate::format::*;
use crate::lockfree::table::{Record, State, Status};
use crate::system::{Descriptor, Errno, Uncancelled, anonymous, without_write_signals};

const PAGE: usize = 4096;
/// Records per piece; a piece is also a whole number of pages.
const RECORDS: usize = 4096;
const PIECE: usize = RECORDS * size_of::<Record>();
const _: () = assert!(PIECE.is_multiple_of(PAGE));

/// One range of the file, from the directory.
struct Range {
    offset: u64,
    bytes: u64,
}

impl Recording {
    /// Writes the copy to `path`, which must not exist. `refusal` is the row of the request that failed, or `NONE`.
    ///
    /// # Errors
    /// The errno of what failed; nothing is left behind then.
    pub fn freeze(&self, path: &CStr, reason: Reason, name: &[u8], refusal: u32) -> Result<(), Errno> {
        let _uncancelled = Uncancelled::new();
        let name = self.text(name);
        let from = self.file.open()?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let to = Descriptor::open(path, flags)?;
        let result = Room::new().and_then(|mut room| {
            let (from, to) = (from.number(), to.number());
            let copy = || Copy { from, to }.run(room.parts(), self, reason, name, refusal);
            let result = without_write_signals(copy);
            room.give_back();
            result
        });
        if result.is_err() {
            // SAFETY: a C string; the file was made by us just now.
            unsafe { libc::unlink(path.as_ptr()) };
        }
        result
    }
}

/// Memory to work in, off the stack (which may be the small one of a fiber) and off the heap.
struct Room {
    start: *mut u8,
}

const ROOM: usize = 2 * PIECE + 2 * HEADER_BYTES;

/// Parts of the room, one after the other.
struct Parts<'a> {
    /// The header when copying began.
    first: &'a mut [u8],
    /// The header that will be the copy's.
    header: &'a mut [u8],
    now: &'a mut [u8],
    before: &'a mut [u8],
}

impl Room {
    fn new() -> Result<Room, Errno> {
        Ok(Room {
            start: anonymous(ROOM)?,
        })
    }

    fn parts(&mut self) -> Parts<'_> {
        // SAFETY: mapped with this length, zeroed, and ours alone until it is given back.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start, ROOM) };
        let (first, rest) = all.split_at_mut(HEADER_BYTES);
        let (header, rest) = rest.split_at_mut(HEADER_BYTES);
        let (now, before) = rest.split_at_mut(PIECE);
        Parts {
            first,
            header,
            now,
            before,
        }
    }

    fn give_back(self) {
        // SAFETY: mapped in `new`; nothing borrows it any more.
        unsafe { libc::munmap(self.start.cast(), ROOM) };
    }
}

struct Copy {
    from: i32,
    to: i32,
}

impl Copy {
    fn run(&self, room: Parts, recording: &Recording, why: Reason, name: Text, refusal: u32) -> Result<(), Errno> {
        let Parts {
            first,
            header,
            now,
            before,
        } = room;
        let is_records = |section: u32| section == Section::Records as u32;
        let began = recording.now();
        read(self.from, first, 0)?;
        let events_before = self.events(first, now)?;
        for range in ranges(first, is_records) {
            self.copy(&range, now)?;
        }
        read(self.from, header, 0)?;
        let end = ranges(header, |_| true).map(|range| range.offset + range.bytes).max();
        let end = end.unwrap_or(0).max(HEADER_BYTES as u64);
        // SAFETY: `to` is open; the length is that of a file which exists.
        if unsafe { libc::ftruncate(self.to, end as libc::off_t) } != 0 {
            return Err(Errno::last());
        }
        for range in ranges(header, |section| !is_records(section)) {
            self.copy(&range, now)?;
        }
        let mut changed = 0;
        for range in ranges(first, is_records) {
            changed += self.compare(&range, began, now, before)?;
        }
        // The counters in the copy are from a moment in between; the reader takes what is live from the records.
        read(self.from, first, 0)?;
        let events = self.events(first, now)?.wrapping_sub(events_before).max(changed);
        for (place, word) in [
            (offset_of!(Header, dumped_plus_one), began + 1),
            (
                offset_of!(Header, dump_reason),
                pack(why as u32, refusal.wrapping_add(1)),
            ),
            (offset_of!(Header, dump_name), pack(name.offset, name.bytes)),
            (offset_of!(Header, dump_events), events),
        ] {
            header[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        // The magic last: until then the file is unfinished.
        write(self.to, &header[8..], 8)?;
        write(self.to, &header[..8], 0)
    }

    /// How many allocations, frees and refusals all shards have counted so far.
    fn events(&self, header: &[u8], piece: &mut [u8]) -> Result<u64, Errno> {
        let mut events = 0u64;
        for range in ranges(header, |section| section == Section::Counters as u32) {
            pieces(&range, |at, bytes| {
                read(self.from, &mut piece[..bytes], at)?;
                for row in piece[..bytes].chunks_exact(size_of::<CounterRow>()) {
                    for place in [
                        offset_of!(CounterRow, total_count),
                        offset_of!(CounterRow, freed_count),
                        offset_of!(CounterRow, failed_count),
                    ] {
                        events = events.wrapping_add(word_at(row, place));
                    }
                }
                Ok(())
            })?;
        }
        Ok(events)
    }

    fn copy(&self, range: &Range, piece: &mut [u8]) -> Result<(), Errno> {
        pieces(range, |at, bytes| {
            read(self.from, &mut piece[..bytes], at)?;
            for (number, page) in piece[..bytes].chunks(PAGE).enumerate() {
                if page.iter().any(|&byte| byte != 0) {
                    write(self.to, page, at + (number * PAGE) as u64)?;
                }
            }
            Ok(())
        })
    }

    /// Takes out of the copy what was not live from the first look to this one, and says how many records have changed.
    fn compare(&self, range: &Range, began: u64, now: &mut [u8], before: &mut [u8]) -> Result<u64, Errno> {
        let mut changed = 0;
        pieces(range, |at, bytes| {
            read(self.from, &mut now[..bytes], at)?;
            read(self.to, &mut before[..bytes], at)?;
            let size = size_of::<Record>();
            for start in (0..bytes / size).map(|number| number * size) {
                let place = start + offset_of!(Record, state);
                let state = word_at(before, place);
                let same = state == word_at(now, place);
                let live = State::of(state).is_some_and(|state| state.status == Status::Live);
                let later = word_at(before, start + offset_of!(Record, time_ns)) > began;
                changed += u64::from(!same);
                if live && (!same || later) {
                    write(self.to, &[0; 8], at + place as u64)?;
                }
            }
            Ok(())
        })?;
        Ok(changed)
    }
}

/// Calls `each` with place and length of every piece of a range.
fn pieces(range: &Range, mut each: impl FnMut(u64, usize) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < range.bytes {
        let bytes = (range.bytes - done).min(PIECE as u64) as usize;
        each(range.offset + done, bytes)?;
        done += bytes as u64;
    }
    Ok(())
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok());
    u64::from_le_bytes(eight.unwrap_or_default())
}

/// The extents of the sections that are wanted, as a copy of the header lists them.
fn ranges(header: &[u8], wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = Range> {
    let rows = header[DIRECTORY_OFFSET..].chunks_exact(size_of::<Extent>());
    rows.filter_map(move |row| {
        let section = word_at(row, offset_of!(Extent, section)) as u32;
        (section != 0 && wanted(section)).then(|| Range {
            offset: word_at(row, offset_of!(Extent, offset)),
            bytes: word_at(row, offset_of!(Extent, bytes)),
        })
    })
}

fn read(file: i32, mut bytes: &mut [u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: the buffer is as long as we say; `file` is open.
        let got = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), bytes.len(), at as libc::off_t) };
        match got {
            1.. => {
                bytes = &mut bytes[got as usize..];
                at += got as u64;
            }
            // The copy is shorter than the original as long as its last pages are zeros.
            0 => {
                bytes.fill(0);
                return Ok(());
            }
            _ if Errno::last().0 == libc::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
    Ok(())
}

fn write(file: i32, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: as in `read`.
        let put = unsafe { libc::pwrite(file, bytes.as_ptr().cast(), bytes.len(), at as libc::off_t) };
        match put {
            1.. => {
                bytes = &bytes[put as usize..];
                at += put as u64;
            }
            0 => return Err(Errno(libc::ENOSPC)),
            _ if Errno::last().0 == libc::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
    Ok(())
}
