//! One file per command: its options and its steps.

pub mod after_run;
pub mod boundaries;
pub mod categories;
pub mod check;
pub mod completions;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod environment;
pub mod export;
pub mod job;
pub mod list;
pub mod live;
pub mod man;
pub mod phases;
pub mod report;
pub mod run;
pub mod shim_path;
pub mod snapshot;
pub mod stats;
pub mod trend;
pub mod why;
