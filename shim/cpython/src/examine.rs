//! Whether the process has a CPython, which version it is, and whether its structures are as [`layout`](crate::layout) has
//! them.
//!
//! The interpreter is found by its exported names, in the module that has them: libpython or the executable. The few
//! functions of it that are called change nothing; everything else is read.
//!
//! The version number alone is not trusted. The sizes of code and frame objects and the offsets of attributes of code
//! objects are in the interpreter's type objects, and must equal those of the layout. From 3.13 on the interpreter
//! describes its offsets for debuggers; these are adopted if they are plausible. The layout of thread states is confirmed
//! later, by the first one met: it must contain the id of the calling thread.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU32};

use culeak_walker::{exported, read};

use crate::interpreter::{Getter, Interpreter};
use crate::layout::{self, *};
use culeak::cpython::ABSENT;

/// Why an interpreter's frames are not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Why {
    Unknown,
    FreeThreaded,
    PreRelease,
    Code,
    Frames,
    Description,
    Threads,
    NoVersion,
}

/// In the order of `Why`.
const REASONS: [&str; 8] = [
    "its version is not known to this build",
    "free-threaded builds of its version are not known to this build",
    "it is a pre-release, whose structures may still change",
    "its code objects are not laid out as in other builds of this version",
    "its frames are not laid out as in other builds of this version",
    "its description of its own structures is not as in other builds of this version",
    "its thread states are not laid out as in other builds of this version",
    "its version cannot be determined",
];

/// The text for a `Why`.
pub fn reason(why: u8) -> &'static str {
    REASONS.get(usize::from(why)).copied().unwrap_or_default()
}

/// A version, 0 if unknown, and why it is not supported.
pub type Rejection = (u32, Why);

/// Looks for an interpreter among the loaded modules; `None` if there is none.
pub fn find() -> Option<Result<Interpreter, Rejection>> {
    let this_thread = exported(c"PyGILState_GetThisThreadState")?;
    let code_type = exported(c"PyCode_Type")?;
    Some(examine(this_thread.start, code_type.start))
}

fn examine(this_thread: u64, code_type: u64) -> Result<Interpreter, Rejection> {
    let version = version().ok_or((0, Why::NoVersion))?;
    let fail = |why| (version, why);
    if version >> 24 != 3 {
        return Err(fail(Why::Unknown));
    }
    let minor = version >> 16 & 0xff;
    let mut layout = *layout::of(minor, false).ok_or(fail(Why::Unknown))?;
    // 0xa0 and 0xb0: alpha and beta.
    if version & 0xf0 < 0xc0 {
        return Err(fail(Why::PreRelease));
    }
    if let Some(places) = layout.described {
        let runtime = exported(c"_PyRuntime").ok_or(fail(Why::Description))?;
        let mut words = [0; DEBUG_OFFSETS_WORDS];
        if !read(runtime.start, &mut words) {
            return Err(fail(Why::Description));
        }
        layout = as_described(&layout, &places, &words, version).map_err(fail)?;
    }
    let address = |name: &CStr| exported(name).map(|found| found.start);
    let frame_type = address(c"PyFrame_Type").ok_or(fail(Why::Frames))?;
    if !attributes_match(code_type, &layout) {
        return Err(fail(Why::Code));
    }
    if word(frame_type + TYPE_BASIC_SIZE + layout.head) != Some(layout.frame_basic_size) {
        return Err(fail(Why::Frames));
    }
    let getter = |name: &CStr| address(name).map(as_getter);
    finalizing_address().ok_or(fail(Why::Threads))?;
    let script_ended = script_ended(&layout).unwrap_or(0);
    let current = getter(c"PyThreadState_GetUnchecked").or_else(|| getter(c"_PyThreadState_UncheckedGet"));
    Ok(Interpreter {
        layout,
        code_type,
        frame_type,
        string_type: address(c"PyUnicode_Type").ok_or(fail(Why::Code))?,
        bytes_type: address(c"PyBytes_Type").ok_or(fail(Why::Code))?,
        is_thread_layout_confirmed: AtomicBool::new(false),
        mismatches: AtomicU32::new(0),
        this_thread: as_getter(this_thread),
        current_thread: current.ok_or(fail(Why::Threads))?,
        eval: exported(c"_PyEval_EvalFrameDefault").unwrap_or(0..0),
        script_ended,
        version,
    })
}

/// The address of the `int` that is not 0 after the end of the script. From 3.12 on, the one in front of it says that the interpreter
/// is initialized.
fn script_ended(layout: &Layout) -> Option<u64> {
    if layout.minor == 8 {
        return finishing();
    }
    let main = exported(c"PyInterpreterState_Main").filter(|_| layout.script_ended != ABSENT)?;
    // SAFETY: it takes no argument and returns a pointer that does not change; null before the interpreter is made.
    let main = unsafe { as_getter(main.start)() };
    let address = main.checked_add(layout.script_ended).filter(|_| main != 0)?;
    let mut initialized = [0; 1];
    let is_read = read(address - 4, &mut initialized);
    (is_read && initialized[0] == 1).then_some(address)
}

/// In 3.8, the address of the `int` that is not 0 after the last pending calls, and before the exit callbacks
/// (`_PyRuntime.ceval.pending.finishing`). A later pending call prints an error.
pub fn finishing() -> Option<u64> {
    const FINISHING: u64 = 600;
    Some(exported(c"_PyRuntime")?.start + FINISHING)
}

/// The address of `Py_IsFinalizing`, which had another name before 3.13.
pub fn finalizing_address() -> Option<u64> {
    let found = exported(c"Py_IsFinalizing").or_else(|| exported(c"_Py_IsFinalizing"));
    found.map(|found| found.start)
}

pub fn as_getter(address: u64) -> Getter {
    // SAFETY: the address of an exported function of that type; it is called only if all checks pass.
    unsafe { std::mem::transmute::<usize, Getter>(address as usize) }
}

fn word(address: u64) -> Option<u64> {
    let mut word = [0];
    read(address, &mut word).then_some(word[0])
}

/// The value of `Py_Version`, or the same number parsed from `Py_GetVersion` (before 3.11).
fn version() -> Option<u32> {
    if let Some(number) = exported(c"Py_Version") {
        return word(number.start)?.try_into().ok();
    }
    let text = exported(c"Py_GetVersion")?;
    // SAFETY: it takes no argument and returns a constant string; before 3.11 each call writes that string into a static
    // array, over an equal one.
    let text = unsafe {
        let get = std::mem::transmute::<usize, unsafe extern "C" fn() -> *const libc::c_char>(text.start as usize);
        CStr::from_ptr(get())
    };
    version_in(text.to_bytes())
}

/// Parses `3.10.13 (main, …`. A version counts as a final release unless `a` or `b` follows the numbers.
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

/// The layout of an interpreter that describes itself, from that of a build with the GIL.
fn as_described(
    layout: &Layout,
    places: &DebugOffsets,
    words: &[u64; DEBUG_OFFSETS_WORDS],
    version: u32,
) -> Result<Layout, Why> {
    if words[0] != u64::from_le_bytes(*b"xdebugpy") || words[DEBUG_VERSION] != u64::from(version) {
        return Err(Why::Description);
    }
    let mut layout = match words[DEBUG_FREE_THREADED] {
        0 => *layout,
        _ => *layout::of(layout.minor, true).ok_or(Why::FreeThreaded)?,
    };
    adopt(&mut layout, places, words)?;
    Ok(layout)
}

/// Adopts the offsets that the interpreter describes.
fn adopt(layout: &mut Layout, places: &DebugOffsets, words: &[u64]) -> Result<(), Why> {
    let at = |place: u64| words.get(place as usize).copied().unwrap_or(u64::MAX);
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
    if layout.code.copies != 0 {
        layout.frame.copy = at(places.frame_previous + 6);
        layout.code.copies = at(places.code_size + 10);
    }
    let (thread, frame, code) = (&layout.thread, &layout.frame, &layout.code);
    // The described size includes the first instruction, rounded up to words.
    let whole = at(places.code_size) == layout.code_basic_size + 8 && code.instructions == layout.code_basic_size;
    let fits =
        |offset: u64, align: u64, bytes: u64| offset.is_multiple_of(align) && offset.saturating_add(align) <= bytes;
    let words_of = |offsets: &[u64], bytes| offsets.iter().all(|&offset| fits(offset, 8, bytes));
    let sound = whole
        && words_of(&[thread.frame, thread.thread_id], 192)
        && words_of(&[frame.previous, frame.code, frame.instruction], frame.bytes)
        && fits(frame.owner, 1, frame.bytes)
        && fits(frame.copy, 4, frame.bytes)
        && fits(code.copies, 8, layout.code_basic_size)
        && words_of(&[code.file, code.name, code.function, code.line_table], code.bytes)
        && fits(code.first_line, 4, code.bytes);
    if sound { Ok(()) } else { Err(Why::Description) }
}

/// Whether the type of code objects has the size and attribute offsets of the layout.
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
    let code_type = code_type + layout.head;
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

/// Whether the C string at an address equals `wanted`.
fn text_is(address: u64, wanted: &[u8]) -> bool {
    let mut text = [0u8; 16];
    let text = &mut text[..wanted.len() + 1];
    read(address, text) && text.split_last() == Some((&0, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_from_text() {
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

    /// The layouts of versions that describe themselves.
    fn described() -> impl Iterator<Item = &'static Layout> {
        let described = LAYOUTS.iter().filter(|layout| layout.described.is_some());
        assert_eq!(described.clone().count(), 5, "3.13 to 3.15, 3.13t and 3.14t");
        described
    }

    fn description(layout: Layout) -> (Layout, [u64; DEBUG_OFFSETS_WORDS], u32) {
        let version = 3 << 24 | layout.minor << 16 | 0x5f0;
        let places = layout.described.unwrap();
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
        if layout.code.copies != 0 {
            put(places.frame_previous + 6, layout.frame.copy);
            put(places.code_size + 10, code.copies);
        }
        (layout, words, version)
    }

    #[test]
    fn a_description_that_matches_the_layout_is_adopted() {
        for layout in described() {
            let (layout, words, version) = description(*layout);
            let adopted = as_described(&layout, &layout.described.unwrap(), &words, version);
            assert_eq!(adopted, Ok(layout));
        }
    }

    #[test]
    fn only_a_description_says_that_a_build_is_free_threaded() {
        // 3.15 without the GIL is not known to this build.
        let latest = described()
            .find(|layout| layout::of(layout.minor, true).is_none())
            .unwrap();
        let (layout, words, version) = description(*latest);
        let places = layout.described.unwrap();
        let mut words = words;
        words[DEBUG_FREE_THREADED] = 1;
        assert_eq!(as_described(&layout, &places, &words, version), Err(Why::FreeThreaded));
        for (place, value) in [(0, 7), (DEBUG_VERSION, 0)] {
            let mut other = words;
            other[place] = value;
            assert_eq!(as_described(&layout, &places, &other, version), Err(Why::Description));
        }
    }

    #[test]
    fn a_nonsensical_description_is_rejected() {
        for layout in described() {
            let (layout, words, version) = description(*layout);
            let places = layout.described.unwrap();
            let with = |place: u64, value: u64| {
                let mut words = words;
                words[place as usize] = value;
                as_described(&layout, &places, &words, version).map(drop)
            };
            assert_eq!(with(0, 7), Err(Why::Description));
            assert_eq!(with(1, u64::from(version) + 0x100), Err(Why::Description));
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
            if layout.code.copies != 0 {
                assert_eq!(with(places.frame_previous + 6, 4096), Err(Why::Description));
                assert_eq!(with(places.code_size + 10, 4096), Err(Why::Description));
            }
        }
    }
}
