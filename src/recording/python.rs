//! Python frames: each function is stored once, with its line table, and frames refer to it.

use std::sync::atomic::Ordering::*;

use super::{HASHES, Recording};
use crate::format::*;

/// A code object, as the shim read it.
pub struct CodeSeen<'a> {
    pub file: &'a [u8],
    pub function: &'a [u8],
    pub first_line: u32,
    /// `None` if it could not be read.
    pub line_table: Option<&'a [u8]>,
    /// The 12 of Python 3.12.
    pub minor: u32,
}

impl Recording {
    /// The row of the code with this hash. `describe` is called if it is new.
    pub fn code<'a>(&self, hash: u64, describe: impl FnOnce() -> Option<CodeSeen<'a>>) -> Option<u32> {
        let same = |row| {
            let full = self.code_hashes.get(HASHES, row);
            full.is_some_and(|full| full.load(Relaxed) == hash)
        };
        if let Some(known) = self.code_index.find(hash, same) {
            return Some(known.row);
        }
        // It would be described again for every stack.
        if !self.has_room(Section::Codes, &self.codes) {
            return None;
        }
        let seen = describe()?;
        // Before the texts, which would be stored again for every stack while there is no room for a row.
        let (number, row) = self.row(Section::Codes, &self.codes)?;
        let (file, function) = (self.text(seen.file), self.text(seen.function));
        let line_table = match seen.line_table {
            Some(table) => self.whole_text(table),
            None => Text::MISSING,
        };
        // An empty text means that a table was not stored; unless the table itself is empty, it is missing.
        let stored = |table: &[u8]| table.len() == line_table.bytes as usize;
        let line_table = match seen.line_table.is_none_or(stored) {
            true => line_table,
            false => Text::MISSING,
        };
        row.file.store(file.to_word(), Relaxed);
        row.function.store(function.to_word(), Relaxed);
        row.line_table.store(line_table.to_word(), Relaxed);
        // Release: pairs with readers, which accept a row with a first line.
        row.first_line_minor.store(pack(seen.first_line, seen.minor), Release);
        self.code_hashes.ensure(HASHES, number).ok()?.store(hash, Relaxed);
        Some(self.code_index.intern(hash, number, same).unwrap_or(number))
    }

    /// The row of the edge `parent` → instruction at `offset` of a code.
    pub fn python_frame(&self, parent: u32, code: u32, offset: u32) -> Option<u32> {
        self.edge(pack(parent, PYTHON), pack(offset, code + 1))
    }

    /// The stack `parent`, which computes the gradient of what was computed on a stack; `forward` is the address of such a row.
    pub fn gradient_frame(&self, parent: u32, forward: u64) -> Option<u32> {
        self.edge(pack(parent, GRADIENT), forward)
    }

    /// Stores the state of the interpreter, which is valid from now on.
    pub fn interpreter(&self, version: u32, no_frames: Option<&str>) {
        let text = no_frames.map_or(Text::EMPTY, |why| self.text(why.as_bytes()));
        let Some((_, row)) = self.row(Section::Interpreters, &self.interpreters) else {
            self.add(Loss::Details, 1);
            return;
        };
        row.no_frames.store(text.to_word(), Relaxed);
        // Release: pairs with readers, which accept a row with a version.
        row.version.store(1 << 32 | u64::from(version), Release);
    }
}
