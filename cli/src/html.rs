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
//! sort and search their tables, and draw the two things that only a page has: the graph of stacks and memory over time (of a diff, `side_by_side.rs` draws the latter). They read
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
mod diff;
mod graph;
mod page;
mod report;
mod side_by_side;
mod stacks;
mod timeline;

pub use diff::write as write_diff;
pub use report::{Item, write as write_report};

/// Rows of a table that a page has at most.
pub const ROWS: usize = 1000;
/// Rows that each have their stacks below them.
const ROWS_WITH_STACKS: usize = 500;

/// What a page shows of one of its processes.
pub struct Section {
    /// The entry of the list of processes.
    pub name: String,
    pub document: Document,
    /// What follows the graphs, if there are any.
    pub below: Document,
}

/// Writes documents as one page.
pub fn write(title: &str, documents: Vec<(String, Document)>, out: &mut dyn Write) -> io::Result<()> {
    let sections = documents.into_iter().map(|(name, document)| Section {
        name,
        document,
        below: Document::default(),
    });
    page::write(title, &sections.collect::<Vec<_>>(), None, out)
}

#[cfg(test)]
mod tests;
