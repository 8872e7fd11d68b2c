//! Python frames and the interpreter, from their rows.

use super::{RawSnapshot, python_line};
use crate::format::*;
use crate::snapshot::{Language, Location, Python, Symbol};

impl RawSnapshot {
    /// The location `offset` bytes into a function.
    pub fn python_location(&self, code: u32, offset: u32) -> Location {
        Location {
            module: None,
            address: offset.into(),
            symbols: vec![self.python_symbol(code, offset)],
            language: Language::Python,
        }
    }

    fn python_symbol(&self, code: u32, offset: u32) -> Symbol {
        let row = self.section(Section::Codes).row::<CodeRow>(code as usize);
        let (first_line, minor) = halves(row.first_line_minor);
        if minor == 0 {
            // Never published.
            return Symbol {
                function: "?".into(),
                file: None,
                line: None,
                inlined: false,
            };
        }
        let table = row.line_table.present().map(|table| self.bytes(table));
        Symbol {
            function: self.text(row.function),
            file: Some(self.text(row.file)),
            line: table.and_then(|table| python_line(minor, table, first_line, offset)),
            inlined: false,
        }
    }

    /// The process's interpreter, in its latest known state.
    pub fn python(&self) -> Option<Python> {
        let rows = self.section(Section::Interpreters).rows::<InterpreterRow>();
        let row = rows.filter(|row| row.version != 0).last()?;
        let version = row.version as u32;
        Some(Python {
            version: match version {
                0 => "?".into(),
                _ => format!("{}.{}.{}", version >> 24, version >> 16 & 0xff, version >> 8 & 0xff),
            },
            no_frames: (row.no_frames.bytes > 0).then(|| self.text(row.no_frames)),
        })
    }
}
