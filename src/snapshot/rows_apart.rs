//! A snapshot's JSON read from a file of hundreds of megabytes, of which nearly all is the rows of its allocations.
//!
//! ```text
//! {"format": …, "stacks": […], "allocations": {…, "rows":[  [1,2,…],[3,4,…],…  ]}, "refused": …}
//!  └──────────────── kept as text ────────────────────────┘└─ read at once ──┘└── kept as text ──┘
//! ```
//!
//! The rows are turned into numbers as they come from the disk, and the rest is left to serde. So the file is never in
//! memory as a whole, and rows are read as fast as digits can be. Only what [`Snapshot`] writes itself is read this way: no
//! spaces among the rows. Anything else, damaged files too, is `None`: then serde reads the whole and says what is wrong.

use std::io::{self, Read};

use super::Snapshot;
use super::allocations::{NO_STACK, Row};

/// What stands before the rows. A quotation mark within a text has a backslash before it, so this is no part of one.
const BEFORE: &[u8] = b"\"rows\":[";
/// A file with more text than this beside the rows is not read this way.
const TEXT_MAX: usize = 1 << 30;
/// Read at once.
const WINDOW: usize = 1 << 18;
/// No row is as long.
const ROW_MAX: usize = 256;

/// Reads a snapshot. `None`: it has another form than we give it.
///
/// # Errors
/// Those of reading.
pub fn read(input: impl Read) -> io::Result<Option<Snapshot>> {
    let mut window = Window {
        input,
        bytes: vec![0; WINDOW],
        at: 0,
        end: 0,
    };
    let Some(mut text) = window.until_rows()? else {
        return Ok(None);
    };
    let Some(rows) = window.rows()? else { return Ok(None) };
    text.extend_from_slice(window.left());
    window.input.take(TEXT_MAX as u64).read_to_end(&mut text)?;
    Ok(serde_json::from_slice::<Snapshot>(&text).ok().map(|mut snapshot| {
        snapshot.allocations.rows = rows;
        snapshot
    }))
}

/// A stretch of the file.
struct Window<R> {
    input: R,
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl<R: Read> Window<R> {
    fn left(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Moves on, so that at least so many bytes are in sight, if there are as many.
    fn see(&mut self, count: usize) -> io::Result<()> {
        if self.end - self.at >= count {
            return Ok(());
        }
        self.bytes.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        while self.end < count {
            match self.input.read(&mut self.bytes[self.end..])? {
                0 => break,
                more => self.end += more,
            }
        }
        Ok(())
    }

    /// The text up to the rows, the bracket included.
    fn until_rows(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut text = Vec::new();
        loop {
            self.see(1)?;
            // The pattern ends with its only `[`.
            let stop = self.left().iter().position(|&byte| byte == b'[');
            let taken = stop.map_or(self.left().len(), |stop| stop + 1);
            if taken == 0 || text.len() > TEXT_MAX {
                return Ok(None);
            }
            text.extend_from_slice(&self.left()[..taken]);
            self.at += taken;
            if text.ends_with(BEFORE) {
                return Ok(Some(text));
            }
        }
    }

    /// The rows up to the bracket behind them, which they leave.
    fn rows(&mut self) -> io::Result<Option<Vec<Row>>> {
        let mut rows = Vec::new();
        loop {
            self.see(ROW_MAX)?;
            let separator = match self.left().first() {
                Some(b']') if rows.is_empty() => return Ok(Some(rows)),
                Some(b'[') => &b"["[..],
                _ => return Ok(None),
            };
            let mut bytes = &self.left()[separator.len()..];
            let Some(row) = row(&mut bytes) else { return Ok(None) };
            rows.push(row);
            let next = bytes.first().copied();
            self.at = self.end - bytes.len();
            match next {
                Some(b',') => self.at += 1,
                Some(b']') => return Ok(Some(rows)),
                _ => return Ok(None),
            }
        }
    }
}

/// A row and the bracket behind it, in the order of [`COLUMNS`](super::allocations::COLUMNS).
fn row(bytes: &mut &[u8]) -> Option<Row> {
    let address = number(bytes)?;
    comma(bytes)?;
    let held = number(bytes)?;
    comma(bytes)?;
    let time_ns = number(bytes)?;
    comma(bytes)?;
    let stack = match bytes.strip_prefix(b"null") {
        Some(rest) => {
            *bytes = rest;
            NO_STACK
        }
        None => u32::try_from(number(bytes)?).ok().filter(|&stack| stack != NO_STACK)?,
    };
    comma(bytes)?;
    let call = u32::try_from(number(bytes)?).ok()?;
    let requested = match comma(bytes) {
        Some(()) => number(bytes)?,
        None => held,
    };
    *bytes = bytes.strip_prefix(b"]")?;
    Some(Row {
        address,
        bytes: held,
        requested,
        time_ns,
        stack,
        call,
    })
}

fn comma(bytes: &mut &[u8]) -> Option<()> {
    *bytes = bytes.strip_prefix(b",")?;
    Some(())
}

/// Digits, as JSON has them: no sign, no fraction, no zero in front.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = bytes.split_at(digits);
    let plain = digits == 1 || number.first().is_some_and(|&first| first != b'0');
    *bytes = rest;
    let add = |sum: u64, &digit: &u8| sum.checked_mul(10)?.checked_add((digit - b'0').into());
    plain.then(|| number.iter().try_fold(0, add))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{leaky, training};

    /// Gives three bytes at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = into.len().min(3);
            self.0.read(&mut into[..count])
        }
    }

    fn json(snapshot: &Snapshot) -> String {
        serde_json::to_string(snapshot).expect("JSON")
    }

    #[test]
    fn what_is_written_is_read_as_serde_reads_it() {
        let mut empty = leaky();
        empty.allocations.truncate(0);
        let mut hostile = leaky();
        hostile.process.command_line = vec!["\"rows\":[".to_owned(), "[[\\\"rows\":[".to_owned()];
        hostile.allocations.change(|nth, allocation, _| match nth {
            0 => (allocation.address, allocation.bytes) = (u64::MAX, u64::MAX),
            1 => allocation.stack = None,
            _ => allocation.requested += 1,
        });
        for snapshot in [leaky(), training().finish(0, 3), empty, hostile] {
            let json = json(&snapshot);
            assert_eq!(read(json.as_bytes()).expect("read"), Some(snapshot.clone()));
            assert_eq!(read(Slow(json.as_bytes())).expect("read"), Some(snapshot));
        }
    }

    #[test]
    fn another_form_is_left_to_others() {
        let whole = json(&leaky());
        let rows = whole.find("\"rows\":[[").expect("rows") + 8;
        for (what, instead) in [
            ("[", "[ "),
            ("[", "[-"),
            ("[", "[0"),
            ("[", "[1.5,"),
            ("[", "[99999999999999999999,"),
            ("[", ""),
        ] {
            let changed = format!("{}{instead}{}", &whole[..rows], &whole[rows + what.len()..]);
            assert!(read(changed.as_bytes()).expect("read").is_none(), "{instead}");
        }
        for end in (0..whole.len()).step_by(61) {
            assert!(
                read(&whole.as_bytes()[..end]).expect("read").is_none(),
                "cut to {end} bytes"
            );
        }
        let pretty = serde_json::to_string_pretty(&leaky()).expect("JSON");
        assert!(read(pretty.as_bytes()).expect("read").is_none());
    }
}
