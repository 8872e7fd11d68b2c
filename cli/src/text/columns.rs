//! Columns of a terminal: how many a text takes, and how many a line may have.
//!
//! A character is not a column: Chinese characters and many symbols take two, accents none. Rows are cut where a terminal
//! shows them, and nowhere else: a file or a pipe gets them whole.

use std::cell::Cell;
use std::os::fd::AsFd;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

thread_local! {
    /// Of the terminal that this thread is writing to.
    static SHOWN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Narrower terminals get lines that wrap.
const NARROWEST: usize = 40;

/// Whatever `write` writes goes to this stream: if it is a terminal, its rows have to fit.
pub fn fitting<T>(stream: impl AsFd, write: impl FnOnce() -> T) -> T {
    let size = terminal_size::terminal_size_of(stream);
    let before = SHOWN.replace(size.map(|(terminal_size::Width(width), _)| usize::from(width).max(NARROWEST)));
    let result = write();
    SHOWN.set(before);
    result
}

/// Columns that a line may have; `None` if it may be as long as it likes.
pub fn available() -> Option<usize> {
    SHOWN.get()
}

/// Columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text with spaces behind it up to this width.
pub fn padded(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// The beginning and the end of a text that is too wide.
pub fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(1);
    format!("{}…{}", first(text, room / 2), last(text, room - room / 2))
}

/// The end of a text that is too wide.
pub fn end_of(text: &str, columns: usize) -> String {
    match width(text) <= columns {
        true => text.to_owned(),
        false => format!("…{}", last(text, columns.saturating_sub(1))),
    }
}

/// The beginning of a text that is too wide.
pub fn start_of(text: &str, columns: usize) -> String {
    match width(text) <= columns {
        true => text.to_owned(),
        false => format!("{}…", first(text, columns.saturating_sub(1))),
    }
}

fn first(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let end = text.char_indices().find(|(_, c)| {
        taken += c.width().unwrap_or(0);
        taken > columns
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

fn last(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let start = text.char_indices().rev().find(|(_, c)| {
        taken += c.width().unwrap_or(0);
        taken > columns
    });
    &text[start.map_or(0, |(at, c)| at + c.len_utf8())..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(width("訓練"), 4);
        assert_eq!(padded("訓練", 6), "訓練  ");
        assert_eq!(shortened("訓練訓練訓練", 7), "訓…練");
        assert_eq!(end_of("/data/模型/train.py:7", 12), "…/train.py:7");
        assert_eq!(start_of("python train.py", 7), "python…");
    }

    proptest! {
        #[test]
        fn what_is_shortened_fits(text in "\\PC{0,40}", columns in 1usize..30) {
            for short in [shortened(&text, columns), end_of(&text, columns), start_of(&text, columns)] {
                prop_assert!(width(&short) <= columns || text.width() <= columns, "{short}");
            }
        }
    }
}
