//! Metrics of recorded processes, for Prometheus and everything that reads its formats.
//!
//! ```text
//! recordings ─► agent ──────────► process ───────────► page ────────────► text ──► server, textfile
//!               which to read     samples of one       all processes,     Prometheus' format
//!               again, growth     process              bounded
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`families`] | every metric: name, unit, labels, help; declared once |
//! | [`label`] | text from recordings as label values |
//! | [`choice`] | the call sites that have series of their own |
//! | [`process`] | the samples of one process, from its report and its growth |
//! | [`page`] | the samples of all processes, and their sum beyond a limit |
//! | [`text`] | a page as text |
//! | [`find`] | recordings in folders |
//! | [`agent`] | what is read again, and when |
//! | [`server`] | the HTTP endpoint |
//!
//! Recordings are read from outside; the recorded processes are neither stopped nor entered. Deliberately absent: names of
//! addresses, files to write and the command line; the caller has those ([`agent::Inputs`]).

pub mod agent;
pub mod choice;
pub mod families;
pub mod find;
pub mod label;
pub mod page;
pub mod process;
pub mod server;
pub mod text;

#[cfg(test)]
#[path = "../../../tests/support/sample.rs"]
mod sample;
