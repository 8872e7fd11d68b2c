//! Names of devices, of host memory and of streams.

use crate::kind::{Kind, Place};
use crate::snapshot::{Snapshot, Stream};

/// The device name of memory without a device.
pub const NO_DEVICE: &str = "no GPU";
/// The device name of host memory, whichever device requested it.
pub const HOST_MEMORY: &str = "host memory";
/// The stream name of memory that is not stream-ordered.
pub const NO_STREAM: &str = "no stream";

/// `GPU 0`, by CUDA's ordinal in the process.
pub fn device_name(snapshot: &Snapshot, device: Option<usize>) -> String {
    device.map_or_else(
        || NO_DEVICE.to_owned(),
        |device| format!("GPU {}", snapshot.devices[device].ordinal),
    )
}

/// The device that memory of this kind counts against (`GPU 0`), or `host memory`.
pub fn place_name(snapshot: &Snapshot, kind: Kind, device: Option<usize>) -> String {
    match kind.place() {
        Place::Host => HOST_MEMORY.to_owned(),
        place => device_name(snapshot, place.counts_against(device)),
    }
}

pub fn stream_name(stream: Option<Stream>) -> String {
    match stream {
        None => NO_STREAM.to_owned(),
        Some(Stream::LegacyDefault) => "default stream".to_owned(),
        Some(Stream::PerThreadDefault) => "per-thread default stream".to_owned(),
        Some(Stream::Handle(handle)) => format!("stream {handle:#x}"),
    }
}
