//! Devices: the properties that programs and cudart query.

use crate::arguments::{In, Out};
use crate::exports::exports;
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::ffi::{c_char, c_int, c_uint};

/// Attributes that are not 0, by number of CUdevice_attribute.
const ATTRIBUTES: &[(c_uint, c_int)] = &[
    (1, 1024), // max threads per block
    (2, 1024), // max block dimensions
    (3, 1024),
    (4, 64),
    (5, c_int::MAX), // max grid dimensions
    (6, 65535),
    (7, 65535),
    (8, 49152),       // shared memory per block
    (9, 65536),       // constant memory
    (10, 32),         // warp size
    (11, c_int::MAX), // max pitch
    (12, 65536),      // registers per block
    (13, 1_000_000),  // clock rate
    (14, 512),        // texture alignment
    (15, 1),          // overlap
    (16, 8),          // multiprocessors
    (19, 1),          // can map host memory
    (21, 131072),     // texture sizes
    (22, 131072),
    (23, 65536),
    (24, 16384),
    (25, 16384),
    (26, 16384),
    (30, 512),       // surface alignment
    (31, 1),         // concurrent kernels
    (36, 1_000_000), // memory clock
    (37, 512),       // memory bus width
    (38, 4 << 20),   // L2
    (39, 2048),      // threads per multiprocessor
    (40, 3),         // copy engines
    (41, 1),         // unified addressing
    (42, 32768),     // layered texture
    (43, 2048),
    (75, 9), // compute capability 9.0
    (76, 0),
    (78, 1), // stream priorities
    (79, 1),
    (80, 1),
    (81, 233472), // shared memory per multiprocessor
    (82, 65536),
    (83, 1), // managed memory
    (89, 1), // concurrent managed access
    (90, 1), // compute preemption
    (91, 1), // host pointers for registered memory
    (95, 1), // cooperative launch
    (97, 232448),
    (99, 1),   // host register
    (102, 1),  // virtual memory management
    (103, 1),  // POSIX file descriptor handles
    (106, 32), // blocks per multiprocessor
    (111, 1024),
    (112, 1), // sparse arrays
    (113, 1), // read-only host register
    (115, 1), // memory pools
    (119, 1), // pool handle types: POSIX file descriptor
    (120, 1), // cluster launch
    (121, 1), // deferred mapping arrays
    (132, 1), // multicast
];

fn put_text(out: Out<c_char>, length: c_int, text: &str) -> Outcome {
    let room = usize::try_from(length)
        .ok()
        .filter(|room| *room > 0)
        .ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let written = &text.as_bytes()[..text.len().min(room - 1)];
    for (index, byte) in written.iter().chain([&0]).enumerate() {
        out.at(index).put(*byte as c_char)?;
    }
    Ok(())
}

/// The same in every run, so that a test may select a device by it.
fn uuid(device: usize) -> CUuuid {
    let mut bytes = *b"culeak fake GPU ";
    bytes[15] = device as u8;
    CUuuid {
        bytes: bytes.map(|byte| byte as c_char),
    }
}

exports! {
    fn cuDeviceGet(out: Out<CUdevice>, ordinal: c_int) |driver| { out.put(driver.ordinal(ordinal)? as CUdevice) }
    fn cuDeviceGetCount(out: Out<c_int>) |driver| { out.put(driver.devices.len() as c_int) }
    fn cuDeviceGetName(out: Out<c_char>, length: c_int, device: CUdevice) |driver| {
        driver.ordinal(device)?;
        put_text(out, length, &format!("culeak fake GPU {device}"))
    }
    fn [cuDeviceGetUuid, cuDeviceGetUuid_v2] (out: Out<CUuuid>, device: CUdevice) |driver| {
        out.put(uuid(driver.ordinal(device)?))
    }
    fn cuDeviceGetLuid(_out: Out<c_char>, _mask: Out<c_uint>, device: CUdevice) |driver| {
        driver.ordinal(device)?;
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    fn cuDeviceTotalMem(out: Out<c_uint>, device: CUdevice) |driver| {
        out.put(c_uint::try_from(driver.device(device)?.total).unwrap_or(c_uint::MAX))
    }
    fn cuDeviceTotalMem_v2(out: Out<usize>, device: CUdevice) |driver| { out.put(driver.device(device)?.total as usize) }
    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: CUdevice) |driver| {
        driver.ordinal(device)?;
        major.put(9)?;
        minor.put(0)
    }
    fn cuDeviceGetAttribute(out: Out<c_int>, attribute: c_uint, device: CUdevice) |driver| {
        let ordinal = driver.ordinal(device)?;
        let known = ATTRIBUTES.iter().find(|(number, _)| *number == attribute).map(|(_, value)| *value);
        out.put(match attribute {
            0 => return Err(CUDA_ERROR_INVALID_VALUE),
            33 => ordinal as c_int + 1, // PCI bus
            _ => known.unwrap_or(0),
        })
    }
    fn cuDeviceGetPCIBusId(out: Out<c_char>, length: c_int, device: CUdevice) |driver| {
        put_text(out, length, &format!("0000:{:02X}:00.0", driver.ordinal(device)? + 1))
    }
    fn cuDeviceGetByPCIBusId(out: Out<CUdevice>, id: In<c_char>) |driver| {
        let id = id.text()?;
        let bus = id.rsplit(':').nth(1).and_then(|bus| c_int::from_str_radix(bus, 16).ok());
        out.put(driver.ordinal(bus.ok_or(CUDA_ERROR_INVALID_VALUE)? - 1)? as CUdevice)
    }
    fn cuDeviceCanAccessPeer(out: Out<c_int>, device: CUdevice, peer: CUdevice) |driver| {
        out.put((driver.ordinal(device)? != driver.ordinal(peer)?) as c_int)
    }
    fn cuDeviceGetP2PAttribute(out: Out<c_int>, _attribute: c_uint, device: CUdevice, peer: CUdevice) |driver| {
        out.put((driver.ordinal(device)? != driver.ordinal(peer)?) as c_int)
    }
    fn cuDeviceGetTexture1DLinearMaxWidth(out: Out<usize>, _format: c_uint, _channels: c_uint, device: CUdevice) |driver| {
        driver.ordinal(device)?;
        out.put(1 << 28)
    }
}
