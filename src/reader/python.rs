//! Python's frames and interpreter, from their rows.

use super::{RawSnapshot, python_line};
use crate::format::*;
use crate::snapshot::{Language, Location, Python, Symbol};

impl RawSnapshot {
    /// The place `offset` bytes into a function.
    pub fn python_location(&self, code: u32, offset: u32) -> Location {
        Location {
            module: None,
            address: offset.into(),
            symbols: vec![self.python_symbol(code, offset)],
            language: Language::Python,
        }
    }

    fn python_symbol(&self, code: u32, offset: u32) -> Symbol {
        let rows = self.rows(Section::Codes);
        let word = |word| rows.word(code as usize, word);
        let (first_line, minor) = halves(word(3));
        if minor == 0 {
            // Never published.
            return Symbol {
                function: "?".into(),
                file: None,
                line: None,
                inlined: false,
            };
        }
        let table = (halves(word(2)).1 != NONE).then(|| self.bytes(word(2)));
        Symbol {
            function: self.text(word(1)),
            file: Some(self.text(word(0))),
            line: table.and_then(|table| python_line(minor, table, first_line, offset)),
            inlined: false,
        }
    }

    /// The process's interpreter, as it was last found to be.
    pub fn python(&self) -> Option<Python> {
        let rows = self.rows(Section::Interpreters);
        let row = (0..rows.len()).rev().find(|&row| rows.word(row, 0) != 0)?;
        let (version, why) = (rows.word(row, 0) as u32, rows.word(row, 1));
        Some(Python {
            version: match version {
                0 => "?".into(),
                _ => format!("{}.{}.{}", version >> 24, version >> 16 & 0xff, version >> 8 & 0xff),
            },
            no_frames: (halves(why).1 > 0).then(|| self.text(why)),
        })
    }
}
