//! Text from a recording, made harmless to print.
//!
//! Names and paths come from a stranger's process. A terminal would obey escape sequences in them, a line break would
//! forge rows, and right-to-left marks would turn a line around. All of these are shown as `\u{…}` instead.

use std::fmt;

/// Displays text with everything that is not plainly visible escaped.
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

/// Whether a character does something other than appear. The last two of the first plane are none, and no XML may hold them.
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
    fn what_a_terminal_would_obey_is_spelled_out() {
        assert_eq!(Escaped("Trainer::step").to_string(), "Trainer::step");
        assert_eq!(Escaped("a\x1b[31mb\nc").to_string(), "a\\u{1b}[31mb\\nc");
        assert_eq!(Escaped("evil\u{202e}cod").to_string(), "evil\\u{202e}cod");
        assert_eq!(Escaped("a\u{fffe}b").to_string(), "a\\u{fffe}b");
        assert_eq!(format!("{:6}|", Escaped("ab")), "ab    |");
    }

    proptest! {
        #[test]
        fn nothing_active_comes_through(text in any::<String>()) {
            prop_assert!(!Escaped(&text).to_string().contains(is_active));
        }
    }
}
