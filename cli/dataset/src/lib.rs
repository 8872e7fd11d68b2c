//! The facts of many processes as a Parquet dataset, with the SQL that answers questions about it.
//!
//! ```text
//! snapshot with names ─► rows.rs ─► rows of five tables ─► store.rs: one file per table, process and point
//!                                   schema.rs declares them    sql/ has the views, which lie beside the tables
//! ```
//!
//! Deliberately absent: reading recordings and looking up names, which the command does; reading datasets, which engines do.

mod folder;
mod rows;
mod schema;
pub mod store;

pub use rows::About;

/// The value of `format` in the file that makes a folder a dataset.
const FORMAT: &str = "culeak-dataset";
/// Of tables, columns and folders. New columns need no new version.
const VERSION: u32 = 2;

#[cfg(test)]
#[path = "../../../tests/support/sample.rs"]
mod sample;
