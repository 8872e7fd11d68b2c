//! Pages as one HTML file: it opens from disk, loads nothing, and treats all recorded text as text.
//!
//! ```text
//! documents (report, diff, trend, job, why) ─► document/html.rs ─────────────┐
//! a snapshot's stacks ─► graph.rs ─┐                                         ├─► page.html, with page.css, the scripts, and
//! its log of events ─► timeline.rs ┴─► data (strings, frames, columns)       │   the libraries in vendor/
//!                                           ─► deflate, base64 ──────────────┤
//!                                    Content-Security-Policy by hash ────────┘
//! ```
//!
//! The page shows the documents of the terminal, so they cannot disagree, and they are readable in a browser without scripts. Scripts
//! sort and search their tables, and draw the two things that only a page has: the graph of stacks and memory over time (of a diff, `text/diff/side_by_side.rs` draws the latter). They read
//! compressed data and pass it to the browser as text, never as markup; the policy forbids markup from strings.
//!
//! The scripts, in order of their dependencies: `elements.js` (building blocks), `units.js` (formats numbers), `tables.js`
//! (sorts, searches and opens the rows of tables); for graphs `data.js` (reads the data), `graph.js` (draws stacks), `view.js` (the graph's
//! controls), `spans.js` (sums over time), `area.js` (draws them) and `timeline.js` (its controls); last `page.js`, which starts
//! them. Deliberately absent: verdicts, storage, and network access.

use std::io::{self, Write};

use crate::document::Document;

mod columns;
mod data;
mod graph;
mod page;
mod stacks;
mod timeline;

pub use graph::{Graphs, Item};
pub use page::{Section, write as write_sections};

/// Rows of a table that a page has at most.
pub const ROWS: usize = 1000;
/// Rows that each have their stacks below them.
pub const ROWS_WITH_STACKS: usize = 500;

/// Writes documents as one page.
pub fn write(title: &str, documents: Vec<(String, Document)>, out: &mut dyn Write) -> io::Result<()> {
    let sections = documents.into_iter().map(|(name, document)| Section {
        name,
        document,
        below: Document::default(),
    });
    write_sections(title, &sections.collect::<Vec<_>>(), None, out)
}

#[cfg(test)]
mod tests;
