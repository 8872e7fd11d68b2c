//! Python frames and the interpreter, from their rows.

use super::stacks::FRAMES_MAX;
use super::{RawSnapshot, python_line};
use crate::format::*;
use crate::snapshot::{GRADIENT_NEAR, GRADIENT_OF, Language, Location, Python, Symbol};

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

    /// The code and offset of the Python frames of a stack, whose number is in the address of a row before `row`; innermost first.
    pub fn forward(&self, row: u32, address: u64) -> impl Iterator<Item = (u32, u32)> {
        let rows = self.section(Section::Frames);
        let leaf = u32::try_from(address & !NEAR)
            .ok()
            .and_then(|number| number.checked_sub(1));
        let mut next = leaf.filter(|&leaf| leaf < row);
        let rows = std::iter::from_fn(move || {
            let at = next.filter(|&at| at < CUT && (at as usize) < rows.len())?;
            let frame = rows.row::<FrameRow>(at as usize);
            let (parent, module) = halves(frame.parent_module);
            // A row is always added after its parent.
            next = Some(parent).filter(|&parent| parent < at);
            Some((module, halves(frame.address)))
        });
        let python = rows.take(FRAMES_MAX).filter(|(module, _)| *module == PYTHON);
        python.map(|(_, (offset, code))| (code.wrapping_sub(1), offset))
    }

    /// The Python lines, as code and offset, that computed what a stack computes the gradient of, innermost first.
    pub fn gradient_location(&self, address: u64, lines: impl Iterator<Item = (u32, u32)>) -> Location {
        let prefix = if address & NEAR == 0 {
            GRADIENT_OF
        } else {
            GRADIENT_NEAR
        };
        let symbols = lines.map(|(code, offset)| {
            let symbol = self.python_symbol(code, offset);
            Symbol {
                function: format!("{prefix}{}", symbol.function),
                ..symbol
            }
        });
        Location {
            module: None,
            address,
            symbols: symbols.collect(),
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
