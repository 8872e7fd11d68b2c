//! Reads a snapshot's JSON without holding the file in memory: nearly all of its hundreds of megabytes are rows.
//!
//! ```text
//! {"format": …, "stacks": […], "allocations": {…, "rows":[  [1,2,…],[3,4,…],…  ]}, "failed": …}
//!  └──────────────── kept as text ────────────────────────┘└─ row by row ───┘└── kept as text ──┘
//! ```
//!
//! Rows become numbers as they are read, each from a slice: serde_json takes twice the time if it reads from a file
//! byte by byte, and twice the memory if it gets the file as a whole. A mapping would be fast, but a file that is
//! truncated meanwhile would end this process with SIGBUS. Only the form that [`Snapshot`] itself writes is read here.
//! For any other form, and for a damaged file, the answer is `None`: the caller then gives the whole file to
//! serde_json, which names the error.

use std::io::{self, Read};

use super::Snapshot;
use super::allocations::json::{Counted, Read as Rows};

/// What precedes the rows. Within a text, a backslash precedes each quotation mark, so no text contains this.
const BEFORE: &[u8] = b"\"rows\":[";
/// The most text beside the rows.
const TEXT_MAX: usize = 1 << 30;
/// Bytes per read.
const WINDOW: usize = 1 << 18;
/// The most bytes of a row.
const ROW_MAX: usize = 256;

/// Reads a snapshot; `None` if it does not have the form that [`Snapshot`] writes.
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
    let Some(rows) = window.rows()?.filter(Rows::is_valid) else {
        return Ok(None);
    };
    text.extend_from_slice(window.rest());
    window.input.take(TEXT_MAX as u64).read_to_end(&mut text)?;
    Ok(serde_json::from_slice::<Snapshot>(&text).ok().map(|mut snapshot| {
        (snapshot.allocations.rows, snapshot.allocations.counts) = (rows.rows, rows.counts);
        snapshot
    }))
}

/// A part of the file: `bytes[at..end]` are read and not yet used.
struct Window<R> {
    input: R,
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl<R: Read> Window<R> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Reads until the window holds `count` unused bytes, or the file ends.
    fn fill(&mut self, count: usize) -> io::Result<()> {
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

    /// The text up to and including the bracket that opens the rows.
    fn until_rows(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut text = Vec::new();
        loop {
            self.fill(1)?;
            // The pattern ends with its only `[`.
            let stop = self.rest().iter().position(|&byte| byte == b'[');
            let taken = stop.map_or(self.rest().len(), |stop| stop + 1);
            if taken == 0 || text.len() > TEXT_MAX {
                return Ok(None);
            }
            text.extend_from_slice(&self.rest()[..taken]);
            self.at += taken;
            if text.ends_with(BEFORE) {
                return Ok(Some(text));
            }
        }
    }

    /// The rows up to the bracket that closes them, which is not consumed.
    fn rows(&mut self) -> io::Result<Option<Rows>> {
        let mut rows = Rows::default();
        loop {
            self.fill(ROW_MAX)?;
            if rows.rows.is_empty() && self.rest().first() == Some(&b']') {
                return Ok(Some(rows));
            }
            let window = &self.rest()[..self.rest().len().min(ROW_MAX)];
            let mut values = serde_json::Deserializer::from_slice(window).into_iter::<Counted>();
            let Some(Ok(row)) = values.next() else { return Ok(None) };
            let length = values.byte_offset();
            rows.push(row);
            let next = window.get(length).copied();
            self.at += length;
            match next {
                Some(b',') => self.at += 1,
                Some(b']') => return Ok(Some(rows)),
                _ => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{leaky, training};

    /// Returns at most three bytes per read.
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
    fn a_written_snapshot_reads_back_equal() {
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
    fn any_other_form_is_left_to_the_caller() {
        let whole = json(&leaky());
        let rows = whole.find("\"rows\":[[").expect("rows") + 8;
        for (old, new) in [
            ("[", "[-"),
            ("[", "[0"),
            ("[", "[1.5,"),
            ("[", "[99999999999999999999,"),
            ("[", ""),
        ] {
            let changed = format!("{}{new}{}", &whole[..rows], &whole[rows + old.len()..]);
            assert!(read(changed.as_bytes()).expect("read").is_none(), "{new}");
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
