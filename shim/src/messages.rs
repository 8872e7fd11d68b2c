//! The few lines the library ever writes to stderr: one at exit, one if nothing or not everything can be recorded.
//!
//! The program may have closed its stderr and be using the number for something else, so a line goes out only while
//! descriptor 2 is the file that it was when the recording began. It must not change what the program does either: a
//! reader that is gone or a file that is full raises no signal, and a reader that does not read is not waited for.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use crate::settings;
use culeak::recording::Recording;
use culeak::system::{BlockedSignals, Pauses, monotonic_ns, without_write_signals};
use culeak::system::{Errno, Uncancelled};
use culeak::variables::Mistake;

/// Device and inode of stderr when the recording began.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static SAID_LOSS: AtomicBool = AtomicBool::new(false);
static SAID_LATE: AtomicBool = AtomicBool::new(false);

/// Forked: the child reports its own losses, and the thread that was writing a line may not exist here.
pub fn forget() {
    SAID_LOSS.store(false, Relaxed);
    SAID_LATE.store(false, Relaxed);
    LINE.taken.store(false, Relaxed);
}

/// Says why there is no recording.
pub fn say_no_recording(path: Option<&CStr>, error: Errno) {
    say(|line| {
        line.push(b"culeak: nothing is recorded: cannot create ");
        line.push_path(path.unwrap_or(c"the recording"));
        line.push(b": ");
        line.push_reason(error);
        line.push(b"; set CULEAK_OUTPUT to a writable folder");
    });
}

pub fn summarize(recording: &Recording) {
    let (bytes, count) = recording.live_on_devices();
    say(|line| {
        line.push(b"culeak: ");
        line.push_number(count);
        line.push(if count == 1 {
            b" allocation, "
        } else {
            b" allocations, "
        });
        line.push_bytes(bytes);
        line.push(b" still live on GPUs; see: culeak report ");
        line.push_path(recording.path());
    });
}

/// Says where the snapshot of a failed request is.
pub fn say_out_of_memory(api: &str, bytes: u64, path: &CStr) {
    say(|line| {
        line.push(b"culeak: out of memory: ");
        line.push(api.as_bytes());
        line.push(b" of ");
        line.push_bytes(bytes);
        line.push(b" was refused; who held attributes: culeak report ");
        line.push_path(path);
    });
}

/// Says that a variable has a value that is not understood, or a name that no variable has.
pub fn say_mistake(mistake: &Mistake) {
    say(|line| match *mistake {
        Mistake::Value { variable, value } => {
            line.push(b"culeak: ");
            line.push(variable.name.to_bytes());
            line.push(b"=");
            line.push_printable(value);
            line.push(b" is ignored; allowed: ");
            for part in variable.values.allowed() {
                line.push(part.as_bytes());
            }
        }
        Mistake::Name { name, similar } => {
            line.push(b"culeak: no variable is called ");
            line.push_printable(name);
            match similar {
                Some(variable) => {
                    line.push(b"; did you mean ");
                    line.push(variable.name.to_bytes());
                    line.push(b"?");
                }
                None => line.push(b"; see: culeak help environment"),
            }
        }
    });
}

/// Says once that records are being lost, and why.
pub fn say_loss(recording: &Recording) {
    if !SAID_LOSS.swap(true, Relaxed) {
        say(|line| {
            line.push(b"culeak: the recording cannot grow: ");
            match recording.trouble() {
                Some(Errno(libc::ENOENT)) => line.push(b"it was removed, or its folder was moved or removed"),
                Some(error) => line.push_reason(error),
                None => line.push(b"no address space left"),
            }
            line.push(b"; until it can, allocations are only counted: ");
            line.push_path(recording.path());
        });
    }
}

/// Says once that the recording came too late for some allocations.
pub fn say_late(recording: &Recording) {
    if !SAID_LATE.swap(true, Relaxed) {
        say(|line| {
            line.push(
                b"culeak: the first allocations are not recorded, only counted: the file system took long to create ",
            );
            line.push_path(recording.path());
        });
    }
}

/// A line that is being put together. What does not fit is left out.
struct Line {
    bytes: [u8; 5000],
    length: usize,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        // The last byte is the end of the line.
        let room = bytes.len().min(self.bytes.len() - 1 - self.length);
        self.bytes[self.length..self.length + room].copy_from_slice(&bytes[..room]);
        self.length += room;
    }

    fn push_number(&mut self, number: u64) {
        self.push(settings::decimal(number.min(u64::from(u32::MAX)) as u32, &mut [0; 10]));
    }

    fn push_bytes(&mut self, bytes: u64) {
        let (amount, unit): (u64, &[u8]) = match bytes {
            0..10_000 => (bytes, b" B"),
            10_000..10_240_000 => (bytes >> 10, b" KiB"),
            10_240_000..10_485_760_000 => (bytes >> 20, b" MiB"),
            10_485_760_000..10_737_418_240_000 => (bytes >> 30, b" GiB"),
            _ => (bytes >> 40, b" TiB"),
        };
        self.push_number(amount);
        self.push(unit);
    }

    /// As a shell takes it, and without what a terminal would act upon.
    fn push_path(&mut self, path: &CStr) {
        let path = path.to_bytes();
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=~".contains(byte);
        if path.iter().all(is_plain) {
            return self.push(path);
        }
        self.push(b"'");
        for chunk in path.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter {
                    '\'' => self.push(b"'\\''"),
                    letter if is_active(letter) => self.push(b"?"),
                    letter => self.push(letter.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            for _ in chunk.invalid() {
                self.push(b"?");
            }
        }
        self.push(b"'");
    }

    /// The beginning of a text, without what a terminal would act upon.
    fn push_printable(&mut self, text: &[u8]) {
        for &byte in text.iter().take(64) {
            self.push(&[if matches!(byte, b' '..=b'~') { byte } else { b'?' }]);
        }
    }

    fn push_reason(&mut self, error: Errno) {
        self.push(match error.0 {
            libc::ENOENT => b"no such folder",
            libc::EACCES | libc::EPERM => b"permission denied",
            libc::EROFS => b"read-only file system",
            libc::ENOSPC => b"no space left on device",
            libc::EDQUOT => b"disk quota exceeded",
            libc::EFBIG => b"over the file-size limit",
            libc::EMFILE | libc::ENFILE => b"too many open files",
            libc::ENOTDIR => b"not a folder",
            libc::ELOOP => b"a symbolic link is in its place",
            libc::EEXIST => b"the name is taken",
            libc::ENAMETOOLONG => b"name too long",
            libc::ENOMEM => b"no memory left",
            libc::ESTALE => b"another file has taken its name",
            libc::ETIMEDOUT => b"the file system takes too long",
            libc::EIO => b"input/output error",
            number => {
                self.push(b"system error ");
                return self.push_number(number.unsigned_abs().into());
            }
        });
    }
}

/// Control characters, and marks that change the direction of writing.
fn is_active(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The one line there is room for: stacks may be small. Taken by one thread at a time.
struct OneLine {
    taken: AtomicBool,
    line: UnsafeCell<Line>,
}

// SAFETY: the line is used by the thread that has set `taken`.
unsafe impl Sync for OneLine {}

static LINE: OneLine = OneLine {
    taken: AtomicBool::new(false),
    line: UnsafeCell::new(Line {
        bytes: [0; 5000],
        length: 0,
    }),
};

/// How long a line may take: for another thread's line to be written, and for room in a pipe.
const PATIENCE_MS: i32 = 100;

/// Writes one line to stderr, if stderr is still the file it was when the recording began.
fn say(compose: impl FnOnce(&mut Line)) {
    if stderr_identity() != Some((STDERR[0].load(Relaxed), STDERR[1].load(Relaxed))) {
        return;
    }
    let _uncancelled = Uncancelled::new();
    // A handler of this thread would wait for the line that it interrupts.
    let _signals = BlockedSignals::all();
    let (began, mut pauses) = (monotonic_ns(), Pauses::default());
    // Acquire: pairs with the Release below.
    while LINE.taken.swap(true, Acquire) {
        if monotonic_ns().saturating_sub(began) > PATIENCE_MS as u64 * 1_000_000 {
            return;
        }
        pauses.pause();
    }
    // SAFETY: `taken` was false, and is true until this function is done with the line.
    let line = unsafe { &mut *LINE.line.get() };
    line.length = 0;
    compose(line);
    line.bytes[line.length] = b'\n';
    if stderr_has_room() {
        // SAFETY: the buffer holds `length` bytes and the end of the line. There is no place to report a failure.
        without_write_signals(|| unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.length + 1) });
    }
    LINE.taken.store(false, Release);
}

/// Whether a write would neither wait nor fail.
fn stderr_has_room() -> bool {
    let mut asked = libc::pollfd {
        fd: 2,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    let answers = unsafe { libc::poll(&mut asked, 1, PATIENCE_MS) };
    // Where asking is forbidden the write is tried.
    answers < 0 || (answers > 0 && asked.revents & (libc::POLLERR | libc::POLLNVAL) == 0)
}

fn stderr_identity() -> Option<(u64, u64)> {
    // SAFETY: all zeros is a value of `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid `stat`; an invalid descriptor is an error.
    (unsafe { libc::fstat(2, &mut status) } == 0).then_some((status.st_dev, status.st_ino))
}

pub fn remember_stderr() {
    if let Some((device, inode)) = stderr_identity() {
        STDERR[0].store(device, Relaxed);
        STDERR[1].store(inode, Relaxed);
    }
}
