//! Sizes, counts and times as people write and read them; the writing is the model's, whose sentences hold numbers too.

use std::time::Duration;

pub use culeak::words::{bytes, count, duration, plural, signed_bytes, signed_count};

/// Reads `30s`, `500ms`, `10m`, `2h`, `1d`; a bare number is seconds.
///
/// # Errors
/// Says what was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let seconds = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        other => return Err(format!("unknown unit {other:?}; use ms, s, m, h or d")),
    };
    let value: f64 = number
        .parse()
        .map_err(|_| "expected a time such as 30s, 10m or 2h".to_owned())?;
    match Duration::try_from_secs_f64(value * seconds) {
        Ok(time) if time >= Duration::from_millis(1) => Ok(time),
        Ok(_) => Err("a time of less than a millisecond; use 1ms or more".to_owned()),
        Err(_) => Err(format!("{text} is longer than can be waited for")),
    }
}

/// Reads `4096`, `1MB` (10^6), `2GiB` or `2G` (2^30), `1.5 GiB`.
///
/// # Errors
/// Says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let (power, base) = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => (0, 1024u64),
        "k" | "kib" => (1, 1024),
        "m" | "mib" => (2, 1024),
        "g" | "gib" => (3, 1024),
        "t" | "tib" => (4, 1024),
        "kb" => (1, 1000),
        "mb" => (2, 1000),
        "gb" => (3, 1000),
        "tb" => (4, 1000),
        _ => {
            return Err(format!(
                "unknown unit {:?}; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB",
                unit.trim()
            ));
        }
    };
    let factor = base.pow(power);
    let too_large = || format!("{text} is more than {} bytes", u64::MAX);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(too_large);
    }
    let value: f64 = number
        .parse()
        .map_err(|_| "expected a size such as 4096, 1MB or 2GiB".to_owned())?;
    let bytes = value * factor as f64;
    if bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(too_large())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_understood() {
        for (text, n) in [
            ("4096", 4096),
            ("1MB", 1_000_000),
            ("2GiB", 2 << 30),
            ("2g", 2 << 30),
            ("1.5 KiB", 1536),
            ("0", 0),
            ("7 b", 7),
        ] {
            assert_eq!(parse_size(text), Ok(n), "{text}");
        }
        for text in ["", "-1", "GiB", "1.2.3", "1 parsec", "99999999999TiB", "1e3"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_understood() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("2", 2_000),
            ("1.5 m", 90_000),
            ("2h", 7_200_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "0s", "soon", "-1s", "1.2.3s", "3 weeks", "99999999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
        }
    }
}
