//! A library for a Python program to call, through ctypes: it tells in lines of text what a walk sees. The tests compare
//! that with what the program knows of its own frames.
//!
//! ```text
//! F code stamp offset first-line minor file function line-table     (names and table as hexadecimal digits)
//! M address place name          the frames above lie in native frame number `place`, -1: in none; its symbol
//! E end status
//! ```

use culeak_cpython::{Frame, Seen, describe, native_eval, prepare, status, walk};
use culeak_walker::{Registers, walk_each};
use std::ffi::CStr;
use std::fmt::Write;

const FRAMES: usize = 512;

/// Tells the calling thread's stack; the length of the text, which is cut at `room`.
///
/// # Safety
/// `room` bytes at `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe(text: *mut u8, room: usize, limit: usize) -> usize {
    prepare();
    let mut native = Vec::new();
    walk_each(Registers::here(), |place, address, sp| {
        if place == 0 {
            native.clear();
        }
        native.push((address, sp));
        native.len() < FRAMES
    });
    let mut seen = Vec::new();
    let end = walk(limit, |what| seen.push(what));
    let mut told = String::new();
    let mut buffer = vec![0; 1 << 18];
    let mut by_symbol = native
        .iter()
        .enumerate()
        .filter(|(_, frame)| native_eval().contains(&(frame.0 - 1)));
    for what in seen {
        match what {
            Seen::Frame(frame) => tell(&mut told, frame, &mut buffer),
            Seen::Boundary(0) => {
                let place = by_symbol.next().map_or(-1, |(place, _)| place as i64);
                writeln!(told, "M 0 {place} {}", symbol(&native, place)).unwrap();
            }
            Seen::Boundary(mark) => {
                let inside = native
                    .windows(2)
                    .position(|pair| (pair[0].1..pair[1].1).contains(&mark));
                let place = inside.map_or(-1, |place| place as i64);
                writeln!(told, "M {mark:x} {place} {}", symbol(&native, place)).unwrap();
            }
        }
    }
    writeln!(told, "E {end:?} {:?}", status()).unwrap();
    let length = told.len().min(room);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(told.as_ptr(), text, length) };
    length
}

/// Walks again and again, without looking at what is seen; how many frames it was.
#[unsafe(no_mangle)]
pub extern "C" fn walk_times(times: u64) -> u64 {
    prepare();
    let mut frames = 0;
    for _ in 0..times {
        walk(128, |what| frames += u64::from(matches!(what, Seen::Frame(_))));
    }
    frames
}

fn tell(told: &mut String, frame: Frame, buffer: &mut [u8]) {
    let Frame { code, stamp, offset } = frame;
    let Some(described) = describe(frame, buffer) else {
        writeln!(told, "F {code:x} {stamp:x} {offset} 0 0 - - -").unwrap();
        return;
    };
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(String::new(), |all, byte| all + &format!("{byte:02x}"))
    };
    let (file, function) = (hex(described.file), hex(described.function));
    let table = described
        .line_table
        .map_or("-".into(), |table| format!("+{}", hex(table)));
    let (first_line, minor) = (described.first_line, described.minor);
    writeln!(
        told,
        "F {code:x} {stamp:x} {offset} {first_line} {minor} {file} {function} {table}"
    )
    .unwrap();
}

fn symbol(native: &[(u64, u64)], place: i64) -> String {
    let Some((address, _)) = usize::try_from(place).ok().and_then(|place| native.get(place)) else {
        return "-".into();
    };
    // SAFETY: all zeros is a value of Dl_info; dladdr fills it and takes any address.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr((address - 1) as *const _, &mut found) == 0 || found.dli_sname.is_null() {
            return "-".into();
        }
        CStr::from_ptr(found.dli_sname).to_string_lossy().into_owned()
    }
}
