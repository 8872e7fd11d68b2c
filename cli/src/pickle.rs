//! Reads Python's pickles as data: lists, dictionaries, numbers and texts. No code runs.
//!
//! A pickle is a program for a stack machine, which can call any function. This reader has no instruction that names or calls
//! a function, and refuses a pickle that contains one. Values are stored in a list and refer to each other by index, like the
//! memo of a pickle. A value that is used a million times is stored once, so memory is bounded by a multiple of the file size,
//! and a list that contains itself is only an index. Existing libraries copy a value at each use, so that a file of a kilobyte
//! can exhaust memory.
//!
//! [`write`] writes pickles. Deliberately absent: sets, and protocols 0 and 1, which Python 3 does not write by default.

pub mod write;

use std::collections::HashMap;
use std::fmt;

/// Index of a value.
pub type Id = u32;

#[derive(Debug, Clone, PartialEq)]
pub enum Value<'i> {
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(&'i str),
    Bytes(&'i [u8]),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dictionary(Vec<(Id, Id)>),
}

/// The values of a pickle.
#[derive(Debug)]
pub struct Pickle<'i> {
    values: Vec<Value<'i>>,
    root: Id,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The input ends before the STOP instruction.
    Ends,
    /// An unknown protocol.
    Protocol(u8),
    /// The pickle imports or calls something.
    Runs(&'static str),
    /// An instruction that does not exist, or does not create data.
    Unknown { instruction: u8, at: usize },
    /// An instruction finds an operand of the wrong type.
    Damaged { at: usize },
    /// More values than any snapshot has.
    TooLarge,
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Ends => write!(out, "it ends in the middle"),
            Error::Protocol(version) => write!(out, "pickle protocol {version}; 2 to 5 are read"),
            Error::Runs(what) => write!(
                out,
                "it asks to {what}, which a pickle of plain data does not; nothing was run"
            ),
            Error::Unknown { instruction, at } => {
                write!(
                    out,
                    "byte {at} is {instruction:#04x}, which is not an instruction for lists, numbers or text"
                )
            }
            Error::Damaged { at } => write!(out, "the instruction at byte {at} does not fit the values before it"),
            Error::TooLarge => write!(out, "more values than can be counted"),
        }
    }
}

/// Whether the bytes begin like a pickle of protocol 2 or later.
pub fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [PROTO, 2..=9, ..])
}

const PROTO: u8 = 0x80;

/// Reads a pickle.
///
/// # Errors
/// See [`Error`].
pub fn read(input: &[u8]) -> Result<Pickle<'_>, Error> {
    let mut machine = Machine {
        input,
        ..Machine::default()
    };
    loop {
        if let Some(root) = machine.step()? {
            return Ok(Pickle {
                values: machine.values,
                root,
            });
        }
    }
}

impl<'i> Pickle<'i> {
    pub fn root(&self) -> Id {
        self.root
    }

    pub fn value(&self, id: Id) -> &Value<'i> {
        &self.values[id as usize]
    }

    /// The items of a list or a tuple.
    pub fn items(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::List(items) | Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// The value of a key; the last if there are several, as in Python. Dictionaries are expected to be small: of a very large
    /// one only the last entries are searched, which bounds the time.
    pub fn get(&self, dictionary: Id, name: &str) -> Option<Id> {
        const FIELDS: usize = 64;
        let Value::Dictionary(entries) = self.value(dictionary) else {
            return None;
        };
        let mut last = entries.iter().rev().take(FIELDS);
        last.find(|(key, _)| self.text(*key) == Some(name))
            .map(|&(_, value)| value)
    }

    pub fn text(&self, id: Id) -> Option<&'i str> {
        match self.value(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// All texts, in the order of their first use.
    pub fn texts(&self) -> impl Iterator<Item = &'i str> {
        self.values.iter().filter_map(|value| match value {
            Value::Text(text) => Some(*text),
            _ => None,
        })
    }

    pub fn boolean(&self, id: Id) -> Option<bool> {
        match *self.value(id) {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A number that is not negative.
    pub fn number(&self, id: Id) -> Option<u64> {
        match *self.value(id) {
            Value::Integer(number) => u64::try_from(number).ok(),
            Value::Float(number) if (0.0..1e18).contains(&number) => Some(number as u64),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Machine<'i> {
    input: &'i [u8],
    at: usize,
    values: Vec<Value<'i>>,
    stack: Vec<Id>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    memoized: u32,
}

impl<'i> Machine<'i> {
    fn bytes(&mut self, count: usize) -> Result<&'i [u8], Error> {
        let end = self.at.checked_add(count).ok_or(Error::Ends)?;
        let bytes = self.input.get(self.at..end).ok_or(Error::Ends)?;
        self.at = end;
        Ok(bytes)
    }

    /// An unsigned number, little-endian.
    fn unsigned(&mut self, width: usize) -> Result<u64, Error> {
        let bytes = self.bytes(width)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn length(&mut self, width: usize) -> Result<usize, Error> {
        usize::try_from(self.unsigned(width)?).map_err(|_| Error::Ends)
    }

    fn damaged(&self) -> Error {
        Error::Damaged {
            at: self.at.saturating_sub(1),
        }
    }

    fn push(&mut self, value: Value<'i>) -> Result<(), Error> {
        let id = Id::try_from(self.values.len()).map_err(|_| Error::TooLarge)?;
        self.values.push(value);
        self.stack.push(id);
        Ok(())
    }

    fn natural(&mut self, width: usize) -> Result<(), Error> {
        let number = self.unsigned(width)?;
        self.push(Value::Integer(number.into()))
    }

    /// A signed number of any width, little-endian; a length of `width` bytes precedes it, as with texts and byte strings.
    fn long(&mut self, width: usize) -> Result<(), Error> {
        let width = self.length(width)?;
        let bytes = self.bytes(width)?;
        if width > 16 {
            return Err(self.damaged());
        }
        let fill = if bytes.last().is_some_and(|&byte| byte >= 0x80) {
            0xff
        } else {
            0
        };
        let mut wide = [fill; 16];
        wide[..width].copy_from_slice(bytes);
        self.push(Value::Integer(i128::from_le_bytes(wide)))
    }

    fn text(&mut self, width: usize) -> Result<(), Error> {
        let length = self.length(width)?;
        let bytes = self.bytes(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.push(Value::Text(text)),
            // Python writes the surrogates of file names that are not UTF-8 in a special encoding.
            Err(_) => self.push(Value::Text("(not text)")),
        }
    }

    fn byte_string(&mut self, width: usize) -> Result<(), Error> {
        let length = self.length(width)?;
        let bytes = self.bytes(length)?;
        self.push(Value::Bytes(bytes))
    }

    /// Removes the topmost values.
    fn pop(&mut self, count: usize) -> Result<Vec<Id>, Error> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count) {
            Some(height) if height >= floor => Ok(self.stack.split_off(height)),
            _ => Err(self.damaged()),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, Error> {
        let mark = self.marks.pop().ok_or_else(|| self.damaged())?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn top(&self) -> Result<Id, Error> {
        self.stack.last().copied().ok_or_else(|| self.damaged())
    }

    fn tuple(&mut self, length: usize) -> Result<(), Error> {
        let items = self.pop(length)?;
        self.push(Value::Tuple(items))
    }

    fn append(&mut self, items: &[Id]) -> Result<(), Error> {
        let list = self.top()?;
        match &mut self.values[list as usize] {
            Value::List(list) => list.extend(items),
            _ => return Err(self.damaged()),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<(), Error> {
        let dictionary = self.top()?;
        let (pairs, odd) = items.as_chunks::<2>();
        match &mut self.values[dictionary as usize] {
            Value::Dictionary(entries) if odd.is_empty() => {
                entries.extend(pairs.iter().map(|&[key, value]| (key, value)))
            }
            _ => return Err(self.damaged()),
        }
        Ok(())
    }

    fn memoize_as(&mut self, width: usize) -> Result<(), Error> {
        let index = self.unsigned(width)? as u32;
        self.memoize(index)
    }

    fn memoize(&mut self, index: u32) -> Result<(), Error> {
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, width: usize) -> Result<(), Error> {
        let index = self.unsigned(width)? as u32;
        let known = self.memo.get(&index).copied().ok_or_else(|| self.damaged())?;
        self.stack.push(known);
        Ok(())
    }

    /// Executes one instruction; returns the value if it was the last.
    fn step(&mut self) -> Result<Option<Id>, Error> {
        let at = self.at;
        let instruction = self.bytes(1)?[0];
        match instruction {
            PROTO => match self.bytes(1)?[0] {
                2..=5 => {}
                other => return Err(Error::Protocol(other)),
            },
            // FRAME: a hint for reading ahead.
            0x95 => drop(self.bytes(8)?),
            b'.' => return self.top().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop(1)?),
            b'1' => drop(self.pop_to_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' => self.natural(1)?,
            b'M' => self.natural(2)?,
            b'J' => {
                let number = self.unsigned(4)? as u32;
                self.push(Value::Integer(number.cast_signed().into()))?;
            }
            0x8a => self.long(1)?,
            0x8b => self.long(4)?,
            b'G' => {
                let bits = self.bytes(8)?.iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
                self.push(Value::Float(f64::from_bits(bits)))?;
            }
            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            0x8d => self.text(8)?,
            b'C' | b'U' => self.byte_string(1)?,
            b'B' | b'T' => self.byte_string(4)?,
            0x8e | 0x96 => self.byte_string(8)?,
            b']' => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dictionary(Vec::new()))?,
            b')' => self.tuple(0)?,
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Tuple(items))?;
            }
            b'l' => {
                let items = self.pop_to_mark()?;
                self.push(Value::List(items))?;
            }
            b'd' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Dictionary(Vec::new()))?;
                self.set(&items)?;
            }
            b'a' => {
                let items = self.pop(1)?;
                self.append(&items)?;
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let items = self.pop(2)?;
                self.set(&items)?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set(&items)?;
            }
            b'q' => self.memoize_as(1)?,
            b'r' => self.memoize_as(4)?,
            0x94 => {
                self.memoize(self.memoized)?;
                self.memoized = self.memoized.checked_add(1).ok_or(Error::TooLarge)?;
            }
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            b'c' | b'i' | 0x93 => return Err(Error::Runs("import something")),
            b'R' | b'o' | 0x81 | 0x92 => return Err(Error::Runs("call something")),
            b'b' => return Err(Error::Runs("set up an object")),
            b'P' | b'Q' => return Err(Error::Runs("fetch something from elsewhere")),
            0x82..=0x84 => return Err(Error::Runs("import something by its registered number")),
            _ => return Err(Error::Unknown { instruction, at }),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
