//! Virtual memory management: physical memory is live while a handle or a mapping of it exists.
//!
//! ```text
//! handle ──► physical ◄── mapping ──► reserved range
//! refs        bytes                     addresses
//! ```
//! A handle keeps its number while its memory is mapped, since cuMemRetainAllocationHandle must return the same number.

use crate::arena;
use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use crate::pools::{Location, Properties};
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

pub struct Physical {
    pub bytes: u64,
    /// `None`: host memory, or memory of another process, which uses no device bytes here.
    pub charged: Option<usize>,
    pub device: c_int,
    /// The number of handles of it.
    pub handles: u64,
    /// The file that represents it once it was exported.
    pub file: Option<(u64, u64)>,
    properties: Properties,
}

pub struct PhysicalHandle {
    pub physical: u64,
    references: u64,
    mappings: u64,
}

/// A reserved address range and its mappings.
pub struct Range {
    bytes: u64,
    mappings: BTreeMap<u64, Mapping>,
}

impl Range {
    /// Whether the last mapping that begins below `limit` ends above `address`.
    fn reaches_beyond(&self, address: u64, limit: u64) -> bool {
        let last = self.mappings.range(..limit).next_back();
        last.is_some_and(|(start, mapping)| start + mapping.bytes > address)
    }
}

struct Mapping {
    bytes: u64,
    handle: Handle,
}

/// Sizes and alignments are multiples of this.
const GRANULARITY: u64 = 2 << 20;

impl Driver {
    pub fn reserve(&mut self, out: Out<CUdeviceptr>, bytes: u64) -> Outcome {
        out.check()?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Room to align the start: mmap promises only 4 KiB.
        let whole = bytes
            .checked_add(GRANULARITY)
            .and_then(arena::reserve)
            .ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let start = whole.next_multiple_of(GRANULARITY);
        if start > whole {
            arena::unreserve(whole, start - whole);
        }
        arena::unreserve(start + bytes, whole + GRANULARITY - start);
        self.ranges.insert(
            start,
            Range {
                bytes,
                mappings: BTreeMap::new(),
            },
        );
        out.put(start)
    }

    pub fn unreserve(&mut self, address: u64, bytes: u64) -> Outcome {
        match self.ranges.get(&address) {
            Some(range) if range.bytes == bytes && range.mappings.is_empty() => {}
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        self.ranges.remove(&address);
        arena::unreserve(address, bytes);
        Ok(())
    }

    pub fn create_physical(
        &mut self,
        out: Out<CUmemGenericAllocationHandle>,
        bytes: u64,
        properties: In<CUmemAllocationProp>,
    ) -> Outcome {
        out.check()?;
        let properties = properties.cast::<Properties>().get()?.check()?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let charged = properties.location.device(self)?;
        if let Some(device) = charged {
            self.charge(device, bytes)?;
        }
        let device = charged.map_or(-1, |device| device as c_int);
        let physical = Physical {
            bytes,
            charged,
            device,
            handles: 0,
            file: None,
            properties,
        };
        let handle = self.enter_physical(physical);
        let id = self.physical_handles[&handle].physical;
        if let Some(device) = charged {
            self.in_kernel(|kernel| kernel.take(device, id, bytes))?;
        }
        out.put(handle)
    }

    fn enter_physical(&mut self, physical: Physical) -> Handle {
        let id = self.next_serial();
        self.physical.insert(id, physical);
        self.new_physical_handle(id)
    }

    pub fn new_physical_handle(&mut self, physical: u64) -> Handle {
        let handle = self.new_handle();
        if let Some(memory) = self.physical.get_mut(&physical) {
            memory.handles += 1;
        }
        self.physical_handles.insert(
            handle,
            PhysicalHandle {
                physical,
                references: 1,
                mappings: 0,
            },
        );
        handle
    }

    /// Physical memory of another process, or our own, identified by the file that represents it.
    pub fn import_physical_file(&mut self, file: (u64, u64), bytes: u64, device: c_int) -> Handle {
        let known = self
            .physical
            .iter()
            .find(|(_, memory)| memory.file == Some(file))
            .map(|(id, _)| *id);
        if let Some(physical) = known {
            return self.new_physical_handle(physical);
        }
        let location = Location { kind: 1, id: device };
        let properties = Properties {
            kind: 1,
            handle_types: 1,
            location,
        };
        self.enter_physical(Physical {
            bytes,
            charged: None,
            device,
            handles: 0,
            file: Some(file),
            properties,
        })
    }

    pub fn release_physical(&mut self, handle: Handle) -> Outcome {
        if let Some((_, is_released @ false)) = self.multicasts.get_mut(&handle) {
            *is_released = true;
            self.settle_multicast(handle);
            return Ok(());
        }
        let known = self
            .physical_handles
            .get_mut(&handle)
            .filter(|known| known.references > 0);
        known.ok_or(CUDA_ERROR_INVALID_VALUE)?.references -= 1;
        self.settle_physical(handle);
        Ok(())
    }

    pub fn retain_physical(&mut self, out: Out<CUmemGenericAllocationHandle>, address: u64) -> Outcome {
        out.check()?;
        let (_, mapping) = self.find_mapping(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let handle = mapping.handle;
        self.physical_handles
            .get_mut(&handle)
            .ok_or(CUDA_ERROR_INVALID_VALUE)?
            .references += 1;
        out.put(handle)
    }

    /// As physical memory, a multicast object keeps its handle while it is mapped.
    fn settle_multicast(&mut self, handle: Handle) {
        if self.multicasts.get(&handle) == Some(&(0, true)) {
            self.multicasts.remove(&handle);
            self.drop_handle(handle);
        }
    }

    fn settle_physical(&mut self, handle: Handle) {
        let Some(known) = self.physical_handles.get(&handle) else {
            return;
        };
        if known.references > 0 || known.mappings > 0 {
            return;
        }
        let id = known.physical;
        self.physical_handles.remove(&handle);
        self.drop_handle(handle);
        let Some(memory) = self.physical.get_mut(&id) else {
            return;
        };
        memory.handles -= 1;
        if memory.handles == 0 {
            let (bytes, charged) = (memory.bytes, memory.charged);
            self.physical.remove(&id);
            if let Some(device) = charged {
                self.uncharge(device, bytes);
            }
            if let Some(kernel) = &mut self.kernel {
                kernel.give_back(id);
            }
        }
    }

    pub fn map(&mut self, address: u64, bytes: u64, offset: u64, handle: Handle) -> Outcome {
        let multicast = self.multicasts.contains_key(&handle);
        let size = match self.physical_handles.get(&handle) {
            // A released handle that is still mapped is still valid.
            Some(known) => self.physical[&known.physical].bytes,
            _ if multicast => u64::MAX,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let end = address.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let aligned = bytes > 0 && address.is_multiple_of(GRANULARITY) && bytes.is_multiple_of(GRANULARITY);
        if !aligned {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if offset.checked_add(bytes).is_none_or(|last| last > size) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let (range, range_end) = self.range_around(address)?;
        if end > range_end || range.reaches_beyond(address, end) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        range.mappings.insert(address, Mapping { bytes, handle });
        if let Some(known) = self.physical_handles.get_mut(&handle) {
            known.mappings += 1;
        } else if let Some((mappings, _)) = self.multicasts.get_mut(&handle) {
            *mappings += 1;
        }
        Ok(())
    }

    /// The reserved range that begins at or below an address, and its end.
    fn range_around(&mut self, address: u64) -> Outcome<(&mut Range, u64)> {
        let found = self.ranges.range_mut(..=address).next_back();
        let (start, range) = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let end = start + range.bytes;
        Ok((range, end))
    }

    /// Accepts whole mappings only, but any number of them, with unmapped gaps between them.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Outcome {
        let end = address.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (range, range_end) = self.range_around(address)?;
        let cut_before = range.reaches_beyond(address, address);
        let covered: Vec<(u64, u64)> = range
            .mappings
            .range(address..end)
            .map(|(at, m)| (*at, m.bytes))
            .collect();
        let cut_after = covered.last().is_some_and(|(at, length)| at + length > end);
        if end > range_end || cut_before || cut_after {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let handles: Vec<Handle> = covered
            .iter()
            .filter_map(|(at, _)| range.mappings.remove(at))
            .map(|mapping| mapping.handle)
            .collect();
        arena::close_pages(address, bytes);
        for handle in handles {
            if let Some(known) = self.physical_handles.get_mut(&handle) {
                known.mappings -= 1;
            } else if let Some((mappings, _)) = self.multicasts.get_mut(&handle) {
                *mappings -= 1;
            }
            self.settle_physical(handle);
            self.settle_multicast(handle);
        }
        Ok(())
    }

    fn find_mapping(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        let (start, mapping) = range.mappings.range(..=address).next_back()?;
        (address < start + mapping.bytes).then_some((*start, mapping))
    }

    pub fn mapping_at(&self, address: u64) -> Option<(u64, u64)> {
        self.find_mapping(address)
            .map(|(start, mapping)| (start, mapping.bytes))
    }

    pub fn mapped_device(&self, address: u64) -> c_int {
        let handle = self.find_mapping(address).map(|(_, mapping)| mapping.handle);
        let known = handle.and_then(|handle| self.physical_handles.get(&handle));
        known
            .and_then(|known| self.physical.get(&known.physical))
            .map_or(-2, |memory| memory.device)
    }

    pub fn create_multicast(
        &mut self,
        out: Out<CUmemGenericAllocationHandle>,
        properties: In<CUmulticastObjectProp>,
    ) -> Outcome {
        out.check()?;
        let properties = properties.get()?;
        if properties.numDevices == 0 || properties.size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let handle = self.new_handle();
        self.multicasts.insert(handle, (0, false));
        out.put(handle)
    }

    pub fn check_multicast(&self, handle: Handle) -> Outcome {
        if self.multicasts.contains_key(&handle) {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

exports! {
    fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<Properties>, _wanted: c_uint) |driver| {
        properties.get()?.check()?.location.device(driver)?;
        out.put(GRANULARITY as usize)
    }
    fn cuMemGetAllocationPropertiesFromHandle(out: Out<CUmemAllocationProp>, handle: CUmemGenericAllocationHandle) |driver| {
        let known = driver.physical_handles.get(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let properties = driver.physical[&known.physical].properties;
        out.cast::<[u8; size_of::<CUmemAllocationProp>()]>().put([0; size_of::<CUmemAllocationProp>()])?;
        out.cast().put(properties)
    }
    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, _list: In<c_void>, _count: usize) |driver| {
        let last = address.checked_add(bytes as u64).and_then(|end| end.checked_sub(1)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if driver.find_mapping(address).is_none() || driver.find_mapping(last).is_none() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if arena::open_pages(address, bytes as u64) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
    fn cuMemGetAccess(out: Out<c_ulonglong>, _location: In<Location>, address: CUdeviceptr) |driver| {
        out.put(if driver.find_mapping(address).is_some() { 3 } else { 0 })
    }
    fn cuMulticastAddDevice(handle: CUmemGenericAllocationHandle, device: CUdevice) |driver| {
        driver.ordinal(device)?;
        driver.check_multicast(handle)
    }
    fn cuMulticastGetGranularity(out: Out<usize>, _properties: In<CUmulticastObjectProp>, _wanted: c_uint) |_driver| {
        out.put(GRANULARITY as usize)
    }
}
