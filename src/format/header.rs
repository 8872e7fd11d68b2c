//! The header: the process, the start of the recording, counts and losses.

use std::sync::atomic::AtomicU64;

use super::{DIRECTORY_OFFSET, RANK_VARIABLES, SECTIONS, Text};
use crate::numbered::numbered;

#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub byte_order: u32,
    pub header_bytes: u32,
    pub directory_capacity: u32,
    pub pid: u32,
    pub parent_pid: u32,
    pub depth: u32,
    /// 1: `culeak run` saw that the process had ended, which ran no exit handlers.
    pub seen_ended: u32,
    /// Field 22 of /proc/PID/stat: distinguishes this process from a later one with the same pid.
    pub process_start_ticks: u64,
    pub started_unix_ns: u64,
    /// CLOCK_MONOTONIC at the start; all times in the file are relative to it.
    pub started_monotonic_ns: u64,
    pub executable: Text,
    pub command_line: Text,
    pub host: Text,
    /// [`Text::MISSING`] for a variable that was not set.
    pub ranks: [Text; RANK_VARIABLES.len()],
    /// 0 until the exit handlers ran.
    pub ended_ns: AtomicU64,
    /// Elements in use per section, including elements that were taken but not yet published.
    pub counts: [AtomicU64; SECTIONS],
    /// In an automatic snapshot (`recording/dump.rs`): when it was made + 1. 0 in the recording itself.
    pub dumped_plus_one: AtomicU64,
    /// [`Reason`] in the low half; row of the failed request + 1 in the high half.
    pub dump_reason: AtomicU64,
    /// A [`Text`]: the name of the automatic snapshot, if the program gave one.
    pub dump_name: AtomicU64,
    /// Events counted while the automatic snapshot was written.
    pub dump_events: AtomicU64,
    /// Inode of the recording when it was created; a copy of the file has another. 0: unknown.
    pub file_number: u64,
    /// Inode of /proc/self/ns/pid, the namespace of `pid`; 0: unknown.
    pub pid_namespace: u64,
    /// Inode of /proc/self/ns/time, which may shift `process_start_ticks`; 0: unknown.
    pub time_namespace: u64,
    /// When the Python interpreter began to finalize + 1; 0: it has not.
    pub script_end_plus_one: AtomicU64,
    /// Allocations counted until then.
    pub script_end_allocations: AtomicU64,
    /// When the handlers of `exit` began to run + 1; 0: they have not.
    pub main_end_plus_one: AtomicU64,
    /// The most segments of events; 0: events are not logged.
    pub timeline_segments: AtomicU64,
    /// All events after this time are in the log; 0: all events are.
    pub timeline_since_ns: AtomicU64,
    /// Stacks are sampled: the mean distance in bytes from one to the next. 0: each block has its stack.
    pub sample_bytes: AtomicU64,
    /// The most times that a thread raised that distance ([`crate::sampling::mean_of`]); each block's record says with which
    /// distance it was chosen.
    pub sample_raised: AtomicU64,
    /// On separate cache lines: the counts are read at every event.
    pub losses: LossCounters,
}
const _: () = assert!(size_of::<Header>() <= DIRECTORY_OFFSET);

numbered! {
    /// Why the recorder took an automatic snapshot; in the low half of [`Header::dump_reason`].
    #[cfg_attr(feature = "read", derive(serde::Serialize, serde::Deserialize))]
    #[cfg_attr(all(test, feature = "read"), derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "read", serde(rename_all = "snake_case"))]
    pub enum Reason: u32 {
        /// A request failed for lack of memory.
        OutOfMemory = 1,
        /// More memory of a device was in use than ever before.
        Peak = 2,
        /// The program passed a mark (`culeak_mark`).
        Mark = 3,
        /// The program asked for it (`culeak_snapshot`).
        Requested = 4,
        /// The time that `CULEAK_SNAPSHOT_EVERY` sets had passed.
        Every = 5,
    }
}

const LOSSES: usize = 32;

#[repr(C, align(64))]
pub struct LossCounters(pub [AtomicU64; LOSSES]);

numbered! {
    /// Indices into [`Header::losses`]. Named as in `snapshot::Losses`.
    pub enum Loss: usize {
        Allocations = 0,
        Stacks = 1,
        Details = 2,
        UnknownFrees = 3,
        Vanished = 4,
        FailedFrees = 5,
        TeardownFrees = 6,
        ImplicitFrees = 7,
        CapturedNodes = 8,
        LaunchedNodes = 9,
        ExportTables = 10,
        RecorderNs = 11,
        Events = 12,
        UnknownBlocks = 13,
        Snapshots = 14,
        Python = 15,
        TimelineEvents = 16,
        Phases = 17,
        Segments = 18,
        /// A word of [`crate::rm::Unknown`]: why segments are no longer recorded. 0: they are.
        SegmentsEnded = 19,
        Marks = 20,
        FailedReleases = 21,
    }
}
