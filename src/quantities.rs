//! Parses sizes and times: one syntax for options, environment variables and files. Rounds sizes, for all messages alike.
//!
//! The preload library uses it too, so nothing here needs a heap. Deliberately absent: formatting; see `analysis::words`.

use std::fmt;

/// The syntax of a size, for messages.
pub const SIZE: &str = "a size such as 4096, 64MiB or 1.5GB";
/// The syntax of a time, for messages.
pub const TIME: &str = "a time such as 500ms, 10s, 1m or 2h; a bare number means seconds";

/// Why a text is no valid size or time. Its `Display` describes the expected syntax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotUnderstood<'t> {
    Size,
    Time,
    UnitOfSize(&'t str),
    UnitOfTime(&'t str),
    TooLarge,
    TooShort,
    TooLong,
}

impl fmt::Display for NotUnderstood<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotUnderstood::Size => write!(out, "expected {SIZE}"),
            NotUnderstood::Time => write!(out, "expected {TIME}"),
            NotUnderstood::UnitOfSize(unit) => {
                write!(
                    out,
                    "unknown unit {unit:?}; use B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000)"
                )
            }
            NotUnderstood::UnitOfTime(unit) => write!(out, "unknown unit {unit:?}; use ms, s, m, h or d"),
            NotUnderstood::TooLarge => write!(out, "too large; the largest size is {} bytes", u64::MAX),
            NotUnderstood::TooShort => write!(out, "too short; the shortest time is 1ms"),
            NotUnderstood::TooLong => write!(out, "too long; the longest time is 100000d"),
        }
    }
}

/// Bytes of `4096`, `1MB` (10^6), `2GiB` or `2G` (2^31), `1.5 GiB`.
///
/// # Errors
/// The text is no size, or the size is too large.
pub fn size(text: &str) -> Result<u64, NotUnderstood<'_>> {
    const UNITS: [(&str, u64); 14] = [
        ("", 1),
        ("b", 1),
        ("k", 1 << 10),
        ("kib", 1 << 10),
        ("m", 1 << 20),
        ("mib", 1 << 20),
        ("g", 1 << 30),
        ("gib", 1 << 30),
        ("t", 1 << 40),
        ("tib", 1 << 40),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
    ];
    let (number, unit) = parts(text);
    let known = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name));
    let &(_, factor) = known.ok_or(match number {
        "" => NotUnderstood::Size,
        _ => NotUnderstood::UnitOfSize(unit),
    })?;
    // Whole numbers are exact.
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or(NotUnderstood::TooLarge);
    }
    let value: f64 = number.parse().map_err(|_| NotUnderstood::Size)?;
    let bytes = value * factor as f64;
    if bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(NotUnderstood::TooLarge)
    }
}

/// A size as a person reads it: `1.5 GiB` is 1, 5 and `GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounded {
    /// Below 1024.
    pub whole: u64,
    pub tenths: u64,
    pub unit: &'static str,
}

/// Rounds bytes to tenths of the largest unit of which there is at least one.
pub const fn rounded(bytes: u64) -> Rounded {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return Rounded {
            whole: bytes,
            tenths: 0,
            unit: "B",
        };
    }
    let mut unit = 0;
    loop {
        let shift = 10 * (unit as u32 + 1);
        let scaled = bytes as u128 * 10;
        let (mut tenths, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1 << (shift - 1));
        // Halves are rounded to even, as `{:.1}` rounds them.
        if rest > half || (rest == half && tenths % 2 == 1) {
            tenths += 1;
        }
        if tenths < 10_240 || unit + 1 == UNITS.len() {
            return Rounded {
                whole: (tenths / 10) as u64,
                tenths: (tenths % 10) as u64,
                unit: UNITS[unit],
            };
        }
        unit += 1;
    }
}

/// Nanoseconds of `500ms`, `10s`, `1m`, `2h`, `1d`; a bare number means seconds.
///
/// # Errors
/// The text is no time, or the time is too short or too long.
pub fn time(text: &str) -> Result<u64, NotUnderstood<'_>> {
    match point_in_time(text)? {
        nanoseconds if nanoseconds < 1_000_000 => Err(NotUnderstood::TooShort),
        nanoseconds => Ok(nanoseconds),
    }
}

/// As [`time`], of a time since a beginning, which may be any.
///
/// # Errors
/// The text is no time, or the time is too long.
pub fn point_in_time(text: &str) -> Result<u64, NotUnderstood<'_>> {
    const LONGEST_DAYS: f64 = 100_000.0;
    let (number, unit) = parts(text);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ if number.is_empty() => return Err(NotUnderstood::Time),
        unit => return Err(NotUnderstood::UnitOfTime(unit)),
    };
    let value: f64 = number.parse().map_err(|_| NotUnderstood::Time)?;
    match value * seconds {
        time if time > LONGEST_DAYS * 86_400.0 => Err(NotUnderstood::TooLong),
        time => Ok((time * 1e9).round() as u64),
    }
}

/// Splits the text into its leading number and its unit.
fn parts(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1MB", 1_000_000),
            ("2GiB", 2 << 30),
            ("2g", 2 << 30),
            ("1.5 KiB", 1536),
            ("0", 0),
            ("7 b", 7),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "-1", "GiB", "1.2.3", "1 parsec", "99999999999TiB", "1e3", "much"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_parsed() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("2", 2_000),
            ("0.5", 500),
            ("1.5 m", 90_000),
            ("2h", 7_200_000),
        ] {
            assert_eq!(time(text), Ok(milliseconds * 1_000_000), "{text}");
        }
        for text in ["", "0s", "soon", "-1s", "1.2.3s", "3 weeks", "99999999999999999999d"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_describe_the_expected_syntax() {
        let error = |text: &str| size(text).expect_err("no size").to_string();
        assert_eq!(
            error("1 parsec"),
            "unknown unit \"parsec\"; use B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000)"
        );
        assert_eq!(error("much"), "expected a size such as 4096, 64MiB or 1.5GB");
        assert_eq!(
            time("1w").expect_err("no time").to_string(),
            "unknown unit \"w\"; use ms, s, m, h or d"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = size(&text);
            let _ = time(&text);
        }
    }
}
