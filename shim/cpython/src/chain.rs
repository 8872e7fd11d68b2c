//! The walk along a thread's frames.
//!
//! The walk ends whatever the memory contains: after a limited number of steps, at the first object that is not a frame or
//! whose code is not a code object, or at an instruction outside the code.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use crate::direct::GATE;
use crate::interpreter::{Interpreter, is_finalizing};
use crate::layout::*;
use crate::memory::{Direct, EXPECTED, Gathered, Memory, View, Window, on_main_thread};
use crate::stamp::{Code, stamp};
use culeak_walker::{mix_in, read};

/// One Python call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Address of the code object.
    pub code: u64,
    /// Distinguishes code objects that had the same address one after the other.
    pub stamp: u64,
    /// Offset of the current instruction in bytes; [`BEFORE_FIRST`] if none has been executed.
    pub offset: u32,
}

/// The offset in a frame that has not begun: its line is the function's first.
pub const BEFORE_FIRST: u32 = u32::MAX;

/// What a walk reports, innermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Frame(Frame),
    /// The frames since the last boundary belong to one interpreter call, whose C frame contains this address. 0: the call
    /// leaves no record on the C stack (before 3.10); its C frame is recognized by its code ([`native_eval`](crate::native_eval)).
    Boundary(u64),
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The thread has no Python stack, or it cannot be read.
    Nothing,
    /// All frames were reported.
    Root,
    /// There are more frames than the limit.
    Full,
    /// The chain leads to something that is not a frame.
    Lost,
}

/// Bytes read of a thread state, and of a C frame record.
const THREAD_BYTES: u64 = 192;
const RECORD_BYTES: u64 = 24;
/// `owner` of a generator's frame, and the smallest `owner` of frames that run no Python code.
const GENERATOR: u8 = 1;
const NO_PYTHON: u8 = 3;
/// The largest `owner` of any version.
const LAST_OWNER: u8 = 4;
/// Bytes per instruction, since 3.6.
const UNIT: u64 = 2;
/// A frame at a larger offset has begun: only a function's first instructions set up its frame.
const PROLOGUE: u64 = 64;

#[inline]
pub fn walk(interpreter: &Interpreter, limit: usize, mut see: impl FnMut(Seen)) -> End {
    let thread = interpreter.this_thread();
    if thread == 0 {
        return End::Nothing;
    }
    let walked = directly(interpreter, thread, |thread| {
        let memory = (Direct::new(), Direct::new(), Direct::new());
        walk_in::<_, _, _, 1>(interpreter, thread, memory, limit, &mut see)
    });
    walked.unwrap_or_else(|| walk_checked(interpreter, thread, limit, see))
}

/// Reads what the calling thread's state leads to, if there is one and it may be read by plain loads.
#[inline(always)]
pub fn directly<T>(interpreter: &Interpreter, thread: u64, read: impl FnOnce(u64) -> T) -> Option<T> {
    if thread == 0 {
        return None;
    }
    let is_safe = on_main_thread() || interpreter.holds_lock(thread);
    let walking = if is_safe { None } else { GATE.enter(thread) };
    (is_safe || walking.is_some()).then(|| read(thread))
}

static BY_KERNEL: AtomicBool = AtomicBool::new(false);

/// Whether a thread without the GIL has walked while it was not permitted to read directly ([`crate::direct`]): it asks to be,
/// by [`crate::call_at_end`].
pub fn reads_by_kernel() -> bool {
    BY_KERNEL.load(Relaxed)
}

/// On a thread whose state, frames and code objects may be freed and unmapped at any time, even before the first load.
#[inline(never)]
fn walk_checked(interpreter: &Interpreter, thread: u64, limit: usize, see: impl FnMut(Seen)) -> End {
    if is_finalizing() {
        return End::Nothing;
    }
    BY_KERNEL.store(true, Relaxed);
    let memory = (Window::new(), Gathered::<400>::new(), Gathered::<240>::new());
    walk_in::<_, _, _, 16>(interpreter, thread, memory, limit, see)
}

#[inline(always)]
fn walk_in<F: Memory, C: Memory, T: Memory, const AHEAD: usize>(
    interpreter: &Interpreter,
    thread: u64,
    mut memory: (F, C, T),
    limit: usize,
    see: impl FnMut(Seen),
) -> End {
    match Start::of(interpreter, thread, &mut memory.0) {
        None => End::Lost,
        Some(start) if start.frame == 0 => End::Nothing,
        Some(start) => follow::<_, _, _, AHEAD>(interpreter, start, &mut memory, limit, see).unwrap_or(End::Lost),
    }
}

/// Where a thread's chain begins.
pub struct Start {
    pub frame: u64,
    /// The innermost C frame record, of versions that have them.
    record: u64,
}

impl Start {
    #[inline(always)]
    pub fn of(interpreter: &Interpreter, thread: u64, memory: &mut impl Memory) -> Option<Start> {
        let layout = &interpreter.layout.thread;
        let state = memory.object(thread, THREAD_BYTES)?;
        let (mut frame, record) = (state.word(layout.frame), state.word(layout.c_frame));
        if !interpreter.is_thread_layout_confirmed.load(Relaxed)
            && !interpreter.confirm_thread_layout(state.word(layout.thread_id))
        {
            return None;
        }
        if layout.frame == layout.c_frame {
            // The record is in the thread state itself, or on the thread's own stack.
            frame = memory.object(record, RECORD_BYTES)?.word(layout.current);
        }
        Some(Start { frame, record })
    }
}

/// A frame's fields.
#[derive(Clone, Copy)]
pub struct Link {
    frame: u64,
    pub code: u64,
    pub previous: u64,
    pub instruction: u64,
    pub owner: u8,
    is_entry: bool,
    /// Which copy of the instructions is executed; 0: the code object's own.
    pub copy: u32,
}

impl Link {
    const NONE: Link = Link {
        frame: 0,
        code: 0,
        previous: 0,
        instruction: 0,
        owner: NO_PYTHON,
        is_entry: false,
        copy: 0,
    };

    /// `None` if there is no frame at the address.
    #[inline(always)]
    pub fn of(interpreter: &Interpreter, memory: &mut impl Memory, frame: u64) -> Option<Link> {
        let layout = &interpreter.layout.frame;
        let here = memory.object(frame, layout.bytes)?;
        let mut link = Link::read(layout, here, frame);
        let last_owner = match interpreter.layout.chain {
            Chain::Objects | Chain::ObjectsWithRecords if here.word(OBJECT_TYPE) != interpreter.frame_type => {
                return None;
            }
            Chain::Objects | Chain::ObjectsWithRecords => {
                link.owner = 0;
                LAST_OWNER
            }
            Chain::EntryFlag => {
                link.is_entry = here.byte(layout.is_entry) != 0;
                NO_PYTHON - 1
            }
            Chain::EntryFrame => LAST_OWNER,
        };
        (link.owner <= last_owner).then_some(link)
    }

    /// Of [`Chain::EntryFrame`].
    #[inline(always)]
    pub fn read(layout: &crate::layout::Frame, here: View, frame: u64) -> Link {
        Link {
            frame,
            // The interpreter uses the low bits as flags.
            code: here.word(layout.code) & !3,
            previous: here.word(layout.previous),
            instruction: here.word(layout.instruction),
            owner: here.byte(layout.owner),
            is_entry: false,
            copy: if layout.copy == 0 { 0 } else { here.half(layout.copy) },
        }
    }

    #[inline(always)]
    pub fn is_python(&self) -> bool {
        self.owner < NO_PYTHON
    }
}

/// Frames, code objects, and their names and tables lie in different places, so each kind has its own `Memory`. `AHEAD`
/// frames are read before their code objects, so that these can be read with one request. `None` if the chain leads to
/// something that is not a frame.
#[inline(always)]
fn follow<F: Memory, C: Memory, T: Memory, const AHEAD: usize>(
    interpreter: &Interpreter,
    Start { mut frame, mut record }: Start,
    (frames, codes, texts): &mut (F, C, T),
    limit: usize,
    mut see: impl FnMut(Seen),
) -> Option<End> {
    let layout = &interpreter.layout;
    let (mut count, mut since_boundary, mut last_file) = (0, false, (0, 0));
    // CPython adds at most one internal frame for each Python frame.
    let mut steps_left = 2 * limit + 16;
    while frame != 0 {
        let mut links = [Link::NONE; AHEAD];
        let mut ahead = 0;
        while ahead < AHEAD && frame != 0 {
            let Some(link) = Link::of(interpreter, frames, frame) else {
                // The frames before it are valid; the next round ends the walk at this address.
                frame = 8;
                break;
            };
            links[ahead] = link;
            ahead += 1;
            frame = link.previous;
        }
        if ahead == 0 {
            return None;
        }
        steps_left = steps_left.checked_sub(ahead)?;
        if AHEAD > 1 {
            expect_all(interpreter, &links[..ahead], codes, texts);
        }
        for link in &links[..ahead] {
            if !link.is_python() {
                if since_boundary {
                    see(Seen::Boundary(link.frame));
                    since_boundary = false;
                }
                continue;
            }
            let object = codes.object(link.code, layout.code.bytes)?;
            if object.word(OBJECT_TYPE + layout.head) != interpreter.code_type {
                return None;
            }
            let code = Code::of(interpreter, object);
            if let Some(offset) = executing(interpreter, object, link)? {
                if count == limit {
                    return Some(End::Full);
                }
                let stamp = stamp(interpreter, texts, &code, &mut last_file)?;
                see(Seen::Frame(Frame {
                    code: link.code,
                    stamp,
                    offset,
                }));
                count += 1;
                since_boundary = true;
            }
            match layout.chain {
                Chain::EntryFrame => {}
                Chain::Objects => see(Seen::Boundary(0)),
                Chain::EntryFlag if !link.is_entry => {}
                Chain::ObjectsWithRecords | Chain::EntryFlag => {
                    if since_boundary {
                        see(Seen::Boundary(record));
                        since_boundary = false;
                    }
                    record = texts.object(record, RECORD_BYTES)?.word(layout.thread.previous);
                }
            }
        }
    }
    Some(End::Root)
}

/// Makes one request for the code objects and, if they have no versions, one for their names and tables.
fn expect_all(interpreter: &Interpreter, links: &[Link], codes: &mut impl Memory, texts: &mut impl Memory) {
    let layout = &interpreter.layout.code;
    let mut addresses = [0; EXPECTED];
    let mut count = 0;
    for link in links.iter().filter(|link| link.is_python()) {
        addresses[count] = link.code;
        count += 1;
    }
    codes.expect(&addresses[..count], layout.bytes);
    if layout.version != 0 {
        return;
    }
    let (wanted, mut parts) = (addresses, [0; EXPECTED]);
    for (code, parts) in wanted[..count].iter().zip(parts.chunks_exact_mut(3)) {
        if let Some(object) = codes.object(*code, layout.bytes) {
            let code = Code::of(interpreter, object);
            parts.copy_from_slice(&[code.name, code.file, code.line_table]);
        }
    }
    texts.expect(&parts[..count * 3], BYTES_CONTENT + interpreter.layout.head + 8);
}

/// The offset of the current instruction. `Some(None)` for a frame that is being set up, which Python does not report
/// either; `None` if the code has no such instruction.
#[inline(always)]
fn executing(interpreter: &Interpreter, code: View, link: &Link) -> Option<Option<u32>> {
    let Link { instruction, owner, .. } = *link;
    let layout = &interpreter.layout;
    match layout.chain {
        // 3.8 and 3.9 count in bytes.
        Chain::Objects | Chain::ObjectsWithRecords => match instruction as i32 {
            -1 => Some(Some(BEFORE_FIRST)),
            number if number < 0 => None,
            number if layout.chain == Chain::Objects => Some(Some(number as u32)),
            number => Some(u32::try_from(number as u64 * UNIT).ok()),
        },
        Chain::EntryFlag | Chain::EntryFrame => {
            let bytes = code.word(OBJECT_SIZE + layout.head).wrapping_mul(UNIT);
            let first = match link.copy {
                0 => link.code + layout.code.instructions,
                _ => first_of_copy(layout, code, link, bytes)?,
            };
            let offset = instruction.wrapping_sub(first);
            if offset == UNIT.wrapping_neg() {
                // Not begun: Python reports such a frame only if a generator owns it.
                return Some((owner == GENERATOR).then_some(BEFORE_FIRST));
            }
            if offset >= bytes || offset > u64::from(u32::MAX) {
                return None;
            }
            let first = || u64::from(code.half(layout.code.first_traceable)).wrapping_mul(UNIT);
            let incomplete = offset < PROLOGUE && owner != GENERATOR && offset < first();
            Some((!incomplete).then_some(offset as u32))
        }
    }
}

/// The first instruction of the copy that a frame executes ([`layout::Code::copies`](crate::layout::Code::copies)).
///
/// A copy stays where it is while a thread has its number, and another one of the same code object, which has the same size, lies
/// beside it. So an address found before is the right one if the frame's instruction is in that copy.
#[inline(never)]
fn first_of_copy(layout: &Layout, code: View, link: &Link, bytes: u64) -> Option<u64> {
    let version = u64::from(code.half(layout.code.version));
    let key = mix_in(mix_in(link.code, version), u64::from(link.copy));
    let known = &KNOWN[(key >> (64 - KNOWN.len().ilog2())) as usize];
    let first = known[0].load(Relaxed);
    let is_known = version != 0 && known[1].load(Relaxed) == first ^ key;
    if is_known && link.instruction.wrapping_sub(first) < bytes {
        return Some(first);
    }
    let first = look_up(link.code + layout.code.copies, link.copy)?;
    known[0].store(first, Relaxed);
    known[1].store(first ^ key, Relaxed);
    Some(first)
}

/// Addresses of copies, each with itself xored with the key that it was found for: of two threads that write one pair at once, the
/// words do not match.
static KNOWN: [[AtomicU64; 2]; 1024] = [const { [const { AtomicU64::new(0) }; 2] }; 1024];

/// Looks a copy up in the code object's list, whose address is at `list`. When another thread needs a copy, it may replace the list by a
/// longer one, and the old one is freed and unmapped later. So the kernel reads, and what was read is valid if the code object still has
/// that list afterwards.
#[cold]
fn look_up(list: u64, copy: u32) -> Option<u64> {
    const TRIES: u32 = 4;
    (0..TRIES).find_map(|_| {
        let (mut before, mut entry, mut after) = ([0u64], [0], [0]);
        let is_read = read(list, &mut before)
            && read(before[0].wrapping_add(8 + 8 * u64::from(copy)), &mut entry)
            && read(list, &mut after);
        (is_read && before == after).then_some(entry[0])
    })
}

#[cfg(test)]
pub mod tests;
