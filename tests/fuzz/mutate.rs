//! Changes to an input that are likely to pass the first checks, beside those of libFuzzer.
//!
//! Most bytes of a recording are zeros, and most changes to JSON are syntax errors. So binary files are [packed](pack) and changed by
//! words, with boundary values, and JSON mostly by whole values.

use crate::fuzz::random::Random;

/// What an input consists of.
#[derive(Clone, Copy)]
pub enum Form {
    Words,
    Json,
    Pickle,
    /// Lines.
    Text,
}

/// The longest file that an input stands for, in bytes.
pub const LONGEST: usize = 1 << 20;

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

/// The input with one to a few dozen changes.
pub fn changed(form: Form, input: &[u8], seed: u64) -> Vec<u8> {
    let (random, mut bytes) = (&Random::new(seed), input.to_vec());
    let most = [32, 8, 2, 2][random.below(4)];
    for _ in 0..=random.below(most) {
        if bytes.is_empty() {
            break;
        }
        match form {
            Form::Json if !random.one_in(8) => change_value(&mut bytes, random),
            Form::Pickle if random.one_in(3) => {
                let at = random.below(bytes.len());
                let until = (at + random.below(4)).min(bytes.len());
                bytes.splice(at..until, PICKLE[random.below(PICKLE.len())].iter().copied());
            }
            _ => change_bytes(&mut bytes, random),
        }
    }
    bytes
}

fn change_bytes(bytes: &mut Vec<u8>, random: &Random) {
    let at = random.below(bytes.len());
    let left = bytes.len() - at;
    let stretch = random.below(left.min(1 << random.below(14)) + 1);
    match random.below(10) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6)],
        2..7 => {
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
            let to = random.below(bytes.len());
            let stretch = stretch.min(bytes.len() - to);
            bytes.copy_within(at..at + stretch, to);
        }
        8 => {
            let piece = bytes[at..at + stretch].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, piece);
        }
        _ => drop(bytes.drain(at..at + stretch)),
    }
}

fn number(before: u64, random: &Random) -> u64 {
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
fn change_value(bytes: &mut Vec<u8>, random: &Random) {
    let Some(place) = value(bytes, random) else { return };
    let with = match random.below(4) {
        0 => value(bytes, random).map_or_else(Vec::new, |from| bytes[from].to_vec()),
        1 if bytes.len() < 1 << 16 => {
            // A value repeated many times: long lists of equal things.
            let one = [&bytes[place.clone()], b","].concat();
            let mut many = one.repeat(1 + random.below((1 << 14) / one.len() + 1));
            many.pop();
            many
        }
        _ => VALUES[random.below(VALUES.len())].as_bytes().to_vec(),
    };
    bytes.splice(place, with);
}

/// The range of a value: after a colon, a comma or a bracket, up to its end.
fn value(bytes: &[u8], random: &Random) -> Option<std::ops::Range<usize>> {
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

/// A file as its runs of words that are not all zeros: for each a word with its place (lower half) and its length, both in words, and its
/// words. The last run is empty: its place is the length of the file.
pub fn pack(file: &[u8]) -> Vec<u8> {
    let mut runs: Vec<(usize, Vec<u8>)> = Vec::new();
    for (at, word) in file.chunks(8).enumerate().filter(|(_, word)| **word != [0; 8]) {
        match runs.last_mut() {
            // A single zero takes no more room than another run.
            Some((start, run)) if at < *start + run.len() / 8 + 2 => {
                run.resize((at - *start) * 8, 0);
                run.extend(word);
            }
            _ => runs.push((at, word.to_vec())),
        }
    }
    runs.push((file.len().div_ceil(8), Vec::new()));
    let mut packed = Vec::new();
    for (start, mut run) in runs {
        run.resize(run.len().next_multiple_of(8), 0);
        packed.extend((start as u64 | (run.len() as u64 / 8) << 32).to_le_bytes());
        packed.extend(run);
    }
    packed
}

/// The file that an input stands for: all bytes stand for one.
pub fn unpack(packed: &[u8]) -> Vec<u8> {
    let (mut file, mut rest) = (Vec::new(), packed);
    while let Some((head, after)) = rest.split_first_chunk() {
        let [start, count] = [0, 32].map(|shift| (u64::from_le_bytes(*head) >> shift) as u32 as usize);
        let start = start.saturating_mul(8).min(LONGEST);
        let (run, after) = after.split_at(count.saturating_mul(8).min(after.len()));
        let run = &run[..run.len().min(LONGEST - start)];
        match count {
            0 => file.resize(start, 0),
            _ => file.resize(file.len().max(start + run.len()), 0),
        }
        file[start..][..run.len()].copy_from_slice(run);
        rest = after;
    }
    file
}

#[test]
fn a_packed_file_is_unpacked_as_it_was() {
    let zeros = |count| vec![0; count];
    for count in [0, 8, 16, 800] {
        let parts = [
            zeros(count),
            vec![7; 24],
            zeros(8),
            vec![1; 8],
            zeros(count),
            vec![9; 8],
            zeros(count),
        ];
        let packed = pack(&parts.concat());
        assert_eq!(unpack(&packed), parts.concat());
        assert!(packed.len() <= 80, "{}", packed.len());
    }
    assert_eq!(unpack(&[0xff; 64]).len(), LONGEST);
}
