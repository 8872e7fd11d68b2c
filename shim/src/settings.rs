//! The settings in the environment, read when the recording starts; the variables are listed in `culeak::variables`.
//!
//! An invalid value is reported once and ignored. Nothing else of the environment is recorded, except the
//! variables of launchers (`recorder::job_variables`).

use std::ffi::{CStr, c_char};

use culeak::format::{RANK_VARIABLES, TIMELINE_MAX};
use culeak::variables::{self, Mistake, Value, Variable};
use culeak::wildcard;

pub const DEPTH_MAX: usize = 256;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The value of a variable, in the process's own environment.
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    text(name).map(CStr::to_bytes)
}

/// The value of a variable with its zero byte. `None` in a program with raised privileges, which may have this library from
/// `/etc/ld.so.preload` and an environment from anyone.
pub fn text(name: &CStr) -> Option<&'static CStr> {
    if is_privileged() {
        return None;
    }
    // SAFETY: a C string; the result is copied or dropped before this thread can change the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a C string.
    Some(unsafe { CStr::from_ptr(value) })
}

/// Whether the program runs setuid, setgid or with capabilities of its file.
pub fn is_privileged() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of one of culeak's variables; `None` if it is unset, empty or invalid.
pub fn value(of: &Variable) -> Option<Value> {
    let text = variable(of.name).filter(|text| !text.is_empty())?;
    of.values.read(text)
}

pub fn is_set(of: &Variable) -> bool {
    matches!(value(of), Some(Value::Switch(true) | Value::Word))
}

pub fn depth() -> usize {
    match value(variables::DEPTH) {
        Some(Value::Number(depth)) => (depth as usize).clamp(1, DEPTH_MAX),
        _ => variables::DEPTH_DEFAULT,
    }
}

/// The frames that a stack consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    Both,
    /// Blocks of frameworks on a thread that runs Python: Python frames only, without a walk of the native stack. All
    /// other stacks have both: reports recognize caching allocators, libraries and the driver by native frames.
    Python,
    Native,
}

pub fn frames() -> Frames {
    match value(variables::STACKS) {
        Some(Value::OneOf(1)) => Frames::Python,
        Some(Value::OneOf(2)) => Frames::Native,
        _ => Frames::Both,
    }
}

/// The most bytes of the event log; `None` if events are not logged.
pub fn timeline() -> Option<u64> {
    match value(variables::TIMELINE) {
        Some(Value::Bytes(bytes)) if bytes > 0 => Some(bytes.min(TIMELINE_MAX)),
        _ => None,
    }
}

/// The mean distance of sampled stacks in bytes; 0: each block gets its stack.
pub fn sample() -> u64 {
    match value(variables::SAMPLE) {
        Some(Value::Bytes(bytes)) => bytes.min(culeak::sampling::LARGEST),
        _ => 0,
    }
}

/// The most stacks a second that a thread takes before they are sampled less often; 0: no limit.
pub fn stack_rate() -> u64 {
    match value(variables::STACK_RATE) {
        Some(Value::Number(rate)) => rate.into(),
        _ => culeak::sampling::RATE,
    }
}

/// A fixed start of the generators.
pub fn sample_seed() -> Option<u64> {
    match value(variables::SAMPLE_SEED) {
        Some(Value::Number(seed)) => Some(seed.into()),
        _ => None,
    }
}

/// Calls `report` for every variable of culeak with an invalid value, and for every name that looks like culeak's but
/// is unknown.
pub fn each_mistake(report: impl Fn(&Mistake)) {
    // SAFETY: the C library's list; it is read as getenv reads it.
    let mut entry = unsafe { environ };
    // SAFETY: the list ends with a null pointer, and each entry is a C string.
    while !entry.is_null() && unsafe { !(*entry).is_null() } {
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        let equals = text.iter().position(|&byte| byte == b'=');
        if let Some((name, value)) = equals.and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?)))
            && let Some(mistake) = variables::mistake(name, value)
        {
            report(&mistake);
        }
        // SAFETY: the entry was not the last, so another or the final null follows.
        entry = unsafe { entry.add(1) };
    }
}

/// The rank variables that are set, in the order of `RANK_VARIABLES`.
pub fn ranks() -> [Option<&'static [u8]>; RANK_VARIABLES.len()] {
    RANK_VARIABLES.map(|name| {
        let mut buffer = [0u8; 32];
        buffer[..name.len()].copy_from_slice(name.as_bytes());
        CStr::from_bytes_until_nul(&buffer).ok().and_then(variable)
    })
}

/// Whether `CULEAK_ONLY` and `CULEAK_PARENT` select this process.
pub fn is_wanted(program: &[u8], parent_pid: u32) -> bool {
    let pattern = variable(variables::ONLY.name);
    let by_name = pattern.is_none_or(|pattern| pattern.is_empty() || wildcard::matches(pattern, program));
    let parent = value(variables::PARENT);
    by_name && parent.is_none_or(|parent| parent == Value::Number(parent_pid))
}

/// A path under construction; one that is too long is invalid. All zeros is a value, to be cleared before use. It is
/// too large for a small stack, so it is kept in a [`Scratch`](culeak::system::Scratch).
pub struct Path {
    bytes: [u8; culeak::file::PATH_MAX],
    length: usize,
    fits: bool,
}

impl Path {
    fn clear(&mut self) {
        self.bytes[..self.length].fill(0);
        (self.length, self.fits) = (0, true);
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end < self.bytes.len() {
            self.bytes[self.length..end].copy_from_slice(bytes);
            self.length = end;
        } else {
            self.fits = false;
        }
    }

    fn push_number(&mut self, number: u32) {
        let mut digits = [0; 10];
        self.push(decimal(number, &mut digits));
    }

    /// `None` if it is too long.
    pub fn as_c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).ok().filter(|_| self.fits)
    }

    /// Sets `other` with `.N` before its extension, for a name that exists already.
    pub fn set_numbered(&mut self, other: &Path, number: u32) {
        self.clear();
        let all = &other.bytes[..other.length];
        let stem = all.strip_suffix(b".culeak").unwrap_or(all);
        self.push(stem);
        self.push(b".");
        self.push_number(number);
        self.push(&all[stem.len()..]);
        self.fits &= other.fits;
    }

    /// Sets the name of a snapshot beside the recording of this name.
    pub fn set_snapshot(&mut self, recording: &CStr, what: &[u8], number: Option<u32>) {
        self.clear();
        let all = recording.to_bytes();
        self.push(all.strip_suffix(b".culeak").unwrap_or(all));
        self.push(b".");
        self.push(what);
        if let Some(number) = number {
            self.push(b"-");
            self.push_number(number);
        }
        self.push(b".culeak-snapshot");
    }

    /// Sets the absolute path of the recording to create.
    pub fn set_output(&mut self, names: &Names) {
        self.clear();
        let pattern = variable(variables::OUTPUT.name)
            .filter(|value| !value.is_empty())
            .unwrap_or(DEFAULT_NAME);
        if pattern[0] != b'/' {
            // The program may change its working folder, and the file may have to be opened again.
            // SAFETY: the buffer has this length.
            if unsafe { !libc::getcwd(self.bytes.as_mut_ptr().cast(), self.bytes.len()).is_null() } {
                self.length = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(0);
                self.push(b"/");
            }
        }
        expand(pattern, names, self);
        if self.length > 0 && (self.bytes[self.length - 1] == b'/' || is_folder(self)) {
            self.push(b"/");
            expand(DEFAULT_NAME, names, self);
        }
    }
}

pub fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// The values of the placeholders.
pub struct Names<'a> {
    pub host: &'a [u8],
    pub pid: u32,
    pub program: &'a [u8],
    pub rank: &'a [u8],
}

const DEFAULT_NAME: &[u8] = b"%e.%h.%p.culeak";

fn is_folder(path: &Path) -> bool {
    // SAFETY: plain integers: all zeros is a value of `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a valid `stat`.
    path.as_c_str()
        .is_some_and(|path| unsafe { libc::stat(path.as_ptr(), &mut status) } == 0)
        && status.st_mode & libc::S_IFMT == libc::S_IFDIR
}

fn expand(pattern: &[u8], names: &Names, path: &mut Path) {
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            path.push(&[byte]);
            continue;
        }
        match bytes.next() {
            Some(b'h') => push_safe(path, names.host),
            Some(b'p') => path.push_number(names.pid),
            Some(b'e') => push_safe(path, names.program),
            Some(b'r') => push_safe(path, names.rank),
            Some(b'%') | None => path.push(b"%"),
            Some(other) => path.push(&[b'%', other]),
        }
    }
}

/// A name must not contain a path separator.
fn push_safe(path: &mut Path, name: &[u8]) {
    for &byte in name {
        path.push(&[if byte == b'/' { b'_' } else { byte }]);
    }
}
