//! Facts about this process that `culeak run` reads (see `culeak::proof`). Without `CULEAK_RUN` this module only counts recordings
//! of processes whose environment was cleared: an ancestor has it.
//!
//! The file is mapped when the library is loaded, and its descriptor is closed at once. A fact is a byte in the
//! mapping: stating it takes no system call, and works where the file cannot be opened any more.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering::*};

use crate::recorder::thread::quietly;
use crate::resolve::driver;
use crate::settings;
use culeak::hold::Holds;
use culeak::proof::{BYTES, CREATED, Fact, HOLDS, NAME_BYTES};
use culeak::system::{Descriptor, Errno};

mod ancestors;

const VARIABLE: &CStr = c"CULEAK_RUN";

/// The mapped file; null without one.
static FACTS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// `culeak run` is the parent of this process.
static IS_ITS_CHILD: AtomicBool = AtomicBool::new(false);
/// A thread of the parent, which does not exist here, may hold the lock of the loader's list.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// The loader has mapped this library into a program.
extern "C" fn loaded() {
    let Some((parent, path)) = run() else { return };
    quietly(|| {
        let Ok(facts) = map(path, None) else { return };
        FACTS.store(facts, Release);
        // SAFETY: getppid has no preconditions.
        if parent == unsafe { libc::getppid() } {
            IS_ITS_CHILD.store(true, Relaxed);
            state_name(facts);
        }
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// In a forked child.
pub fn forked() {
    IS_ITS_CHILD.store(false, Relaxed);
    IS_FORKED.store(true, Relaxed);
}

/// The exit handlers run. The process may be in a sandbox, so its parent is not asked for again.
pub fn ended() {
    if IS_ITS_CHILD.load(Relaxed) {
        state(Fact::Ended, 1);
    }
}

/// States whether this process, which exits, used the driver past the hooks: from a library that was opened with RTLD_DEEPBIND, which is
/// known only of a process without a recording, or with `dlmopen`.
pub fn look_for_unseen_use(is_recorded: bool) {
    let is_part_of_run = !FACTS.load(Acquire).is_null();
    if is_part_of_run && !IS_FORKED.load(Relaxed) && driver::is_initialized_unseen(is_recorded) {
        state(Fact::Bypassed, 1);
    }
}

/// The process uses CUDA. If it does not know its run, an ancestor may.
pub fn state(fact: Fact, value: u8) {
    find_run();
    if let Some(byte) = at::<AtomicU8>(fact as usize) {
        byte.store(value, Relaxed);
    }
}

/// A recording was created.
pub fn created() {
    find_run();
    if let Some(count) = at::<AtomicU32>(CREATED) {
        count.fetch_add(1, Relaxed);
    }
}

fn find_run() {
    // A program with raised privileges has no variables here, and must not look for them in the environment of its caller.
    if FACTS.load(Acquire).is_null() && !settings::is_privileged() && run().is_none() {
        ancestors::find_run();
    }
}

/// Where this process waits for `culeak run --why`.
pub fn holds() -> Option<&'static Holds> {
    at::<Holds>(HOLDS)
}

/// What is at an offset of the file: atomics.
fn at<T>(offset: usize) -> Option<&'static T> {
    let facts = FACTS.load(Acquire);
    // SAFETY: the mapping is BYTES long, aligned to a page and never unmapped; the offsets are those of
    // `culeak::proof`.
    (!facts.is_null()).then(|| unsafe { &*facts.add(offset).cast::<T>() })
}

/// Stores the name of the program that the process runs now: `culeak run` started it, and it may exec another.
fn state_name(facts: *mut u8) {
    let mut name = [0u8; NAME_BYTES];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, and the file begins with a name of that length.
    unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        facts.copy_from_nonoverlapping(name.as_ptr(), NAME_BYTES);
    }
}

/// The pid of `culeak run`, and the path of its file.
fn run() -> Option<(i32, &'static CStr)> {
    parse(settings::text(VARIABLE)?)
}

fn parse(value: &CStr) -> Option<(i32, &CStr)> {
    let value = value.to_bytes_with_nul();
    let colon = value.iter().position(|&byte| byte == b':')?;
    let pid = std::str::from_utf8(&value[..colon]).ok()?.parse().ok()?;
    Some((pid, CStr::from_bytes_with_nul(&value[colon + 1..]).ok()?))
}

/// `owner`: the user that the file must belong to.
fn map(path: &CStr, owner: Option<libc::uid_t>) -> Result<*mut u8, Errno> {
    let file = Descriptor::open(path, libc::O_RDWR | libc::O_NOFOLLOW)?;
    let status = file.status()?;
    if status.st_size != BYTES as i64 || status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno(libc::EINVAL));
    }
    if owner.is_some_and(|owner| status.st_uid != owner) {
        return Err(Errno(libc::EACCES));
    }
    // SAFETY: a new mapping of a regular file of this length.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.number(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        Err(Errno::last())
    } else {
        Ok(address.cast())
    }
}
