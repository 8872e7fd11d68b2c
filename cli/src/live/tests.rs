//! Data for tests of the live view, and the benchmark of a refresh.

mod million;
pub mod sample;
