//! Memory for launches from kernels (dynamic parallelism), recognized by the sizes of its pieces.
//!
//! The driver takes it in the call that loads the first module with such launches, or in `cuCtxSetLimit` if one is loaded. With a
//! limit of *n* pending launches (`CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT`, 2048 unless the program sets it) the pieces are, in this
//! order and rounded to pages of 2 MiB:
//!
//! ```text
//! 2 KiB · n    2 MiB    7 KiB · n    and, if no chunk of the driver has room for it, 160 bytes · n
//! ```
//!
//! Measured on an H200 with driver 580, at 2048 to 65536 launches. With a limit below 2048 some pieces lie in chunks that the driver
//! had before; they stay part of the code's line, as do the pieces of a driver that takes other sizes.

use super::super::super::pages::PAGE;

/// The limit that a context has at first.
const USUAL: u64 = 2048;

/// What tells pieces of one call apart: thread and stack within the driver may differ, order may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub thread: usize,
    pub bytes: u64,
}

/// How many of these pieces, which are in the order in which they were taken, are memory for launches, from the first one on.
pub fn count(pieces: &[Piece]) -> usize {
    let [first, second, third, rest @ ..] = pieces else {
        return 0;
    };
    let is_one_thread = [second, third].iter().all(|piece| piece.thread == first.thread);
    // The limits that give the first piece: those of one page, of which the usual one is the largest if there are 2.
    let most = first.bytes / (2 << 10);
    let least = match most {
        USUAL => USUAL,
        _ => (first.bytes.saturating_sub(PAGE) / (2 << 10)).saturating_add(1),
    };
    let pages = |bytes_each: u64| {
        let rounded = |launches: u64| launches.saturating_mul(bytes_each).checked_next_multiple_of(PAGE);
        rounded(least).zip(rounded(most))
    };
    let is_of = |piece: &Piece, bytes_each| {
        pages(bytes_each).is_some_and(|(least, most)| (least..=most).contains(&piece.bytes))
    };
    if most < USUAL
        || !first.bytes.is_multiple_of(PAGE)
        || !is_one_thread
        || second.bytes != PAGE
        || !is_of(third, 7 << 10)
    {
        return 0;
    }
    match rest.first() {
        Some(fourth) if fourth.thread == first.thread && most > USUAL && is_of(fourth, 160) => 4,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(sizes: &[u64]) -> usize {
        count(
            &sizes
                .iter()
                .map(|mib| Piece {
                    thread: 0,
                    bytes: mib * MIB,
                })
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn the_sizes_of_each_measured_limit_are_recognized() {
        for (sizes, pieces) in [
            (&[4, 2, 14][..], 3),
            (&[6, 2, 18], 3),
            (&[6, 2, 22], 3),
            (&[8, 2, 28], 3),
            (&[10, 2, 36], 3),
            (&[128, 2, 448, 10], 4),
            (&[128, 2, 448, 12], 3),
        ] {
            assert_eq!(of(sizes), pieces, "{sizes:?}");
        }
    }

    #[test]
    fn other_sizes_are_not() {
        for sizes in [
            &[][..],
            &[4],
            &[4, 2],
            &[4, 2, 12],
            &[4, 4, 14],
            &[2, 2, 6],
            &[6, 2, 24],
            &[0, 2, 0],
            &[128, 2, 440],
        ] {
            assert_eq!(of(sizes), 0, "{sizes:?}");
        }
        let of_two_threads = [(0, 4), (1, 2), (0, 14)].map(|(thread, mib)| Piece {
            thread,
            bytes: mib * MIB,
        });
        assert_eq!(count(&of_two_threads), 0);
        let huge = [u64::MAX, PAGE, u64::MAX].map(|bytes| Piece { thread: 0, bytes });
        assert_eq!(count(&huge), 0);
        let huge = [u64::MAX - PAGE + 1, PAGE, u64::MAX - PAGE + 1].map(|bytes| Piece { thread: 0, bytes });
        assert_eq!(count(&huge), 0);
    }
}
