//! Where a stack ends for its reader: at `main`, or at the function a thread was started with.
//!
//! What called that belongs to libc, to a language's runtime, or to `_start`; such frames get the role
//! [`Role::BelowMain`]. Deliberately absent: Python's own outer end, which `python` folds.

use super::{Frame, Known, Role};
use crate::analysis::function_name::plain;

/// What a frame's name says about the end of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing.
    Anywhere,
    /// It is the last of the program's own.
    Main,
    /// It and everything outside belongs to the system.
    Outside,
}

pub(super) fn end(frame: &Frame) -> End {
    let Some(function) = frame.function.filter(|_| !frame.is_python()) else {
        return End::Anywhere;
    };
    match plain(function).as_ref() {
        "main" => End::Main,
        name if starts_a_thread(name, frame.module_name()) => End::Outside,
        _ => End::Anywhere,
    }
}

/// Marks the frames below `main`, unless nothing would be left to show.
pub(super) fn fold(frames: &mut [Frame], known: &[Known]) {
    let mut keep = frames.len();
    if let Some(main) = known.iter().rposition(|known| known.end == End::Main) {
        keep = main + 1;
    }
    if let Some(start) = known[..keep].iter().position(|known| known.end == End::Outside) {
        keep = start;
    }
    // `_start` of a stripped program, called by nobody: its caller's frames in libc give it away.
    if keep == frames.len()
        && keep >= 2
        && frames[keep - 1].function.is_none()
        && is_libc(frames[keep - 2].module_name())
    {
        keep -= 1;
    }
    while keep > 0 && is_system(frames[keep - 1].module_name()) {
        keep -= 1;
    }
    // Generic code at the outer end only passed the thread's function on.
    while 0 < keep && keep < frames.len() && frames[keep - 1].role == Role::Wrapper {
        keep -= 1;
    }
    let tells = |frame: &Frame| frame.shown() || frame.role == Role::Framework;
    if frames[..keep].iter().any(tells) {
        for frame in &mut frames[keep..] {
            frame.role = Role::BelowMain;
        }
    }
}

fn is_libc(module: &str) -> bool {
    ["libc.so", "libc-", "libc.musl", "libpthread", "ld-linux", "ld-musl"]
        .iter()
        .any(|start| module.starts_with(start))
}

/// Libraries that call `main` and thread functions, and no code of the program's own.
pub(super) fn is_system(module: &str) -> bool {
    is_libc(module) || module.starts_with("libstdc++.so") || module.starts_with("libc++")
}

/// Everything outside such a frame belongs to the system.
fn starts_a_thread(name: &str, module: &str) -> bool {
    match name {
        "_start" | "execute_native_thread_routine" | "__libc_start_main" | "__libc_start_call_main" => true,
        "start_thread" | "clone" | "clone3" | "__clone" | "__clone3" => is_libc(module),
        _ => {
            name.contains("__rust_begin_short_backtrace")
                || name.starts_with("std::rt::lang_start")
                || (name.starts_with("std::sys::") && name.ends_with("::thread_start"))
                || name.starts_with("__libc_start_main")
        }
    }
}
