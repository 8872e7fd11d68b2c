//! Reads the ELF objects that the dynamic loader has mapped into this process.
//!
//! The shim and the walker need symbols and unwind tables of loaded objects where they must not call `dlsym` or `dladdr`:
//! in hooks, in signal handlers, and while another thread runs a library's constructors under the loader's lock. So the
//! tables are read where they are mapped. Nothing here allocates or panics.
//!
//! * [`loaded`]: one object as `dl_iterate_phdr` or the loader's debug list shows it, and the iteration over all of them
//! * [`tables`]: the dynamic section: symbol look-up by hash and version, needed libraries, soname
//! * [`find_object`]: glibc's lock-free `_dl_find_object`
//!
//! Deliberately absent: files. An object that is not loaded is read by the command, outside the recorded process.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod find_object;
pub mod loaded;
pub mod tables;

pub use loaded::{LinkMap, Loaded, find_loaded};
pub use tables::{Answer, Name, Tables};
