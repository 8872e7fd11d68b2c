//! Linear, pitched, managed, page-locked and registered memory.
//!
//! One table by address for everything that is freed by address, since a program may free stream-ordered, managed,
//! imported and graph memory with the same cuMemFree.

use crate::arena::Arena;
use crate::arguments::{AddressWidth, In, Out, SizeWidth};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use crate::kernel::Kernel;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use culeak::kind::Kind;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

pub struct Allocation {
    pub kind: Kind,
    pub bytes: u64,
    /// Bytes of device memory that it holds.
    pub charged: u64,
    pub device: usize,
    /// The context whose destruction frees it, if any.
    pub context: Option<Handle>,
    pub room: Room,
    pub pool: Option<Handle>,
    /// How often it was opened (IPC).
    pub opened: u64,
    pub id: u64,
}

/// The origin of an allocation's addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Device,
    Host,
    Low,
    /// The program's own memory, or addresses that belong to a graph.
    Elsewhere,
}

/// Rows of pitched memory start at multiples of this.
const PITCH: u64 = 512;

impl Driver {
    fn arena(&mut self, room: Room, device: usize, bytes: u64) -> Option<&mut Arena> {
        match room {
            Room::Device => {
                let device = &mut self.devices[device];
                match &mut device.small {
                    Some(small) if !Kernel::is_large(bytes) => Some(small),
                    _ => Some(&mut device.addresses),
                }
            }
            Room::Host => Some(&mut self.host),
            Room::Low => {
                if self.low.is_none() {
                    self.low = Arena::low(crate::driver::LOW_BYTES, PITCH);
                }
                self.low.as_mut()
            }
            Room::Elsewhere => None,
        }
    }

    /// Reserves addresses and, for device memory, bytes, and adds the allocation to the table.
    pub fn enter(&mut self, mut allocation: Allocation) -> Outcome<u64> {
        let rounded = match allocation.room {
            Room::Low | Room::Device => allocation.bytes.checked_next_multiple_of(PITCH),
            _ => Some(allocation.bytes),
        };
        if allocation.charged > 0 {
            allocation.charged = rounded.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        }
        let (device, charged) = (allocation.device, allocation.charged);
        match allocation.pool {
            Some(pool) => self.charge_pool(pool, charged)?,
            None => self.charge(device, charged)?,
        }
        let bytes = allocation.bytes;
        let Some(address) = self
            .arena(allocation.room, device, bytes)
            .and_then(|arena| arena.take(bytes))
        else {
            match allocation.pool {
                Some(pool) => self.uncharge_pool(pool, charged),
                None => self.uncharge(device, charged),
            }
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        };
        let of_kernel = match (allocation.room, allocation.kind, allocation.pool) {
            (Room::Device | Room::Low, Kind::Device | Kind::Pitched, None) => {
                self.in_kernel(|kernel| kernel.touch(device, address, bytes))
            }
            (Room::Host, Kind::HostPinned, _) => self.in_kernel(|kernel| kernel.take_host(device, address, bytes)),
            _ => Ok(()),
        };
        self.memory.insert(address, allocation);
        if of_kernel.is_err() {
            self.leave(address);
        }
        of_kernel.map(|()| address)
    }

    /// Removes an allocation from the table and releases its addresses and bytes.
    pub fn leave(&mut self, address: u64) -> Option<Allocation> {
        let allocation = self.memory.remove(&address)?;
        match allocation.pool {
            Some(pool) => self.uncharge_pool(pool, allocation.charged),
            None => self.uncharge(allocation.device, allocation.charged),
        }
        if let Some(arena) = self.arena(allocation.room, allocation.device, allocation.bytes) {
            arena.give_back(address, allocation.bytes);
        }
        if let Some(kernel) = &mut self.kernel {
            match allocation.kind {
                Kind::Device | Kind::Pitched if allocation.pool.is_none() => kernel.leave(address, allocation.bytes),
                Kind::HostPinned => kernel.give_back(address),
                _ => {}
            }
        }
        if allocation.kind == Kind::Graph {
            self.graph_memory_freed(address);
        }
        Some(allocation)
    }

    pub fn allocate<A: AddressWidth>(&mut self, kind: Kind, out: Out<A>, bytes: u64) -> Outcome {
        out.check()?;
        let context = self.current()?;
        self.refuse_while_capturing()?;
        // Page-locked memory of 0 bytes can be allocated.
        if bytes == 0 && kind != Kind::HostPinned {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let room = match kind {
            Kind::HostPinned | Kind::Managed => Room::Host,
            _ if A::NARROW => Room::Low,
            _ => Room::Device,
        };
        let charged = if room == Room::Host { 0 } else { bytes };
        let (device, id) = (self.contexts[&context].device, self.next_serial());
        let context = Some(context);
        let allocation = Allocation {
            kind,
            bytes,
            charged,
            device,
            context,
            room,
            pool: None,
            opened: 0,
            id,
        };
        out.put(A::from_address(self.enter(allocation)?))
    }

    pub fn allocate_managed(&mut self, out: Out<CUdeviceptr>, bytes: u64, flags: c_uint) -> Outcome {
        // CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST.
        if !matches!(flags, 1 | 2) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.allocate(Kind::Managed, out, bytes)
    }

    pub fn allocate_pitched<A: AddressWidth, S: SizeWidth>(
        &mut self,
        out: Out<A>,
        pitch: Out<S>,
        width: u64,
        height: u64,
        element: c_uint,
    ) -> Outcome {
        pitch.check()?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.allocate(Kind::Pitched, out, bytes)?;
        pitch.put(S::from_size(row))
    }

    /// cuMemFree and cuMemFreeHost, distinguished by `host`.
    pub fn free(&mut self, address: u64, host: bool) -> Outcome {
        if address == 0 {
            return Ok(());
        }
        self.current()?;
        self.refuse_while_capturing()?;
        let fits = match self.memory.get(&address).map(|allocation| allocation.kind) {
            Some(Kind::HostPinned) => host,
            Some(Kind::HostRegistered | Kind::Ipc) | None => false,
            Some(_) => !host,
        };
        if !fits {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.leave(address);
        Ok(())
    }

    pub fn register(&mut self, address: u64, bytes: u64) -> Outcome {
        let context = self.current()?;
        self.refuse_while_capturing()?;
        if address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if self.overlaps_registered(address, bytes) {
            return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let (device, id) = (self.contexts[&context].device, self.next_serial());
        let allocation = Allocation {
            kind: Kind::HostRegistered,
            bytes,
            charged: 0,
            device,
            context: Some(context),
            room: Room::Elsewhere,
            pool: None,
            opened: 0,
            id,
        };
        self.memory.insert(address, allocation);
        Ok(())
    }

    fn overlaps_registered(&self, address: u64, bytes: u64) -> bool {
        let before = self.memory.range(..address + bytes).next_back();
        before.is_some_and(|(start, allocation)| {
            matches!(allocation.kind, Kind::HostRegistered | Kind::HostPinned) && start + allocation.bytes > address
        })
    }

    pub fn unregister(&mut self, address: u64) -> Outcome {
        self.refuse_while_capturing()?;
        match self
            .allocation_at(address)
            .map(|(start, allocation)| (start == address, allocation.kind))
        {
            Some((true, Kind::HostRegistered)) => {
                self.memory.remove(&address);
                Ok(())
            }
            Some(_) => Err(CUDA_ERROR_INVALID_VALUE),
            None => Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        }
    }

    pub fn forget_memory_of(&mut self, context: Handle) {
        let owned: Vec<u64> = self
            .memory
            .iter()
            .filter(|(_, allocation)| allocation.context == Some(context))
            .map(|(address, _)| *address)
            .collect();
        for address in owned {
            self.leave(address);
        }
    }

    /// The allocation that contains an address.
    pub fn allocation_at(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (start, allocation) = self.memory.range(..=address).next_back()?;
        (address < start + allocation.bytes).then_some((*start, allocation))
    }
}

exports! {
    fn cuMemGetInfo(free: Out<c_uint>, total: Out<c_uint>) |driver| {
        let device = driver.current_device()?;
        let device = &driver.devices[device];
        let narrow = |bytes: u64| c_uint::try_from(bytes).unwrap_or(c_uint::MAX);
        free.put(narrow(device.total - device.used))?;
        total.put(narrow(device.total))
    }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |driver| {
        let device = driver.current_device()?;
        let device = &driver.devices[device];
        free.put((device.total - device.used) as usize)?;
        total.put(device.total as usize)
    }
    fn cuMemGetAddressRange(base: Out<c_uint>, size: Out<c_uint>, address: c_uint) |driver| {
        let (start, allocation) = driver.allocation_at(address as u64).ok_or(CUDA_ERROR_NOT_FOUND)?;
        base.put_if_wanted(start as c_uint);
        size.put_if_wanted(allocation.bytes as c_uint);
        Ok(())
    }
    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, address: CUdeviceptr) |driver| {
        let (start, bytes) = driver.range_at(address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        base.put_if_wanted(start);
        size.put_if_wanted(bytes as usize);
        Ok(())
    }
    fn cuMemHostGetDevicePointer(out: Out<c_uint>, _address: *mut c_void, _flags: c_uint) |_driver| {
        out.check().and(Err(CUDA_ERROR_NOT_SUPPORTED))
    }
    fn cuMemHostGetDevicePointer_v2(out: Out<CUdeviceptr>, address: *mut c_void, _flags: c_uint) |driver| {
        match driver.allocation_at(address as u64) {
            Some((_, found)) if matches!(found.kind, Kind::HostPinned | Kind::HostRegistered) => out.put(address as u64),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    fn cuMemHostGetFlags(out: Out<c_uint>, address: *mut c_void) |driver| {
        driver.allocation_at(address as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        out.put(0)
    }
    fn cuPointerGetAttribute(out: Out<c_void>, attribute: c_int, address: CUdeviceptr) |driver| {
        if driver.range_at(address).is_none() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.put_attribute(out, attribute, address)
    }
    fn cuPointerGetAttributes(count: c_uint, list: In<c_int>, out: In<*mut c_void>, address: CUdeviceptr) |driver| {
        for index in 0..count as usize {
            // SAFETY: the caller passes an array of `count` places, each for the attribute of the same index.
            let place = unsafe { Out::new(out.at(index).get()?) };
            driver.put_attribute(place, list.at(index).get()?, address)?;
        }
        Ok(())
    }
    fn cuPointerSetAttribute(_value: In<c_void>, _attribute: c_int, address: CUdeviceptr) |driver| {
        driver.range_at(address).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
    fn cuMemAdvise(_address: CUdeviceptr, _bytes: usize, _advice: c_uint, _device: CUdevice) |driver| {
        driver.current().map(|_| ())
    }
    fn cuMemAdvise_v2(_address: CUdeviceptr, _bytes: usize, _advice: c_uint, _place: CUmemLocation) |driver| {
        driver.current().map(|_| ())
    }
    fn [cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz] (_address: CUdeviceptr, _bytes: usize, _to: CUdevice, _stream: CUstream) |driver| {
        driver.current().map(|_| ())
    }
    fn [cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz] (_address: CUdeviceptr, _bytes: usize, _to: CUmemLocation, _flags: c_uint, _stream: CUstream) |driver| {
        driver.current().map(|_| ())
    }
}

const MEMORY_TYPE_HOST: c_uint = 1;
const MEMORY_TYPE_DEVICE: c_uint = 2;

impl Driver {
    /// Start and size of the allocation, mapping or reserved range that contains an address.
    pub fn range_at(&self, address: u64) -> Option<(u64, u64)> {
        match self.allocation_at(address) {
            Some((start, allocation)) => Some((start, allocation.bytes)),
            None => self.mapping_at(address),
        }
    }

    /// Writes an attribute; for an address unknown to CUDA the null value (as cuPointerGetAttributes does).
    fn put_attribute(&self, out: Out<c_void>, attribute: c_int, address: u64) -> Outcome {
        let found = self.allocation_at(address);
        let range = self.range_at(address);
        let kind = found.map(|(_, allocation)| allocation.kind);
        let on_host = matches!(kind, Some(Kind::HostPinned | Kind::HostRegistered));
        let device = found.map_or_else(
            || range.map_or(-2, |(start, _)| self.mapped_device(start)),
            |f| f.1.device as c_int,
        );
        let known = range.is_some();
        match attribute {
            // CONTEXT
            1 => out
                .cast()
                .put(found.and_then(|(_, allocation)| allocation.context).unwrap_or(0)),
            // MEMORY_TYPE
            2 if !known => out.cast().put(0 as c_uint),
            2 => out
                .cast()
                .put(if on_host { MEMORY_TYPE_HOST } else { MEMORY_TYPE_DEVICE }),
            // DEVICE_POINTER, HOST_POINTER
            3 => out.cast().put(if known { address } else { 0 }),
            4 => out.cast().put(if on_host || kind == Some(Kind::Managed) {
                address
            } else {
                0
            }),
            // BUFFER_ID
            7 => out.cast().put(found.map_or(0, |(_, allocation)| allocation.id)),
            // IS_MANAGED
            8 => out.cast().put((kind == Some(Kind::Managed)) as u8),
            // DEVICE_ORDINAL
            9 => out.cast().put(device),
            // IS_LEGACY_CUDA_IPC_CAPABLE
            10 => out.cast().put(matches!(kind, Some(Kind::Device | Kind::Pitched)) as u8),
            // RANGE_START_ADDR, RANGE_SIZE
            11 => out.cast().put(range.map_or(0, |(start, _)| start)),
            12 => out.cast().put(range.map_or(0, |(_, bytes)| bytes as usize)),
            // MAPPED
            13 => out.cast().put(known as u8),
            // ALLOWED_HANDLE_TYPES, ACCESS_FLAGS, MEMPOOL_HANDLE
            14 => out.cast().put(0 as c_ulonglong),
            16 => out.cast().put(if known { 3 as c_uint } else { 0 }),
            17 => out
                .cast()
                .put(found.and_then(|(_, allocation)| allocation.pool).unwrap_or(0)),
            // SYNC_MEMOPS and newer: a flag that is not set.
            _ => out.cast().put(0 as c_uint),
        }
    }
}
