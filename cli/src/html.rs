//! Reports and diffs as one HTML file: it opens from disk, loads nothing, and obeys nothing that a recording contains.
//!
//! ```text
//! Report | Diff ─► data (strings, frames, columns) ─► deflate, base64 ─┐
//! the same, as the terminal shows it ─► escaped text ──────────────────┤─► page.html, with page.css, the scripts, and
//!                                                                      │   the libraries in vendor/
//!                                    Content-Security-Policy by hash ◄─┘
//! ```
//!
//! Everything is rendered from the values that the terminal and `--json` show, and sentences are the terminal's own, so
//! that they cannot disagree. Data is compressed and read by the page's script, which hands it to the browser as text
//! and never as markup; the policy forbids markup from strings altogether. A browser without scripts shows the text.
//!
//! The scripts run in the order of their names here: `data.js` reads the data, `units.js` writes numbers, `graph.js`
//! draws stacks, `table.js` lists call sites, `page.js` puts them on the page. Deliberately absent: any judgement, and
//! anything that remembers or sends.

mod columns;
mod data;
mod diff;
mod ledger;
mod page;
mod report;
mod rows;
mod stacks;

pub use diff::write as write_diff;
pub use report::{Item, write as write_report};

#[cfg(test)]
mod tests;
