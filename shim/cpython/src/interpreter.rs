//! The CPython of this process: whether there is one, which, and whether it is what we think.
//!
//! It is found by its exported names, in whichever module has them: libpython or the executable. What is asked of it
//! then are three functions that look and change nothing; everything else is read.
//!
//! Nothing is believed because of a version number alone. The sizes of code and frame objects and the places of four
//! attributes of code objects stand in the interpreter's type objects, and must be those of the layout. From 3.13 on the
//! interpreter says itself what lies where, for debuggers, and is taken at its word where that makes sense. Thread
//! states are proven by the first one met: it must name the thread we are on.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::*};

use culeak_walker::{exported, read};

use crate::layout::{self, *};

/// An interpreter that checked out.
pub struct Interpreter {
    pub layout: Layout,
    pub code_type: u64,
    pub frame_type: u64,
    pub string_type: u64,
    pub bytes_type: u64,
    pub proven: AtomicBool,
    unproven: AtomicU32,
    this_thread: Look,
    current_thread: Look,
    is_finalizing: Look,
    eval: Range<u64>,
    version: u32,
}

/// A function of the interpreter's that takes nothing, changes nothing and takes no lock.
pub type Look = unsafe extern "C" fn() -> u64;

/// What is known of the process's interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// None was found, so far.
    Absent,
    /// `0x030c01f0` is 3.12.1.
    Ready { version: u32 },
    /// There is one, and it is left alone. Version 0: it does not say.
    Refused { version: u32, why: &'static str },
}

static STATE: AtomicU8 = AtomicU8::new(ABSENT);
const ABSENT: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;
const REFUSED: u8 = 3;

/// Filled by the one who found `STATE` absent, read when it says ready.
struct Slot(UnsafeCell<MaybeUninit<Interpreter>>);
// SAFETY: written once, before the Release of `STATE` that lets others read it; what changes afterwards is atomic.
unsafe impl Sync for Slot {}
static SLOT: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));

static REFUSED_VERSION: AtomicU32 = AtomicU32::new(0);
static REFUSED_WHY: AtomicU8 = AtomicU8::new(0);

/// Why an interpreter is left alone.
const REASONS: [&str; 8] = [
    "its version is not known to this build",
    "it is a free-threaded build, whose frames are kept differently",
    "it is a pre-release, whose structures may still change",
    "its code objects are not laid out as in other builds of this version",
    "its frames are not laid out as in other builds of this version",
    "its description of its own structures is not as in other builds of this version",
    "its thread states are not laid out as in other builds of this version",
    "it does not say which version it is",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Why {
    Unknown,
    FreeThreaded,
    PreRelease,
    Code,
    Frames,
    Description,
    Threads,
    NoVersion,
}

/// A refusal and the version it concerns.
type Refusal = (u32, Why);

/// The interpreter, if there is one whose frames can be read.
#[inline(always)]
pub fn ready() -> Option<&'static Interpreter> {
    // Acquire: pairs with the Release in `prepare`, so the interpreter is written.
    if STATE.load(Acquire) != READY {
        return None;
    }
    // SAFETY: written before the state said so, and not exclusively borrowed since.
    Some(unsafe { (*SLOT.0.get()).assume_init_ref() })
}

pub fn status() -> Status {
    match STATE.load(Acquire) {
        READY => ready().map_or(Status::Absent, |interpreter| Status::Ready {
            version: interpreter.version,
        }),
        REFUSED => Status::Refused {
            version: REFUSED_VERSION.load(Relaxed),
            why: REASONS
                .get(REFUSED_WHY.load(Relaxed) as usize)
                .copied()
                .unwrap_or_default(),
        },
        _ => Status::Absent,
    }
}

/// Looks for an interpreter unless one was found. Waits for the loader's short list lock.
pub fn prepare() -> Status {
    if STATE.compare_exchange(ABSENT, BUSY, Acquire, Relaxed).is_err() {
        return status();
    }
    let after = match find() {
        None => ABSENT,
        Some(Ok(interpreter)) => {
            // SAFETY: nobody else writes while the state is busy, or reads before it is ready.
            unsafe { (*SLOT.0.get()).write(interpreter) };
            READY
        }
        Some(Err(refusal)) => {
            refuse(refusal);
            REFUSED
        }
    };
    STATE.store(after, Release);
    status()
}

fn refuse((version, why): Refusal) {
    REFUSED_VERSION.store(version, Relaxed);
    REFUSED_WHY.store(why as u8, Relaxed);
}

/// An address in the code of the interpreter whose functions are called; `None` while there is none.
pub fn code_address() -> Option<u64> {
    ready().map(|interpreter| interpreter.this_thread as usize as u64)
}

/// In the child of a fork: a thread that was looking is not there to finish.
pub fn forked() {
    let _ = STATE.compare_exchange(BUSY, ABSENT, Relaxed, Relaxed);
}

/// Where the function lies that runs Python code, one call for each frame: for interpreters that leave no mark.
pub fn native_eval() -> Range<u64> {
    ready().map_or(0..0, |interpreter| interpreter.eval.clone())
}

impl Interpreter {
    /// One for tests, of which only what a walk needs is there.
    #[cfg(test)]
    pub fn pretended(
        layout: Layout,
        this_thread: Look,
        current_thread: Look,
        is_finalizing: Look,
        code_type: u64,
        frame_type: u64,
    ) -> Interpreter {
        Interpreter {
            layout,
            code_type,
            frame_type,
            string_type: 0,
            bytes_type: 0,
            proven: AtomicBool::new(true),
            unproven: AtomicU32::new(0),
            this_thread,
            current_thread,
            is_finalizing,
            eval: 0..0,
            version: 0,
        }
    }

    /// The calling thread's state, 0 if it has none.
    #[inline(always)]
    pub fn this_thread(&self) -> u64 {
        // SAFETY: `PyGILState_GetThisThreadState`, which reads a thread-specific value.
        unsafe { (self.this_thread)() }
    }

    /// Whether the calling thread, whose state this is, holds the GIL. `PyGILState_Check` says so of every thread once the
    /// process has made a sub-interpreter or taken the interpreter down, so it is not what is asked.
    #[inline(always)]
    pub fn holds_lock(&self, thread: u64) -> bool {
        // SAFETY: `_PyThreadState_UncheckedGet`, which reads a variable.
        unsafe { (self.current_thread)() == thread }
    }

    #[inline(always)]
    pub fn is_finalizing(&self) -> bool {
        // SAFETY: `Py_IsFinalizing`, which reads a variable; its result is an int.
        unsafe { (self.is_finalizing)() as u32 != 0 }
    }

    /// The first thread states: do they name the thread we are on? A program may have made one on another thread, so a
    /// few that do not are no proof of the contrary.
    #[cold]
    pub fn prove(&self, thread_id: u64) -> bool {
        const PATIENCE: u32 = 32;
        // SAFETY: no preconditions.
        if thread_id == unsafe { libc::pthread_self() } as u64 {
            self.proven.store(true, Relaxed);
            return true;
        }
        if self.unproven.fetch_add(1, Relaxed) == PATIENCE {
            refuse((self.version, Why::Threads));
            STATE.store(REFUSED, Release);
        }
        false
    }
}

fn find() -> Option<Result<Interpreter, Refusal>> {
    let this_thread = exported(c"PyGILState_GetThisThreadState")?;
    let code_type = exported(c"PyCode_Type")?;
    Some(examine(this_thread.start, code_type.start))
}

fn examine(this_thread: u64, code_type: u64) -> Result<Interpreter, Refusal> {
    let version = version().ok_or((0, Why::NoVersion))?;
    let fail = |why| (version, why);
    if version >> 24 != 3 {
        return Err(fail(Why::Unknown));
    }
    let mut layout = *layout::of(version >> 16 & 0xff).ok_or(fail(Why::Unknown))?;
    // 0xa0 and 0xb0: alpha and beta.
    if version & 0xf0 < 0xc0 {
        return Err(fail(Why::PreRelease));
    }
    if let Some(places) = layout::debug_offsets(layout.minor) {
        let runtime = exported(c"_PyRuntime").ok_or(fail(Why::Description))?;
        let mut words = [0; DEBUG_OFFSETS_WORDS];
        if !read(runtime.start, &mut words) {
            return Err(fail(Why::Description));
        }
        adopt(&mut layout, places, &words, version).map_err(fail)?;
    }
    let address = |name: &CStr| exported(name).map(|found| found.start);
    let frame_type = address(c"PyFrame_Type").ok_or(fail(Why::Frames))?;
    if !attributes_match(code_type, &layout) {
        return Err(fail(Why::Code));
    }
    if word(frame_type + TYPE_BASIC_SIZE) != Some(layout.frame_basic_size) {
        return Err(fail(Why::Frames));
    }
    let look = |name: &CStr| address(name).map(as_look);
    let finalizing = look(c"Py_IsFinalizing").or_else(|| look(c"_Py_IsFinalizing"));
    let current = look(c"PyThreadState_GetUnchecked").or_else(|| look(c"_PyThreadState_UncheckedGet"));
    Ok(Interpreter {
        layout,
        code_type,
        frame_type,
        string_type: address(c"PyUnicode_Type").ok_or(fail(Why::Code))?,
        bytes_type: address(c"PyBytes_Type").ok_or(fail(Why::Code))?,
        proven: AtomicBool::new(false),
        unproven: AtomicU32::new(0),
        this_thread: as_look(this_thread),
        current_thread: current.ok_or(fail(Why::Threads))?,
        is_finalizing: finalizing.ok_or(fail(Why::Threads))?,
        eval: exported(c"_PyEval_EvalFrameDefault").unwrap_or(0..0),
        version,
    })
}

fn as_look(address: u64) -> Look {
    // SAFETY: the address of an exported function of that kind; it is called only if the interpreter checks out.
    unsafe { std::mem::transmute::<usize, Look>(address as usize) }
}

fn word(address: u64) -> Option<u64> {
    let mut word = [0];
    read(address, &mut word).then_some(word[0])
}

/// As in `Py_Version`; from a text where that does not exist (before 3.11).
fn version() -> Option<u32> {
    if let Some(number) = exported(c"Py_Version") {
        return word(number.start)?.try_into().ok();
    }
    let text = exported(c"Py_GetVersion")?;
    // SAFETY: it takes nothing and returns a text that is always the same; before 3.11 it writes that text anew into a
    // static array, over an equal one.
    let text = unsafe {
        let get = std::mem::transmute::<usize, unsafe extern "C" fn() -> *const libc::c_char>(text.start as usize);
        CStr::from_ptr(get())
    };
    version_in(text.to_bytes())
}

/// `3.10.13 (main, …` as a number; what comes after the numbers counts as a final release unless it begins with a or b.
fn version_in(text: &[u8]) -> Option<u32> {
    let number = text.split(|&byte| byte == b' ').next()?;
    let mut parts = number.splitn(3, |&byte| byte == b'.');
    let mut next = || {
        let part = parts.next()?;
        let digits = part.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let value: u8 = std::str::from_utf8(part.get(..digits)?).ok()?.parse().ok()?;
        Some((u32::from(value), part.get(digits).copied()))
    };
    let ((major, _), (minor, _), (micro, tail)) = (next()?, next()?, next()?);
    let level = match tail {
        Some(b'a') => 0xa0,
        Some(b'b') => 0xb0,
        _ => 0xf0,
    };
    Some(major << 24 | minor << 16 | micro << 8 | level)
}

/// Takes over what the interpreter says of itself.
fn adopt(layout: &mut Layout, places: &DebugOffsets, words: &[u64], version: u32) -> Result<(), Why> {
    let at = |place: u64| words.get(place as usize).copied().unwrap_or(u64::MAX);
    if at(0) != u64::from_le_bytes(*b"xdebugpy") || at(DEBUG_VERSION as u64) != version.into() {
        return Err(Why::Description);
    }
    if at(DEBUG_FREE_THREADED as u64) != 0 {
        return Err(Why::FreeThreaded);
    }
    layout.thread.frame = at(places.current_frame);
    layout.thread.thread_id = at(places.thread_id);
    layout.frame.previous = at(places.frame_previous);
    layout.frame.code = at(places.frame_previous + 1);
    layout.frame.instruction = at(places.frame_previous + 2);
    layout.frame.owner = at(places.frame_previous + 4);
    layout.code.file = at(places.code_size + 1);
    layout.code.name = at(places.code_size + 2);
    layout.code.function = at(places.code_size + 3);
    layout.code.line_table = at(places.code_size + 4);
    layout.code.first_line = at(places.code_size + 5);
    layout.code.instructions = at(places.code_size + 9);
    let (thread, frame, code) = (&layout.thread, &layout.frame, &layout.code);
    // The size with its first instruction, rounded up to words.
    let whole = at(places.code_size) == layout.code_basic_size + 8 && code.instructions == layout.code_basic_size;
    let fits =
        |offset: u64, align: u64, bytes: u64| offset.is_multiple_of(align) && offset.saturating_add(align) <= bytes;
    let words_of = |offsets: &[u64], bytes| offsets.iter().all(|&offset| fits(offset, 8, bytes));
    let sound = whole
        && words_of(&[thread.frame, thread.thread_id], 192)
        && words_of(&[frame.previous, frame.code, frame.instruction], frame.bytes)
        && fits(frame.owner, 1, frame.bytes)
        && words_of(&[code.file, code.name, code.function, code.line_table], code.bytes)
        && fits(code.first_line, 4, code.bytes);
    if sound { Ok(()) } else { Err(Why::Description) }
}

/// Whether the type of code objects tells the size and the attributes that the layout has.
fn attributes_match(code_type: u64, layout: &Layout) -> bool {
    const ROW: u64 = 40;
    const ROWS_MAX: u64 = 64;
    let wanted: [(&[u8], u64); 5] = [
        (b"co_filename", layout.code.file),
        (b"co_name", layout.code.name),
        (b"co_firstlineno", layout.code.first_line),
        (
            if layout.minor < 10 {
                b"co_lnotab"
            } else {
                b"co_linetable"
            },
            layout.code.line_table,
        ),
        (
            if layout.minor < 11 { b"co_name" } else { b"co_qualname" },
            layout.code.function,
        ),
    ];
    let mut found = [false; 5];
    let (size, Some(members)) = (word(code_type + TYPE_BASIC_SIZE), word(code_type + TYPE_MEMBERS)) else {
        return false;
    };
    for row in 0..ROWS_MAX {
        // Name, type, offset, flags, documentation.
        let mut member = [0u64; 3];
        if !read(members + row * ROW, &mut member) {
            return false;
        }
        if member[0] == 0 {
            break;
        }
        for (place, (name, offset)) in wanted.iter().enumerate() {
            if text_is(member[0], name) {
                if member[2] != *offset {
                    return false;
                }
                found[place] = true;
            }
        }
    }
    size == Some(layout.code_basic_size) && found == [true; 5]
}

/// Whether a C string is this one.
fn text_is(address: u64, wanted: &[u8]) -> bool {
    let mut text = [0u8; 16];
    let text = &mut text[..wanted.len() + 1];
    read(address, text) && text.split_last() == Some((&0, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_their_text() {
        assert_eq!(
            version_in(b"3.10.13 (main, May  9 2026, 00:00:00) [GCC]"),
            Some(0x030a_0df0)
        );
        assert_eq!(version_in(b"3.8.18 (default"), Some(0x0308_12f0));
        assert_eq!(version_in(b"3.9.0b4+ (heads"), Some(0x0309_00b0));
        assert_eq!(version_in(b"3.10.0rc1"), Some(0x030a_00f0));
        for text in ["", "3", "3.x.1", "Jython", "3.1000.1"] {
            assert_eq!(version_in(text.as_bytes()), None, "{text}");
        }
    }

    fn description(minor: u32) -> (Layout, [u64; DEBUG_OFFSETS_WORDS], u32) {
        let version = 3 << 24 | minor << 16 | 0x5f0;
        let (layout, places) = (*layout::of(minor).unwrap(), layout::debug_offsets(minor).unwrap());
        let mut words = [0; DEBUG_OFFSETS_WORDS];
        words[0] = u64::from_le_bytes(*b"xdebugpy");
        words[1] = version.into();
        let mut put = |place: u64, value| words[place as usize] = value;
        put(places.current_frame, layout.thread.frame);
        put(places.thread_id, layout.thread.thread_id);
        put(places.frame_previous, layout.frame.previous);
        put(places.frame_previous + 1, layout.frame.code);
        put(places.frame_previous + 2, layout.frame.instruction);
        put(places.frame_previous + 4, layout.frame.owner);
        put(places.code_size, layout.code_basic_size + 8);
        let code = &layout.code;
        let offsets = [code.file, code.name, code.function, code.line_table, code.first_line];
        for (place, offset) in offsets.into_iter().enumerate() {
            put(places.code_size + 1 + place as u64, offset);
        }
        put(places.code_size + 9, code.instructions);
        (layout, words, version)
    }

    #[test]
    fn an_interpreter_that_describes_the_layout_is_believed() {
        for minor in 13..=15 {
            let (layout, words, version) = description(minor);
            let mut adopted = layout;
            assert_eq!(
                adopt(&mut adopted, layout::debug_offsets(minor).unwrap(), &words, version),
                Ok(())
            );
            assert_eq!(adopted, layout);
        }
    }

    #[test]
    fn a_description_that_makes_no_sense_is_refused() {
        for minor in 13..=15 {
            let places = layout::debug_offsets(minor).unwrap();
            let (layout, words, version) = description(minor);
            let with = |place: u64, value: u64| {
                let mut words = words;
                words[place as usize] = value;
                adopt(&mut layout.clone(), places, &words, version)
            };
            assert_eq!(with(0, 7), Err(Why::Description));
            assert_eq!(with(1, u64::from(version) + 0x100), Err(Why::Description));
            assert_eq!(with(2, 1), Err(Why::FreeThreaded));
            for place in [
                places.current_frame,
                places.frame_previous,
                places.frame_previous + 2,
                places.code_size + 1,
            ] {
                for nonsense in [4, 4096, u64::MAX, u64::MAX - 7] {
                    assert_eq!(with(place, nonsense), Err(Why::Description), "{place} {nonsense}");
                }
            }
            assert_eq!(with(places.code_size, 8), Err(Why::Description));
            assert_eq!(with(places.frame_previous + 4, 4096), Err(Why::Description));
        }
    }

    #[test]
    fn a_process_without_python_has_no_interpreter() {
        assert_eq!(prepare(), Status::Absent);
        assert!(ready().is_none());
        assert_eq!(crate::walk(10, |_| panic!("a frame")), crate::End::Nothing);
    }
}
