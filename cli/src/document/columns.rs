//! Terminal columns: the width of a text, and the width of the terminal.
//!
//! A character is not a column: Chinese characters and many symbols take two columns, combining accents none. Names and
//! rows are cut only on a terminal; a file or a pipe gets them whole.

use std::cell::Cell;
use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use terminal_size::{Width, terminal_size_of};
use unicode_width::UnicodeWidthStr;

thread_local! {
    /// The width of the terminal that this thread writes to.
    static SHOWN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// On narrower terminals lines wrap.
const NARROWEST: usize = 40;

/// Runs `write`, whose rows must fit this stream if it is a terminal. COLUMNS, if set, replaces the width of the terminal.
pub fn fitting<T>(stream: impl AsFd + IsTerminal, write: impl FnOnce() -> T) -> T {
    let wide = stream.is_terminal().then(|| {
        let wanted = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let has = || terminal_size_of(stream).map(|(Width(columns), _)| usize::from(columns));
        wanted.filter(|&columns| columns > 0).or_else(has)
    });
    within(wide.flatten().map(|columns| columns.max(NARROWEST)), write)
}

fn within<T>(columns: Option<usize>, write: impl FnOnce() -> T) -> T {
    let before = SHOWN.replace(columns);
    let result = write();
    SHOWN.set(before);
    result
}

/// Runs `write` as on a terminal of this width.
pub fn with_available<T>(columns: usize, write: impl FnOnce() -> T) -> T {
    within(Some(columns), write)
}

/// The columns available for a line; `None`: unlimited.
pub fn available() -> Option<usize> {
    SHOWN.get()
}

/// The width of a text in columns.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text, padded with spaces to this width.
pub fn padded(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// The text, shortened in the middle if it is too wide.
pub fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(1);
    format!("{}…{}", first(text, room / 2), last(text, room - room / 2))
}

/// The text, cut at the beginning if it is too wide.
pub fn end_of(text: &str, columns: usize) -> String {
    match width(text) <= columns {
        true => text.to_owned(),
        false => format!("…{}", last(text, columns.saturating_sub(1))),
    }
}

/// The text, cut at the end if it is too wide.
pub fn start_of(text: &str, columns: usize) -> String {
    match width(text) <= columns {
        true => text.to_owned(),
        false => format!("{}…", first(text, columns.saturating_sub(1))),
    }
}

/// The beginning of the text that fits in this width.
pub fn first(text: &str, columns: usize) -> &str {
    // A text may be wider than its characters together: a variation selector widens the one before it.
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|&end| text[..end].width() <= columns).last();
    &text[..end.unwrap_or(0)]
}

fn last(text: &str, columns: usize) -> &str {
    let starts = text.char_indices().rev().map(|(at, _)| at);
    let start = starts.take_while(|&start| text[start..].width() <= columns).last();
    &text[start.unwrap_or(text.len())..]
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
        assert!(width(&shortened("aAA*\u{fe0f}", 3)) <= 3);
    }

    proptest! {
        #[test]
        fn shortened_texts_fit(text in "\\PC{0,40}", columns in 1usize..30) {
            for short in [shortened(&text, columns), end_of(&text, columns), start_of(&text, columns)] {
                prop_assert!(width(&short) <= columns || text.width() <= columns, "{short}");
            }
        }
    }
}
