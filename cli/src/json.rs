//! JSON that is safe to print: control characters and bidirectional marks are escaped, as in `\u009b`.
//!
//! For a JSON reader the text is the same, so the escapes are always written. serde_json escapes only what the format
//! requires, which excludes DEL, the controls of Latin-1 and bidirectional marks. Deliberately absent: escapes of visible
//! characters.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use crate::escape::is_active;

/// Writes a value on one line.
pub fn write(out: impl Write, value: &impl Serialize) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Escaping(CompactFormatter)))?;
    Ok(())
}

/// Writes a value indented.
pub fn write_pretty(out: impl Write, value: &impl Serialize) -> io::Result<()> {
    value.serialize(&mut pretty(out))?;
    Ok(())
}

/// A serializer for values that are written in parts.
pub fn pretty<W: Write>(out: W) -> Serializer<W, Escaping<PrettyFormatter<'static>>> {
    Serializer::with_formatter(out, Escaping(PrettyFormatter::new()))
}

/// A formatter that also escapes active characters in strings.
pub struct Escaping<F>(F);

/// Methods that forward to the inner formatter.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*))*) => {$(
        fn $name<W: ?Sized + Write>(&mut self, out: &mut W $(, $argument: $type)*) -> io::Result<()> {
            self.0.$name(out $(, $argument)*)
        }
    )*};
}

impl<F: Formatter> Formatter for Escaping<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(index) = rest.find(is_active) {
            out.write_all(&rest.as_bytes()[..index])?;
            let mut after = rest[index..].chars();
            for unit in after.next().unwrap_or_default().encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = after.as_str();
        }
        out.write_all(rest.as_bytes())
    }

    // All methods that CompactFormatter or PrettyFormatter overrides.
    forward! {
        begin_array()
        end_array()
        begin_array_value(first: bool)
        end_array_value()
        begin_object()
        end_object()
        begin_object_key(first: bool)
        begin_object_value()
        end_object_value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes).expect("memory is writable");
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn active_characters_are_escaped_and_everything_else_is_as_serde_writes_it() {
        let value = serde_json::json!({"a": ["a\u{9b}31m\u{7f}", "b\u{202e}c\u{e0041}", "é\n\"\u{1b}"], "n": {}});
        assert_eq!(
            text(|out| write(out, &value)),
            r#"{"a":["a\u009b31m\u007f","b\u202ec\udb40\udc41","é\n\"\u001b"],"n":{}}"#
        );
        let plain = serde_json::json!({"a": [1, [], {}, {"b": null}], "c": "d"});
        assert_eq!(text(|out| write(out, &plain)), plain.to_string());
        assert_eq!(text(|out| write_pretty(out, &plain)), format!("{plain:#}"));
    }

    proptest! {
        #[test]
        fn any_text_is_escaped_and_parsed_back(value in any::<String>()) {
            let json = text(|out| write(out, &value));
            prop_assert!(!json.contains(is_active));
            prop_assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), value);
        }
    }
}
