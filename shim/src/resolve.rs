//! The functions that a hook's call goes on to, found without making the loader take the lock under which constructors
//! run.

/// Whether a `dlclose` is running.
pub mod closing;
/// The real `dlsym`, `dlvsym` and `dlclose`.
pub mod dl;
/// The driver's functions by name and by address, and the ones that culeak calls itself.
pub mod driver;
/// The loaded objects and their ELF tables.
pub mod loader;
/// A fixed-size cache without locks.
pub mod memo;
/// The function that a call goes on to, cached by caller.
pub mod next;
/// The address range of this library.
pub mod own;
/// The next definition in the caller's search order, from the tables of the loaded objects.
pub mod search;
