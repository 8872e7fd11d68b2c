//! Data for tests of the live view.

pub mod sample;
