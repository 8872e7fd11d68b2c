//! The entry of every exported function: life cycle, injected failures, the log, the lock.
//!
//! ```text
//! before cuInit           3 CUDA_ERROR_NOT_INITIALIZED
//! initialized             the function
//! after exit handlers     4 CUDA_ERROR_DEINITIALIZED
//! in a forked child       3 (nothing works after fork once the parent had initialized)
//! ```

use crate::driver::Driver;
use crate::settings::Settings;
use cudarc::driver::sys::CUresult;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The result of a driver function; `Err` is never `CUDA_SUCCESS`.
pub type Outcome<T = ()> = Result<T, CUresult>;

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

/// Process that initialized the driver; 0: none yet; `GONE`: its exit handlers ran.
static OWNER: AtomicI32 = AtomicI32::new(0);
const GONE: i32 = -1;

/// A function that needs an initialized driver.
pub fn enter(name: &'static str, body: impl FnOnce(&mut Driver) -> Outcome) -> c_uint {
    let result = match alive() {
        Err(error) => error as c_uint,
        Ok(()) => {
            let mut guard = lock();
            let Some(driver) = guard.as_mut() else {
                return CUresult::CUDA_ERROR_NOT_INITIALIZED as c_uint;
            };
            driver.called = name;
            let result = match driver.failures.of(name) {
                Some(injected) => injected,
                None => number(body(driver)),
            };
            let after = std::mem::take(&mut driver.after);
            drop(guard);
            after.into_iter().for_each(|callback| callback());
            result
        }
    };
    log(name, result);
    result
}

/// A function that works at any time and needs no driver state.
pub fn enter_early(name: &'static str, body: impl FnOnce() -> Outcome) -> c_uint {
    let result = number(body());
    log(name, result);
    result
}

/// `cuInit`.
pub fn initialize(flags: c_uint) -> Outcome {
    // SAFETY: getpid has no preconditions.
    let process = unsafe { libc::getpid() };
    match OWNER.load(Ordering::Acquire) {
        GONE => return Err(CUresult::CUDA_ERROR_DEINITIALIZED),
        0 => {}
        owner if owner == process => return Ok(()),
        _ => return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut guard = lock();
    if guard.is_none() {
        let mut settings = Settings::from_environment();
        if settings.devices == 0 {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        if let Some(injected) = settings.failures.of("cuInit") {
            return Err(crate::names::result(injected).unwrap_or(CUresult::CUDA_ERROR_UNKNOWN));
        }
        *guard = Some(Driver::new(settings).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?);
        // SAFETY: `leave` is an extern "C" function of this library and stays loaded while it is registered: glibc runs a
        // library's handlers when the library is unloaded.
        unsafe { libc::atexit(leave) };
        // Release: pairs with the Acquire in `alive`, so a thread that reads the owner finds the driver built.
        OWNER.store(process, Ordering::Release);
    }
    Ok(())
}

extern "C" fn leave() {
    // SAFETY: getpid has no preconditions.
    if OWNER.load(Ordering::Acquire) == unsafe { libc::getpid() } {
        OWNER.store(GONE, Ordering::Release);
    }
}

/// Checked before the lock is touched: in a forked child another thread may have held it.
pub fn alive() -> Outcome {
    // SAFETY: getpid has no preconditions.
    let process = unsafe { libc::getpid() };
    match OWNER.load(Ordering::Acquire) {
        GONE => Err(CUresult::CUDA_ERROR_DEINITIALIZED),
        owner if owner == process => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

fn lock() -> MutexGuard<'static, Option<Driver>> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(outcome: Outcome) -> c_uint {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS) as c_uint
}

/// A separate line in the log.
pub fn note(line: &str) {
    write_line(&format!("{line}\n"));
}

fn log(name: &str, result: c_uint) {
    if log_file().is_some() {
        write_line(&format!("{name} {result}\n"));
    }
}

fn log_file() -> Option<libc::c_int> {
    static FILE: OnceLock<Option<libc::c_int>> = OnceLock::new();
    *FILE.get_or_init(|| {
        let path = std::ffi::CString::new(crate::settings::variable("CULEAK_FAKE_LOG")?).ok()?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
        // SAFETY: the path is a NUL-terminated string that outlives the call.
        let file = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
        (file >= 0).then_some(file)
    })
}

/// One `write` per line, so that lines of several threads and processes do not mix.
fn write_line(line: &str) {
    if let Some(file) = log_file() {
        // SAFETY: the buffer is a live string of that length.
        unsafe { libc::write(file, line.as_ptr().cast(), line.len()) };
    }
}
