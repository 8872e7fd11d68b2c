//! Memory of other processes and other APIs: IPC handles, file descriptors, external memory.
//!
//! A shared object has an identity but no shared contents: the other process does not see the bytes. What a leak profiler
//! observes is exact: handles, addresses, counts, and that none of it is this process's memory.

use crate::arguments::{In, Out};
use crate::arrays::ArrayShape;
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use crate::memory::{Allocation, Room};
use crate::pools::Pool;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use culeak::kind::Kind;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::mem::offset_of;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

const POSIX_FD: c_uint = 1;

/// The 64 bytes of a CUipcMemHandle, and of exported pool pointers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ticket {
    magic: u64,
    process: u64,
    address: u64,
    bytes: u64,
    device: u64,
    id: u64,
    unused: [u64; 2],
}

const _: () = assert!(size_of::<Ticket>() == size_of::<CUipcMemHandle>());
const _: () = assert!(size_of::<Ticket>() == size_of::<CUmemPoolPtrExportData>());
const MAGIC: u64 = u64::from_le_bytes(*b"fake-ipc");

pub struct External {
    bytes: u64,
    context: Handle,
}

fn process() -> u64 {
    std::process::id() as u64
}

/// Device and inode number: files with the same ones represent the same memory.
fn identity(file: c_int) -> Option<((u64, u64), u64)> {
    // SAFETY: an all-zero stat is a valid value for fstat to overwrite.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is a live stat; a bad descriptor makes fstat fail, nothing else.
    (unsafe { libc::fstat(file, &mut status) } == 0).then_some(((status.st_dev, status.st_ino), status.st_size as u64))
}

/// A file of the size of the memory that it represents, named after the device.
fn stand_in(bytes: u64, device: c_int) -> Option<OwnedFd> {
    let name = std::ffi::CString::new(format!("culeak-fake-{device}")).ok()?;
    // SAFETY: the name is a NUL-terminated string that outlives the call.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: memfd_create returned this descriptor, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: the descriptor is open; growing an empty memfd allocates nothing.
    (unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&file), bytes as i64) } == 0).then_some(file)
}

/// The device that a stand-in file was made for.
fn device_of(file: c_int) -> Option<c_int> {
    let name = std::fs::read_link(format!("/proc/self/fd/{file}")).ok()?;
    let name = name
        .to_str()?
        .strip_prefix("/memfd:culeak-fake-")?
        .split(' ')
        .next()?
        .to_string();
    name.parse().ok()
}

impl Driver {
    fn ticket(&self, address: u64) -> Outcome<Ticket> {
        let (start, found) = self.allocation_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(Ticket {
            magic: MAGIC,
            process: process(),
            address: start,
            bytes: found.bytes,
            device: found.device as u64,
            id: found.id,
            unused: [0; 2],
        })
    }

    fn window(&mut self, kind: Kind, bytes: u64, device: usize, context: Option<Handle>, id: u64) -> Outcome<u64> {
        let (room, pool) = (Room::Device, None);
        self.enter(Allocation {
            kind,
            bytes,
            charged: 0,
            device,
            context,
            room,
            pool,
            opened: 1,
            id,
        })
    }

    pub fn export_ipc(&self, out: Out<CUipcMemHandle>, address: CUdeviceptr) -> Outcome {
        let ticket = self.ticket(address)?;
        match self.allocation_at(address).map(|(_, found)| found.kind) {
            Some(Kind::Device | Kind::Pitched) => out.cast().put(ticket),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub fn open_ipc(&mut self, out: Out<CUdeviceptr>, handle: CUipcMemHandle) -> Outcome {
        out.check()?;
        let context = self.current()?;
        // SAFETY: both are plain 64-byte values; any bits are a Ticket.
        let ticket: Ticket = unsafe { std::mem::transmute(handle) };
        if ticket.magic != MAGIC {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if ticket.process == process() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let id = ticket.process << 32 | ticket.id;
        let opened = self
            .memory
            .iter_mut()
            .find(|(_, known)| known.kind == Kind::Ipc && known.id == id);
        if let Some((address, known)) = opened {
            known.opened += 1;
            return out.put(*address);
        }
        let device = (ticket.device as usize).min(self.devices.len() - 1);
        out.put(self.window(Kind::Ipc, ticket.bytes, device, Some(context), id)?)
    }

    pub fn close_ipc(&mut self, address: u64) -> Outcome {
        let known = self.memory.get_mut(&address).filter(|known| known.kind == Kind::Ipc);
        let known = known.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        known.opened -= 1;
        if known.opened == 0 {
            self.leave(address);
        }
        Ok(())
    }

    pub fn export_physical(&mut self, out: Out<c_void>, handle: Handle, handle_type: c_uint) -> Outcome {
        out.check()?;
        if handle_type != POSIX_FD {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if self.multicasts.contains_key(&handle) {
            let file = stand_in(0, 0).ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
            return out.cast().put(file.into_raw_fd());
        }
        let id = self
            .physical_handles
            .get(&handle)
            .ok_or(CUDA_ERROR_INVALID_VALUE)?
            .physical;
        let memory = self.physical.get_mut(&id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let file = stand_in(memory.bytes, memory.device)
            .ok_or(CUDA_ERROR_OPERATING_SYSTEM)?
            .into_raw_fd();
        memory.file = identity(file).map(|(file, _)| file);
        out.cast().put(file)
    }

    pub fn import_physical(
        &mut self,
        out: Out<CUmemGenericAllocationHandle>,
        os_handle: *mut c_void,
        handle_type: c_uint,
    ) -> Outcome {
        out.check()?;
        if handle_type != POSIX_FD {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let file = os_handle as usize as c_int;
        let device = device_of(file).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (file, bytes) = identity(file).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        out.put(self.import_physical_file(file, bytes, device))
    }

    pub fn export_pool(&mut self, out: Out<c_void>, pool: CUmemoryPool, handle_type: c_uint) -> Outcome {
        out.check()?;
        let device = self.live_pool(pool)?.device as c_int;
        if handle_type != POSIX_FD {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        out.cast()
            .put(stand_in(0, device).ok_or(CUDA_ERROR_OPERATING_SYSTEM)?.into_raw_fd())
    }

    pub fn import_pool(&mut self, out: Out<CUmemoryPool>, handle: *mut c_void, handle_type: c_uint) -> Outcome {
        out.check()?;
        if handle_type != POSIX_FD {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = device_of(handle as usize as c_int).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let device = (device.max(0) as usize).min(self.devices.len() - 1);
        let handle = self.new_handle();
        let mut pool = Pool::new(device, false);
        pool.imported = true;
        self.pools.insert(handle, pool);
        out.put(handle as CUmemoryPool)
    }

    pub fn import_pointer(
        &mut self,
        out: Out<CUdeviceptr>,
        pool: CUmemoryPool,
        data: In<CUmemPoolPtrExportData>,
    ) -> Outcome {
        out.check()?;
        let ticket: Ticket = data.cast().get()?;
        let pool = self.live_pool(pool)?;
        if !pool.imported || ticket.magic != MAGIC {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let device = pool.device;
        let id = self.next_serial();
        out.put(self.window(Kind::PoolImport, ticket.bytes, device, None, id)?)
    }

    pub fn import_external(
        &mut self,
        out: Out<CUexternalMemory>,
        descriptor: In<CUDA_EXTERNAL_MEMORY_HANDLE_DESC>,
    ) -> Outcome {
        out.check()?;
        let context = self.current()?;
        let handle_type: c_uint = descriptor.cast().get()?;
        let bytes: c_ulonglong = descriptor
            .field(offset_of!(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size))
            .get()?;
        if handle_type == 0 || bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if handle_type == POSIX_FD {
            let file: c_int = descriptor
                .field(offset_of!(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, handle))
                .get()?;
            identity(file).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            // SAFETY: importing a descriptor passes it to the driver, which alone may close it from now on.
            drop(unsafe { OwnedFd::from_raw_fd(file) });
        }
        let handle = self.new_handle();
        self.external.insert(handle, External { bytes, context });
        out.put(handle as CUexternalMemory)
    }

    fn external(&self, external: CUexternalMemory) -> Outcome<&External> {
        self.external
            .get(&(external as Handle))
            .ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn map_external(
        &mut self,
        out: Out<CUdeviceptr>,
        external: CUexternalMemory,
        descriptor: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>,
    ) -> Outcome {
        out.check()?;
        let whole = self.external(external)?.bytes;
        let wanted = descriptor.get()?;
        if wanted.size == 0 || wanted.offset.checked_add(wanted.size).is_none_or(|end| end > whole) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = self.current()?;
        let (device, id) = (self.contexts[&context].device, self.next_serial());
        out.put(self.window(Kind::ExternalMapping, wanted.size, device, Some(context), id)?)
    }

    pub fn map_external_mipmap(
        &mut self,
        out: Out<CUmipmappedArray>,
        external: CUexternalMemory,
        descriptor: In<CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>,
    ) -> Outcome {
        self.external(external)?;
        let at = offset_of!(CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, arrayDesc);
        let shape: ArrayShape = descriptor.field(at).get()?;
        self.enter_array(out.cast(), shape, 0, true)
    }

    /// Mappings of it stay until they are freed separately.
    pub fn destroy_external(&mut self, external: CUexternalMemory) -> Outcome {
        self.external
            .remove(&(external as Handle))
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.drop_handle(external as Handle);
        Ok(())
    }

    pub fn forget_external_of(&mut self, context: Handle) {
        self.external.retain(|_, external| external.context != context);
    }
}

exports! {
    fn cuMemPoolExportPointer(out: Out<CUmemPoolPtrExportData>, address: CUdeviceptr) |driver| {
        let ticket = driver.ticket(address)?;
        match driver.allocation_at(address).map(|(_, found)| found.kind) {
            Some(Kind::Async) => out.cast().put(ticket),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
