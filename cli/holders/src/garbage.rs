//! What only refers to itself, and what is counted more often than it is referred to.
