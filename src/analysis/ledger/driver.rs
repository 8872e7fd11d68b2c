//! The lines that the driver's figures add: other processes, and what the driver uses for itself.
//!
//! The driver's own memory is in no process's figure. Its sizes were measured with one driver, and the number of channels in
//! other processes is assumed, so these lines are estimates. They never exceed what the driver reports as used.

use super::{Line, LineKind};
use crate::snapshot::DeviceUsage;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Present as soon as any process uses the device.
const OF_DEVICE: u64 = 3 * MIB + 256 * KIB;
const OF_CONTEXT: u64 = 4 * MIB + 320 * KIB;
const OF_CHANNEL: u64 = 64 * KIB;
/// The channels of a context, unless `CUDA_DEVICE_MAX_CONNECTIONS` or `CUDA_DEVICE_MAX_COPY_CONNECTIONS` is set.
const CHANNELS: u64 = 20;
/// Page tables take this for each full GiB of pinned host memory.
const OF_PINNED_GIB: u64 = 2 * MIB;

pub fn other_processes(usage: &DeviceUsage) -> Option<Line<'static>> {
    let others = usage.others?;
    Some(Line::new(
        LineKind::OtherProcesses,
        None,
        others.bytes.into(),
        others.count,
        true,
    ))
}

/// The driver's own memory. `contexts` and `channels`: those of this process, of which each other process is assumed to have as
/// many as usual. `pinned`: bytes of pinned host memory. `rest`: the used bytes that no other line explains.
pub fn own_lines(
    usage: &DeviceUsage,
    contexts: u64,
    channels: Option<u64>,
    pinned: u128,
    rest: i128,
) -> Vec<Line<'static>> {
    let product = |count: u64, each: u64| i128::from(count) * i128::from(each);
    let others = usage.others.map_or(0, |others| others.count);
    let of_contexts = product(contexts, OF_CONTEXT)
        + product(channels.unwrap_or(contexts.saturating_mul(CHANNELS)), OF_CHANNEL)
        + product(others, OF_CONTEXT + CHANNELS * OF_CHANNEL);
    let pinned = u64::try_from(pinned >> 30).unwrap_or(u64::MAX);
    let assumed = [
        (LineKind::DriverContexts, contexts.saturating_add(others), of_contexts),
        (LineKind::DriverDevice, 1, OF_DEVICE.into()),
        (LineKind::PageTables, pinned, product(pinned, OF_PINNED_GIB)),
    ];
    let mut rest = rest.max(0);
    let lines = assumed.into_iter().filter_map(|(what, count, bytes)| {
        let bytes = bytes.min(rest);
        rest -= bytes;
        (bytes > 0).then(|| Line::new(what, None, bytes, count, false))
    });
    lines.collect()
}
