//! Writes pickles of protocol 4, with the instructions that PyTorch's viewer supports.
//!
//! The viewer passes a list's items as arguments of one call, so they are written in batches, as Python does. Texts, and values
//! that a caller identifies by a number, are written once and then referred to. Field names occur millions of times, so they
//! are looked up by their address instead of their content.

use std::collections::HashMap;
use std::io::{self, Write};

/// The batch size of Python.
const BATCH: usize = 1000;
/// Bytes written to the file at once.
const BUFFER: usize = 1 << 16;

pub struct Pickler<'o> {
    out: &'o mut dyn Write,
    buffer: Vec<u8>,
    /// Memo indices: of texts, of words by their address, and of shared values by the caller's number.
    texts: HashMap<String, u32>,
    words: foldhash::HashMap<(usize, usize), u32>,
    values: foldhash::HashMap<(Sort, usize), u32>,
    memoized: u32,
}

/// The namespace of the numbers of shared values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sort {
    Frame,
    Frames,
}

impl<'o> Pickler<'o> {
    pub fn new(out: &'o mut dyn Write) -> Pickler<'o> {
        Pickler {
            out,
            buffer: vec![0x80, 4],
            texts: HashMap::new(),
            words: foldhash::HashMap::default(),
            values: foldhash::HashMap::default(),
            memoized: 0,
        }
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.buffer.push(b'.');
        self.out.write_all(&self.buffer)
    }

    pub fn number(&mut self, number: u64) {
        if let Ok(small) = u8::try_from(number) {
            return self.buffer.extend([b'K', small]);
        }
        if let Ok(small) = i32::try_from(number) {
            self.buffer.push(b'J');
            return self.buffer.extend(small.to_le_bytes());
        }
        // One byte more, so that the highest bit is not a sign.
        let width = (64 - number.leading_zeros() as usize) / 8 + 1;
        self.buffer.extend([0x8a, width as u8]);
        self.buffer.extend(&u128::from(number).to_le_bytes()[..width]);
    }

    pub fn boolean(&mut self, value: bool) {
        self.buffer.push(if value { 0x88 } else { 0x89 });
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&known) = self.texts.get(text) {
            self.recall(known);
            return Ok(());
        }
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.buffer.push(b'X');
        self.buffer.extend(length.to_le_bytes());
        self.buffer.extend(text.as_bytes());
        let number = self.memoize()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    /// A text that is part of this program, such as a field name.
    pub fn word(&mut self, word: &'static str) -> io::Result<()> {
        let place = (word.as_ptr() as usize, word.len());
        if let Some(&known) = self.words.get(&place) {
            self.recall(known);
            return Ok(());
        }
        self.text(word)?;
        self.words.insert(place, self.texts[word]);
        Ok(())
    }

    pub fn list<T>(
        &mut self,
        items: impl Iterator<Item = T>,
        mut item: impl FnMut(&mut Pickler<'o>, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.buffer.push(b']');
        let mut in_batch = 0;
        for each in items {
            if in_batch == 0 {
                self.buffer.push(b'(');
            }
            item(self, each)?;
            in_batch += 1;
            if in_batch == BATCH {
                self.buffer.push(b'e');
                in_batch = 0;
            }
            if self.buffer.len() > BUFFER {
                self.out.write_all(&self.buffer)?;
                self.buffer.clear();
            }
        }
        if in_batch > 0 {
            self.buffer.push(b'e');
        }
        Ok(())
    }

    /// A value that may occur again: it is written once per number, and then referred to.
    pub fn shared(
        &mut self,
        sort: Sort,
        number: usize,
        value: impl FnOnce(&mut Pickler<'o>) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(&known) = self.values.get(&(sort, number)) {
            self.recall(known);
            return Ok(());
        }
        value(self)?;
        let memoized = self.memoize()?;
        self.values.insert((sort, number), memoized);
        Ok(())
    }

    /// A dictionary, between [`Pickler::begin`] and [`Pickler::end`]; keys and values alternate.
    pub fn begin(&mut self) {
        self.buffer.extend(b"}(");
    }

    pub fn end(&mut self) {
        self.buffer.push(b'u');
    }

    pub fn entry(&mut self, name: &'static str, number: u64) -> io::Result<()> {
        self.word(name)?;
        self.number(number);
        Ok(())
    }

    pub fn text_entry(&mut self, name: &'static str, text: &str) -> io::Result<()> {
        self.word(name)?;
        self.text(text)
    }

    pub fn word_entry(&mut self, name: &'static str, word: &'static str) -> io::Result<()> {
        self.word(name)?;
        self.word(word)
    }

    pub fn pair(&mut self, first: u64, second: u64) {
        self.number(first);
        self.number(second);
        self.buffer.push(0x86);
    }

    fn memoize(&mut self) -> io::Result<u32> {
        let number = self.memoized;
        self.memoized = number
            .checked_add(1)
            .ok_or_else(|| io::Error::other("too many texts for a pickle; export less with --kind or --focus"))?;
        self.buffer.push(0x94);
        Ok(number)
    }

    fn recall(&mut self, number: u32) {
        match u8::try_from(number) {
            Ok(small) => self.buffer.extend([b'h', small]),
            Err(_) => {
                self.buffer.push(b'j');
                self.buffer.extend(number.to_le_bytes());
            }
        }
    }
}
