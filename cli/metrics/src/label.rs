//! Text from recordings as label values: short, of one line, and still different where the text differs.
//!
//! Names and paths come from an untrusted process. The text formats escape what they must; here values get a length, and lose
//! characters that would confuse a reader.

use std::hash::BuildHasher;

/// The most bytes of a value.
pub const VALUE_MAX: usize = 160;
/// The value that stands for the rest.
pub const OTHER: &str = "other";

/// A label value for this text. Text that is longer than [`VALUE_MAX`] or has control characters, and text that is equal to
/// `other`, gets a mark that depends on all of it.
pub fn value(text: &str) -> String {
    let is_plain = |c: char| !(c.is_control() || is_invisible(c) || c == char::REPLACEMENT_CHARACTER);
    if text.len() <= VALUE_MAX && text != OTHER && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mark = format!(
        "~{:08x}",
        foldhash::quality::FixedState::default().hash_one(text) as u32
    );
    let mut value = String::with_capacity(VALUE_MAX);
    for c in text.chars() {
        let c = if is_plain(c) { c } else { '?' };
        if value.len() + c.len_utf8() + mark.len() > VALUE_MAX {
            break;
        }
        value.push(c);
    }
    value + &mark
}

/// Characters that reorder or hide others.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usual_text_stays_as_it_is() {
        for text in ["", "step  train.py:88", "node0002", "größe", r#"C:\x "y""#] {
            assert_eq!(value(text), text);
        }
    }

    #[test]
    fn a_megabyte_is_cut_and_stays_different_from_another() {
        let (a, b) = ("x".repeat(1 << 20), "x".repeat((1 << 20) + 1));
        assert!(value(&a).len() <= VALUE_MAX);
        assert_ne!(value(&a), value(&b));
        assert_ne!(value(OTHER), OTHER);
        assert_ne!(value("a\nb"), value("a\rb"));
    }

    proptest! {
        #[test]
        fn every_value_is_short_and_of_one_line(text in any::<String>()) {
            let value = value(&text);
            prop_assert!(value.len() <= VALUE_MAX && !value.chars().any(char::is_control));
        }
    }
}
