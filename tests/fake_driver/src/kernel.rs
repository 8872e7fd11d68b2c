//! The kernel driver's side: what NVIDIA's CUDA driver requests of it by `ioctl`, if `CULEAK_FAKE_KERNEL` is set.
//!
//! The requests are made on `/dev/null`; a library of the tests answers them. The sizes are those of an H200 with driver 580,
//! simplified:
//!
//! - a context takes 104 MiB in 16 pieces, and a pool of 414 MiB for local memory, which follows the stack limit;
//! - blocks of up to 1 MiB share pages of 2 MiB, and larger ones are rounded up to 2 MiB;
//! - pools take chunks of 32 MiB, and give them back when they are empty;
//! - with `CULEAK_FAKE_KERNEL=peers`, a context first takes 2 MiB on each other device;
//! - a module takes 2 MiB, and 2 MiB more for the code of its first function; streams and graph executables share pages of 2 MiB,
//!   which stay until the context is destroyed.

use crate::driver::{Driver, Handle};
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};

pub const PAGE: u64 = 2 << 20;
const SMALL: u64 = 1 << 20;
const CHUNK: u64 = 32 << 20;
const STREAMS_PER_PAGE: u64 = 3;
const EXECS_PER_PAGE: u64 = 18;

const CLIENT: u32 = 0x41;
const DEVICE: u32 = 0x80;
const LOCAL_MEMORY: u32 = 0x40;
const SYSTEM_MEMORY: u32 = 0x3e;
const CHANNEL_GROUP: u32 = 0xa06c;
const CHANNEL: u32 = 0xc86f;

/// `_IOWR('F', number, [u8; bytes])`.
const fn request(number: u64, bytes: u64) -> u64 {
    3 << 30 | bytes << 16 | (b'F' as u64) << 8 | number
}

pub struct Kernel {
    has_peers: bool,
    file: c_int,
    client: u32,
    devices: Vec<u32>,
    contexts: HashMap<Handle, OfContext>,
    /// Pages of small blocks: their objects, and how many blocks touch them.
    pages: HashMap<u64, (u32, u64)>,
    chunks: HashMap<Handle, Vec<u32>>,
    /// Large blocks by address, other objects by handle.
    whole: HashMap<u64, u32>,
}

struct OfContext {
    device: usize,
    objects: Vec<u32>,
    local: u32,
    streams: (u64, u64),
    execs: (u64, u64),
}

impl Kernel {
    /// `None` if it is not wanted, or if nothing answers.
    pub fn open(devices: usize) -> Option<Kernel> {
        let wanted =
            crate::settings::variable("CULEAK_FAKE_KERNEL").filter(|value| value == "1" || value == "peers")?;
        // SAFETY: a C string.
        let file = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        let mut kernel = Kernel {
            has_peers: wanted == "peers",
            file,
            client: 0,
            devices: Vec::new(),
            contexts: HashMap::new(),
            pages: HashMap::new(),
            chunks: HashMap::new(),
            whole: HashMap::new(),
        };
        kernel.client = kernel.alloc(0, CLIENT, [0; 16])?;
        for ordinal in 0..devices {
            // The kernel driver numbers devices in another order.
            let mut parameters = [0; 16];
            parameters[0] = (devices - 1 - ordinal) as u64;
            let device = kernel.alloc(kernel.client, DEVICE, parameters)?;
            kernel.devices.push(device);
        }
        Some(kernel)
    }

    fn ioctl(&self, number: u64, argument: &mut [u32]) -> bool {
        let request = request(number, size_of_val(argument) as u64);
        // SAFETY: the argument has the size that the request states.
        unsafe { libc::ioctl(self.file, request, argument.as_mut_ptr().cast::<c_void>()) == 0 }
    }

    fn alloc(&self, parent: u32, class: u32, mut parameters: [u64; 16]) -> Option<u32> {
        let address = parameters.as_mut_ptr() as u64;
        let mut argument = [
            self.client,
            parent,
            0,
            class,
            address as u32,
            (address >> 32) as u32,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        let is_done = self.ioctl(0x2b, &mut argument);
        std::hint::black_box(parameters);
        (is_done && argument[10] == 0).then_some(argument[2])
    }

    fn memory(&self, device: usize, class: u32, bytes: u64) -> Outcome<u32> {
        let mut parameters = [0; 16];
        parameters[8] = bytes;
        let object = self.alloc(self.devices[device], class, parameters);
        object.ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn free(&self, object: u32) {
        self.ioctl(0x29, &mut [self.client, 0, object, 0]);
    }

    /// Memory for local variables and stacks of all threads that the device can run.
    fn local_bytes(stack_limit: u64) -> u64 {
        (132 * 2048 * (stack_limit.next_multiple_of(16) + 576)).next_multiple_of(PAGE)
    }

    pub fn create_context(&mut self, context: Handle, device: usize) -> Outcome {
        if self.contexts.contains_key(&context) {
            return Ok(());
        }
        let mut objects = Vec::new();
        for peer in (0..self.devices.len()).filter(|&peer| self.has_peers && peer != device) {
            objects.push(self.memory(peer, LOCAL_MEMORY, PAGE)?);
        }
        for bytes in [6 << 20].into_iter().chain([PAGE; 14]).chain([70 << 20]) {
            objects.push(self.memory(device, LOCAL_MEMORY, bytes)?);
        }
        let local = self.memory(device, LOCAL_MEMORY, Kernel::local_bytes(1024))?;
        objects.push(self.memory(device, SYSTEM_MEMORY, 70 << 20)?);
        let group = self.alloc(self.devices[device], CHANNEL_GROUP, [0; 16]).unwrap_or(0);
        for _ in 0..20 {
            objects.extend(self.alloc(group, CHANNEL, [0; 16]));
        }
        objects.push(group);
        let (streams, execs) = ((0, 0), (0, 0));
        let created = OfContext {
            device,
            objects,
            local,
            streams,
            execs,
        };
        self.contexts.insert(context, created);
        Ok(())
    }

    pub fn destroy_context(&mut self, context: Handle) {
        if let Some(gone) = self.contexts.remove(&context) {
            self.free(gone.local);
            gone.objects.into_iter().for_each(|object| self.free(object));
        }
    }

    pub fn limit_stack(&mut self, context: Handle, bytes: u64) -> Outcome {
        let Some(known) = self.contexts.get(&context) else {
            return Ok(());
        };
        let (device, before) = (known.device, known.local);
        self.free(before);
        let local = self.memory(device, LOCAL_MEMORY, Kernel::local_bytes(bytes))?;
        if let Some(known) = self.contexts.get_mut(&context) {
            known.local = local;
        }
        Ok(())
    }

    /// Whether a block has memory of its own.
    pub fn is_large(bytes: u64) -> bool {
        bytes > SMALL
    }

    pub fn touch(&mut self, device: usize, address: u64, bytes: u64) -> Outcome {
        if Kernel::is_large(bytes) {
            return self.take(device, address, bytes);
        }
        for page in address / PAGE..=(address + bytes.max(1) - 1) / PAGE {
            if let Some((_, users)) = self.pages.get_mut(&page) {
                *users += 1;
            } else {
                let object = self.memory(device, LOCAL_MEMORY, PAGE)?;
                self.pages.insert(page, (object, 1));
            }
        }
        Ok(())
    }

    pub fn leave(&mut self, address: u64, bytes: u64) {
        if Kernel::is_large(bytes) {
            return self.give_back(address);
        }
        for page in address / PAGE..=(address + bytes.max(1) - 1) / PAGE {
            let Some((object, users)) = self.pages.get_mut(&page) else {
                continue;
            };
            *users -= 1;
            if *users == 0 {
                let object = *object;
                self.pages.remove(&page);
                self.free(object);
            }
        }
    }

    /// Memory of its own for a block or an object.
    pub fn take(&mut self, device: usize, of: u64, bytes: u64) -> Outcome {
        let object = self.memory(device, LOCAL_MEMORY, bytes.next_multiple_of(PAGE))?;
        self.whole.insert(of, object);
        Ok(())
    }

    pub fn take_host(&mut self, device: usize, of: u64, bytes: u64) -> Outcome {
        let object = self.memory(device, SYSTEM_MEMORY, bytes.next_multiple_of(4096))?;
        self.whole.insert(of, object);
        Ok(())
    }

    pub fn give_back(&mut self, of: u64) {
        if let Some(object) = self.whole.remove(&of) {
            self.free(object);
        }
    }

    pub fn resize_pool(&mut self, device: usize, pool: Handle, bytes: u64) -> Outcome {
        let wanted = bytes.div_ceil(CHUNK) as usize;
        let mut chunks = self.chunks.remove(&pool).unwrap_or_default();
        while chunks.len() > wanted {
            chunks.pop().into_iter().for_each(|object| self.free(object));
        }
        while chunks.len() < wanted {
            chunks.push(self.memory(device, LOCAL_MEMORY, CHUNK)?);
        }
        self.chunks.insert(pool, chunks);
        Ok(())
    }

    pub fn create_stream(&mut self, context: Handle) -> Outcome {
        self.share(context, |of| &mut of.streams, STREAMS_PER_PAGE)
    }

    pub fn destroy_stream(&mut self, context: Handle) {
        if let Some(of) = self.contexts.get_mut(&context) {
            of.streams.0 = of.streams.0.saturating_sub(1);
        }
    }

    pub fn create_exec(&mut self, context: Handle) -> Outcome {
        self.share(context, |of| &mut of.execs, EXECS_PER_PAGE)
    }

    pub fn destroy_exec(&mut self, context: Handle) {
        if let Some(of) = self.contexts.get_mut(&context) {
            of.execs.0 = of.execs.0.saturating_sub(1);
        }
    }

    /// One more of what shares pages: how many there are, and how many pages they have.
    fn share(&mut self, context: Handle, of: fn(&mut OfContext) -> &mut (u64, u64), per_page: u64) -> Outcome {
        let Some(known) = self.contexts.get_mut(&context) else {
            return Ok(());
        };
        let device = known.device;
        let (count, pages) = of(known);
        *count += 1;
        if *count <= *pages * per_page {
            return Ok(());
        }
        *pages += 1;
        let object = self.memory(device, LOCAL_MEMORY, PAGE)?;
        if let Some(known) = self.contexts.get_mut(&context) {
            known.objects.push(object);
        }
        Ok(())
    }
}

impl Driver {
    /// Calls `work` if the kernel driver's side is imitated.
    pub fn in_kernel(&mut self, work: impl FnOnce(&mut Kernel) -> Outcome) -> Outcome {
        self.kernel.as_mut().map_or(Ok(()), work)
    }
}
