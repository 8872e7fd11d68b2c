//! Recordings of many processes as a partitioned Parquet dataset, and the SQL that answers questions about it.
//!
//! ```text
//! snapshot with names ─► take.rs ─► rows.rs ─► store.rs ──────────────────────► file.rs
//!                        rows of    columns    which files, in one step,       one Parquet file
//!                        six tables in memory  folder.rs names their folders
//!                        schema.rs lists the tables; sql.rs makes views of them for each engine
//! ```
//!
//! Deliberately absent: reading recordings and looking up names, which the command does; and a query engine.

pub mod file;
pub mod folder;
pub mod rows;
pub mod schema;
pub mod sql;
pub mod store;
pub mod take;

/// The value of `format` in the file [`store::MARKER`].
pub const FORMAT: &str = "culeak-dataset";
/// Of tables, columns and folders. New columns need no new version.
pub const VERSION: u32 = 1;
/// The point of a process that was running.
pub const NOW: &str = "now";
