//! A core file.
