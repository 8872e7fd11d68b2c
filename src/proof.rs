//! What the preload library leaves in a small file of `culeak run`, so that "no recording" has a reason.
//!
//! `run` makes the file, names it in `CULEAK_RUN` as `PID:PATH` (the pid is its own) and reads it when the program has
//! ended. The file never grows: every fact has its own byte, so any number of processes may write at the same time. The
//! library maps it when it is loaded, so that a process which gives up its user or its root later still writes to it. It
//! answers what a missing recording leaves open: was the library loaded in the program, did CUDA ask it to record, what
//! kept it from doing so, and how many recordings were created. Deliberately absent: anything about memory.

/// Size of the file.
pub const BYTES: usize = 32;
/// The first bytes: name of the last image of the started process that loaded the library, as in `/proc/PID/comm`.
pub const NAME_BYTES: usize = 16;

/// One byte of the file each; 0 until it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fact {
    /// The exit handlers of the started process ran, so the library was in the image that ended.
    Ended = 16,
    /// A process used CUDA with `CULEAK_DISABLE` set, or with privileges that the library stays out of.
    Disabled = 17,
    /// A process used CUDA that `CULEAK_ONLY` or `CULEAK_PARENT` leaves out.
    NotChosen = 18,
    /// The errno of a recording that could not be created.
    NotCreated = 19,
}

/// Where the number of recordings that were created lies: 4 bytes, in the machine's order.
pub const CREATED: usize = 24;

const _: () =
    assert!(CREATED > Fact::NotCreated as usize && CREATED + 4 <= BYTES && NAME_BYTES == Fact::Ended as usize);
