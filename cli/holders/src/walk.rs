//! The breadth-first search from the roots.
