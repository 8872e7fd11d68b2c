//! Contexts: primary ones counted per device, created ones, and each thread's stack of current contexts.
//!
//! Destroying or resetting a context frees its linear, host and managed memory, arrays, streams, events and modules,
//! but neither pool nor VMM memory, exactly as the real driver does.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::cell::Cell;
use std::ffi::{c_int, c_uint};

pub struct Context {
    pub device: usize,
    pub primary: bool,
    /// Retains of a primary context, attachments of another.
    pub count: u64,
    /// A primary context has a handle even while it holds nothing.
    pub alive: bool,
    pub flags: c_uint,
    pub id: u64,
    limits: [usize; 16],
}

impl Context {
    pub fn primary(device: usize) -> Context {
        Context {
            device,
            primary: true,
            count: 0,
            alive: false,
            flags: 0,
            id: device as u64 + 1,
            limits: LIMITS,
        }
    }
}

/// Stack, printf FIFO, heap, device runtime depth, pending launches, L2 fetch, persisting L2, …
const LIMITS: [usize; 16] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A thread's contexts, the current one on top. Plain data without a destructor: exit handlers run after a thread's
/// destructors and still have a current context.
#[derive(Clone, Copy)]
struct Stack {
    handles: [Handle; 64],
    depth: usize,
}

thread_local! {
    static CURRENT: Cell<Stack> = const { Cell::new(Stack { handles: [0; 64], depth: 0 }) };
}

fn current_handle() -> Handle {
    let stack = CURRENT.get();
    if stack.depth == 0 {
        0
    } else {
        stack.handles[stack.depth - 1]
    }
}

fn push_current(handle: Handle) -> Outcome {
    let mut stack = CURRENT.get();
    *stack.handles.get_mut(stack.depth).ok_or(CUDA_ERROR_OUT_OF_MEMORY)? = handle;
    stack.depth += 1;
    CURRENT.set(stack);
    Ok(())
}

fn pop_current() -> Option<Handle> {
    let mut stack = CURRENT.get();
    stack.depth = stack.depth.checked_sub(1)?;
    CURRENT.set(stack);
    Some(stack.handles[stack.depth])
}

fn set_current(handle: Handle) -> Outcome {
    pop_current();
    if handle == 0 { Ok(()) } else { push_current(handle) }
}

impl Driver {
    pub fn set_limit(&mut self, limit: c_uint, value: usize) -> Outcome {
        if limit == 0 {
            let context = self.current()?;
            self.in_kernel(|kernel| kernel.limit_stack(context, value as u64))?;
        }
        let limits = &mut self.context(std::ptr::null_mut())?.limits;
        *limits.get_mut(limit as usize).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)? = value;
        Ok(())
    }
}

impl Driver {
    /// The calling thread's context, for functions that need one.
    pub fn current(&self) -> Outcome<Handle> {
        match current_handle() {
            0 => Err(CUDA_ERROR_INVALID_CONTEXT),
            handle if self.contexts.get(&handle).is_some_and(|context| context.alive) => Ok(handle),
            _ => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        }
    }

    pub fn current_device(&self) -> Outcome<usize> {
        Ok(self.contexts[&self.current()?].device)
    }

    fn context(&mut self, handle: CUcontext) -> Outcome<&mut Context> {
        let handle = if handle.is_null() {
            self.current()?
        } else {
            handle as Handle
        };
        self.contexts.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub fn create_context(&mut self, out: Out<CUcontext>, flags: c_uint, device: CUdevice) -> Outcome {
        out.check()?;
        let device = self.ordinal(device)?;
        let (handle, id) = (self.new_handle(), self.next_serial() + 64);
        let context = Context {
            device,
            primary: false,
            count: 1,
            alive: true,
            flags,
            id,
            limits: LIMITS,
        };
        self.in_kernel(|kernel| kernel.create_context(handle, device))?;
        self.contexts.insert(handle, context);
        push_current(handle)?;
        out.put(handle as CUcontext)
    }

    pub fn destroy_context(&mut self, context: CUcontext) -> Outcome {
        let handle = context as Handle;
        match self.contexts.get(&handle) {
            Some(context) if !context.primary => {}
            _ => return Err(CUDA_ERROR_INVALID_CONTEXT),
        }
        self.free_everything_of(handle);
        self.contexts.remove(&handle);
        self.drop_handle(handle);
        if current_handle() == handle {
            pop_current();
        }
        Ok(())
    }

    pub fn attach_context(&mut self, out: Out<CUcontext>) -> Outcome {
        let handle = self.current()?;
        out.put(handle as CUcontext)?;
        self.context(handle as CUcontext)?.count += 1;
        Ok(())
    }

    pub fn detach_context(&mut self, context: CUcontext) -> Outcome {
        if context as Handle != self.current()? {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let counted = self.context(context)?;
        counted.count -= 1;
        if counted.count == 0 {
            self.destroy_context(context)
        } else {
            Ok(())
        }
    }

    pub fn retain_primary(&mut self, out: Out<CUcontext>, device: CUdevice) -> Outcome {
        out.check()?;
        let handle = self.device(device)?.primary;
        self.in_kernel(|kernel| kernel.create_context(handle, device as usize))?;
        let context = self.context(handle as CUcontext)?;
        context.count += 1;
        context.alive = true;
        out.put(handle as CUcontext)
    }

    pub fn release_primary(&mut self, device: CUdevice) -> Outcome {
        let handle = self.device(device)?.primary;
        let context = self.context(handle as CUcontext)?;
        if context.count == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        context.count -= 1;
        if context.count == 0 {
            context.alive = false;
            self.free_everything_of(handle);
        }
        Ok(())
    }

    /// Retains are kept; everything in the context is freed.
    pub fn reset_primary(&mut self, device: CUdevice) -> Outcome {
        let handle = self.device(device)?.primary;
        self.context(handle as CUcontext)?.alive = false;
        self.free_everything_of(handle);
        Ok(())
    }

    /// The primary context without a further retain, initialized: what cudart's private table returns.
    pub fn primary_for_runtime(&mut self, device: CUdevice) -> Outcome<Handle> {
        let handle = self.device(device)?.primary;
        self.in_kernel(|kernel| kernel.create_context(handle, device as usize))?;
        let context = self.context(handle as CUcontext)?;
        context.alive = true;
        context.count = context.count.max(1);
        Ok(handle)
    }

    fn free_everything_of(&mut self, context: Handle) {
        self.forget_memory_of(context);
        self.forget_arrays_of(context);
        self.forget_streams_of(context);
        self.forget_modules_of(context);
        self.forget_external_of(context);
        self.forget_local_storage_of(context);
        let plain: Vec<Handle> = self
            .plain
            .iter()
            .filter(|(_, owner)| **owner == Some(context))
            .map(|(handle, _)| *handle)
            .collect();
        for handle in plain {
            let _ = self.drop_plain(handle);
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.destroy_context(context);
        }
    }
}

exports! {
    fn cuCtxGetCurrent(out: Out<CUcontext>) |_driver| { out.put(current_handle() as CUcontext) }
    fn cuCtxSetCurrent(context: CUcontext) |driver| {
        if !context.is_null() && !driver.contexts.contains_key(&(context as Handle)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        set_current(context as Handle)
    }
    fn [cuCtxPushCurrent, cuCtxPushCurrent_v2] (context: CUcontext) |driver| {
        if !driver.contexts.contains_key(&(context as Handle)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        push_current(context as Handle)
    }
    fn [cuCtxPopCurrent, cuCtxPopCurrent_v2] (out: Out<CUcontext>) |_driver| {
        let popped = pop_current().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        out.put_if_wanted(popped as CUcontext);
        Ok(())
    }
    fn cuCtxGetDevice(out: Out<CUdevice>) |driver| { out.put(driver.current_device()? as CUdevice) }
    fn cuCtxGetDevice_v2(out: Out<CUdevice>, context: CUcontext) |driver| {
        out.put(driver.context(context)?.device as CUdevice)
    }
    fn cuCtxGetFlags(out: Out<c_uint>) |driver| { out.put(driver.context(std::ptr::null_mut())?.flags) }
    fn cuCtxSetFlags(flags: c_uint) |driver| {
        driver.context(std::ptr::null_mut())?.flags = flags;
        Ok(())
    }
    fn cuCtxGetId(context: CUcontext, out: Out<u64>) |driver| { out.put(driver.context(context)?.id) }
    fn cuCtxGetApiVersion(context: CUcontext, out: Out<c_uint>) |driver| {
        driver.context(context)?;
        out.put(3020)
    }
    fn cuCtxSynchronize() |driver| { driver.current().and_then(|_| driver.refuse_while_capturing()) }
    fn cuCtxSynchronize_v2(context: CUcontext) |driver| {
        driver.context(context)?;
        driver.refuse_while_capturing()
    }
    fn cuCtxGetLimit(out: Out<usize>, limit: c_uint) |driver| {
        out.put(*driver.context(std::ptr::null_mut())?.limits.get(limit as usize).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?)
    }
    fn cuCtxGetCacheConfig(out: Out<c_uint>) |driver| { driver.current().and_then(|_| out.put(0)) }
    fn cuCtxSetCacheConfig(_config: c_uint) |driver| { driver.current().map(|_| ()) }
    fn cuCtxGetSharedMemConfig(out: Out<c_uint>) |driver| { driver.current().and_then(|_| out.put(0)) }
    fn cuCtxSetSharedMemConfig(_config: c_uint) |driver| { driver.current().map(|_| ()) }
    fn cuCtxResetPersistingL2Cache() |driver| { driver.current().map(|_| ()) }
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) |driver| {
        driver.current()?;
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    }
    fn cuCtxEnablePeerAccess(peer: CUcontext, _flags: c_uint) |driver| { driver.context(peer).map(|_| ()) }
    fn cuCtxDisablePeerAccess(peer: CUcontext) |driver| { driver.context(peer).map(|_| ()) }
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<c_uint>, active: Out<c_int>) |driver| {
        let handle = driver.device(device)?.primary;
        let context = driver.context(handle as CUcontext)?;
        flags.put_if_wanted(context.flags);
        active.put(context.alive as c_int)
    }
    fn [cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2] (device: CUdevice, flags: c_uint) |driver| {
        let handle = driver.device(device)?.primary;
        driver.context(handle as CUcontext)?.flags = flags;
        Ok(())
    }
    fn cuDeviceGetExecAffinitySupport(out: Out<c_int>, _kind: c_uint, device: CUdevice) |driver| {
        driver.device(device)?;
        out.put(0)
    }
    fn cuCtxGetExecAffinity(_out: Out<u32>, _kind: In<u32>) |_driver| { Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY) }
}
