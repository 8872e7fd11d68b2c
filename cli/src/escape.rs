//! Escapes text from a recording for printing.
//!
//! Names and paths come from an untrusted process. A terminal would execute escape sequences in them, a line break would
//! forge rows, and right-to-left marks would reorder a line. All of these are printed as `\u{…}`.

use std::fmt;

pub use culeak::analysis::words::is_active;

/// Displays text with active characters escaped.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.contains(is_active) {
            return out.pad(self.0);
        }
        out.pad(&escaped(self.0))
    }
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\t' => safe.push_str("\\t"),
            '\r' => safe.push_str("\\r"),
            c if is_active(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn active_characters_are_escaped() {
        assert_eq!(Escaped("Trainer::step").to_string(), "Trainer::step");
        assert_eq!(Escaped("a\x1b[31mb\nc").to_string(), "a\\u{1b}[31mb\\nc");
        assert_eq!(Escaped("evil\u{202e}cod").to_string(), "evil\\u{202e}cod");
        assert_eq!(Escaped("a\u{fffe}b").to_string(), "a\\u{fffe}b");
        assert_eq!(format!("{:6}|", Escaped("ab")), "ab    |");
    }

    proptest! {
        #[test]
        fn no_active_character_remains(text in any::<String>()) {
            prop_assert!(!Escaped(&text).to_string().contains(is_active));
        }
    }
}
