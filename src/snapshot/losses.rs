//! What a recording lacks.

use serde::{Deserialize, Serialize};

use super::is_default;

/// What the recorder could not observe or record. Reports print every field, zeros too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Losses {
    /// Allocations not recorded (full disk, quota, file-size limit), and launches of graphs whose memory is not.
    pub lost_allocations: u64,
    /// Allocations recorded without their stack.
    pub lost_stacks: u64,
    /// Stacks whose Python frames could not be read or stored, in part or at all.
    #[serde(default)]
    pub lost_python: u64,
    /// Modules, threads, devices, contexts or owners of pages not recorded.
    pub lost_details: u64,
    /// Frees of pointers whose allocation was not observed.
    pub unknown_frees: u64,
    /// Addresses handed out again although no free was observed.
    pub vanished: u64,
    /// Frees that failed; the record was restored.
    pub failed_frees: u64,
    /// The part of these that released a handle of physical memory, for example twice.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failed_releases: u64,
    /// Frees that returned error 4 (driver shutting down), counted as freed.
    pub teardown_frees: u64,
    /// Records freed implicitly (context destroyed, device reset, auto-free relaunch).
    pub implicit_frees: u64,
    /// Allocation nodes captured into graphs that were never launched (0 bytes live).
    pub captured_not_launched: u64,
    /// Private driver tables requested (cuGetExportTable); calls through them cannot be observed.
    pub export_tables: u64,
    /// Driver functions that seem to allocate and were given to the program without a hook.
    pub unhooked: Vec<String>,
    /// Frees of framework blocks whose allocation was not observed.
    #[serde(default)]
    pub unknown_blocks: u64,
    /// Automatic snapshots not written (no space, or another was being written).
    #[serde(default)]
    pub lost_snapshots: u64,
    /// Events that the timeline lacks (no space).
    #[serde(default)]
    pub lost_events: u64,
    /// Phases not recorded (no space, or too many).
    #[serde(default)]
    pub lost_phases: u64,
    /// Marks not recorded, or without their name (no space, or too many).
    #[serde(default)]
    pub lost_marks: u64,
    /// Segments not recorded (no space, or a size that cannot be).
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost_segments: u64,
    /// Why there are no segments: the kernel driver's requests have a layout that culeak does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments_ended: Option<String>,
    /// Time spent in the recorder, estimated from sampled calls.
    pub recorder_ns: u64,
    /// Allocations and frees observed.
    pub events: u64,
}
