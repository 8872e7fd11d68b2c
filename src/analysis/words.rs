//! Sizes, counts and times as people write them.

use crate::kind::Kind;
use crate::quantities::{Rounded, rounded};

/// `1.2 GiB`: at most one decimal, and none if it is 0.
pub fn bytes(bytes: u64) -> String {
    match rounded(bytes) {
        Rounded { whole, tenths: 0, unit } => format!("{whole} {unit}"),
        Rounded { whole, tenths, unit } => format!("{whole}.{tenths} {unit}"),
    }
}

/// `+512 MiB`, `-4 KiB`, `+0 B`.
pub fn signed_bytes(delta: i128) -> String {
    let size = bytes(u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{}{size}", if delta < 0 { '-' } else { '+' })
}

/// `1,234,567`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `+64`, `-3`, `+0`.
pub fn signed_count(delta: i128) -> String {
    let size = count(u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{}{size}", if delta < 0 { '-' } else { '+' })
}

/// `1 block`, `3 blocks`.
pub fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// `1 stream`, `2 executable graphs`: a number of a kind, by the kind's name.
pub fn of_kind(n: u64, kind: &str) -> String {
    match Kind::from_name(kind).map(Kind::nouns) {
        Some([one, many]) => plural(n, one, many),
        None => format!("{} {kind}", count(n)),
    }
}

/// A mean number of things: `1.5 streams`, `20 streams`. The name of a kind, if they are of one, else blocks.
pub fn mean_of_kind(mean: f64, kind: Option<&str>) -> String {
    let whole = mean.round();
    let is_whole = mean >= 10.0 || (mean - whole).abs() < 0.05;
    let things = if is_whole { whole as u64 } else { 2 };
    let text = match kind {
        Some(kind) => of_kind(things, kind),
        None => plural(things, "block", "blocks"),
    };
    match (is_whole, text.split_once(' ')) {
        (false, Some((_, noun))) => format!("{mean:.1} {noun}"),
        _ => text,
    }
}

/// `850 ns`, `12 ms`, `3.4 s`, `2 m 14 s`, `3 h 5 m`, `2 d 4 h`.
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        1_000_000_000..60_000_000_000 => match ns / 100_000_000 % 10 {
            0 => format!("{seconds} s"),
            tenth => format!("{seconds}.{tenth} s"),
        },
        _ if seconds < 3_600 => format!("{} m {} s", seconds / 60, seconds % 60),
        _ if seconds < 86_400 => format!("{} h {} m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// An input or another name, quoted if a shell requires it. A file whose name begins like an option is named by its folder.
pub fn shell_word(source: &str) -> String {
    match source.len() > 1 && source.starts_with('-') {
        true => quoted(&format!("./{source}")),
        false => quoted(source),
    }
}

/// A word of a command, quoted if a shell requires it: also what a terminal would not show. In the place of bytes that are not UTF-8,
/// the shell looks for the file.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=@%,".contains(c);
    let part = |part: &str| {
        if part.chars().all(plain) {
            return part.to_owned();
        }
        if !part.contains(is_active) {
            return format!("'{}'", part.replace('\'', r"'\''"));
        }
        let bytes = |c: char| c.to_string().bytes().map(|byte| format!("\\x{byte:02x}")).collect();
        let escaped = |c: char| match c {
            '\n' => r"\n".to_owned(),
            '\t' => r"\t".to_owned(),
            c if is_active(c) || r"\'".contains(c) => bytes(c),
            c => c.to_string(),
        };
        format!("$'{}'", part.chars().map(escaped).collect::<String>())
    };
    match word {
        "" => "''".to_owned(),
        word => word.split('\u{fffd}').map(part).collect::<Vec<_>>().join("?"),
    }
}

/// Whether a character has an effect other than its appearance. Includes the noncharacters U+FFFE and U+FFFF, which XML
/// forbids.
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_have_a_unit_and_at_most_one_decimal() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1280, "1.2 KiB"),
            (1_048_524, "1023.9 KiB"),
            (1_048_525, "1 MiB"),
            (1_048_575, "1 MiB"),
            (1 << 50, "1 PiB"),
            (1 << 26, "64 MiB"),
            (1_288_490_189, "1.2 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(signed_bytes(-4096), "-4 KiB");
        assert_eq!(signed_count(1234), "+1,234");
    }

    #[test]
    fn a_mean_number_has_a_decimal_only_if_it_needs_one() {
        for (mean, kind, text) in [
            (0.0, Some("stream"), "0 streams"),
            (1.02, Some("stream"), "1 stream"),
            (1.5, Some("stream"), "1.5 streams"),
            (20.0, Some("stream"), "20 streams"),
            (68_360_574.2, None, "68,360,574 blocks"),
        ] {
            assert_eq!(mean_of_kind(mean, kind), text);
        }
    }

    #[test]
    fn a_shell_reads_each_word_of_a_command_as_it_was() {
        let words = [
            ("runs/a.culeak", "runs/a.culeak"),
            ("", "''"),
            ("-", "-"),
            ("-x.culeak", "./-x.culeak"),
            ("my run", "'my run'"),
            ("it's", r"'it'\''s'"),
            ("a\n'b\\", r"$'a\n\x27b\x5c'"),
            ("a\u{1b}[31m", r"$'a\x1b[31m'"),
            ("evil\u{202e}cod", r"$'evil\xe2\x80\xaecod'"),
            ("caf\u{fffd} 1/é", "caf?' 1/é'"),
        ];
        for (word, shown) in words {
            assert_eq!(shell_word(word), shown);
            let exact = word.len() > 1 && !word.starts_with('-') && !word.contains('\u{fffd}');
            let shell = std::process::Command::new("bash")
                .args(["-c", &format!("printf %s {shown}")])
                .output();
            if exact {
                assert_eq!(shell.expect("bash").stdout, word.as_bytes(), "{shown}");
            }
        }
        assert_eq!(quoted("-u"), "-u", "an option");
    }

    #[test]
    fn kinds_are_counted_by_their_nouns() {
        let texts = [
            (1, "stream"),
            (128, "stream"),
            (2, "graph-exec"),
            (1, "library"),
            (3, "library"),
            (2, "unheard-of"),
        ];
        assert_eq!(
            texts.map(|(n, kind)| of_kind(n, kind)),
            [
                "1 stream",
                "128 streams",
                "2 executable graphs",
                "1 library",
                "3 libraries",
                "2 unheard-of"
            ]
        );
    }

    #[test]
    fn times_have_at_most_two_units() {
        for (ns, text) in [
            (12, "12 ns"),
            (12_000_000, "12 ms"),
            (3_000_000_000, "3 s"),
            (3_450_000_000, "3.4 s"),
            (134_000_000_000, "2 m 14 s"),
            (11_100_000_000_000, "3 h 5 m"),
            (187_200_000_000_000, "2 d 4 h"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    proptest! {
        #[test]
        fn any_number_prints(n in any::<u64>(), delta in any::<i64>()) {
            prop_assert!(bytes(n).len() <= 10);
            prop_assert!(!duration(n).is_empty());
            prop_assert_eq!(count(n).replace(',', ""), n.to_string());
            signed_bytes(delta.into());
        }
    }
}
