//! Reports and diffs as one HTML file: it opens from disk, loads nothing, and obeys nothing that a recording contains.
//!
//! ```text
//! Report | Diff | Trend ─► data (strings, frames, columns) ─► deflate, base64 ─┐
//! the same, as the terminal shows it ─► escaped text ──────────────────┤─► page.html, with page.css, the scripts, and
//!                                                                      │   the libraries in vendor/
//!                                    Content-Security-Policy by hash ◄─┘
//! ```
//!
//! Everything is rendered from the values that the terminal and `--json` show, and sentences are the terminal's own, so
//! that they cannot disagree. Data is compressed and read by the page's script, which hands it to the browser as text
//! and never as markup; the policy forbids markup from strings altogether. A browser without scripts shows the text.
//!
//! The scripts, in the order they build on each other: `elements.js` (what pages are made of), `data.js` (reads the data),
//! `units.js` (writes numbers), `table.js`; then `graph.js` (draws stacks), `view.js` (the graph's tools), `rows.js`,
//! `report.js` and `diff.js`, or `chart.js` and `trend.js`; last `page.js`, which starts them. Deliberately absent: any
//! judgement, and anything that remembers or sends.

mod columns;
mod data;
mod diff;
mod ledger;
mod page;
mod report;
mod rows;
mod stacks;
mod trend;

pub use diff::write as write_diff;
pub use report::{Item, write as write_report};
pub use trend::write as write_trends;

#[cfg(test)]
mod tests;
