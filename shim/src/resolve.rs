//! The functions that a hook's call goes on to, found without making the loader take the lock under which constructors
//! run.
//!
//! ```text
//! next      the function that a call goes on to, cached by caller
//! driver    the driver's functions by name and by address, and those that culeak calls itself
//! dl        the real dlsym, dlvsym and dlclose
//! search    the next definition in the caller's search order, from the tables of the loaded objects
//! own       the address range of this library
//! loader    the loaded objects and their ELF tables
//! closing   whether a dlclose is running
//! memo      a fixed-size cache without locks
//! ```

pub mod closing;
pub mod dl;
pub mod driver;
pub mod loader;
pub mod memo;
pub mod next;
pub mod own;
pub mod search;
