//! The few lines the library ever writes to stderr: one at exit, one if nothing or not everything can be recorded.
//!
//! The program may have closed its stderr and be using the number for something else, so a line goes out only while
//! descriptor 2 is the file that it was when the recording began.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use crate::settings;
use culeak::file::{Errno, Uncancelled};
use culeak::recording::Recording;
use culeak::variables::Mistake;

/// Device and inode of stderr when the recording began.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static SAID_LOSS: AtomicBool = AtomicBool::new(false);

/// Forked: the child has losses of its own to tell.
pub fn forget() {
    SAID_LOSS.store(false, Relaxed);
}

/// Says why there is no recording.
pub fn say_no_recording(path: Option<&CStr>, error: Errno) {
    let name = path.map_or(&b"(path too long)"[..], CStr::to_bytes);
    let (why, remedy) = (describe(error), b"; set CULEAK_OUTPUT to a writable folder\n");
    say(&[b"culeak: nothing is recorded: cannot create ", name, b": ", why, remedy]);
}

pub fn summarize(recording: &Recording) {
    let (bytes, count) = recording.live_on_devices();
    let (mut a, mut b) = ([0; 10], [0; 10]);
    let (amount, unit) = in_words(bytes);
    let path = recording.path().to_bytes();
    say(&[
        b"culeak: ",
        settings::decimal(count.min(u64::from(u32::MAX)) as u32, &mut a),
        if count == 1 {
            b" allocation, "
        } else {
            b" allocations, "
        },
        settings::decimal(amount.min(u64::from(u32::MAX)) as u32, &mut b),
        unit,
        b" still live on GPUs; see: culeak report ",
        quote(path),
        path,
        quote(path),
        b"\n",
    ]);
}

/// Says where the picture of a failed request is.
pub fn say_out_of_memory(api: &str, bytes: u64, path: &CStr) {
    let (mut digits, (amount, unit)) = ([0; 10], in_words(bytes));
    let amount = settings::decimal(amount.min(u64::from(u32::MAX)) as u32, &mut digits);
    let api = api.as_bytes();
    let path = path.to_bytes();
    say(&[
        b"culeak: out of memory: ",
        api,
        b" of ",
        amount,
        unit,
        b" was refused; who held what: culeak report ",
        quote(path),
        path,
        quote(path),
        b"\n",
    ]);
}

/// What a shell needs on both sides of a path.
fn quote(path: &[u8]) -> &'static [u8] {
    let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+:=@%,".contains(&byte);
    match () {
        () if path.iter().all(plain) => b"",
        () if path.contains(&b'\'') => b"\"",
        () => b"'",
    }
}

fn in_words(bytes: u64) -> (u64, &'static [u8]) {
    match bytes {
        0..10_000 => (bytes, b" B"),
        10_000..10_240_000 => (bytes >> 10, b" KiB"),
        10_240_000..10_485_760_000 => (bytes >> 20, b" MiB"),
        _ => (bytes >> 30, b" GiB"),
    }
}

/// Says that a variable has a value that is not understood, or a name that no variable has.
pub fn say_mistake(mistake: &Mistake) {
    let mut room = [0; 64];
    match *mistake {
        Mistake::Value { variable, value } => {
            let (name, [allowed, more]) = (variable.name.to_bytes(), variable.values.allowed());
            let value = printable(value, &mut room);
            let [allowed, more] = [allowed.as_bytes(), more.as_bytes()];
            say(&[
                b"culeak: ",
                name,
                b"=",
                value,
                b" is ignored; allowed: ",
                allowed,
                more,
                b"\n",
            ]);
        }
        Mistake::Name { name, similar } => {
            let name = printable(name, &mut room);
            let (meant, similar) = match similar {
                Some(variable) => (&b"; did you mean "[..], variable.name.to_bytes()),
                None => (&b"; see: culeak help environment"[..], &b""[..]),
            };
            let end: &[u8] = if similar.is_empty() { b"\n" } else { b"?\n" };
            say(&[b"culeak: no variable is called ", name, meant, similar, end]);
        }
    }
}

/// As much of a text as there is room for, without what a terminal would obey.
fn printable<'a>(text: &[u8], room: &'a mut [u8]) -> &'a [u8] {
    let length = text.len().min(room.len());
    for (to, &byte) in room.iter_mut().zip(text) {
        *to = if matches!(byte, b' '..=b'~') { byte } else { b'?' };
    }
    &room[..length]
}

/// Says once that records are being lost.
pub fn say_loss(recording: &Recording) {
    if !SAID_LOSS.swap(true, Relaxed) {
        say(&[b"culeak: the recording cannot grow (disk full, quota or file-size limit); further allocations are only counted: ", recording.path().to_bytes(), b"\n"]);
    }
}

/// Writes one line to stderr, if stderr is still the file it was when the recording began.
fn say(parts: &[&[u8]]) {
    if stderr_identity() != Some((STDERR[0].load(Relaxed), STDERR[1].load(Relaxed))) {
        return;
    }
    let _uncancelled = Uncancelled::new();
    let mut line = [0u8; 5000];
    let mut length = 0;
    for part in parts {
        let room = part.len().min(line.len() - length);
        line[length..length + room].copy_from_slice(&part[..room]);
        length += room;
    }
    // SAFETY: the buffer holds `length` bytes. Nobody could be told of a failure.
    unsafe { libc::write(2, line.as_ptr().cast(), length) };
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

fn describe(error: Errno) -> &'static [u8] {
    match error.0 {
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
        _ => b"the system refused",
    }
}
