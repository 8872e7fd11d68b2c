//! The outer end of a stack for its reader: `main`, or the function that a thread was started with.
//!
//! Its callers belong to libc, to a language's runtime, or to `_start`; they get the role [`Role::BelowMain`].
//! Deliberately absent: the outer end of Python lines, which `python` folds.

use super::{Frame, Role};
use crate::analysis::function_name::plain;

/// What the name of a frame implies for the end of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing.
    Anywhere,
    /// The frame is the program's outermost.
    Main,
    /// The frame and its callers belong to the system.
    Outside,
    /// The frame waits for threads, whose stacks continue with it.
    Waits,
}

/// A frame with everything that follows from its names. Computed once per location, because thousands of stacks share
/// one.
#[derive(Clone, Copy)]
pub(super) struct Expanded<'a> {
    pub frame: Frame<'a>,
    pub end: End,
    /// The owner of the caching allocator that the function belongs to.
    pub allocator: Option<&'static str>,
}

pub(super) fn end(frame: &Frame) -> End {
    let Some(function) = frame.function.filter(|_| !frame.is_python()) else {
        return End::Anywhere;
    };
    match plain(function).as_ref() {
        "main" => End::Main,
        "torch::autograd::Engine::execute" => End::Waits,
        name if name.starts_with("torch::autograd::") && name.ends_with("::execute_with_graph_task") => End::Waits,
        name if starts_a_thread(name, frame.module_name()) => End::Outside,
        _ => End::Anywhere,
    }
}

/// Marks the frames below `main` and those between two threads, unless none would be left to show. Returns how many frames are of the
/// thread itself.
pub(super) fn fold(frames: &mut [Frame], known: &[Expanded]) -> usize {
    let mut keep = frames.len();
    if let Some(main) = known.iter().rposition(|known| known.end == End::Main) {
        keep = main + 1;
    }
    let (mut own, mut from) = (frames.len(), 0);
    let next = |from: usize, end: End| known[from..keep].iter().position(|known| known.end == end);
    while let Some(waiting) = next(from, End::Waits).map(|at| from + at) {
        let named = next(from, End::Outside).map(|at| from + at);
        let start = named.filter(|&start| start < waiting).unwrap_or(waiting);
        // Without symbols, these frames have no names.
        let inside = frames[from..start].iter().rev();
        let start = start - inside.take_while(|frame| is_system(frame.module_name())).count();
        if start < waiting {
            own = own.min(start);
            let between = frames[start..waiting].iter_mut();
            between.for_each(|frame| frame.role = Role::BelowMain);
        }
        from = waiting + 1;
    }
    if let Some(start) = next(from, End::Outside) {
        keep = from + start;
    }
    // `_start` of a stripped program: a nameless outermost frame that calls libc.
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
    let worth_showing = |frame: &Frame| frame.shown() || frame.role == Role::Framework;
    // Generic code at the outer end only calls the thread's function, which may be a wrapper itself.
    while 0 < keep
        && keep < frames.len()
        && frames[keep - 1].role == Role::Wrapper
        && frames[..keep - 1].iter().any(worth_showing)
    {
        keep -= 1;
    }
    if frames[..keep].iter().any(worth_showing) {
        for frame in &mut frames[keep..] {
            frame.role = Role::BelowMain;
        }
    }
    own
}

fn is_libc(module: &str) -> bool {
    ["libc.so", "libc-", "libc.musl", "libpthread", "ld-linux", "ld-musl"]
        .iter()
        .any(|start| module.starts_with(start))
}

/// Libraries that call `main` and thread functions, and contain no code of the program.
pub(super) fn is_system(module: &str) -> bool {
    is_libc(module) || module.starts_with("libstdc++.so") || module.starts_with("libc++")
}

/// Whether this frame and its callers belong to the system.
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
