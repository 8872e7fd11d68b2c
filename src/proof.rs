//! A small file in which the preload library reports to `culeak run`, so that "no recording" has a reason.
//!
//! `run` creates the file, passes it in `CULEAK_RUN` as `PID:PATH` (with its own pid) and reads it when the program has
//! ended. The file never grows: every fact has a separate byte, so any number of processes may write at the same time. The
//! library maps the file when it is loaded, so that a process that later changes its user or its root can still write to
//! it. The file answers what a missing recording leaves open: was the library loaded in the program, did the program use
//! CUDA, what prevented a recording, and how many recordings were created. Deliberately absent: anything about memory.

use crate::hold::Holds;

/// Size of the file.
pub const BYTES: usize = HOLDS + size_of::<Holds>();
/// Offset of the area in which processes wait for `culeak run --why`.
pub const HOLDS: usize = 64;
/// Length of the name at the beginning: that of the last image of the started process that loaded the library, as in
/// `/proc/PID/comm`.
pub const NAME_BYTES: usize = 16;

/// The offset of the fact's byte; the byte is 0 until the fact is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fact {
    /// The exit handlers of the started process ran, so the library was in the image that ended.
    Ended = 16,
    /// A process used CUDA with `CULEAK_DISABLE` set, or with raised privileges, under which the library does nothing.
    Disabled = 17,
    /// A process used CUDA that `CULEAK_ONLY` or `CULEAK_PARENT` excludes.
    NotChosen = 18,
    /// The errno of a recording that could not be created.
    NotCreated = 19,
    /// When a process's exit handlers ran, a copy of the driver was initialized of which no hook saw a call.
    Bypassed = 20,
}

impl Fact {
    /// Facts about processes that were not recorded. They hold for an outer run, too.
    pub const OF_PROCESSES: [Fact; 4] = [Fact::Disabled, Fact::NotChosen, Fact::NotCreated, Fact::Bypassed];
}

/// Offset of the number of recordings created: 4 bytes, native byte order.
pub const CREATED: usize = 24;

const _: () = assert!(CREATED > Fact::Bypassed as usize && CREATED + 4 <= HOLDS && NAME_BYTES == Fact::Ended as usize);
