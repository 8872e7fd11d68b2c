//! The lock-free parts of a recording: what many threads change at once, and another process reads meanwhile.

pub mod event_segment;
pub mod index;
pub mod intervals;
pub mod peak;
pub mod segmented;
pub mod shards;
#[doc(hidden)]
pub mod sync;
pub mod table;
