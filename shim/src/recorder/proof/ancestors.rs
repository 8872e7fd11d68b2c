//! The run of a process whose environment was cleared (`env -i`), but for `LD_PRELOAD`: it has the file of the nearest ancestor with
//! `CULEAK_RUN`. Its recording is elsewhere, since it lacks `CULEAK_OUTPUT` too, and the run must know that it misses one.

use std::ffi::CStr;
use std::sync::atomic::Ordering::Release;

use super::{FACTS, VARIABLE, map, parse};
use crate::settings::decimal;
use culeak::file::PATH_MAX;
use culeak::system::{Descriptor, Scratch};

/// More ancestors than processes of a run have.
const MOST: usize = 32;

/// Buffers, too large for a small stack. All zeros is a value.
struct Buffers {
    piece: [u8; 1024],
    /// The value and a zero byte.
    value: [u8; PATH_MAX + 16],
}

/// Maps the file of an ancestor's run, if there is one.
pub fn find_run() {
    // SAFETY: bytes: all zeros is a value.
    let Ok(mut buffers) = (unsafe { Scratch::<Buffers>::zeroed() }) else {
        return;
    };
    let Buffers { piece, value } = &mut *buffers;
    // SAFETY: getppid has no preconditions.
    let mut pid = unsafe { libc::getppid() } as u32;
    for _ in 0..MOST {
        let mut path = [0; 32];
        let open = |file: &CStr| Descriptor::open(file, libc::O_RDONLY);
        let Some(Ok(environment)) = in_proc(pid, b"/environ", &mut path).map(open) else {
            return;
        };
        if value_in(&environment, piece, value) {
            let run = CStr::from_bytes_until_nul(value).ok().and_then(parse);
            // An ancestor may be of another user, as above `sudo`: its environment must not choose what this process writes to.
            // SAFETY: geteuid has no preconditions.
            let owner = unsafe { libc::geteuid() };
            if let Some(Ok(facts)) = run.map(|(_, path)| map(path, Some(owner))) {
                FACTS.store(facts, Release);
            }
            return;
        }
        let Some(Ok(stat)) = in_proc(pid, b"/stat", &mut path).map(open) else {
            return;
        };
        match parent(stat.read(piece)) {
            Some(parent) if parent > 0 => pid = parent,
            _ => return,
        }
    }
}

/// `/proc/PID/name`.
fn in_proc<'p>(pid: u32, name: &[u8], path: &'p mut [u8; 32]) -> Option<&'p CStr> {
    path.fill(0);
    let mut at = 0;
    for part in [b"/proc/", decimal(pid, &mut [0; 10]), name] {
        path.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    CStr::from_bytes_until_nul(path).ok()
}

/// Field 4 of /proc/PID/stat, counted from the end of the name, which may contain anything.
fn parent(stat: &[u8]) -> Option<u32> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let field = stat[end..].split(|&byte| byte == b' ').nth(2)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Stores the value of `CULEAK_RUN` with a zero byte behind it. False: this environment lacks it.
fn value_in(environment: &Descriptor, piece: &mut [u8], value: &mut [u8]) -> bool {
    let name = VARIABLE.to_bytes();
    // How many bytes of the entry fit `NAME=VALUE`; `None`: it is another variable.
    let mut fit = Some(0);
    loop {
        let piece = environment.read(piece);
        if piece.is_empty() {
            return false;
        }
        for &byte in piece {
            fit = match (fit, byte) {
                (Some(at), 0) if at > name.len() => {
                    value[at - name.len() - 1] = 0;
                    return true;
                }
                (_, 0) => Some(0),
                (Some(at), _) if at < name.len() => (name[at] == byte).then_some(at + 1),
                (Some(at), b'=') if at == name.len() => Some(at + 1),
                (Some(at), _) if at > name.len() && at - name.len() < value.len() => {
                    value[at - name.len() - 1] = byte;
                    Some(at + 1)
                }
                _ => None,
            };
        }
    }
}
