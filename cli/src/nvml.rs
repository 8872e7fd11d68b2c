//! The six NVML functions that `usage` asks, from the library of the driver, opened at run time.
//!
//! Declarations follow NVIDIA's nvml.h; NVML keeps functions of one name and version compatible for ever.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use libloading::{Library, Symbol};

/// The name that the driver installs; the one without a version comes with development packages.
const FILE: &str = "libnvidia-ml.so.1";
const SUCCESS: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;
/// NVML's word for a size that it does not know.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Processes are listed again with more room if there are more than this.
const ROOM: c_uint = 64;

/// A device of NVML's, valid as long as the library stays initialized.
#[derive(Clone, Copy)]
pub struct Device(*mut c_void);

/// `nvmlMemory_v2_t`. Bytes.
#[repr(C)]
pub struct Memory {
    version: c_uint,
    pub total: u64,
    /// Kept by the driver for itself.
    pub reserved: u64,
    pub free: u64,
    /// In use by processes, `reserved` not included.
    pub used: u64,
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProcessInfo {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// A process that uses a device.
pub struct Process {
    pub pid: u32,
    /// `None` if NVML does not know.
    pub used_bytes: Option<u64>,
}

pub enum Error {
    /// The library cannot be loaded, or lacks a function.
    Library(libloading::Error),
    /// A function failed: its name and NVML's words.
    Failed(&'static str, String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Library(error) => write!(
                out,
                "NVML is not available ({FILE} comes with the NVIDIA driver): {error}"
            ),
            Error::Failed(function, words) => write!(out, "{function} failed: {words}"),
        }
    }
}

impl From<libloading::Error> for Error {
    fn from(error: libloading::Error) -> Error {
        Error::Library(error)
    }
}

/// NVML, initialized until this is dropped.
pub struct Nvml(Library);

impl Nvml {
    pub fn init() -> Result<Nvml, Error> {
        // SAFETY: the driver's own library, whose constructors any CUDA program runs.
        let nvml = Nvml(unsafe { Library::new(FILE) }?);
        // SAFETY: declared as in nvml.h.
        let init: Symbol<unsafe extern "C" fn() -> c_int> = unsafe { nvml.0.get(b"nvmlInit_v2\0") }?;
        // SAFETY: no preconditions.
        nvml.check("nvmlInit_v2", unsafe { init() })?;
        Ok(nvml)
    }

    /// `580.65.06`.
    pub fn driver_version(&self) -> Result<String, Error> {
        type Function = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
        // SAFETY: declared as in nvml.h.
        let ask: Symbol<Function> = unsafe { self.0.get(b"nvmlSystemGetDriverVersion\0") }?;
        let mut text = [0 as c_char; 96];
        // SAFETY: the buffer is as long as is said.
        let result = unsafe { ask(text.as_mut_ptr(), text.len() as c_uint - 1) };
        self.check("nvmlSystemGetDriverVersion", result)?;
        // SAFETY: the last byte stays 0.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// The device with this UUID, `GPU-…` or `MIG-…`.
    pub fn device(&self, uuid: &str) -> Result<Device, Error> {
        type Function = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
        // SAFETY: declared as in nvml.h.
        let ask: Symbol<Function> = unsafe { self.0.get(b"nvmlDeviceGetHandleByUUID\0") }?;
        let name = CString::new(uuid.replace('\0', "")).unwrap_or_default();
        let mut device = ptr::null_mut();
        // SAFETY: a C string, and room for a handle.
        let result = unsafe { ask(name.as_ptr(), &mut device) };
        self.check("nvmlDeviceGetHandleByUUID", result)?;
        Ok(Device(device))
    }

    pub fn memory(&self, device: Device) -> Result<Memory, Error> {
        type Function = unsafe extern "C" fn(*mut c_void, *mut Memory) -> c_int;
        // SAFETY: declared as in nvml.h.
        let ask: Symbol<Function> = unsafe { self.0.get(b"nvmlDeviceGetMemoryInfo_v2\0") }?;
        let mut memory = Memory {
            // NVML_STRUCT_VERSION(Memory, 2).
            version: size_of::<Memory>() as c_uint | 2 << 24,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: the struct is of the version that it names.
        let result = unsafe { ask(device.0, &mut memory) };
        self.check("nvmlDeviceGetMemoryInfo_v2", result)?;
        Ok(memory)
    }

    /// The processes that use the device for computing or for graphics, each once, by pid.
    pub fn processes(&self, device: Device) -> Vec<Process> {
        let mut all = self.list("nvmlDeviceGetComputeRunningProcesses_v3", device);
        all.extend(self.list("nvmlDeviceGetGraphicsRunningProcesses_v3", device));
        all.sort_by_key(|process| process.pid);
        // A process that computes and draws is in both lists, with the same size.
        all.dedup_by_key(|process| process.pid);
        let process = |info: &ProcessInfo| Process {
            pid: info.pid,
            used_bytes: (info.used_bytes != NOT_AVAILABLE).then_some(info.used_bytes),
        };
        all.iter().map(process).collect()
    }

    /// Empty if NVML does not list processes here.
    fn list(&self, function: &'static str, device: Device) -> Vec<ProcessInfo> {
        type Function = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int;
        // SAFETY: declared as in nvml.h; both functions are of one type.
        let Ok(ask) = (unsafe { self.0.get::<Function>(function.as_bytes()) }) else {
            return Vec::new();
        };
        let none = ProcessInfo {
            pid: 0,
            used_bytes: 0,
            gpu_instance: 0,
            compute_instance: 0,
        };
        let mut count = ROOM;
        loop {
            let mut found = vec![none; count as usize];
            // SAFETY: there is room for `count` entries.
            let result = unsafe { ask(device.0, &mut count, found.as_mut_ptr()) };
            match result {
                SUCCESS => {
                    found.truncate(count as usize);
                    return found;
                }
                // `count` says how many there are; more may start meanwhile.
                INSUFFICIENT_SIZE if count as usize > found.len() => count += ROOM,
                _ => return Vec::new(),
            }
        }
    }

    fn check(&self, function: &'static str, result: c_int) -> Result<(), Error> {
        if result == SUCCESS {
            return Ok(());
        }
        // SAFETY: declared as in nvml.h.
        let words = unsafe {
            self.0
                .get::<unsafe extern "C" fn(c_int) -> *const c_char>(b"nvmlErrorString\0")
        };
        let words = words.map_or(ptr::null(), |words| {
            // SAFETY: any number may be asked about.
            unsafe { words(result) }
        });
        Err(Error::Failed(
            function,
            if words.is_null() {
                format!("error {result}")
            } else {
                // SAFETY: a constant C string of NVML's.
                unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
            },
        ))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: declared as in nvml.h, and called once.
        if let Ok(shutdown) = unsafe { self.0.get::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown\0") } {
            // SAFETY: initialized in `init`.
            unsafe { shutdown() };
        }
    }
}
