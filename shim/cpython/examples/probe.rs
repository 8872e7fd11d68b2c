//! A library that a Python program calls through ctypes: it writes the result of a walk as lines of text. The tests compare
//! them with the frames that the program reports.
//!
//! ```text
//! F code stamp offset first-line minor file function line-table     (names and table as hexadecimal digits)
//! B address place name          the frames above belong to native frame number `place` (-1: none) with this symbol
//! K held
//! E end status
//! ```
//!
//! Chains that the thread has remembered hold if and only if its frames are the same; `held` of those before this call did.

use culeak_cpython::{Chains, End, Frame, Seen, describe, native_eval, prepare, status, walk};
use culeak_walker::{Registers, walk_each};
use std::cell::RefCell;
use std::ffi::CStr;
use std::fmt::Write;

const FRAMES: usize = 512;

/// Writes the calling thread's stack to `text`, cut at `room` bytes; returns the length.
///
/// # Safety
/// `room` bytes at `text` are writable.
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
    let held = compare_with_chains(&seen, end, limit);
    let mut lines = String::new();
    writeln!(lines, "K {held}").unwrap();
    let mut buffer = vec![0; 1 << 18];
    let mut by_symbol = native
        .iter()
        .enumerate()
        .filter(|(_, frame)| native_eval().contains(&(frame.0 - 1)));
    for what in seen {
        match what {
            Seen::Frame(frame) => write_frame(&mut lines, frame, &mut buffer),
            Seen::Boundary(0) => {
                let place = by_symbol.next().map_or(-1, |(place, _)| place as i64);
                writeln!(lines, "B 0 {place} {}", symbol(&native, place)).unwrap();
            }
            Seen::Boundary(boundary) => {
                let inside = native
                    .windows(2)
                    .position(|pair| (pair[0].1..pair[1].1).contains(&boundary));
                let place = inside.map_or(-1, |place| place as i64);
                writeln!(lines, "B {boundary:x} {place} {}", symbol(&native, place)).unwrap();
            }
        }
    }
    writeln!(lines, "E {end:?} {:?}", status()).unwrap();
    let length = lines.len().min(room);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr(), text, length) };
    length
}

/// A chain, the limit of the walk, and what it reported.
type PastWalk = (u32, usize, Vec<Seen>, End);

/// How many of the thread's chains hold. It is an error if any holds whose frames were others.
fn compare_with_chains(seen: &[Seen], end: End, limit: usize) -> usize {
    thread_local! {
        static KNOWN: RefCell<(Chains, Vec<PastWalk>)> = const { RefCell::new((Chains::none(), vec![])) };
    }
    KNOWN.with_borrow_mut(|(chains, known)| {
        // SAFETY: the thread's own.
        let holds = |chain| unsafe { chains.hold(chain) };
        let held = known.iter().filter(|(chain, of, ..)| *of == limit && holds(*chain));
        let mut count = 0;
        for (_, _, then, their_end) in held {
            assert!(*then == seen && *their_end == end, "{then:?} was mistaken for {seen:?}");
            count += 1;
        }
        // SAFETY: as above.
        if unsafe { chains.is_full() } {
            known.clear();
            // SAFETY: as above.
            unsafe { chains.clear() };
        }
        // SAFETY: as above.
        if let Some(chain) = unsafe { chains.remember() } {
            assert!(holds(chain), "{seen:?}");
            known.push((chain, limit, seen.to_vec(), end));
        }
        count
    })
}

/// Has the end of the script announced, so that threads without the GIL read their frames directly.
#[unsafe(no_mangle)]
pub extern "C" fn announce_end() {
    extern "C" fn nothing() {}
    prepare();
    culeak_cpython::call_at_end(Some(nothing));
}

/// Walks `times` times; returns the number of frames.
#[unsafe(no_mangle)]
pub extern "C" fn walk_times(times: u64) -> u64 {
    prepare();
    let mut frames = 0;
    for _ in 0..times {
        walk(128, |what| frames += u64::from(matches!(what, Seen::Frame(_))));
    }
    frames
}

fn write_frame(lines: &mut String, frame: Frame, buffer: &mut [u8]) {
    let Frame { code, stamp, offset } = frame;
    let Some(described) = describe(frame, buffer) else {
        writeln!(lines, "F {code:x} {stamp:x} {offset} 0 0 - - -").unwrap();
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
        lines,
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
