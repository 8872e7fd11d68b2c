//! Python's strings, as text of bounded length.

use crate::copy::Image;
use crate::python::Python;
use crate::python::references::is_address;

/// Characters of a name or key that are shown.
pub const MOST_CHARACTERS: u64 = 80;

impl Python {
    /// The characters of a `str`, at most `limit` of them; `None` if the object is no `str`. What is not a character becomes `\u{fffd}`.
    pub(crate) fn text(&mut self, copy: &Image, address: u64, limit: u64) -> Option<String> {
        let of = self.object(copy, address)?;
        if !self.types[of].is_text() {
            return None;
        }
        let o = &self.offsets;
        // Bits from the lowest: whether it is interned; kind 3, compact 1, ascii 1.
        let state = copy.half(address + o.text_state) >> o.text_kind_bit;
        let (width, is_compact, is_ascii) = (u64::from(state & 7), state >> 3 & 1 == 1, state >> 4 & 1 == 1);
        let start = match (is_compact, is_ascii) {
            (true, true) => address + o.text_ascii,
            (true, false) => address + o.text_compact,
            (false, _) => copy.word(address + o.text_compact),
        };
        if !matches!(width, 1 | 2 | 4) {
            return None;
        }
        let length = copy.word(address + o.text_length);
        let shown = length.min(limit);
        let bytes = copy.bytes(start..start.checked_add(shown * width)?)?;
        let unit = |unit: &[u8]| unit.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        let units = bytes.chunks_exact(width as usize).map(unit);
        let mut text: String = units.map(|value| char::from_u32(value).unwrap_or('\u{fffd}')).collect();
        if shown < length {
            text.push('…');
        }
        Some(text)
    }

    /// Bytes of a `str` behind its header.
    pub(super) fn text_bytes(&self, copy: &Image, address: u64) -> u64 {
        let state = copy.half(address + self.offsets.text_state) >> self.offsets.text_kind_bit;
        let is_compact = state >> 3 & 1 == 1;
        let (width, length) = (u64::from(state & 7), copy.word(address + self.offsets.text_length));
        if is_compact {
            length.saturating_add(1).saturating_mul(width)
        } else {
            0
        }
    }

    /// The contents of a `bytes` object up to a limit.
    pub(super) fn byte_string(&self, copy: &Image, address: u64, limit: u64) -> Option<Vec<u8>> {
        if !is_address(address) {
            return None;
        }
        let length = copy.word(address + self.head()).min(limit);
        let start = address + self.head() + 16;
        copy.bytes(start..start.checked_add(length)?)
    }
}

/// In quotes, with control characters, quotes and backslashes escaped.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("'");
    for character in text.chars() {
        match character {
            '\'' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => quoted.extend(character.escape_default()),
            character => quoted.push(character),
        }
    }
    quoted.push('\'');
    quoted
}

/// As a part of a name: control characters are escaped.
pub fn plain(text: &str) -> String {
    let mut plain = String::new();
    for character in text.chars() {
        match character {
            character if character.is_control() => plain.extend(character.escape_default()),
            character => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_escaped() {
        assert_eq!(quoted("a'b\\c\u{1b}[0m\n中"), "'a\\'b\\\\c\\u{1b}[0m\\n中'");
        assert_eq!(plain("train\u{7}.py"), "train\\u{7}.py");
    }
}
