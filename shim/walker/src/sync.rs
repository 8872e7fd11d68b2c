//! The table's atomics; the models replace them.

pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
