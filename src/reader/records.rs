//! The records of live allocations, read by pieces: there may be ten million of them, and no second copy is wanted.
//!
//! ```text
//! first look     record ─► row, with stack and call still numbered as in the file, and the generation it was live in
//! second look    only if an event was counted meanwhile: rows whose record is not live in that generation any more go
//! in the end     numbers of stacks and calls become those of the snapshot
//! ```
//!
//! Why one look is enough when no event was counted: what a record says changes only after it was withdrawn, which is
//! counted before the record can serve again. Deliberately absent: what the numbers stand for; see `snapshot`.

use foldhash::HashMap;

use super::{Piece, RawSnapshot, ReadError, Source};
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::table::{Attributes, Record, SizeEncoding, Space, State, Status};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::allocations::Row;

/// Bytes read at once.
pub(super) const PIECE: usize = 1 << 20;

/// Everything in a record that tells its call, as it lies in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct CallKey {
    pub attributes: u64,
    pub thread: u32,
    /// Number of the domain, of blocks.
    pub domain: u8,
    /// Stream or counts, if it is one of them.
    pub extra: u64,
    /// If there is one.
    pub pool: u64,
}

/// Numbers calls: each once, and those that come again at once without a search.
#[derive(Default)]
struct Numbers {
    known: HashMap<CallKey, u32>,
    last: Option<(CallKey, u32)>,
}

impl Numbers {
    fn of(&mut self, key: CallKey, calls: &mut Vec<CallKey>) -> u32 {
        if let Some((last, number)) = self.last
            && last == key
        {
            return number;
        }
        let number = *self.known.entry(key).or_insert_with(|| {
            calls.push(key);
            calls.len() as u32 - 1
        });
        self.last = Some((key, number));
        number
    }
}

/// The live records, in the order of the file.
#[derive(Default)]
pub(super) struct Records {
    pub rows: Vec<Row>,
    pub calls: Vec<CallKey>,
    /// Number and generation of each row's record; empty once they were looked at again.
    live: Vec<(u32, u32)>,
    pub in_flight: u64,
}

impl Records {
    /// The first look.
    pub fn read(source: &Source, pieces: &[Piece]) -> Result<Records, ReadError> {
        let count: usize = pieces.iter().map(|piece| piece.count).sum();
        let mut records = Records {
            // Room, not memory: that comes with the rows.
            rows: Vec::with_capacity(count),
            calls: Vec::new(),
            live: Vec::with_capacity(count),
            in_flight: 0,
        };
        let mut numbers = Numbers::default();
        each("reading", source, pieces, |number, words| {
            records.add(number, words, &mut numbers)
        })?;
        Ok(records)
    }

    fn add(&mut self, number: u32, words: &[u64; 8], numbers: &mut Numbers) {
        let state = match State::of(words[0]) {
            Some(state) if state.status == Status::Live => state,
            Some(state) => {
                self.in_flight += u64::from(state.status == Status::Withdrawn);
                return;
            }
            None => return,
        };
        let Some((mut row, key)) = decoded(words) else { return };
        row.call = numbers.of(key, &mut self.calls);
        self.rows.push(row);
        self.live.push((number, state.generation));
    }

    /// The second look: drops what changed since the first.
    pub fn look_again(&mut self, source: &Source, pieces: &[Piece]) -> Result<(), ReadError> {
        let mut unchanged = vec![false; self.rows.len()];
        let mut next = 0;
        each("looking again at", source, pieces, |number, words| {
            if self.live.get(next).is_some_and(|live| live.0 == number) {
                unchanged[next] = State::of(words[0])
                    .is_some_and(|state| (state.status, state.generation) == (Status::Live, self.live[next].1));
                next += 1;
            }
        })?;
        let mut unchanged = unchanged.into_iter();
        self.rows.retain(|_| unchanged.next().unwrap_or(false));
        self.forget_records();
        Ok(())
    }

    /// Nobody will look again.
    pub fn forget_records(&mut self) {
        self.live = Vec::new();
    }
}

/// What a live record says; the call has no number yet. `None`: it is of no kind that this version knows.
pub(super) fn decoded(words: &[u64; 8]) -> Option<(Row, CallKey)> {
    let [_, address, amount, other, time_ns, extra, place, what] = *words;
    let (kind, space, flags, ..) = Attributes::parts(what);
    let kind = Kind::from_number(kind)?;
    let (bytes, requested, pool) = SizeEncoding::amounts(amount, other, what);
    let (address, domain) = match kind {
        // Known by their handle; where they lie is beside it.
        Kind::Buffer if extra != 0 => (extra, 0),
        Kind::Block if space == Space::Block as u8 => {
            let (domain, address) = block_parts(address);
            let in_heap = flags & Attributes::IN_HEAP != 0;
            (address, if in_heap { pool as u8 } else { domain })
        }
        _ => (address, 0),
    };
    let (stack, thread) = halves(place);
    let key = CallKey {
        attributes: SizeEncoding::erased(what),
        thread,
        domain,
        extra: if flags & (Attributes::HAS_STREAM | Attributes::COUNTS) != 0 {
            extra
        } else {
            0
        },
        pool: if flags & Attributes::HAS_POOL != 0 { pool } else { 0 },
    };
    let row = Row {
        address,
        bytes,
        requested,
        time_ns,
        stack,
        call: 0,
    };
    Some((row, key))
}

/// Records that lie one after the other, few enough to be read at once.
pub(super) struct Run {
    /// Number of the first.
    pub first: u32,
    pub count: usize,
    /// Bytes from one to the next.
    pub element: usize,
    pub offset: u64,
}

impl Run {
    pub fn bytes(&self) -> usize {
        self.count * self.element
    }
}

pub(super) fn runs(pieces: &[Piece]) -> Vec<Run> {
    let (mut runs, mut number) = (Vec::new(), 0);
    for piece in pieces {
        if let Some(offset) = piece.offset {
            let at_once = (PIECE / piece.element).max(1);
            runs.extend((0..piece.count).step_by(at_once).map(|first| Run {
                first: number + first as u32,
                count: at_once.min(piece.count - first),
                element: piece.element,
                offset: offset + (first * piece.element) as u64,
            }));
        }
        number += piece.count as u32;
    }
    runs
}

pub(super) fn word(element: &[u8], word: usize) -> u64 {
    let eight = element.get(word * 8..word * 8 + 8).unwrap_or(&[0; 8]);
    u64::from_le_bytes(eight.try_into().unwrap_or_default())
}

pub(super) fn words(element: &[u8]) -> [u64; 8] {
    std::array::from_fn(|number| word(element, number))
}

/// Gives every record in use to `with`, with its number.
fn each(doing: &str, source: &Source, pieces: &[Piece], mut with: impl FnMut(u32, &[u64; 8])) -> Result<(), ReadError> {
    let all: usize = pieces.iter().map(|piece| piece.count).sum();
    let progress = Progress::over(doing, all as u64, Unit::Of("records"));
    let mut buffer = vec![0; PIECE];
    for run in runs(pieces) {
        let bytes = &mut buffer[..run.bytes()];
        source.read_into(run.offset, bytes)?;
        for (number, element) in (run.first..).zip(bytes.chunks_exact(run.element)) {
            with(number, &words(&element[..size_of::<Record>()]));
        }
        progress.advance(run.count as u64);
    }
    Ok(())
}

impl RawSnapshot {
    /// Rows that tell of a moment after reading began, in a snapshot that is not exact.
    pub(super) fn drop_late_rows(&mut self) {
        if self.events_during_read > 0 {
            let began_ns = self.began_ns;
            self.records.rows.retain(|row| row.time_ns <= began_ns);
        }
    }
}
