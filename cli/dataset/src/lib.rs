//! Recordings of many processes as a partitioned Parquet dataset, and the SQL that answers questions about it.
//!
//! ```text
//! snapshot with names ─► take.rs ─► rows.rs ─► store.rs ─────────────────► file.rs
//!                        rows of    columns    one file per table,         one Parquet file
//!                        six tables in memory  process and point,
//!                                              folder.rs names folders
//!                        schema.rs lists the tables; sql.rs makes views of them for each engine
//! ```
//!
//! Files are written with the feature `parquet` only. The SQL needs none of them, so every build of the command prints it.
//!
//! Deliberately absent: reading recordings and looking up names, which the command does; reading datasets, which engines do.

#[cfg(feature = "parquet")]
pub mod file;
pub mod folder;
pub mod marker;
pub mod rows;
pub mod schema;
pub mod sql;
#[cfg(feature = "parquet")]
pub mod store;
#[cfg(feature = "parquet")]
pub mod take;

/// The value of `format` in the file [`marker::MARKER`].
pub const FORMAT: &str = "culeak-dataset";
/// Of tables, columns and folders. New columns need no new version.
pub const VERSION: u32 = 1;
/// The point of a process that was running.
pub const NOW: &str = "now";

#[cfg(test)]
#[path = "../../../tests/support/sample.rs"]
mod sample;
