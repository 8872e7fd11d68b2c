//! Changes to a valid file that are likely to pass the first checks.
//!
//! Most bytes of a recording are zeros, and most changes to JSON are syntax errors. So binary files are changed mostly at
//! nonzero bytes, by words as well as bytes, with boundary values; and JSON mostly by whole values.

use crate::random::Random;
use crate::seeds::{Seed, Type};

/// Replacement values in JSON.
const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "7",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "18446744073709551615",
    "-1",
    "1e308",
    "0.5",
    "99999999999999999999999",
    "null",
    "true",
    "[]",
    "{}",
    "[[]]",
    "\"\"",
    "\"x\"",
    "\"\\u0000\\u001b[2J\"",
    "\"../../../../etc/passwd\"",
    "\"_ZN1aIS_IS_IS_IS_EEEE\"",
    "\"operator()<(a::b[]{}\"",
    "\"(\\\"\"",
];

/// Instructions of pickles that need something on the stack or create something large.
const PICKLE: &[&[u8]] = &[
    b"(",
    b")",
    b"]",
    b"}",
    b"t",
    b"e",
    b"u",
    b"s",
    b"a",
    b"0",
    b"1",
    b"2",
    b".",
    b"N",
    b"\x94",
    b"h\0",
    b"j\xff\xff\0\0",
    b"X\xff\xff\xff\x7f",
    b"\x8b\x10\0\0\0",
    b"\x8a\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"G\x7f\xf0\0\0\0\0\0\0",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\xff",
    b"K\xff",
    b"J\xff\xff\xff\xff",
];

/// The seed with one to a few dozen changes.
pub fn changed(seed: &Seed, other: &Seed, random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.bytes.clone();
    let most = [32, 8, 2, 2][random.below(4)];
    for _ in 0..=random.below(most) {
        match seed.of {
            Type::Snapshot if !random.one_in(8) => change_value(&mut bytes, random),
            Type::Pickle if random.one_in(3) => {
                let at = random.below(bytes.len());
                let instruction = PICKLE[random.below(PICKLE.len())];
                let until = (at + random.below(4)).min(bytes.len());
                bytes.splice(at..until, instruction.iter().copied());
            }
            _ => change_bytes(&mut bytes, other, random),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// Mostly the position of a nonzero byte.
fn place(bytes: &[u8], random: &mut Random) -> usize {
    let at = random.below(bytes.len());
    if random.one_in(8) {
        return at;
    }
    let found = bytes[at..].iter().position(|&byte| byte != 0);
    found.map_or(at, |more| at + more)
}

fn change_bytes(bytes: &mut Vec<u8>, other: &Seed, random: &mut Random) {
    let at = place(bytes, random);
    let left = bytes.len() - at;
    let most = 1 << random.below(14);
    let stretch = random.below(left.min(most) + 1);
    match random.below(12) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
        3..7 => {
            // A number, aligned or not.
            let width = [2, 4, 8, 8][random.below(4)];
            let at = if random.one_in(4) { at } else { at / width * width };
            let Some(word) = bytes.get_mut(at..at + width) else {
                return;
            };
            let mut eight = [0; 8];
            eight[..width].copy_from_slice(word);
            let number = number(u64::from_le_bytes(eight), random);
            word.copy_from_slice(&number.to_le_bytes()[..width]);
        }
        7 => {
            let byte = if random.one_in(2) { 0 } else { 0xff };
            bytes[at..at + stretch].fill(byte);
        }
        8 => {
            let to = place(bytes, random);
            let stretch = stretch.min(bytes.len() - to);
            bytes.copy_within(at..at + stretch, to);
        }
        9 => {
            let from = random.below(other.bytes.len());
            let piece = &other.bytes[from..(from + stretch).min(other.bytes.len())];
            bytes[at..at + piece.len()].copy_from_slice(piece);
        }
        10 => {
            let piece = bytes[at..at + stretch].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, piece);
        }
        _ if random.one_in(3) => bytes.truncate(at),
        _ => drop(bytes.drain(at..at + stretch)),
    }
}

fn number(before: u64, random: &mut Random) -> u64 {
    match random.below(6) {
        0 => before.wrapping_add(1),
        1 => before.wrapping_sub(1),
        2 => before.wrapping_mul(1 + random.below(1000) as u64),
        3 => 1 << random.below(64),
        4 => [0, 1, u64::from(u32::MAX), u64::MAX, i64::MAX as u64, 1 << 32][random.below(6)],
        _ => random.next() >> random.below(64),
    }
}

/// Replaces a value of JSON by another one, or by a copy of a value elsewhere in the file.
fn change_value(bytes: &mut Vec<u8>, random: &mut Random) {
    let Some(place) = value(bytes, random) else { return };
    let with = match random.below(4) {
        0 => value(bytes, random).map_or_else(Vec::new, |from| bytes[from].to_vec()),
        1 if bytes.len() < 1 << 18 => {
            // A value repeated many times: long lists of equal things.
            let one = [&bytes[place.clone()], b","].concat();
            let mut many = one.repeat(1 + random.below((1 << 16) / one.len() + 1));
            many.pop();
            many
        }
        _ => VALUES[random.below(VALUES.len())].as_bytes().to_vec(),
    };
    bytes.splice(place, with);
}

/// The range of a value: after a colon, a comma or a bracket, up to its end.
fn value(bytes: &[u8], random: &mut Random) -> Option<std::ops::Range<usize>> {
    let at = random.below(bytes.len());
    let start = at + 1 + bytes[at..].iter().position(|byte| b":,[".contains(byte))?;
    let (mut depth, mut in_text, mut at) = (0, false, start);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if in_text => at += 1,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' | b',' if depth == 0 => break,
            b']' | b'}' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    Some(start..at.min(bytes.len()))
}
