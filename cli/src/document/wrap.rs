//! Lines that fit the terminal: a wider line continues below, between two words, with a hanging indent.
//!
//! Only a terminal is narrow; in a file or a pipe every line is whole. Deliberately absent: words cut in two. A path or a
//! command that is wider than the terminal stays whole, so it can be copied.

use std::io::{self, Write};

use anstream::adapter::strip_str;

use super::columns;

/// Columns by which the continuation of a line is indented further than its text.
const STEP: usize = 2;
/// A label in front of the text ends before this column.
const LABELS_END: usize = 24;

/// Runs `write` with a stream that wraps its lines if they must fit a terminal ([`columns::fitting`]).
pub fn lines<T>(out: &mut dyn Write, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    let Some(columns) = columns::available() else {
        return write(out);
    };
    let mut lines = Lines {
        out,
        columns,
        line: Vec::new(),
    };
    let result = write(&mut lines)?;
    lines.end_line()?;
    Ok(result)
}

struct Lines<'o> {
    out: &'o mut dyn Write,
    columns: usize,
    /// The line that has begun.
    line: Vec<u8>,
}

impl Lines<'_> {
    fn end_line(&mut self) -> io::Result<()> {
        let line = String::from_utf8_lossy(&self.line);
        self.out.write_all(wrapped(&line, self.columns).as_bytes())?;
        self.line.clear();
        Ok(())
    }
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.line.extend_from_slice(end);
                    self.end_line()?;
                    self.out.write_all(b"\n")?;
                }
                None => self.line.extend_from_slice(piece),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The width without escape sequences.
fn width(text: &str) -> usize {
    columns::width(&strip_str(text).to_string())
}

/// The line, broken between words so that each part fits. Escape sequences stay where they are.
pub fn wrapped(line: &str, columns: usize) -> String {
    broken(line, columns, hanging_indent(line))
}

/// As [`wrapped`], with this indent of what continues below.
pub fn broken(line: &str, columns: usize, hang: usize) -> String {
    if width(line) <= columns {
        return line.to_owned();
    }
    let hang = hang.min(columns / 2);
    let mut text = String::with_capacity(line.len() + line.len() / 8);
    let (mut at, mut gap) = (0, 0);
    for (nth, word) in words(line).iter().enumerate() {
        gap += usize::from(nth > 0);
        let wide = width(word);
        if wide == 0 {
            text.push_str(word);
            continue;
        }
        if at + gap + wide > columns {
            // A word that does not fit behind the indent gets a smaller one.
            gap = hang.min(columns.saturating_sub(wide));
            if at > 0 {
                text.push('\n');
                at = 0;
            }
        }
        text.push_str(&" ".repeat(gap));
        text.push_str(word);
        (at, gap) = (at + gap + wide, 0);
    }
    text
}

/// The words between single spaces; empty ones between several. A number and its unit are one word.
fn words(line: &str) -> Vec<String> {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let is_unit = UNITS.contains(&strip_str(word).to_string().trim_end_matches([',', ')', ':', ';']));
        match words.last_mut() {
            Some(number) if is_unit && number.ends_with(|c: char| c.is_ascii_digit()) => {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Where a line continues: behind its leading spaces, or behind the last label in front of its text, which two spaces end.
fn hanging_indent(line: &str) -> usize {
    let text = strip_str(line).to_string();
    let indent = text.len() - text.trim_start_matches(' ').len();
    let (mut start, mut at, mut spaces) = (indent, 0, 0);
    for c in text.chars() {
        if c != ' ' && spaces >= 2 && (indent..=LABELS_END).contains(&at) {
            start = at;
        }
        spaces = if c == ' ' { spaces + 1 } else { 0 };
        at += columns::width(c.encode_utf8(&mut [0; 4]));
    }
    start + STEP
}

/// A shell command, continued with `\` at the ends of its lines if it does not fit behind a label of this width.
pub fn command(command: &str, label: usize) -> String {
    let Some(available) = columns::available() else {
        return command.to_owned();
    };
    let (mut text, mut at) = (String::new(), label);
    for word in shell_words(command) {
        let wide = columns::width(word);
        // Behind the word is room for ` \`.
        if text.is_empty() {
            at += wide;
        } else if at + " ".len() + wide + r" \".len() <= available {
            text.push(' ');
            at += " ".len() + wide;
        } else {
            let indent = label.min(available.saturating_sub(wide + r" \".len()));
            text.push_str(" \\\n");
            text.push_str(&" ".repeat(indent));
            at = indent + wide;
        }
        text.push_str(word);
    }
    text
}

/// The parts of a command between its unquoted spaces.
fn shell_words(command: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    command.split(move |c| {
        quoted ^= c == '\'';
        c == ' ' && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::columns::with_available;
    use crate::text::parts::BOLD;
    use proptest::prelude::*;

    #[test]
    fn sentences_continue_below_their_text() {
        let sentence = "not recorded  3 allocations: the totals are too low by 1.5 GiB";
        assert_eq!(
            wrapped(sentence, 40),
            "not recorded  3 allocations: the totals\n                are too low by 1.5 GiB"
        );
        assert_eq!(wrapped("a warning of five words", 14), "a warning of\n  five words");
        // A path that does not fit behind the indent gets a smaller one.
        assert_eq!(
            wrapped("ok    folder  /a/long/path/name", 24),
            "ok    folder\n       /a/long/path/name"
        );
        assert_eq!(
            wrapped("it holds 1.5 GiB, or more", 16),
            "it holds\n  1.5 GiB, or\n  more"
        );
    }

    #[test]
    fn a_command_continues_as_the_shell_expects() {
        let text = "culeak diff before.json 'my run.culeak' --stacks";
        with_available(30, || {
            assert_eq!(
                command(text, 6),
                "culeak diff \\\n      before.json \\\n      'my run.culeak' \\\n      --stacks"
            );
        });
        with_available(80, || assert_eq!(command(text, 6), text));
        assert_eq!(command(text, 6), text);
    }

    proptest! {
        #[test]
        fn lines_fit_and_lose_nothing(text in "( {1,3}[a-z訓é]{1,9}){1,30}", columns in 24usize..80, bold in any::<bool>()) {
            let line = if bold { format!("{BOLD}{text}{BOLD:#}") } else { text.clone() };
            let shown = wrapped(&line, columns);
            for line in shown.lines() {
                prop_assert!(width(line) <= columns, "{line:?}");
            }
            let bare = strip_str(&shown).to_string();
            prop_assert!(bare.split_whitespace().eq(text.split_whitespace()), "{bare:?}");
        }
    }
}
