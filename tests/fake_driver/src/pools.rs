//! Memory pools and stream-ordered allocation.
//!
//! A pool keeps freed memory up to its release threshold, so cuMemFreeAsync need not increase the free device memory.
//! A destroyed pool lives until its last allocation is freed.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use crate::memory::{Allocation, Room};
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use culeak::kind::Kind;
use std::ffi::{c_int, c_uint, c_void};

pub struct Pool {
    pub device: usize,
    default: bool,
    destroyed: bool,
    live: u64,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    threshold: u64,
    reuse: [c_int; 3],
    /// Imported from another process.
    pub imported: bool,
}

impl Pool {
    pub fn new(device: usize, default: bool) -> Pool {
        let (used, reserved, reuse) = (0, 0, [1; 3]);
        Pool {
            device,
            default,
            destroyed: false,
            live: 0,
            used,
            used_high: used,
            reserved,
            reserved_high: reserved,
            threshold: 0,
            reuse,
            imported: false,
        }
    }
}

/// The start of CUmemPoolProps and CUmemAllocationProp, enums as numbers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    pub kind: c_uint,
    pub handle_types: c_uint,
    pub location: Location,
}

/// CUmemLocation with its enum as a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    pub kind: c_uint,
    pub id: c_int,
}

const LOCATION_DEVICE: c_uint = 1;
const KIND_PINNED: c_uint = 1;

impl Location {
    /// The device; `None` for host memory.
    pub fn device(self, driver: &Driver) -> Outcome<Option<usize>> {
        match self.kind {
            LOCATION_DEVICE => driver.ordinal(self.id).map(Some),
            // A locality domain: the lowest byte is the device.
            6 => driver.ordinal(self.id & 0xff).map(Some),
            2..=4 => Ok(None),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

impl Properties {
    pub fn check(self) -> Outcome<Properties> {
        if self.kind == KIND_PINNED {
            Ok(self)
        } else {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

impl Driver {
    pub fn create_pool(&mut self, out: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) -> Outcome {
        out.check()?;
        self.refuse_while_capturing()?;
        let properties = properties.cast::<Properties>().get()?.check()?;
        let device = properties.location.device(self)?.unwrap_or(0);
        let handle = self.new_handle();
        self.pools.insert(handle, Pool::new(device, false));
        out.put(handle as CUmemoryPool)
    }

    pub fn live_pool(&mut self, pool: CUmemoryPool) -> Outcome<&mut Pool> {
        self.pools
            .get_mut(&(pool as Handle))
            .filter(|pool| !pool.destroyed)
            .ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub fn destroy_pool(&mut self, handle: CUmemoryPool) -> Outcome {
        let pool = self.live_pool(handle)?;
        if pool.default {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pool.destroyed = true;
        for device in &mut self.devices {
            if device.pool == handle as Handle {
                device.pool = device.default_pool;
            }
        }
        self.settle_pool(handle as Handle);
        Ok(())
    }

    pub fn set_pool(&mut self, device: CUdevice, pool: CUmemoryPool) -> Outcome {
        self.live_pool(pool)?;
        self.device(device)?.pool = pool as Handle;
        Ok(())
    }

    /// Only the pool of pinned device memory is one that cuMemAllocAsync uses.
    pub fn set_pool_of(&mut self, location: In<CUmemLocation>, kind: c_uint, pool: CUmemoryPool) -> Outcome {
        let location = location.cast::<Location>().get()?;
        location.device(self)?;
        match (location.kind, kind) {
            (LOCATION_DEVICE, KIND_PINNED) => self.set_pool(location.id, pool),
            _ => self.live_pool(pool).map(|_| ()),
        }
    }

    pub fn trim_pool(&mut self, handle: CUmemoryPool, keep: u64) -> Outcome {
        let pool = self.live_pool(handle)?;
        let (device, retained) = (pool.device, pool.reserved.min(pool.used.max(keep)));
        let released = pool.reserved - retained;
        pool.reserved = retained;
        self.uncharge(device, released);
        self.in_kernel(|kernel| kernel.resize_pool(device, handle as Handle, retained))
    }

    /// Memory for an allocation, from the pool's unused bytes if possible.
    pub fn charge_pool(&mut self, handle: Handle, bytes: u64) -> Outcome {
        let pool = &self.pools[&handle];
        let (device, missing) = (pool.device, (pool.used + bytes).saturating_sub(pool.reserved));
        let reserved = pool.reserved + missing;
        self.charge(device, missing)?;
        self.in_kernel(|kernel| kernel.resize_pool(device, handle, reserved))?;
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.live += 1;
            pool.used += bytes;
            pool.reserved += missing;
            pool.used_high = pool.used_high.max(pool.used);
            pool.reserved_high = pool.reserved_high.max(pool.reserved);
        }
        Ok(())
    }

    pub fn uncharge_pool(&mut self, handle: Handle, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.live -= 1;
            pool.used -= bytes;
        }
        self.settle_pool(handle);
    }

    /// Releases the bytes above the threshold, and the pool itself once it is destroyed and empty.
    fn settle_pool(&mut self, handle: Handle) {
        let Some(pool) = self.pools.get_mut(&handle) else {
            return;
        };
        let keep = if pool.destroyed {
            pool.used
        } else {
            pool.used.max(pool.threshold)
        };
        let released = pool.reserved.saturating_sub(keep);
        pool.reserved -= released;
        let (device, over, reserved) = (pool.device, pool.destroyed && pool.live == 0, pool.reserved);
        self.uncharge(device, released);
        let _ = self.in_kernel(|kernel| kernel.resize_pool(device, handle, reserved));
        if over {
            self.pools.remove(&handle);
            self.drop_handle(handle);
        }
    }

    /// `pool`: `None` for the pool current on the device.
    pub fn allocate_async(
        &mut self,
        out: Out<CUdeviceptr>,
        bytes: u64,
        pool: Option<CUmemoryPool>,
        stream: CUstream,
    ) -> Outcome {
        out.check()?;
        let current = self.current_device()?;
        self.check_stream(stream)?;
        let pool = pool.map_or(self.devices[current].pool, |pool| pool as Handle);
        let device = self.live_pool(pool as CUmemoryPool)?.device;
        if bytes == 0 {
            return out.put(0);
        }
        if let Some(graph) = self.valid_capture_of(stream)? {
            if let Some(address) = self.repeat_alloc_node(stream, graph, bytes)? {
                return out.put(address);
            }
            return out.put(self.add_alloc_node(graph, device, bytes)?.1);
        }
        self.refuse_beside_capture(stream)?;
        let allocation = Allocation {
            kind: Kind::Async,
            bytes,
            charged: bytes,
            device,
            context: None,
            room: Room::Device,
            pool: Some(pool),
            opened: 0,
            id: self.next_serial(),
        };
        out.put(self.enter(allocation)?)
    }

    pub fn free_async(&mut self, address: u64, stream: CUstream) -> Outcome {
        self.check_stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        if let Some(graph) = self.valid_capture_of(stream)? {
            if self.repeat_free_node(stream, graph, address)? {
                return Ok(());
            }
            return self.add_free_node(graph, address).map(|_| ());
        }
        self.refuse_beside_capture(stream)?;
        match self.memory.get(&address).map(|allocation| allocation.kind) {
            Some(Kind::HostPinned | Kind::HostRegistered | Kind::Ipc) | None => Err(CUDA_ERROR_INVALID_VALUE),
            Some(Kind::Managed) => Err(CUDA_ERROR_NOT_SUPPORTED),
            Some(_) => {
                self.leave(address);
                Ok(())
            }
        }
    }
}

/// CUmemPool_attribute: three reuse policies, the threshold, then reserved and used with their peaks.
const THRESHOLD: c_uint = 4;

exports! {
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_uint, out: Out<c_void>) |driver| {
        let pool = driver.live_pool(pool)?;
        match attribute {
            1..=3 => out.cast().put(pool.reuse[attribute as usize - 1]),
            THRESHOLD => out.cast().put(pool.threshold),
            5 => out.cast().put(pool.reserved),
            6 => out.cast().put(pool.reserved_high),
            7 => out.cast().put(pool.used),
            8 => out.cast().put(pool.used_high),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_uint, value: In<c_void>) |driver| {
        let handle = pool as Handle;
        let pool = driver.live_pool(pool)?;
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = value.cast().get()?,
            THRESHOLD => pool.threshold = value.cast().get()?,
            6 => pool.reserved_high = pool.reserved,
            8 => pool.used_high = pool.used,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        driver.settle_pool(handle);
        Ok(())
    }
    fn cuMemPoolSetAccess(pool: CUmemoryPool, _list: In<c_void>, _count: usize) |driver| {
        driver.live_pool(pool).map(|_| ())
    }
    fn cuMemPoolGetAccess(out: Out<c_uint>, pool: CUmemoryPool, _location: In<Location>) |driver| {
        driver.live_pool(pool)?;
        out.put(3)
    }
    fn cuDeviceGetDefaultMemPool(out: Out<CUmemoryPool>, device: CUdevice) |driver| {
        out.put(driver.device(device)?.default_pool as CUmemoryPool)
    }
    fn cuDeviceGetMemPool(out: Out<CUmemoryPool>, device: CUdevice) |driver| {
        out.put(driver.device(device)?.pool as CUmemoryPool)
    }
    fn cuMemGetDefaultMemPool(out: Out<CUmemoryPool>, location: In<Location>, _kind: c_uint) |driver| {
        let device = location.get()?.device(driver)?.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        out.put(driver.devices[device].default_pool as CUmemoryPool)
    }
    fn cuMemGetMemPool(out: Out<CUmemoryPool>, location: In<Location>, _kind: c_uint) |driver| {
        let device = location.get()?.device(driver)?.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        out.put(driver.devices[device].pool as CUmemoryPool)
    }
}
