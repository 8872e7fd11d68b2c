//! The records of live allocations, read piece by piece: there may be ten million, so the file is not copied as a whole.
//!
//! ```text
//! first read     record ─► row; stack and call are numbered as in the file; the generation is remembered
//! second read    only if an event was counted meanwhile: drops rows whose record is no longer live in that generation
//! at the end     stacks and calls are renumbered as in the snapshot
//! ```
//!
//! One read suffices if no event was counted: the fields of a record change only after it was withdrawn, and a withdrawal is
//! counted before the record can be used again. Deliberately absent: the meaning of the numbers; see `snapshot`.

use foldhash::HashMap;

use super::{Piece, ReadError, Source};
use crate::format::{Row as _, *};
use crate::kind::Kind;
use crate::lockfree::table::{Attributes, SizeEncoding, Space, State, Status};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::allocations::Row;

/// Bytes per read.
pub(super) const PIECE: usize = 1 << 20;

/// The fields of a record that belong to its call, as encoded in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct CallKey {
    pub attributes: u64,
    pub thread: u32,
    /// Number of a block's domain, otherwise 0.
    pub domain: u8,
    /// Stream, counts, or the number of an IPC handle, otherwise 0.
    pub extra: u64,
    /// 0: none.
    pub pool: u64,
}

/// Numbers calls. A call that equals the previous one needs no look-up.
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
    /// Memory that was freed after the end of the script, or of `main`; numbered as `rows`.
    pub freed_after: Vec<(Status, Row)>,
    /// Number and generation of each row's record; empty after the last read.
    generations: Vec<(u32, u32)>,
    pub in_flight: u64,
}

impl Records {
    /// The first read.
    pub fn read(source: &Source, pieces: &[Piece]) -> Result<Records, ReadError> {
        let count: usize = pieces.iter().map(|piece| piece.count).sum();
        let mut records = Records {
            // Address space only: memory is used as rows are added.
            rows: Vec::with_capacity(count),
            calls: Vec::new(),
            freed_after: Vec::new(),
            generations: Vec::with_capacity(count),
            in_flight: 0,
        };
        let mut numbers = Numbers::default();
        each("reading", source, pieces, |number, record| {
            records.add(number, record, &mut numbers)
        })?;
        Ok(records)
    }

    fn add(&mut self, number: u32, record: &RecordValues, numbers: &mut Numbers) {
        let state = match State::of(record.state) {
            Some(state) if state.status == Status::Live => state,
            Some(State { status, .. }) if status.is_after_end() => {
                if let Some((mut row, key)) = decoded(record) {
                    row.call = numbers.of(key, &mut self.calls);
                    self.freed_after.push((status, row));
                }
                return;
            }
            Some(state) => {
                self.in_flight += u64::from(state.status == Status::Withdrawn);
                return;
            }
            None => return,
        };
        let Some((mut row, key)) = decoded(record) else { return };
        row.call = numbers.of(key, &mut self.calls);
        self.rows.push(row);
        self.generations.push((number, state.generation));
    }

    /// The second read: drops the rows whose record changed since the first.
    pub fn verify(&mut self, source: &Source, pieces: &[Piece]) -> Result<(), ReadError> {
        let mut unchanged = vec![false; self.rows.len()];
        let mut next = 0;
        each("verifying", source, pieces, |number, record| {
            if let Some(&(known, generation)) = self.generations.get(next)
                && known == number
            {
                let live = Some((Status::Live, generation));
                unchanged[next] = State::of(record.state).map(|state| (state.status, state.generation)) == live;
                next += 1;
            }
        })?;
        let mut unchanged = unchanged.into_iter();
        self.rows.retain(|_| unchanged.next().unwrap_or(false));
        self.forget_generations();
        Ok(())
    }

    /// No second read will follow.
    pub fn forget_generations(&mut self) {
        self.generations = Vec::new();
    }
}

/// The row of a live record, whose call is not numbered yet. `None`: this version does not know its kind.
pub(super) fn decoded(record: &RecordValues) -> Option<(Row, CallKey)> {
    let parts = Attributes::parts(record.attributes);
    let (extra, flags) = (record.extra, parts.flags);
    let kind = Kind::from_number(parts.kind)?;
    let (bytes, requested, pool) = SizeEncoding::amounts(record.amount, record.other, record.attributes);
    let (address, domain) = match kind {
        // The key of a buffer is its handle; `extra` is its address.
        Kind::Buffer if extra != 0 => (extra, 0),
        Kind::Block if parts.space == Space::Block as u8 => {
            let (domain, address) = block_parts(record.address);
            let in_heap = flags & Attributes::IN_HEAP != 0;
            (address, if in_heap { pool as u8 } else { domain })
        }
        _ => (record.address, 0),
    };
    let (stack, thread) = halves(record.place);
    let key = CallKey {
        attributes: SizeEncoding::erased(record.attributes),
        thread,
        domain,
        extra: if flags & (Attributes::HAS_STREAM | Attributes::COUNTS | Attributes::NAMED) != 0
            || is_loaded(kind)
            || is_linear(kind)
        {
            extra
        } else {
            0
        },
        pool: match kind {
            // Its word is the number of the handle.
            Kind::Ipc => pool,
            _ if flags & Attributes::HAS_POOL == 0 => 0,
            // Its word is the parent's.
            Kind::Segment => extra,
            _ => pool,
        },
    };
    let row = Row {
        address,
        bytes,
        requested,
        time_ns: record.time_ns,
        stack,
        call: 0,
    };
    Some((row, key))
}

/// Whether `extra` is the number of the IPC handle, or 0, if it is no stream.
pub(super) fn is_linear(kind: Kind) -> bool {
    matches!(kind, Kind::Device | Kind::Pitched)
}

/// Whether `extra` is the name of the first kernel of such an object.
pub(super) fn is_loaded(kind: Kind) -> bool {
    matches!(kind, Kind::Module | Kind::Library)
}

/// Consecutive records, few enough for one read.
pub(super) struct Run {
    /// Number of the first record.
    pub first: u32,
    pub count: usize,
    /// Bytes from one record to the next.
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

/// Calls `with` for every record of the pieces, with its number.
fn each(
    doing: &str,
    source: &Source,
    pieces: &[Piece],
    mut with: impl FnMut(u32, &RecordValues),
) -> Result<(), ReadError> {
    let all: usize = pieces.iter().map(|piece| piece.count).sum();
    let progress = Progress::over(doing, all as u64, Unit::Of("records"));
    let mut buffer = vec![0; PIECE];
    for run in runs(pieces) {
        let bytes = &mut buffer[..run.bytes()];
        source.read_into(run.offset, bytes)?;
        for (number, element) in (run.first..).zip(bytes.chunks_exact(run.element)) {
            with(number, &Record::read(element));
        }
        progress.advance(run.count as u64);
    }
    Ok(())
}
