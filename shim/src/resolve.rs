//! The functions that a hook's call goes on to, found without asking the loader.

pub mod loader;
pub mod memo;
pub mod real;
pub mod search;
