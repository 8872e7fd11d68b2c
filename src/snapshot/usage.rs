//! What the driver says of the memory of devices and its limits.

use serde::{Deserialize, Serialize};

/// Memory use of the devices as the driver reports it. It is not part of a recording: `culeak` asks the driver when it
/// takes a snapshot of a running process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// The library that was asked: `NVML 580.65.06`.
    pub source: String,
    pub devices: Vec<DeviceUsage>,
    /// Why one or all devices are missing above, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// What the driver counts on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceUsage {
    pub device: usize,
    pub total_bytes: u64,
    /// In use by all processes together, without the driver's own reserve.
    pub used_bytes: u64,
    /// The driver's own reserve.
    pub reserved_bytes: u64,
    /// What the driver counts for this process; `None` if it does not know the process by its pid (containers).
    pub process_bytes: Option<u64>,
    /// What the driver counts for all other processes, and their number; `None` if it does not report each of them.
    pub others: Option<OtherProcesses>,
    #[serde(flatten)]
    pub limits: GroupLimits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OtherProcesses {
    pub bytes: u64,
    pub count: u64,
}

/// What the processes of a control group may have together of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupLimits {
    /// The most that the processes of its control group may have together, if a limit is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// What they have together for certain, if a soft limit is set: beyond it, requests may fail when memory is scarce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_limit_bytes: Option<u64>,
}
