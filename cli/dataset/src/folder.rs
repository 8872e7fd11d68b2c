//! Names of folders: `job=train`, as Hive, Spark and DuckDB read them.
//!
//! A value is escaped as in Hive: `%` and two hexadecimal digits for each byte that is not an ASCII letter, a digit or one of `-_.`.
//! So a name stays one folder, whatever a job is called, and no name begins with a dot. Deliberately absent: values in more than
//! 200 bytes; they are cut and end with a hash, because names of files are limited.

/// The name of the folder for NULL.
pub const NULL: &str = "job=__HIVE_DEFAULT_PARTITION__";
/// The bytes of a name, at most.
const LONGEST: usize = 200;

/// `job=train`.
pub fn name(job: &str) -> String {
    if job.is_empty() {
        return NULL.to_owned();
    }
    let whole = escaped(job);
    if whole.len() <= LONGEST {
        return format!("job={whole}");
    }
    // An escaped character has at least one byte.
    let mut short: String = job.chars().take(LONGEST).collect();
    while escaped(&short).len() > LONGEST - 20 {
        short.pop();
    }
    format!("job={}-{:016x}", escaped(&short), hash(job.as_bytes()))
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    // Engines take these for NULL.
    let is_null = NULL.ends_with(&format!("={text}")) || text.eq_ignore_ascii_case("null");
    // Bytes, so that names of folders are ASCII: Java cannot open others in the C locale.
    for (nth, byte) in text.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_first = nth == 0 && (is_null || byte == b'.');
        if is_plain && !is_first {
            out.push(byte as char);
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// FNV-1a, 64 bits: never changes.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_folder() {
        let null = "__HIVE_DEFAULT_PARTITION__";
        for text in [
            "train",
            "../../etc",
            "a/b=c%d",
            ".hidden",
            "..",
            "null",
            "NULL",
            null,
            "Zürich\n",
            "a b+c",
            "%41",
        ] {
            let folder = name(text);
            let shown = folder.strip_prefix("job=").expect("a column");
            assert!(
                !shown.contains(['/', '=', ' ', '+']) && !shown.starts_with('.'),
                "{folder}"
            );
            assert!(!shown.eq_ignore_ascii_case("null") && shown != null, "{folder}");
        }
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let (one, other) = ("ü".repeat(300), format!("{}x", "ü".repeat(299)));
        assert_ne!(name(&one), name(&other));
        assert!(name(&one).len() <= LONGEST + 4);
        // Takes hours if each cut looks at the whole text.
        assert!(name(&"x".repeat(4 << 20)).len() <= LONGEST + 4);
    }
}
