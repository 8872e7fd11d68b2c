//! Paths in the user's words; dominators and retained bytes.
