//! One file per command: its options, and the order in which it does things.

pub mod run;
pub mod shim_path;
