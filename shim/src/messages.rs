//! Writes lines to stderr ([`culeak::messages`]): one at exit, and one if nothing or not everything can be recorded.
//!
//! The program may have closed stderr and reused descriptor 2, so a line is written only while descriptor 2 is the file
//! that it was when the recording started. A line must not change what the program does: a closed pipe or a full file
//! raises no signal, and a full pipe is waited for 100 ms at most.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use crate::settings;
use culeak::format::Loss;
use culeak::messages as texts;
use culeak::quantities::rounded;
use culeak::recording::Recording;
use culeak::system::{BlockedSignals, Errno, Pauses, Uncancelled, monotonic_ns, without_write_signals};
use culeak::variables::{Mistake, SAMPLE, Variable};

/// Device and inode of stderr when the recording started.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static WROTE_LOSS: AtomicBool = AtomicBool::new(false);
static WROTE_LATE: AtomicBool = AtomicBool::new(false);

/// In a forked child: it reports its own losses, and the thread that was writing a line may not exist here.
pub fn forked() {
    WROTE_LOSS.store(false, Relaxed);
    WROTE_LATE.store(false, Relaxed);
    LINE.taken.store(false, Relaxed);
}

/// Why there is no recording.
pub fn no_recording(path: Option<&CStr>, error: Errno) {
    write(texts::NO_RECORDING, |line, name| match name {
        "reason" => line.push_reason(error),
        _ => line.push_path(path.unwrap_or(c"the recording")),
    });
}

/// At the start: where the recording is until the process ends.
pub fn spooled(recording: &Recording) {
    write_of_spool(texts::SPOOLED, recording, Errno(0));
}

/// At exit: the recording stays where it was written.
pub fn not_delivered(recording: &Recording, error: Errno) {
    let text = match error {
        _ if !recording.is_readable() => texts::NOT_READ,
        Errno(libc::ENOENT) => texts::FOLDER_GONE,
        _ => texts::NOT_COPIED,
    };
    write_of_spool(text, recording, error);
}

fn write_of_spool(text: &str, recording: &Recording, error: Errno) {
    let Some(spool) = recording.spool() else { return };
    write(text, |line, name| match name {
        "spool" => line.push_path(spool),
        "reason" => line.push_reason(error),
        _ => line.push_path(recording.path()),
    });
}

/// At exit.
pub fn summarize(recording: &Recording) {
    let (bytes, count) = recording.live_on_devices();
    // The sums may lack something.
    let is_incomplete = [Loss::Allocations, Loss::Details]
        .iter()
        .any(|of| recording.loss(*of) > 0);
    let text = match count {
        _ if is_incomplete => texts::INCOMPLETE,
        0 => texts::NONE_LIVE,
        1 => texts::ONE_LIVE,
        _ => texts::LIVE,
    };
    write(text, |line, name| match name {
        "count" => line.push_number(count),
        "bytes" => line.push_bytes(bytes),
        _ => line.push_path(recording.path()),
    });
}

/// Where the out-of-memory snapshot is.
pub fn out_of_memory(api: &str, bytes: u64, path: &CStr) {
    write(texts::OUT_OF_MEMORY, |line, name| match name {
        "function" => line.push(api.as_bytes()),
        "bytes" => line.push_bytes(bytes),
        _ => line.push_path(path),
    });
}

/// Blocks of backward passes have the stack of autograd's thread alone.
pub fn no_backward() {
    write(texts::NO_BACKWARD, |_, _| ());
}

/// Blocks of backward passes do not have the line of the forward pass.
pub fn no_forward() {
    write(texts::NO_FORWARD, |_, _| ());
}

/// A variable with an invalid value or an unknown name.
pub fn mistake(mistake: &Mistake) {
    match *mistake {
        Mistake::Value { variable, value } => write(texts::BAD_VALUE, |line, name| match name {
            "variable" => line.push(variable.name.to_bytes()),
            "value" => line.push_printable(value),
            _ => {
                for part in variable.values.allowed() {
                    line.push(part.as_bytes());
                }
            }
        }),
        Mistake::Name { name, similar } => {
            let text = match similar {
                Some(_) => texts::SIMILAR_NAME,
                None => texts::BAD_NAME,
            };
            write(text, |line, part| match (part, similar) {
                ("similar", Some(variable)) => line.push(variable.name.to_bytes()),
                _ => line.push_printable(name),
            });
        }
    }
}

/// Stacks are not sampled, because of this variable.
pub fn sampling_is_ignored(because: &Variable) {
    write(texts::NO_SAMPLING, |line, name| match name {
        "sample" => line.push(SAMPLE.name.to_bytes()),
        _ => line.push(because.name.to_bytes()),
    });
}

/// Once: allocations are not recorded, and why.
pub fn loss(recording: &Recording) {
    if !WROTE_LOSS.swap(true, Relaxed) {
        write(texts::CANNOT_GROW, |line, name| match (name, recording.trouble()) {
            ("recording", _) => line.push_path(recording.path()),
            (_, Some(Errno(libc::ENOENT))) => line.push(texts::REMOVED.as_bytes()),
            (_, Some(error)) => line.push_reason(error),
            (_, None) => line.push(texts::NO_ADDRESSES.as_bytes()),
        });
    }
}

/// Once: the recording was created too late for some allocations.
pub fn late(recording: &Recording) {
    if !WROTE_LATE.swap(true, Relaxed) {
        write(texts::LATE, |line, _| line.push_path(recording.path()));
    }
}

/// Writes one of the texts; `fill` pushes what has this name.
fn write(text: &str, fill: impl Fn(&mut Line, &str)) {
    write_line(|line| {
        line.push(b"culeak: ");
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            line.push(before.as_bytes());
            let (name, after) = after.split_once('}').unwrap_or((after, ""));
            fill(line, name);
            rest = after;
        }
        line.push(rest.as_bytes());
    });
}

/// A line under construction. What does not fit is left out.
struct Line {
    bytes: [u8; 5000],
    length: usize,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        // The last byte is for the line feed.
        let room = bytes.len().min(self.bytes.len() - 1 - self.length);
        self.bytes[self.length..self.length + room].copy_from_slice(&bytes[..room]);
        self.length += room;
    }

    fn push_number(&mut self, number: u64) {
        self.push(settings::decimal(number.min(u64::from(u32::MAX)) as u32, &mut [0; 10]));
    }

    fn push_bytes(&mut self, bytes: u64) {
        let size = rounded(bytes);
        self.push_number(size.whole);
        if size.tenths > 0 {
            self.push(b".");
            self.push_number(size.tenths);
        }
        self.push(b" ");
        self.push(size.unit.as_bytes());
    }

    /// Quoted for a shell and escaped for a terminal.
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
                    letter if is_control(letter) => self.push(b"?"),
                    letter => self.push(letter.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            for _ in chunk.invalid() {
                self.push(b"?");
            }
        }
        self.push(b"'");
    }

    /// The first 64 bytes of a text, escaped for a terminal.
    fn push_printable(&mut self, text: &[u8]) {
        for &byte in text.iter().take(64) {
            self.push(&[if matches!(byte, b' '..=b'~') { byte } else { b'?' }]);
        }
    }

    fn push_reason(&mut self, error: Errno) {
        match texts::REASONS.iter().find(|(number, ..)| *number == error.0) {
            Some((_, text, _)) => self.push(text.as_bytes()),
            None => {
                self.push(b"system error ");
                self.push_number(error.0.unsigned_abs().into());
            }
        }
    }
}

/// Control characters, and characters that change the writing direction.
fn is_control(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The only line buffer, static because stacks may be small. One thread at a time uses it.
struct LineBuffer {
    taken: AtomicBool,
    line: UnsafeCell<Line>,
}

// SAFETY: only the thread that has set `taken` uses the line.
unsafe impl Sync for LineBuffer {}

static LINE: LineBuffer = LineBuffer {
    taken: AtomicBool::new(false),
    line: UnsafeCell::new(Line {
        bytes: [0; 5000],
        length: 0,
    }),
};

/// How long to wait for the line buffer, and for space in a pipe.
const TIMEOUT_MS: i32 = 100;

/// Writes one line to stderr, if stderr is still the file that it was when the recording started.
fn write_line(compose: impl FnOnce(&mut Line)) {
    if stderr_identity() != Some((STDERR[0].load(Relaxed), STDERR[1].load(Relaxed))) {
        return;
    }
    let _uncancelled = Uncancelled::begin();
    // A signal handler of this thread would wait for the line that it interrupts.
    let _signals = BlockedSignals::all();
    let (began, mut pauses) = (monotonic_ns(), Pauses::default());
    // Acquire: pairs with the Release below.
    while LINE.taken.swap(true, Acquire) {
        if monotonic_ns().saturating_sub(began) > TIMEOUT_MS as u64 * 1_000_000 {
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
        // SAFETY: the buffer holds `length` bytes and the line feed. A failure cannot be reported anywhere.
        without_write_signals(|| unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.length + 1) });
    }
    LINE.taken.store(false, Release);
}

/// Whether a write would neither block nor fail.
fn stderr_has_room() -> bool {
    let mut stderr = libc::pollfd {
        fd: 2,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&mut stderr, 1, TIMEOUT_MS) };
    // Where poll is not permitted, the write is attempted.
    ready < 0 || (ready > 0 && stderr.revents & (libc::POLLERR | libc::POLLNVAL) == 0)
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
