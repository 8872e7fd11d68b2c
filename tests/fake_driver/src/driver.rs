//! All state of the fake driver, behind one lock: devices with their bytes, and a table for each kind of object.
//!
//! The functions on these tables are in the file of their subject (`memory.rs`, `vmm.rs`, …).

use crate::arena::Arena;
use crate::arguments::Out;
use crate::arrays::ArrayObject;
use crate::contexts::Context;
use crate::gate::Outcome;
use crate::graphs::{Exec, Graph, GraphRange, NodeOwner};
use crate::kernel::{self, Kernel};
use crate::memory::Allocation;
use crate::modules::Module;
use crate::pools::Pool;
use crate::settings::{Failures, Settings};
use crate::sharing::External;
use crate::streams::{Capture, Stream};
use crate::tables::LocalStorage;
use crate::vmm::{Physical, PhysicalHandle, Range};
use cudarc::driver::sys::CUresult::*;
use std::collections::{BTreeMap, HashMap};

/// Any object handle, as the number that a program gets.
pub type Handle = u64;

/// Device addresses are multiples of this, as on real devices.
const ADDRESS_UNIT: u64 = 512;
const HANDLE_UNIT: u64 = 64;
const HANDLE_BYTES: u64 = 1 << 30;
const HOST_BYTES: u64 = 64 << 30;
pub const LOW_BYTES: u64 = 256 << 20;

pub struct Device {
    pub total: u64,
    pub used: u64,
    pub addresses: Arena,
    /// For small blocks, if the kernel driver's side is imitated: they share pages.
    pub small: Option<Arena>,
    pub primary: Handle,
    pub default_pool: Handle,
    pub pool: Handle,
}

pub struct Driver {
    pub failures: Failures,
    /// The kernel driver's side, if it is imitated.
    pub kernel: Option<Kernel>,
    pub devices: Vec<Device>,
    pub handles: Arena,
    pub host: Arena,
    pub low: Option<Arena>,
    pub contexts: HashMap<Handle, Context>,
    pub memory: BTreeMap<u64, Allocation>,
    pub arrays: HashMap<Handle, ArrayObject>,
    pub streams: HashMap<Handle, Stream>,
    /// Events, textures, surfaces, semaphores, user objects: handles with an owner and nothing else.
    pub plain: HashMap<Handle, Option<Handle>>,
    pub pools: HashMap<Handle, Pool>,
    pub graphs: HashMap<Handle, Graph>,
    pub execs: HashMap<Handle, Exec>,
    pub nodes: HashMap<Handle, NodeOwner>,
    pub graph_ranges: BTreeMap<u64, GraphRange>,
    pub captures: u64,
    pub captured_events: HashMap<Handle, Capture>,
    pub physical: HashMap<u64, Physical>,
    pub physical_handles: HashMap<Handle, PhysicalHandle>,
    pub ranges: BTreeMap<u64, Range>,
    /// How often each multicast object is mapped, and whether its handle was released.
    pub multicasts: HashMap<Handle, (usize, bool)>,
    pub external: HashMap<Handle, External>,
    pub modules: HashMap<Handle, Module>,
    pub local_storage: LocalStorage,
    /// Callbacks to run after the lock is released.
    pub after: Vec<Box<dyn FnOnce() + Send>>,
    /// Exported name of the running function.
    pub called: &'static str,
    serial: u64,
}

impl Driver {
    /// `None` if the address space is too small for the requested devices.
    pub fn new(settings: Settings) -> Option<Driver> {
        let mut driver = Driver {
            failures: settings.failures,
            kernel: Kernel::open(settings.devices),
            devices: Vec::new(),
            handles: Arena::unbacked(HANDLE_BYTES, HANDLE_UNIT)?,
            host: Arena::backed(HOST_BYTES, 4096)?,
            low: None,
            contexts: HashMap::new(),
            memory: BTreeMap::new(),
            arrays: HashMap::new(),
            streams: HashMap::new(),
            plain: HashMap::new(),
            pools: HashMap::new(),
            graphs: HashMap::new(),
            execs: HashMap::new(),
            nodes: HashMap::new(),
            graph_ranges: BTreeMap::new(),
            captures: 0,
            captured_events: HashMap::new(),
            physical: HashMap::new(),
            physical_handles: HashMap::new(),
            ranges: BTreeMap::new(),
            multicasts: HashMap::new(),
            external: HashMap::new(),
            modules: HashMap::new(),
            local_storage: LocalStorage::default(),
            after: Vec::new(),
            called: "",
            serial: 0,
        };
        for ordinal in 0..settings.devices {
            // Twice the memory: graph memory and imported memory use addresses without using bytes.
            let room = settings.device_bytes.checked_mul(2)?.max(1 << 30);
            let (addresses, small) = match driver.kernel {
                None => (Arena::backed(room, ADDRESS_UNIT)?, None),
                Some(_) => (
                    Arena::backed(room, kernel::PAGE)?,
                    Some(Arena::backed(room, ADDRESS_UNIT)?.aligned(kernel::PAGE)),
                ),
            };
            let (primary, pool) = (driver.new_handle(), driver.new_handle());
            driver.contexts.insert(primary, Context::primary(ordinal));
            driver.pools.insert(pool, Pool::new(ordinal, true));
            driver.devices.push(Device {
                total: settings.device_bytes,
                used: 0,
                addresses,
                small,
                primary,
                default_pool: pool,
                pool,
            });
        }
        Some(driver)
    }

    pub fn new_handle(&mut self) -> Handle {
        // A gibibyte of handle addresses holds 16 million live objects; a test that needs more is broken.
        self.handles.take(1).unwrap_or(0)
    }

    pub fn drop_handle(&mut self, handle: Handle) {
        self.handles.give_back(handle, 1);
    }

    /// A number never used before.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub fn device(&mut self, ordinal: i32) -> Outcome<&mut Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get_mut(index))
            .ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    pub fn ordinal(&self, ordinal: i32) -> Outcome<usize> {
        usize::try_from(ordinal)
            .ok()
            .filter(|index| *index < self.devices.len())
            .ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// Reserves bytes of a device's memory, or fails if there are not enough.
    pub fn charge(&mut self, device: usize, bytes: u64) -> Outcome {
        let device = &mut self.devices[device];
        if bytes > device.total - device.used {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        device.used += bytes;
        Ok(())
    }

    pub fn uncharge(&mut self, device: usize, bytes: u64) {
        self.devices[device].used -= bytes;
    }

    pub fn plain_handle(&mut self, owner: Option<Handle>) -> Handle {
        let handle = self.new_handle();
        self.plain.insert(handle, owner);
        handle
    }

    /// An object of the current context.
    pub fn create_plain<T>(&mut self, out: Out<T>, wrap: impl FnOnce(Handle) -> T) -> Outcome {
        out.check()?;
        let context = self.current()?;
        out.put(wrap(self.plain_handle(Some(context))))
    }

    pub fn drop_plain(&mut self, handle: Handle) -> Outcome {
        self.plain.remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.drop_handle(handle);
        Ok(())
    }
}
