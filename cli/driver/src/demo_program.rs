//! The program that the demo records: it leaks memory in several known ways, in functions named after them.
//!
//! It is part of the command (the hidden `culeak demo-program`), so that the demo needs no compiler, and in this crate because its
//! leaks are named by line: it is compiled with line tables, and the rest of the command without. It prints
//! every leak that it plants, and `demo` compares the recording with these lines. Each of its two rounds makes the same leaks;
//! between them it waits for a line on standard input while the demo takes a snapshot. Deliberately absent: any knowledge of
//! being recorded.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, BufRead, Write};
use std::process;
use std::str::FromStr;
use std::{fmt, ptr};

use culeak::kind::Kind;

use crate::{Address, Driver, DriverError};

const MIB: usize = 1 << 20;
/// More than any GPU has.
const TOO_MUCH: usize = 1 << 50;

/// The first word of the line that ends a round.
pub const ROUND_DONE: &str = "round";

/// A leak or a failed request that a correct report contains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planted {
    /// `None` for a failed request.
    pub kind: Option<Kind>,
    pub bytes: u64,
    pub function: String,
}

impl fmt::Display for Planted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(
                out,
                "{} leaks {} bytes of {kind} memory",
                self.function,
                self.bytes,
                kind = kind.name()
            ),
            None => write!(out, "{} fails to allocate {} bytes", self.function, self.bytes),
        }
    }
}

impl FromStr for Planted {
    type Err = ();

    fn from_str(line: &str) -> Result<Planted, ()> {
        let words: Vec<&str> = line.split(' ').collect();
        let (function, bytes, kind) = match words[..] {
            [function, "leaks", bytes, "bytes", "of", kind, "memory"] => {
                (function, bytes, Some(Kind::from_name(kind).ok_or(())?))
            }
            [function, "fails", "to", "allocate", bytes, "bytes"] => (function, bytes, None),
            _ => return Err(()),
        };
        Ok(Planted {
            kind,
            bytes: bytes.parse().map_err(|_| ())?,
            function: function.to_owned(),
        })
    }
}

/// The driver functions, which the planting functions call directly, so that the stack shows them next to the driver.
struct Cuda {
    driver: Driver,
    allocate: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    free: unsafe extern "C" fn(Address) -> c_int,
    allocate_pinned: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    free_pinned: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Some virtual GPUs have no stream-ordered memory.
    allocate_async: Option<unsafe extern "C" fn(*mut Address, usize, *mut c_void) -> c_int>,
    free_async: Option<unsafe extern "C" fn(Address, *mut c_void) -> c_int>,
}

impl Cuda {
    fn of(driver: Driver) -> Result<Cuda, DriverError> {
        // SAFETY: the types of the fields are the signatures in cuda.h.
        unsafe {
            Ok(Cuda {
                allocate: driver.function("cuMemAlloc_v2")?,
                free: driver.function("cuMemFree_v2")?,
                allocate_pinned: driver.function("cuMemHostAlloc")?,
                free_pinned: driver.function("cuMemFreeHost")?,
                allocate_async: driver.function("cuMemAllocAsync").ok(),
                free_async: driver.function("cuMemFreeAsync").ok(),
                driver,
            })
        }
    }
}

/// Runs the program.
///
/// # Errors
/// The message of the loader or of the driver's function that failed.
pub fn execute() -> Result<(), String> {
    let driver = Driver::open()?;
    let cuda = driver
        .use_device(0)
        .and_then(|()| Cuda::of(driver))
        .map_err(|error| error.to_string())?;
    for round in 1..=2 {
        train(&cuda).map_err(|error| error.to_string())?;
        say(format_args!("{ROUND_DONE} {round} done in process {}", process::id()));
        if round == 1 {
            // The end of input counts as a line.
            let _ = io::stdin().lock().read_line(&mut String::new());
        }
    }
    Ok(())
}

#[inline(never)]
fn train(cuda: &Cuda) -> Result<(), DriverError> {
    well_behaved(cuda)?;
    forget_weights(cuda)?;
    forget_staging_buffer(cuda)?;
    forget_activations(cuda);
    ask_for_too_much(cuda);
    cuda.driver.synchronize()
}

/// Frees everything it allocates.
#[inline(never)]
fn well_behaved(cuda: &Cuda) -> Result<(), DriverError> {
    let (mut device, mut pinned, mut ordered) = (0, ptr::null_mut(), 0);
    // SAFETY: the out pointers lead to live variables; each address is freed once, by the function that matches its
    // allocation, and after the default stream has been synchronized.
    unsafe {
        cuda.driver
            .outcome("cuMemAlloc_v2", (cuda.allocate)(&raw mut device, 2 * MIB))?;
        cuda.driver
            .outcome("cuMemHostAlloc", (cuda.allocate_pinned)(&raw mut pinned, MIB, 0))?;
        if let (Some(allocate), Some(free)) = (cuda.allocate_async, cuda.free_async)
            && allocate(&raw mut ordered, MIB, ptr::null_mut()) == 0
        {
            cuda.driver.outcome("cuMemFreeAsync", free(ordered, ptr::null_mut()))?;
        }
        cuda.driver.synchronize()?;
        cuda.driver.outcome("cuMemFreeHost", (cuda.free_pinned)(pinned))?;
        cuda.driver.outcome("cuMemFree_v2", (cuda.free)(device))
    }
}

#[inline(never)]
fn forget_weights(cuda: &Cuda) -> Result<(), DriverError> {
    for _layer in 0..3 {
        let mut address = 0;
        // SAFETY: the out pointer leads to a live variable.
        let code = unsafe { (cuda.allocate)(&raw mut address, MIB) };
        cuda.driver.outcome("cuMemAlloc_v2", code)?;
        plant(Some(Kind::Device), MIB, "forget_weights");
    }
    Ok(())
}

#[inline(never)]
fn forget_staging_buffer(cuda: &Cuda) -> Result<(), DriverError> {
    let mut address = ptr::null_mut();
    // SAFETY: the out pointer leads to a live variable.
    let code = unsafe { (cuda.allocate_pinned)(&raw mut address, MIB / 4, 0) };
    cuda.driver.outcome("cuMemHostAlloc", code)?;
    plant(Some(Kind::HostPinned), MIB / 4, "forget_staging_buffer");
    Ok(())
}

/// Leaks nothing if the device has no stream-ordered memory.
#[inline(never)]
fn forget_activations(cuda: &Cuda) {
    let Some(allocate) = cuda.allocate_async else { return };
    let mut address = 0;
    // SAFETY: the out pointer leads to a live variable; null is the default stream.
    if unsafe { allocate(&raw mut address, MIB / 2, ptr::null_mut()) } == 0 {
        plant(Some(Kind::Async), MIB / 2, "forget_activations");
    }
}

/// A request that no GPU can satisfy: reported as failed, never as leaked.
#[inline(never)]
fn ask_for_too_much(cuda: &Cuda) {
    let mut address = 0;
    // SAFETY: the out pointer leads to a live variable.
    if unsafe { (cuda.allocate)(&raw mut address, TOO_MUCH) } != 0 {
        plant(None, TOO_MUCH, "ask_for_too_much");
    }
}

fn plant(kind: Option<Kind>, bytes: usize, function: &str) {
    say(format_args!(
        "{}",
        Planted {
            kind,
            bytes: bytes as u64,
            function: function.to_owned()
        }
    ));
}

/// Prints a line. A closed pipe does not end the program.
fn say(line: fmt::Arguments) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_leaks_are_parsed_back() {
        for kind in [Some(Kind::HostPinned), None] {
            let planted = Planted {
                kind,
                bytes: 4096,
                function: "forget_weights".to_owned(),
            };
            assert_eq!(planted.to_string().parse(), Ok(planted));
        }
        assert_eq!("f leaks 1 bytes of tape memory".parse::<Planted>(), Err(()));
        assert_eq!("round 1 done".parse::<Planted>(), Err(()));
    }
}
