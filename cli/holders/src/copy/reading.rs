//! Copying many ranges with several threads.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::parallel;
use crate::source::PAGE;
use crate::source::Source;
use crate::source::live::advance;

/// Bytes that a thread reads at a time.
const PIECE: u64 = 16 << 20;
/// A thread copies 2 to 3 GiB in a second. A quarter of the cores is used, and two of a small machine.
const THREADS: std::ops::RangeInclusive<usize> = 2..=4;
/// Smaller copies use one thread.
const LARGE: usize = 64 << 20;

/// Consecutive ranges, and where to copy them.
struct Piece<'a> {
    ranges: Vec<Range<u64>>,
    memory: &'a mut [u8],
    /// The position of its first page.
    first: u32,
}

/// Copies the ranges, whole pages, one after the other into the memory, which has their size. Returns the positions of the
/// pages that cannot be read, in order; their memory contains anything.
pub fn read(source: &dyn Source, ranges: &[Range<u64>], memory: &mut [u8]) -> Vec<u32> {
    let cores = parallel::cores();
    let threads = match memory.len() >= LARGE {
        true => (cores / 4).clamp(*THREADS.start(), *THREADS.end()).min(cores),
        false => 1,
    };
    let pieces: Vec<_> = (pieces(ranges, memory).into_iter())
        .map(|piece| Mutex::new(Some(piece)))
        .collect();
    let copied = |piece: &Mutex<Option<Piece>>| {
        let piece = piece.lock().unwrap_or_else(PoisonError::into_inner).take();
        piece.map_or_else(Vec::new, |piece| copy(source, piece))
    };
    parallel::map_by(threads, &pieces, copied).concat()
}

fn pieces<'a>(ranges: &[Range<u64>], memory: &'a mut [u8]) -> Vec<Piece<'a>> {
    let (mut rest, mut first) = (memory, 0);
    let piece = |ranges: Vec<Range<u64>>| {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let (memory, behind) = std::mem::take(&mut rest).split_at_mut(bytes as usize);
        rest = behind;
        let piece = Piece { ranges, memory, first };
        first += (bytes / PAGE) as u32;
        piece
    };
    super::pieces(ranges.iter().cloned(), PIECE)
        .into_iter()
        .map(piece)
        .collect()
}

/// Copies a piece; returns the positions of the pages that cannot be read.
fn copy(source: &dyn Source, piece: Piece) -> Vec<u32> {
    let mut missing = Vec::new();
    let mut rest = piece.ranges;
    let mut done = 0;
    while !rest.is_empty() {
        let copied = source
            .read(&rest, &mut piece.memory[done..])
            .min(piece.memory.len() - done);
        let mut skipped = copied as u64 & !(PAGE - 1);
        done += skipped as usize;
        if done < piece.memory.len() {
            missing.push(piece.first + (done as u64 / PAGE) as u32);
            done += PAGE as usize;
            skipped += PAGE;
        }
        let whole = advance(&mut rest, 0, skipped);
        rest.drain(..whole);
    }
    missing
}
