//! Exported symbols, found as the loader finds them: through the dynamic section and its hash table.
//!
//! No section headers are needed, and a look-up reads a few hundred bytes, whatever the size of the file.

use super::headers::{DYNAMIC, Headers, Read, word, word4};

const SYMBOL: u64 = 24;
/// The most entries of one chain, and of the dynamic section.
const LONGEST: u64 = 1 << 16;

/// The address of a symbol, without the bias. `read` takes addresses without the bias. `bias`: the loader may have added it to the
/// addresses in the dynamic section.
pub fn address(headers: &Headers, read: Read, bias: u64, name: &str) -> Option<u64> {
    let tables = Tables::find(headers, read, bias)?;
    let index = match tables.gnu_hash {
        Some(table) => tables.by_gnu_hash(read, table, name)?,
        None => tables.by_hash(read, tables.hash?, name)?,
    };
    let symbol = bytes::<24>(read, tables.symbols.checked_add(index.checked_mul(SYMBOL)?)?)?;
    let section = word4(&symbol, 4) >> 16;
    // 0: the symbol is imported.
    (section != 0).then(|| word(&symbol, 8))
}

struct Tables {
    symbols: u64,
    strings: u64,
    gnu_hash: Option<u64>,
    hash: Option<u64>,
}

impl Tables {
    fn find(headers: &Headers, read: Read, bias: u64) -> Option<Tables> {
        let dynamic = headers.segments.iter().find(|segment| segment.kind == DYNAMIC)?;
        let is_loaded = |address: &u64| headers.in_file(*address).is_some();
        let (mut symbols, mut strings, mut gnu_hash, mut hash) = (None, None, None, None);
        for nth in 0..(dynamic.memory_bytes / 16).min(LONGEST) {
            let entry = bytes::<16>(read, dynamic.address.checked_add(nth * 16)?)?;
            let value = word(&entry, 8);
            let address = || [value.wrapping_sub(bias), value].into_iter().find(is_loaded);
            match word(&entry, 0) {
                0 => break,
                4 => hash = address(),
                5 => strings = address(),
                6 => symbols = address(),
                0x6fff_fef5 => gnu_hash = address(),
                _ => {}
            }
        }
        Some(Tables {
            symbols: symbols?,
            strings: strings?,
            gnu_hash,
            hash,
        })
    }

    fn by_gnu_hash(&self, read: Read, table: u64, name: &str) -> Option<u64> {
        let hash = name.bytes().fold(5381_u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(byte))
        });
        let header = bytes::<16>(read, table)?;
        let (buckets, first, bloom) = (word4(&header, 0), word4(&header, 4), word4(&header, 8));
        let buckets_at = table.checked_add(16 + u64::from(bloom) * 8)?;
        let place = u64::from(hash.checked_rem(buckets)?);
        let mut index = word4(&bytes::<4>(read, buckets_at.checked_add(place * 4)?)?, 0);
        let chains_at = buckets_at.checked_add(u64::from(buckets) * 4)?;
        for _ in 0..LONGEST {
            let chain = u64::from(index.checked_sub(first)?);
            let found = word4(&bytes::<4>(read, chains_at.checked_add(chain * 4)?)?, 0);
            // The lowest bit marks the end of the chain.
            if found | 1 == hash | 1 && self.is_named(read, u64::from(index), name)? {
                return Some(u64::from(index));
            }
            if found & 1 != 0 {
                return None;
            }
            index = index.checked_add(1)?;
        }
        None
    }

    /// The hash table of System V.
    fn by_hash(&self, read: Read, table: u64, name: &str) -> Option<u64> {
        let hash = name.bytes().fold(0_u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(byte));
            let high = hash & 0xf000_0000;
            (hash ^ high >> 24) & !high
        });
        let buckets = word4(&bytes::<8>(read, table)?, 0);
        let number = |at: u64| Some(word4(&bytes::<4>(read, table.checked_add(8 + at * 4)?)?, 0));
        let mut index = number(u64::from(hash.checked_rem(buckets)?))?;
        for _ in 0..LONGEST {
            if index == 0 {
                return None;
            }
            if self.is_named(read, u64::from(index), name)? {
                return Some(u64::from(index));
            }
            index = number(u64::from(buckets) + u64::from(index))?;
        }
        None
    }

    fn is_named(&self, read: Read, index: u64, name: &str) -> Option<bool> {
        let symbol = bytes::<4>(read, self.symbols.checked_add(index * SYMBOL)?)?;
        let mut text = vec![0; name.len() + 1];
        let is_read = read(self.strings.checked_add(u64::from(word4(&symbol, 0)))?, &mut text);
        Some(is_read && text.strip_suffix(&[0]) == Some(name.as_bytes()))
    }
}

fn bytes<const N: usize>(read: Read, address: u64) -> Option<[u8; N]> {
    let mut buffer = [0; N];
    read(address, &mut buffer).then_some(buffer)
}
