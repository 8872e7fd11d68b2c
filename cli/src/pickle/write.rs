//! Writes pickles of protocol 4, in the instructions that PyTorch's viewer knows too.
//!
//! The viewer takes a list's items as arguments of one call, so they come in batches, as Python's own do. What a caller
//! keeps under a name is written once and referred to after that.

use std::collections::HashMap;
use std::io::{self, Write};

/// Python's own number.
const BATCH: usize = 1000;

pub struct Pickler<'o> {
    out: &'o mut dyn Write,
    /// What was memoized under which number: texts, and lists by the caller's number for them.
    texts: HashMap<String, u32>,
    lists: HashMap<usize, u32>,
    memoized: u32,
}

impl<'o> Pickler<'o> {
    pub fn new(out: &'o mut dyn Write) -> io::Result<Pickler<'o>> {
        out.write_all(&[0x80, 4])?;
        Ok(Pickler {
            out,
            texts: HashMap::new(),
            lists: HashMap::new(),
            memoized: 0,
        })
    }

    pub fn finish(self) -> io::Result<()> {
        self.out.write_all(b".")
    }

    pub fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(small) = u8::try_from(number) {
            return self.out.write_all(&[b'K', small]);
        }
        if let Ok(small) = i32::try_from(number) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&small.to_le_bytes());
        }
        // One byte more, so that the highest bit is no sign.
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.push(0);
        while let [.., before, 0] = bytes[..]
            && before < 0x80
        {
            bytes.pop();
        }
        self.out.write_all(&[0x8a, bytes.len() as u8])?;
        self.out.write_all(&bytes)
    }

    pub fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&known) = self.texts.get(text) {
            return self.recall(known);
        }
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.out.write_all(b"X")?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        let number = self.memoize()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    pub fn list<T>(
        &mut self,
        items: &[T],
        mut item: impl FnMut(&mut Pickler<'o>, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"]")?;
        for batch in items.chunks(BATCH) {
            self.out.write_all(b"(")?;
            for each in batch {
                item(self, each)?;
            }
            self.out.write_all(b"e")?;
        }
        Ok(())
    }

    /// The same for a list that may come again: the next time under this key it is only referred to.
    pub fn shared_list<T>(
        &mut self,
        key: usize,
        items: &[T],
        item: impl FnMut(&mut Pickler<'o>, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(&known) = self.lists.get(&key) {
            return self.recall(known);
        }
        self.list(items, item)?;
        let number = self.memoize()?;
        self.lists.insert(key, number);
        Ok(())
    }

    /// A dictionary, between [`Pickler::begin`] and [`Pickler::end`]; keys and values alternate.
    pub fn begin(&mut self) -> io::Result<()> {
        self.out.write_all(b"}(")
    }

    pub fn end(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    pub fn entry(&mut self, name: &str, number: u64) -> io::Result<()> {
        self.text(name)?;
        self.number(number)
    }

    pub fn text_entry(&mut self, name: &str, text: &str) -> io::Result<()> {
        self.text(name)?;
        self.text(text)
    }

    pub fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.number(first)?;
        self.number(second)?;
        self.out.write_all(&[0x86])
    }

    fn memoize(&mut self) -> io::Result<u32> {
        let number = self.memoized;
        self.memoized = number
            .checked_add(1)
            .ok_or_else(|| io::Error::other("too many texts for a pickle"))?;
        self.out.write_all(&[0x94])?;
        Ok(number)
    }

    fn recall(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(small) => self.out.write_all(&[b'h', small]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&number.to_le_bytes())
            }
        }
    }
}
