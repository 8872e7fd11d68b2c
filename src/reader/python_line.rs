//! The source line of a Python instruction, from CPython's line tables, whose format differs between versions.
//!
//! The tables come from a recording and may hold anything: decoding stops at the end of the bytes.

/// Offset of a frame that has not started; its line is the function's first.
pub const BEFORE_FIRST: u32 = u32::MAX;

/// The line of the instruction `offset` bytes into the code; `minor` is the 12 of Python 3.12. `None`: the
/// instruction has no line.
pub fn python_line(minor: u32, table: &[u8], first_line: u32, offset: u32) -> Option<u32> {
    if offset == BEFORE_FIRST {
        return Some(first_line);
    }
    let line = match minor {
        ..=9 => by_pairs(table, first_line, offset),
        10 => by_ranges(table, first_line, offset),
        _ => by_locations(table, first_line, offset),
    };
    line.and_then(|line| u32::try_from(line).ok())
}

/// Up to 3.9: pairs of a step in bytes and a step in lines, each relative to the previous pair.
fn by_pairs(table: &[u8], first_line: u32, offset: u32) -> Option<i64> {
    let (mut at, mut line) = (0, i64::from(first_line));
    // The table of a one-line function is empty.
    for pair in table.chunks_exact(2) {
        at += u32::from(pair[0]);
        if at > offset {
            break;
        }
        line += i64::from(pair[1] as i8);
    }
    Some(line)
}

/// 3.10: pairs of a length in bytes and a step in lines; -128 means no line.
fn by_ranges(table: &[u8], first_line: u32, offset: u32) -> Option<i64> {
    let (mut end, mut line) = (0, i64::from(first_line));
    for pair in table.chunks_exact(2) {
        end += u32::from(pair[0]);
        let step = pair[1] as i8;
        if step != i8::MIN {
            line += i64::from(step);
        }
        if offset < end {
            return (step != i8::MIN).then_some(line);
        }
    }
    None
}

/// From 3.11 on: entries that begin with a byte whose high bit is set, `1cccclll`: a form (`cccc`) and a length of 1 to 8
/// instructions (`lll`). The columns that follow are skipped.
fn by_locations(table: &[u8], first_line: u32, offset: u32) -> Option<i64> {
    const UNIT: u32 = 2;
    let (mut end, mut line) = (0, i64::from(first_line));
    let mut rest = table;
    while let Some((&head, after)) = rest.split_first() {
        let length = after.iter().take_while(|&&byte| byte & 0x80 == 0).count();
        let (fields, next) = after.split_at(length);
        rest = next;
        end += (u32::from(head & 7) + 1) * UNIT;
        let form = head >> 3 & 15;
        line += match form {
            // A long entry, and one without columns.
            13 | 14 => signed(fields),
            10..=12 => i64::from(form) - 10,
            _ => 0,
        };
        if offset < end {
            return (form != 15).then_some(line);
        }
    }
    None
}

/// A signed number, six bits per byte, lowest first; its lowest bit is the sign.
fn signed(bytes: &[u8]) -> i64 {
    let mut value: u64 = 0;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x3f) << (6 * place);
        if byte & 0x40 == 0 {
            break;
        }
    }
    let size = (value >> 1) as i64;
    if value & 1 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(minor: u32, table: &[u8], end: u32) -> Vec<Option<u32>> {
        (0..end)
            .step_by(2)
            .map(|offset| python_line(minor, table, 10, offset))
            .collect()
    }

    #[test]
    fn steps_forward_and_back_until_3_9() {
        let table = [0, 1, 4, 2, 2, 0xff];
        assert_eq!(lines(9, &table, 8), [11, 11, 13, 12].map(Some));
        assert_eq!(python_line(8, &[], 7, 4), Some(7), "a function of one line");
        assert_eq!(python_line(8, &table, 10, BEFORE_FIRST), Some(10));
    }

    #[test]
    fn ranges_with_and_without_a_line_in_3_10() {
        let table = [2, 1, 2, 0x80, 2, 0xfe];
        assert_eq!(lines(10, &table, 8), [Some(11), None, Some(9), None]);
    }

    #[test]
    fn entries_of_every_form_from_3_11_on() {
        let table = [
            0x80 | 14 << 3,
            0x42,
            0x01,
            0,
            1,
            1, // long: 33 forward
            0x80 | 13 << 3,
            0x03, // without columns: 1 back
            0x80 | 11 << 3,
            0,
            0,              // one line on
            0x80 | 15 << 3, // no line
            0x80 | 1,
            0, // short, two instructions
        ];
        assert_eq!(
            lines(12, &table, 14),
            [Some(43), Some(42), Some(43), None, Some(43), Some(43), None]
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(
            minor in 0u32..20, table: Vec<u8>, first_line: u32, offset: u32
        ) {
            let _ = python_line(minor, &table, first_line, offset);
        }
    }
}
