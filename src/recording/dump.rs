//! Automatic snapshots: a copy of the recording as it is now, in another file that stays when the program continues.
//!
//! The process itself makes the copy, with plain reads and writes: the program may be about to die (it has just run out of
//! memory), and there may be no supervisor. No lock is taken and nothing waits, so other threads change records meanwhile.
//! The copy is consistent all the same, in the way a reader's snapshot of a running process is:
//!
//! ```text
//! header ─► records ─► header again ─► everything records may refer to ─► records again ─► header written
//!   └ time, events         └ rows are only ever added                         └ state words compared, events again
//! ```
//!
//! A record whose state word differs at the second read changed in between; it is removed from the copy, and so is a record
//! that is newer than the beginning of the copy. The others were live during the whole copy and did not change. If no event
//! happened meanwhile the copy is exact; otherwise it holds their number (`Header::dump_events`). The magic is written last,
//! so a file without it is unfinished.
//!
//! Pages of zeros are not written: most of a young recording is unused.

use std::ffi::CStr;
use std::mem::offset_of;

use super::Recording;
use crate::format::*;
use crate::lockfree::table::{State, Status};
use crate::system::{Descriptor, Errno, Scratch, Uncancelled, read_at, without_write_signals, write_at};

const PAGE: usize = 4096;
/// Records per piece; a piece is also a whole number of pages.
const RECORDS: usize = 4096;
const PIECE: usize = RECORDS * size_of::<Record>();
const _: () = assert!(PIECE.is_multiple_of(PAGE));

impl Recording {
    /// Writes the copy to `path`, which must not exist. `failed_row` is the row of the request that failed, or `NONE`.
    ///
    /// # Errors
    /// The errno of the call that failed; the file is then removed.
    pub fn dump(&self, path: &CStr, reason: Reason, name: &[u8], failed_row: u32) -> Result<(), Errno> {
        let _uncancelled = Uncancelled::begin();
        let name = self.text(name);
        let from = self.file.open()?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let to = Descriptor::open(path, flags)?;
        // SAFETY: arrays of bytes, of which all zeros is a value.
        let result = unsafe { Scratch::zeroed() }.and_then(|mut buffers| {
            let (from, to) = (from.number(), to.number());
            without_write_signals(|| Transfer { from, to }.run(&mut buffers, self, reason, name, failed_row))
        });
        if result.is_err() {
            // SAFETY: a C string; this call created the file.
            unsafe { libc::unlink(path.as_ptr()) };
        }
        result
    }
}

/// Buffers, neither on the stack (which may be the small one of a fiber) nor on the heap.
struct Buffers {
    /// The header at the beginning of the copy.
    first: [u8; HEADER_BYTES],
    /// The header of the copy.
    header: [u8; HEADER_BYTES],
    now: [u8; PIECE],
    before: [u8; PIECE],
}

struct Transfer {
    from: i32,
    to: i32,
}

impl Transfer {
    fn run(
        &self,
        buffers: &mut Buffers,
        recording: &Recording,
        why: Reason,
        name: Text,
        failed_row: u32,
    ) -> Result<(), Errno> {
        let Buffers {
            first,
            header,
            now,
            before,
        } = buffers;
        let is_records = |section: u32| section == Section::Records as u32;
        let is_events = |section: u32| section == Section::Events as u32;
        let began = recording.now();
        read_at(self.from, first, 0)?;
        let events_before = self.events(first, now)?;
        for range in ranges(first, is_records) {
            self.copy(&range, now)?;
        }
        read_at(self.from, header, 0)?;
        let end = recorded_bytes(header);
        // SAFETY: `to` is open; the length is that of a file which exists.
        if unsafe { libc::ftruncate(self.to, end as libc::off_t) } != 0 {
            return Err(Errno::last());
        }
        for range in ranges(header, |section| !is_records(section) && !is_events(section)) {
            self.copy(&range, now)?;
        }
        let mut changed = 0;
        for range in ranges(first, is_records) {
            changed += self.compare(&range, began, now, before)?;
        }
        // The counters in the copy are newer than its records; readers compute live sums from the records.
        read_at(self.from, first, 0)?;
        let events = self.events(first, now)?.wrapping_sub(events_before).max(changed);
        for (place, word) in [
            (offset_of!(Header, dumped_plus_one), began + 1),
            (
                offset_of!(Header, dump_reason),
                pack(why as u32, failed_row.wrapping_add(1)),
            ),
            (offset_of!(Header, dump_name), name.to_word()),
            (offset_of!(Header, dump_events), events),
            // The copy has no events.
            (offset_of!(Header, timeline_segments), 0),
        ] {
            header[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        // The magic last: until then the copy is unfinished.
        write_at(self.to, &header[8..], 8)?;
        write_at(self.to, &header[..8], 0)
    }

    /// How many allocations, frees and failed requests all shards have counted so far.
    fn events(&self, header: &[u8], piece: &mut [u8]) -> Result<u64, Errno> {
        let mut events = 0u64;
        for range in ranges(header, |section| section == Section::Counters as u32) {
            pieces(&range, |at, bytes| {
                read_at(self.from, &mut piece[..bytes], at)?;
                for row in piece[..bytes]
                    .chunks_exact(size_of::<CounterRow>())
                    .map(CounterRow::read)
                {
                    for count in [row.total_count, row.freed_count, row.failed_count] {
                        events = events.wrapping_add(count);
                    }
                }
                Ok(())
            })?;
        }
        Ok(events)
    }

    fn copy(&self, range: &ExtentValues, piece: &mut [u8]) -> Result<(), Errno> {
        pieces(range, |at, bytes| {
            read_at(self.from, &mut piece[..bytes], at)?;
            for (number, page) in piece[..bytes].chunks(PAGE).enumerate() {
                if page.iter().any(|&byte| byte != 0) {
                    write_at(self.to, page, at + (number * PAGE) as u64)?;
                }
            }
            Ok(())
        })
    }

    /// Removes records from the copy that were not live from the first read to this one. Returns how many records changed.
    fn compare(&self, range: &ExtentValues, began: u64, now: &mut [u8], before: &mut [u8]) -> Result<u64, Errno> {
        let mut changed = 0;
        pieces(range, |at, bytes| {
            read_at(self.from, &mut now[..bytes], at)?;
            read_at(self.to, &mut before[..bytes], at)?;
            let size = size_of::<Record>();
            let records = now[..bytes].chunks_exact(size).zip(before[..bytes].chunks_exact(size));
            for (number, (now, before)) in records.enumerate() {
                let (now, before) = (Record::read(now), Record::read(before));
                let same = before.state == now.state;
                let live = State::of(before.state).is_some_and(|state| state.status == Status::Live);
                changed += u64::from(!same);
                if live && (!same || before.time_ns > began) {
                    let place = number * size + offset_of!(Record, state);
                    write_at(self.to, &[0; 8], at + place as u64)?;
                }
            }
            Ok(())
        })?;
        Ok(changed)
    }
}

/// Calls `each` with offset and length of every piece of a range.
fn pieces(range: &ExtentValues, mut each: impl FnMut(u64, usize) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < range.bytes {
        let bytes = (range.bytes - done).min(PIECE as u64) as usize;
        each(range.offset + done, bytes)?;
        done += bytes as u64;
    }
    Ok(())
}

/// The extents of the wanted sections, as listed in a copy of the header.
fn ranges(header: &[u8], wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = ExtentValues> {
    extents(header).filter(move |extent| wanted(extent.section))
}
