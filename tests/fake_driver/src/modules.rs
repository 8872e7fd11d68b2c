//! Modules, libraries and launches: code is accepted and never run.

use crate::arguments::{In, Out};
use crate::driver::{Driver, Handle};
use crate::exports::exports;
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::*;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};

pub struct Module {
    /// A library belongs to no context.
    context: Option<Handle>,
    device: usize,
    functions: HashMap<String, Handle>,
    globals: HashMap<String, u64>,
}

/// The size of every global variable, since the image is not read.
const GLOBAL_BYTES: u64 = 4096;

impl Driver {
    fn load(&mut self, context: Option<Handle>) -> Outcome<Handle> {
        let device = context.map_or(0, |context| self.contexts[&context].device);
        let handle = self.new_handle();
        if context.is_some() {
            self.in_kernel(|kernel| kernel.take(device, handle, crate::kernel::PAGE))?;
        }
        self.modules.insert(
            handle,
            Module {
                context,
                device,
                functions: HashMap::new(),
                globals: HashMap::new(),
            },
        );
        Ok(handle)
    }

    pub fn load_module<T>(&mut self, out: Out<*mut T>) -> Outcome {
        out.check()?;
        let context = self.current()?;
        out.put(self.load(Some(context))? as *mut T)
    }

    pub fn load_library<T>(&mut self, out: Out<*mut T>) -> Outcome {
        out.check()?;
        out.put(self.load(None)? as *mut T)
    }

    pub fn unload(&mut self, handle: Handle) -> Outcome {
        let module = self.modules.remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for function in module.functions.into_values() {
            self.drop_handle(function);
        }
        for address in module.globals.into_values() {
            self.devices[module.device].addresses.give_back(address, GLOBAL_BYTES);
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.give_back(handle);
            kernel.give_back(!handle);
        }
        self.drop_handle(handle);
        Ok(())
    }

    pub fn forget_modules_of(&mut self, context: Handle) {
        let owned: Vec<Handle> = self
            .modules
            .iter()
            .filter(|(_, module)| module.context == Some(context))
            .map(|(handle, _)| *handle)
            .collect();
        for handle in owned {
            let _ = self.unload(handle);
        }
    }

    pub fn find_function<T>(&mut self, out: Out<*mut T>, module: Handle, name: In<c_char>) -> Outcome {
        out.put(self.function(module, name)? as *mut T)
    }

    /// The code of a module's first function takes memory.
    fn function(&mut self, module: Handle, name: In<c_char>) -> Outcome<Handle> {
        let name = name.text()?;
        let known = self.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(function) = known.functions.get(&name) {
            return Ok(*function);
        }
        let (is_first, is_module, device) = (known.functions.is_empty(), known.context.is_some(), known.device);
        if is_first && is_module {
            self.in_kernel(|kernel| kernel.take(device, !module, crate::kernel::PAGE))?;
        }
        let handle = self.new_handle();
        if let Some(module) = self.modules.get_mut(&module) {
            module.functions.insert(name, handle);
        }
        Ok(handle)
    }

    fn global(&mut self, module: Handle, name: In<c_char>) -> Outcome<u64> {
        let name = name.text()?;
        let known = self.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let device = known.device;
        if let Some(address) = known.globals.get(&name) {
            return Ok(*address);
        }
        let address = self.devices[device]
            .addresses
            .take(GLOBAL_BYTES)
            .ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if let Some(module) = self.modules.get_mut(&module) {
            module.globals.insert(name, address);
        }
        Ok(address)
    }

    fn launch_kernel(&mut self, function: CUfunction, stream: CUstream) -> Outcome {
        self.current()?;
        if function.is_null() {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        self.check_stream(stream)?;
        self.note_captured(stream, 0);
        Ok(())
    }
}

exports! {
    fn cuModuleGetLoadingMode(out: Out<c_uint>) |_driver| { out.put(2) }
    fn cuModuleGetGlobal_v2(out: Out<CUdeviceptr>, bytes: Out<usize>, module: CUmodule, name: In<c_char>) |driver| {
        out.put_if_wanted(driver.global(module as Handle, name)?);
        bytes.put_if_wanted(GLOBAL_BYTES as usize);
        Ok(())
    }
    fn cuLibraryGetModule(out: Out<CUmodule>, library: CUlibrary) |driver| {
        driver.modules.get(&(library as Handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        out.put(library as CUmodule)
    }
    fn cuLibraryGetGlobal(out: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: In<c_char>) |driver| {
        out.put_if_wanted(driver.global(library as Handle, name)?);
        bytes.put_if_wanted(GLOBAL_BYTES as usize);
        Ok(())
    }
    fn cuLibraryGetManaged(out: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: In<c_char>) |driver| {
        out.put_if_wanted(driver.global(library as Handle, name)?);
        bytes.put_if_wanted(GLOBAL_BYTES as usize);
        Ok(())
    }
    fn cuKernelGetFunction(out: Out<CUfunction>, kernel: CUkernel) |_driver| { out.put(kernel as CUfunction) }
    fn cuFuncLoad(_function: CUfunction) |_driver| { Ok(()) }
    fn cuFuncGetAttribute(out: Out<c_int>, _attribute: c_uint, _function: CUfunction) |_driver| { out.put(0) }
    fn cuFuncSetAttribute(_function: CUfunction, _attribute: c_uint, _value: c_int) |_driver| { Ok(()) }
    fn cuFuncSetCacheConfig(_function: CUfunction, _config: c_uint) |_driver| { Ok(()) }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<c_int>, _function: CUfunction, _size: c_int, _shared: usize) |_driver| {
        out.put(1)
    }
    fn [cuLaunchKernel, cuLaunchKernel_ptsz] (
        function: CUfunction, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint, stream: CUstream, _params: In<c_void>, _extra: In<c_void>
    ) |driver| { driver.launch_kernel(function, stream) }
    fn [cuLaunchKernelEx, cuLaunchKernelEx_ptsz] (config: In<CUlaunchConfig>, function: CUfunction, _params: In<c_void>, _extra: In<c_void>) |driver| {
        let stream = config.field(std::mem::offset_of!(CUlaunchConfig, hStream)).get()?;
        driver.launch_kernel(function, stream)
    }
    fn cuProfilerStart() |_driver| { Ok(()) }
    fn cuProfilerStop() |_driver| { Ok(()) }
}
