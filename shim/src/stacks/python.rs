//! Python frames: they are part of the hash of every stack, and their functions are described once each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use culeak_cpython::{self as python, End, Frame, Seen, Status};
pub use culeak_cpython::{is_end_wanted, is_ready, may_be_ending};
use culeak_walker::mix_in;

use crate::process;
use crate::resolve::loader::{self, Loaded};
use crate::resolve::{closing, dl};
use crate::settings::DEPTH_MAX;
use culeak::lockfree::index::mix;
use culeak::recording::{CodeSeen, Recording};

/// Bytes for the names and the line table of one function; a longer table is not stored.
pub const TEXT: usize = 256 << 10;

/// The hash of the calling thread's Python frames; `None` if it has none.
#[inline(never)]
pub fn hash(depth: usize) -> Option<u64> {
    let mut hashes = [0x5079_7468_6f6e_0001, 0];
    let end = python::walk(depth, |seen| match seen {
        Seen::Frame(Frame { code, stamp, offset }) => {
            hashes = [
                mix_in(hashes[0], code),
                mix_in(hashes[1], stamp.rotate_left(20) ^ u64::from(offset)),
            ];
        }
        // Its address may differ between equal stacks, but its presence separates the frames of two calls.
        Seen::Boundary(_) => hashes[0] = hashes[0].wrapping_add(1),
    });
    match end {
        End::Nothing => None,
        _ => Some(mix(mix(hashes[0]).wrapping_add(end as u64) ^ hashes[1])),
    }
}

/// The frames of a stack to be stored. All zeros is an empty one.
pub struct Frames {
    frames: [Frame; DEPTH_MAX],
    count: usize,
    /// For each interpreter call: one past its last frame, and its mark.
    marks: [(usize, u64); DEPTH_MAX],
    mark_count: usize,
    /// There are more frames, or the walk failed.
    pub cut: bool,
}

/// An interpreter call.
#[derive(Clone)]
pub struct Call<'a> {
    pub frames: &'a [Frame],
    pub mark: u64,
}

impl Frames {
    pub fn clear(&mut self) {
        (self.count, self.mark_count, self.cut) = (0, 0, false);
    }

    /// Collects the frames. False if the chain of frames could not be followed to its end.
    pub fn walk(&mut self, depth: usize) -> bool {
        let end = python::walk(depth.min(DEPTH_MAX), |seen| match seen {
            Seen::Frame(frame) => {
                if let Some(slot) = self.frames.get_mut(self.count) {
                    *slot = frame;
                    self.count += 1;
                }
            }
            Seen::Boundary(mark) => {
                if let Some(slot) = self.marks.get_mut(self.mark_count) {
                    *slot = (self.count, mark);
                    self.mark_count += 1;
                }
            }
        });
        self.cut = matches!(end, End::Full | End::Lost);
        end != End::Lost
    }

    /// Innermost first. The last call may have been cut before its mark.
    pub fn calls(&self) -> impl Iterator<Item = Call<'_>> + Clone {
        let marks = &self.marks[..self.mark_count];
        let marked = marks.iter().enumerate().map(|(index, &(end, mark))| Call {
            frames: &self.frames[index.checked_sub(1).map_or(0, |before| marks[before].0)..end],
            mark,
        });
        let rest = &self.frames[marks.last().map_or(0, |last| last.0)..self.count];
        // A mark that no address equals.
        let unmarked = (!rest.is_empty()).then_some(Call {
            frames: rest,
            mark: u64::MAX,
        });
        marked.chain(unmarked)
    }
}

/// The row of a frame's function, which is described when it is first seen.
pub fn code(recording: &Recording, frame: Frame, text: &mut [u8]) -> Option<u32> {
    let hash = mix(mix(frame.code).wrapping_add(frame.stamp));
    recording.code(hash, || {
        let described = python::describe(frame, text)?;
        Some(CodeSeen {
            file: described.file,
            function: described.function,
            first_line: described.first_line,
            line_table: described.line_table,
            minor: described.minor,
        })
    })
}

/// Keeps the interpreter loaded, whose functions culeak calls: a program may embed Python in a library and close that.
pub fn pin() {
    static PINNED: AtomicU64 = AtomicU64::new(0);
    if let Some(address) = python::code_address()
        && PINNED.swap(address, Relaxed) != address
    {
        dl::pin(address);
    }
}

/// What was last recorded about the interpreter; 0: nothing.
static RECORDED: AtomicU64 = AtomicU64::new(0);
/// A module on a stack has the interpreter's functions. Finding them takes the loader's list lock, under which a
/// callback of the program may be waiting, so they are searched for only after this is set.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether a module is libpython, or a program that contains it.
pub fn is_interpreter(module: &Loaded) -> bool {
    is_absent() && module.symbol(c"PyGILState_GetThisThreadState").is_some()
}

pub fn interpreter_seen() {
    SEEN.store(true, Relaxed);
}

/// Whether the interpreter has begun to finalize.
#[inline]
pub fn is_finalizing() -> bool {
    python::is_finalizing()
}

/// Whether the main thread runs what is left to do after its script: exit callbacks.
#[inline]
pub fn has_script_ended() -> bool {
    python::has_script_ended()
}

/// Makes the interpreter call the function when its script has ended.
#[inline]
pub fn call_at_end(function: Option<extern "C" fn()>) {
    if python::is_end_wanted() && !loader::list_is_unsafe() && !closing::is_running_here() {
        python::call_at_end(function);
    }
}

/// Whether the end of the script is known in front of its exit callbacks only if [`call_at_end`] announces it.
pub fn hides_end() -> bool {
    python::hides_end()
}

/// Whether a thread without the GIL reads its frames through the kernel.
pub fn reads_by_kernel() -> bool {
    python::reads_by_kernel()
}

/// The end of a script is to be announced: by `culeak run --why`, by a thread that walks its Python frames without the GIL, or because
/// nothing else shows it in front of the exit callbacks.
#[unsafe(link_section = ".data.culeak_events")]
pub static WATCHES_END: AtomicBool = AtomicBool::new(false);

/// An interpreter was found that hides its end, or a thread without the GIL walks its Python frames: it may read them directly if the
/// end of the script is announced.
#[cold]
pub fn watch_end() {
    if !WATCHES_END.swap(true, Relaxed) {
        process::forget_known();
    }
}

/// Whether no interpreter was found so far.
pub fn is_absent() -> bool {
    python::status() == Status::Absent
}

/// Searches for an interpreter.
pub fn prepare() {
    if !loader::list_is_unsafe() && !closing::is_running_here() && is_absent() {
        python::prepare();
    }
}

/// Records the state of the interpreter if it has changed. `are_left_out`: its frames are not wanted.
pub fn record_interpreter(recording: &Recording, are_left_out: bool) {
    if SEEN.swap(false, Relaxed) {
        prepare();
    }
    let (version, why) = match python::status() {
        Status::Absent => return,
        Status::Ready { version } => (version, are_left_out.then_some("recorded with --record native-frames")),
        Status::Unsupported { version, why } => (version, Some(why)),
    };
    let state = 1 << 33 | u64::from(why.is_some()) << 32 | u64::from(version);
    if RECORDED.swap(state, Relaxed) != state {
        recording.interpreter(version, why);
    }
}

/// In a forked child, which has a new recording.
pub fn forked() {
    RECORDED.store(0, Relaxed);
    python::forked();
}
