//! Python's part of a stack: each function once, with what its lines are found by, and frames that refer to it.

use std::sync::atomic::Ordering::*;

use super::{HASHES, Recording};
use crate::format::*;

/// A code object as the shim saw it.
pub struct CodeSeen<'a> {
    pub file: &'a [u8],
    pub function: &'a [u8],
    pub first_line: u32,
    /// `None`: it could not be read.
    pub line_table: Option<&'a [u8]>,
    /// The 12 of Python 3.12.
    pub minor: u32,
}

impl Recording {
    /// The row of the code with this hash, which is described on first sight.
    pub fn code<'a>(&self, hash: u64, describe: impl FnOnce() -> Option<CodeSeen<'a>>) -> Option<u32> {
        let same = |row| {
            let full = self.code_hashes.get(HASHES, row);
            full.is_some_and(|full| full.load(Relaxed) == hash)
        };
        if let Some(known) = self.code_index.find(hash, same) {
            return Some(known.row);
        }
        let seen = describe()?;
        let (file, function) = (self.text(seen.file), self.text(seen.function));
        let line_table = match seen.line_table {
            Some(table) => self.whole_text(table),
            None => Text { offset: 0, bytes: NONE },
        };
        // A table that found no room is no empty table.
        let kept = seen
            .line_table
            .is_none_or(|table| table.len() == line_table.bytes as usize);
        let line_table = if kept {
            pack(line_table.offset, line_table.bytes)
        } else {
            pack(0, NONE)
        };
        let (number, row) = self.row(Section::Codes, &self.codes)?;
        row.file.store(pack(file.offset, file.bytes), Relaxed);
        row.function.store(pack(function.offset, function.bytes), Relaxed);
        row.line_table.store(line_table, Relaxed);
        // Release: pairs with the reader's Acquire.
        row.first_line_minor.store(pack(seen.first_line, seen.minor), Release);
        self.code_hashes.ensure(HASHES, number).ok()?.store(hash, Relaxed);
        Some(self.code_index.intern(hash, number, same).unwrap_or(number))
    }

    /// The row of the edge `parent` → instruction at `offset` of a code.
    pub fn python_frame(&self, parent: u32, code: u32, offset: u32) -> Option<u32> {
        self.edge(pack(parent, PYTHON), pack(offset, code + 1))
    }

    /// What is known of the interpreter from now on.
    pub fn interpreter(&self, version: u32, no_frames: Option<&str>) {
        let text = no_frames.map_or(Text { offset: 0, bytes: 0 }, |why| self.text(why.as_bytes()));
        let Some((_, row)) = self.row(Section::Interpreters, &self.interpreters) else {
            self.add(Loss::Details, 1);
            return;
        };
        row.no_frames.store(pack(text.offset, text.bytes), Relaxed);
        // Release: pairs with the reader's Acquire.
        row.version.store(1 << 32 | u64::from(version), Release);
    }
}
