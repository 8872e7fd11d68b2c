//! Names of partition folders: `job=train/host=n03/rank=7`, as Hive, Spark and DuckDB read them.
//!
//! A value is escaped as in Hive: `%` and two hexadecimal digits for each byte that is not an ASCII letter, a digit or one of `-_.`.
//! So a name stays one folder, whatever a job or a host is called, and no name begins with a dot. Deliberately absent: values in
//! more than 200 bytes; they are cut and end with a hash, because names of files are limited.

use crate::rows::{Rows, Value};
use crate::schema::Keep;

/// The name of a folder for NULL.
pub const NULL: &str = "__HIVE_DEFAULT_PARTITION__";
/// The bytes of a name, at most.
const LONGEST: usize = 200;

/// `job=train`.
pub fn name(column: &str, value: Value) -> String {
    let value = match value {
        Value::Null | Value::Text("") => NULL.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Text(text) => escaped(text),
    };
    format!("{column}={value}")
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    // Engines take these for NULL.
    let is_null = text == NULL || text.eq_ignore_ascii_case("null");
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

/// A text that fits into the name of a folder.
pub fn fitting(text: &str) -> String {
    if text.len() <= LONGEST && escaped(text).len() <= LONGEST {
        return text.to_owned();
    }
    // An escaped character has at least one byte.
    let mut short: String = text.chars().take(LONGEST).collect();
    while escaped(&short).len() > LONGEST - 20 {
        short.pop();
    }
    format!("{short}-{:016x}", hash(text.as_bytes()))
}

/// FNV-1a, 64 bits: never changes.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The columns that name the folders of a table. Stacks are shared by all processes of a job.
pub fn partitions(keep: Keep, partition: &[String]) -> Vec<&str> {
    let all = partition.iter().map(String::as_str);
    all.filter(|name| keep != Keep::Forever || *name == "job").collect()
}

/// The folder of a row, below that of its table.
pub fn of_row(rows: &Rows, row: usize, partition: &[&str]) -> String {
    let parts = partition.iter().map(|column| {
        let value = rows.table.column(column).map_or(Value::Null, |at| rows.value(at, row));
        name(column, value)
    });
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_folder() {
        for text in [
            "train",
            "../../etc",
            "a/b=c%d",
            ".hidden",
            "..",
            "null",
            "NULL",
            NULL,
            "Zürich\n",
            "a b+c",
            "%41",
        ] {
            let folder = name("job", Value::Text(text));
            let shown = folder.strip_prefix("job=").expect("a column");
            assert!(
                !shown.contains(['/', '=', ' ', '+']) && !shown.starts_with('.'),
                "{folder}"
            );
            assert!(!shown.eq_ignore_ascii_case("null") && shown != NULL, "{folder}");
        }
        assert_eq!(name("rank", Value::Number(7)), "rank=7");
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let (one, other) = ("ü".repeat(300), format!("{}x", "ü".repeat(299)));
        assert_ne!(fitting(&one), fitting(&other));
        assert!(name("job", Value::Text(&fitting(&one))).len() <= LONGEST + 4);
        assert_eq!(fitting("train"), "train");
        // Takes hours if each cut looks at the whole text.
        assert!(fitting(&"x".repeat(4 << 20)).len() <= LONGEST);
    }
}
