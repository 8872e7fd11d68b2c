//! The CUDA driver, opened at run time: the functions that `doctor` and the demo need, and the demo's program.
//!
//! This program must work on machines without a driver, so nothing is linked. Deliberately absent: the runtime library, and
//! all other functions.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::{fmt, ptr};

use culeak::proc::{self, Files};
use culeak::snapshot::uuid_text;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

pub mod demo_program;

/// The name by which CUDA programs open the driver.
pub const LIBRARY: &str = "libcuda.so.1";

const CUDA_SUCCESS: c_int = 0;

pub struct Driver {
    /// Never closed, since threads of the driver still run its code.
    libcuda: ManuallyDrop<Library>,
}

pub type Address = u64;

/// Why a driver function failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverError {
    Missing {
        function: &'static str,
    },
    Failed {
        function: &'static str,
        code: c_int,
        name: String,
    },
}

impl fmt::Display for DriverError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::Missing { function } => write!(out, "the driver has no function {function}"),
            DriverError::Failed { function, code, name } => write!(out, "{function} returned {code} ({name})"),
        }
    }
}

/// Calls a driver function by name. The argument types must be those of cuda.h.
macro_rules! call {
    ($driver:expr, $name:literal, $($argument:expr => $type:ty),*) => {{
        // SAFETY: every use of this macro states the signature in cuda.h, and passes pointers to live variables of the
        // pointed-to type.
        unsafe {
            match $driver.libcuda.get::<unsafe extern "C" fn($($type),*) -> c_int>($name) {
                Ok(function) => $driver.outcome($name, function($($argument),*)),
                Err(_) => Err(DriverError::Missing { function: $name }),
            }
        }
    }};
}

impl Driver {
    /// Opens the library and initializes it.
    ///
    /// # Errors
    /// The message of the loader or the driver.
    pub fn open() -> Result<Driver, String> {
        // SAFETY: opening runs the initializers of the CUDA driver, as in any CUDA program.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) }.map_err(in_full)?;
        let driver = Driver {
            libcuda: ManuallyDrop::new(library),
        };
        call!(driver, "cuInit", 0 => c_uint).map_err(|error| error.to_string())?;
        Ok(driver)
    }

    /// The outcome of a call: an error with its name unless the code is `CUDA_SUCCESS`.
    pub fn outcome(&self, function: &'static str, code: c_int) -> Result<(), DriverError> {
        if code == CUDA_SUCCESS {
            Ok(())
        } else {
            Err(DriverError::Failed {
                function,
                code,
                name: self.error_name(code),
            })
        }
    }

    fn error_name(&self, code: c_int) -> String {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the signature is that of cuda.h; the driver stores a pointer to a constant string, or leaves null.
        unsafe {
            if let Ok(function) = self
                .libcuda
                .get::<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>("cuGetErrorName")
            {
                function(code, &raw mut name);
            }
            if name.is_null() {
                "unknown error".to_owned()
            } else {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            }
        }
    }

    /// 13000 for CUDA 13.0.
    pub fn version(&self) -> Result<c_int, DriverError> {
        let mut version = 0;
        call!(self, "cuDriverGetVersion", &raw mut version => *mut c_int)?;
        Ok(version)
    }

    pub fn device_count(&self) -> Result<c_int, DriverError> {
        let mut count = 0;
        call!(self, "cuDeviceGetCount", &raw mut count => *mut c_int)?;
        Ok(count)
    }

    /// The properties of the device with this ordinal.
    pub fn device(&self, ordinal: c_int) -> Result<Device, DriverError> {
        let mut device: c_int = 0;
        call!(self, "cuDeviceGet", &raw mut device => *mut c_int, ordinal => c_int)?;
        let mut name = [0u8; 256];
        call!(self, "cuDeviceGetName", name.as_mut_ptr().cast() => *mut c_char, 255 => c_int, device => c_int)?;
        let mut bytes: usize = 0;
        call!(self, "cuDeviceTotalMem_v2", &raw mut bytes => *mut usize, device => c_int)?;
        let mut uuid = [0u8; 16];
        let newer = call!(self, "cuDeviceGetUuid_v2", uuid.as_mut_ptr().cast() => *mut c_void, device => c_int);
        let found =
            newer.or_else(|_| call!(self, "cuDeviceGetUuid", uuid.as_mut_ptr().cast() => *mut c_void, device => c_int));
        let name = CStr::from_bytes_until_nul(&name)
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let uuid = found
            .map(|()| uuid_text(if name.contains(" MIG ") { "MIG" } else { "GPU" }, &uuid))
            .unwrap_or_default();
        Ok(Device {
            ordinal,
            name,
            uuid,
            total_bytes: bytes as u64,
        })
    }

    /// Makes the device's primary context current in this thread.
    pub fn use_device(&self, ordinal: c_int) -> Result<(), DriverError> {
        let mut device: c_int = 0;
        call!(self, "cuDeviceGet", &raw mut device => *mut c_int, ordinal => c_int)?;
        let mut context: *mut c_void = ptr::null_mut();
        call!(self, "cuDevicePrimaryCtxRetain", &raw mut context => *mut *mut c_void, device => c_int)?;
        call!(self, "cuCtxSetCurrent", context => *mut c_void)
    }

    /// The address of a driver function, for callers whose frames must appear in the stack.
    ///
    /// # Errors
    /// The driver has no such function.
    ///
    /// # Safety
    /// `F` must be a function pointer type with the signature that cuda.h gives the function.
    pub unsafe fn function<F: Copy>(&self, name: &'static str) -> Result<F, DriverError> {
        // SAFETY: the caller guarantees the type; the library stays open until the process ends.
        let found = unsafe { self.libcuda.get::<F>(name) };
        found
            .map(|function| *function)
            .map_err(|_| DriverError::Missing { function: name })
    }

    pub fn synchronize(&self) -> Result<(), DriverError> {
        call!(self, "cuStreamSynchronize", ptr::null_mut() => *mut c_void)
    }
}

/// The message of the loader, without that of libloading.
fn in_full(error: libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |source| source.to_string())
}

/// The answers of a driver, gathered in a child process; see `probe`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// The file from which the library was loaded.
    pub file: String,
    pub version: c_int,
    pub devices: Vec<Device>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub ordinal: c_int,
    pub name: String,
    pub uuid: String,
    pub total_bytes: u64,
}

impl Findings {
    /// Opens the driver in this process and queries it.
    ///
    /// # Errors
    /// The first error, with the message of the loader or the driver.
    pub fn gather() -> Result<Findings, String> {
        let driver = Driver::open()?;
        let ask = || {
            let devices = (0..driver.device_count()?)
                .map(|ordinal| driver.device(ordinal))
                .collect::<Result<_, _>>()?;
            Ok(Findings {
                file: loaded_from(),
                version: driver.version()?,
                devices,
            })
        };
        ask().map_err(|error: DriverError| error.to_string())
    }

    /// `13.0`
    pub fn cuda_version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }
}

/// The path of the library, from the memory map.
fn loaded_from() -> String {
    let mappings = proc::mappings(std::process::id()).unwrap_or_default();
    let driver = Files::of(&mappings).driver;
    driver.map_or_else(|| LIBRARY.to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_function_code_and_meaning() {
        let error = DriverError::Failed {
            function: "cuInit",
            code: 100,
            name: "CUDA_ERROR_NO_DEVICE".to_owned(),
        };
        assert_eq!(error.to_string(), "cuInit returned 100 (CUDA_ERROR_NO_DEVICE)");
    }
}
