//! Reports, diffs and trends as one HTML file: it opens from disk, loads nothing, and treats all recorded text as text.
//!
//! ```text
//! Report | Diff | Trend ─► data (strings, frames, columns) ─► deflate, base64 ─┐
//! the text report                    ─► escaped text ──────────────────┤─► page.html, with page.css, the scripts, and
//!                                                                      │   the libraries in vendor/
//!                                    Content-Security-Policy by hash ◄─┘
//! ```
//!
//! The page shows the values and sentences of the text report and `--json`, so they cannot disagree. The page's script
//! reads compressed data and passes it to the browser as text, never as markup; the policy forbids markup from strings.
//! A browser without scripts shows the text report.
//!
//! The scripts, in order of their dependencies: `elements.js` (building blocks), `data.js` (reads the data), `units.js`
//! (formats numbers), `table.js`; then `graph.js` (draws stacks), `view.js` (the graph's controls), `spans.js` (sums over time),
//! `area.js` (draws them), `timeline.js` (its controls), `rows.js`, `holders.js`
//! (what holds memory), `report.js` and `diff.js`, or `chart.js` and `trend.js`, or `holders.js` and `why.js`, or `job.js`; last `page.js`, which starts them. Deliberately absent:
//! verdicts, storage, and network access.

mod columns;
mod data;
mod diff;
pub mod job;
mod ledger;
mod page;
mod report;
mod rows;
mod stacks;
mod timeline;
mod trend;
pub mod why;

pub use diff::write as write_diff;
pub use job::write as write_job;
pub use report::{Item, write as write_report};
pub use trend::write as write_trends;
pub use why::write as write_why;

#[cfg(test)]
mod tests;
