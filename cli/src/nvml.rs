//! The NVML functions that `usage` calls, looked up at run time in the library of the driver.
//!
//! The declarations follow NVIDIA's nvml.h.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::{fmt, ptr};

use culeak::snapshot::GroupLimits;
use libloading::Library;

/// The name that the driver installs; the one without a version comes with development packages.
const FILE: &str = "libnvidia-ml.so.1";
const SUCCESS: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;
/// NVML's value for an unknown size.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Room for this many processes at first; for this many more if the list is longer.
const ROOM: c_uint = 64;
/// A list that outgrows its room this often is not read.
const ATTEMPTS: usize = 4;
/// Under the names of version 3, these drivers list processes with one more field per process.
const DRIVERS_WITH_ANOTHER_LIST: [&str; 3] = ["535.43", "535.54", "535.86"];

/// `nvmlMemory_v2_t`. Bytes.
#[repr(C)]
#[derive(Default)]
pub struct Memory {
    version: c_uint,
    pub total: u64,
    /// Kept by the driver for itself.
    pub reserved: u64,
    free: u64,
    /// In use by processes, `reserved` not included.
    pub used: u64,
}

/// `nvmlProcessInfo_t`: a process that uses a device.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Process {
    pub pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlGetMemoryLimits_v1_t`. Bytes; a soft limit of 0 and a hard limit of `u64::MAX` are none.
#[repr(C)]
struct MemoryLimits {
    /// The folder of a control group.
    name_space: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

const _: () = assert!(size_of::<Memory>() == 40 && size_of::<Process>() == 24, "as in nvml.h");
const _: () = assert!(size_of::<MemoryLimits>() == 32, "as in nvml.h");

impl Process {
    /// `None` if NVML does not know.
    pub fn used_bytes(&self) -> Option<u64> {
        (self.used_bytes != NOT_AVAILABLE).then_some(self.used_bytes)
    }
}

pub enum Error {
    /// The library cannot be loaded, or lacks a function.
    Library(libloading::Error),
    /// A function failed: its name, its return code, and NVML's description of the code.
    Failed(&'static str, c_int, String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Library(error) => write!(
                out,
                "NVML is not available ({FILE} comes with the NVIDIA driver, 510 or newer): {error}"
            ),
            Error::Failed(function, _, why) => write!(out, "{function} failed: {why}"),
        }
    }
}

/// Looks up an NVML function and calls it. The types must be those of nvml.h, and pointers valid during the call.
macro_rules! call {
    ($nvml:expr, $name:expr $(, $value:expr => $type:ty)*) => {
        // SAFETY: every use of this macro names the types of nvml.h.
        match unsafe { $nvml.0.get::<unsafe extern "C" fn($($type),*) -> c_int>($name) } {
            // SAFETY: every pointer refers to a local variable of the caller, or is a device of this library.
            Ok(function) => $nvml.check($name, unsafe { function($($value),*) }),
            Err(error) => Err(Error::Library(error)),
        }
    };
}

/// NVML, initialized until this is dropped.
pub struct Nvml(Library);

impl Nvml {
    pub fn init() -> Result<Nvml, Error> {
        // SAFETY: the library of the driver, which runs its initializers in every program that uses NVML.
        let nvml = Nvml(unsafe { Library::new(FILE) }.map_err(Error::Library)?);
        call!(nvml, "nvmlInit_v2")?;
        Ok(nvml)
    }

    /// For example `580.65.06`.
    pub fn driver_version(&self) -> Result<String, Error> {
        let mut text = [0 as c_char; 96];
        let room = text.len() as c_uint - 1;
        call!(self, "nvmlSystemGetDriverVersion", text.as_mut_ptr() => *mut c_char, room => c_uint)?;
        // SAFETY: the last byte stays 0.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// The device with this UUID, `GPU-…` or `MIG-…`.
    pub fn device(&self, uuid: &str) -> Result<Device<'_>, Error> {
        let uuid = CString::new(uuid).unwrap_or_default();
        let mut handle = ptr::null_mut();
        call!(self, "nvmlDeviceGetHandleByUUID", uuid.as_ptr() => *const c_char, &mut handle => *mut *mut c_void)?;
        Ok(Device { nvml: self, handle })
    }

    /// All devices that NVML knows here.
    pub fn devices(&self) -> Result<Vec<Device<'_>>, Error> {
        let mut count: c_uint = 0;
        call!(self, "nvmlDeviceGetCount_v2", &mut count => *mut c_uint)?;
        let device = |index: c_uint| -> Result<Device<'_>, Error> {
            let mut handle = ptr::null_mut();
            call!(self, "nvmlDeviceGetHandleByIndex_v2", index => c_uint, &mut handle => *mut *mut c_void)?;
            Ok(Device { nvml: self, handle })
        };
        (0..count).map(device).collect()
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: declared as in nvml.h.
        let describe = unsafe {
            self.0
                .get::<unsafe extern "C" fn(c_int) -> *const c_char>("nvmlErrorString")
        };
        // SAFETY: every code has a description; NVML returns a constant C string.
        let text = describe.map(|describe| unsafe { CStr::from_ptr(describe(code)) }.to_string_lossy().into_owned());
        Err(Error::Failed(
            function,
            code,
            text.unwrap_or_else(|_| format!("error {code}")),
        ))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // Nothing is left to do if it fails. NVML accepts the call without a successful `nvmlInit_v2`.
        let _ = call!(self, "nvmlShutdown");
    }
}

/// A device, valid as long as NVML is initialized.
pub struct Device<'n> {
    nvml: &'n Nvml,
    handle: *mut c_void,
}

impl Device<'_> {
    pub fn memory(&self) -> Result<Memory, Error> {
        let mut memory = Memory {
            // NVML_STRUCT_VERSION(Memory, 2).
            version: size_of::<Memory>() as c_uint | 2 << 24,
            ..Memory::default()
        };
        call!(self.nvml, "nvmlDeviceGetMemoryInfo_v2", self.handle => *mut c_void, &mut memory => *mut Memory)?;
        Ok(memory)
    }

    /// How many bytes of the device the processes of the control group with this folder may have. A driver that is older than
    /// CUDA 13.4 has no limits.
    pub fn limits(&self, group: &CStr) -> GroupLimits {
        let mut limits = MemoryLimits {
            name_space: group.as_ptr(),
            soft: 0,
            hard: u64::MAX,
            used: 0,
        };
        let asked = call!(self.nvml, "nvmlDeviceGetMemoryLimits_v1", self.handle => *mut c_void, &mut limits => *mut MemoryLimits);
        GroupLimits {
            limit_bytes: (asked.is_ok() && limits.hard != u64::MAX).then_some(limits.hard),
            soft_limit_bytes: (asked.is_ok() && limits.soft > 0).then_some(limits.soft),
        }
    }

    /// The processes that use the device for computing or graphics, each once, by pid. Empty if NVML cannot list them here.
    pub fn processes(&self) -> Vec<Process> {
        let version = self.nvml.driver_version().unwrap_or_default();
        if DRIVERS_WITH_ANOTHER_LIST
            .iter()
            .any(|driver| version.starts_with(driver))
        {
            return Vec::new();
        }
        let mut all = self.list("nvmlDeviceGetComputeRunningProcesses_v3");
        all.extend(self.list("nvmlDeviceGetGraphicsRunningProcesses_v3"));
        all.sort_by_key(|process| process.pid);
        // A process that does both is in both lists, with the same size.
        all.dedup_by_key(|process| process.pid);
        all
    }

    fn list(&self, function: &'static str) -> Vec<Process> {
        let mut count = ROOM;
        for _ in 0..ATTEMPTS {
            let mut list = vec![Process::default(); count as usize];
            let listed = call!(self.nvml, function, self.handle => *mut c_void, &mut count => *mut c_uint,
                list.as_mut_ptr() => *mut Process);
            match listed {
                Ok(()) => {
                    list.truncate(count as usize);
                    return list;
                }
                // `count` is now the number of processes; more may start before the next attempt.
                Err(Error::Failed(_, INSUFFICIENT_SIZE, _)) => count = count.saturating_add(ROOM),
                Err(_) => break,
            }
        }
        Vec::new()
    }
}
