//! Sizes, counts and times as people write and read them.

/// `1.2 GiB`: one decimal at most, none when it says nothing.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
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
    fn sizes_read_like_sizes() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1_048_575, "1 MiB"),
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
    fn times_read_like_times() {
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

    proptest! {
        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            let _ = parse_size(&text);
        }

        #[test]
        fn any_number_prints(n in any::<u64>(), delta in any::<i64>()) {
            prop_assert!(bytes(n).len() <= 10);
            prop_assert!(!duration(n).is_empty());
            prop_assert_eq!(count(n).replace(',', ""), n.to_string());
            signed_bytes(delta.into());
        }
    }
}
