//! Stacks that the program made itself: of coroutines that `swapcontext` switches between.
//!
//! Such a stack is a chunk, a mapping or a static array. As one of these, all of its words would count, those of functions
//! that returned long ago, too. The context that a coroutine was left with says where its stack is, and from where on it is
//! in use:
//!
//! ```text
//! ucontext_t:  │ … │ stack: start, flags, bytes │ registers: … stack pointer, program counter … │ pointer ─┐ … │ here ◄┘ │
//! stack:       │ unused, stale │ stack pointer ► frames │
//! ```
//!
//! A context is recognised by the pointer to its own floating-point state, and by that state. Contexts are searched for in static memory, in
//! stacks, and at the beginning and the end of chunks and mappings. Deliberately absent: other libraries' coroutines, whose
//! contexts cannot be recognised, and other machines than x86-64.

use std::collections::BTreeMap;
use std::ops::Range;

use super::glibc::usable;
use super::pages::Kind;
use super::roots::{RED_ZONE, Stack};
use super::{Native, NativeRoot};
use crate::copy::{Copy, PAGE, pieces};
use crate::modules::Modules;
use crate::parallel;

/// Bytes of a `ucontext_t`, and what is where in it.
const CONTEXT: u64 = 968;
const STACK_START: u64 = 16;
const STACK_BYTES: u64 = 32;
const STACK_POINTER: u64 = 160;
const PROGRAM_COUNTER: u64 = 168;
const FLOATS: u64 = 224;
/// What the pointer at `FLOATS` points to: what `fnstenv` writes, and behind it the control register of SSE.
const FLOATS_HERE: u64 = 424;
const SSE_CONTROL: u64 = 448;

/// No stack is larger.
const LARGEST: u64 = 1 << 30;

/// A stack that is no thread's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coroutine {
    /// All of its memory.
    pub memory: Range<u64>,
    pub root: NativeRoot,
}

/// A saved context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Context {
    stack: (u64, u64),
    pointer: u64,
}

/// The context at this address.
fn context(copy: &Copy, at: u64) -> Option<Context> {
    if copy.word(at + FLOATS) != at + FLOATS_HERE {
        return None;
    }
    // `fnstenv` fills the upper half of its first word with ones, and bit 6 is always set. The bits 16 to 31 of the other
    // register are reserved.
    let (control, sse_control) = (copy.half(at + FLOATS_HERE), copy.half(at + SSE_CONTROL));
    if control & 0xffff_0040 != 0xffff_0040 || sse_control == 0 || sse_control >> 16 != 0 {
        return None;
    }
    let pointer = copy.word(at + STACK_POINTER);
    let code = copy.region(copy.word(at + PROGRAM_COUNTER))?;
    let memory = copy.region(pointer.wrapping_sub(1))?;
    let is_usable = code.executable && memory.writable && !memory.shared && pointer.is_multiple_of(8);
    is_usable.then(|| Context {
        stack: (copy.word(at + STACK_START), copy.word(at + STACK_BYTES)),
        pointer,
    })
}

impl Context {
    /// The memory of the coroutine's stack, if the program said where it is.
    fn memory(&self, copy: &Copy) -> Option<Range<u64>> {
        let (start, bytes) = self.stack;
        let end = start.checked_add(bytes)?;
        if start >= end || bytes > LARGEST || !(start..=end).contains(&self.pointer) {
            return None;
        }
        let writable = |address| copy.region(address).filter(|region| region.writable && !region.shared);
        let (first, last) = (writable(start)?, writable(end - 1)?);
        // Static memory may consist of two mappings. `getcontext` leaves what it finds there.
        let is_one = first.range.start == last.range.start || first.range.end == last.range.start;
        is_one.then_some(start..end)
    }
}

/// The contexts in these words of memory.
fn each(copy: &Copy, range: Range<u64>, see: &mut dyn FnMut(Context)) {
    each_in(copy, range.clone(), &range, see);
}

/// Those in `whole` that have the pointer by which they are recognised in this part of it.
fn each_in(copy: &Copy, range: Range<u64>, whole: &Range<u64>, see: &mut dyn FnMut(Context)) {
    let mut page = range.start & !(PAGE - 1);
    while page < range.end {
        if let Some(words) = copy.page(page) {
            let first = range.start.max(page).next_multiple_of(8);
            let last = range.end.min(page + PAGE);
            let places = (first - page) as usize / 8..(last - page).div_ceil(8) as usize;
            for (word, at) in words.get(places).into_iter().flatten().zip((first..).step_by(8)) {
                if *word == at + (FLOATS_HERE - FLOATS)
                    && let Some(start) = at.checked_sub(FLOATS)
                    && whole.start <= start
                    && let Some(context) = context(copy, start)
                {
                    see(context);
                }
            }
        }
        page += PAGE;
    }
}

impl Native {
    /// Finds the stacks that are no thread's own, and the threads that run on one.
    pub(super) fn find_coroutines(&mut self, copy: &Copy, modules: &Modules) {
        let contexts = match cfg!(target_arch = "x86_64") {
            true => self.contexts(copy, modules),
            false => Vec::new(),
        };
        // By the start of their memory: the memory, and from where on it is in use.
        let mut found: BTreeMap<u64, (Range<u64>, u64)> = BTreeMap::new();
        for context in &contexts {
            let is_own = |stack: &Stack| {
                let whole = stack.whole.as_ref().filter(|_| stack.guest.is_none());
                whole.is_some_and(|whole| whole.contains(&context.pointer))
            };
            if self.stacks.iter().any(is_own) {
                continue;
            }
            if let Some(memory) = context.memory(copy).filter(|memory| self.is_in_use(copy, memory)) {
                let known = found.entry(memory.start).or_insert((memory, context.pointer));
                known.1 = known.1.min(context.pointer);
            }
        }
        let mut coroutines: Vec<Coroutine> = Vec::new();
        for number in 0..self.stacks.len() {
            let Some(pointer) = self.stacks[number].guest else {
                continue;
            };
            let of_context = (found.iter())
                .find(|(_, (memory, _))| memory.contains(&pointer))
                .map(|(start, _)| *start);
            let memory = match of_context {
                Some(start) => found.remove(&start).map(|(memory, _)| memory),
                None => self.chunk_at(copy, pointer),
            };
            let Some(memory) = memory else { continue };
            let stack = &self.stacks[number];
            coroutines.push(Coroutine {
                root: NativeRoot::Stack {
                    thread: stack.thread.id,
                    name: stack.thread.name.clone(),
                    range: pointer.saturating_sub(RED_ZONE).max(memory.start)..memory.end,
                    sure: true,
                },
                memory,
            });
        }
        // A thread that runs on another stack left its own one with a context.
        for stack in self.stacks.iter_mut().filter(|stack| stack.guest.is_some()) {
            if let Some(frames) = &mut stack.frames {
                let saved = contexts.iter().map(|context| context.pointer);
                let lowest = saved.filter(|pointer| frames.contains(pointer)).min();
                frames.start = lowest
                    .unwrap_or(frames.start)
                    .saturating_sub(RED_ZONE)
                    .max(frames.start);
            }
        }
        coroutines.extend(found.into_values().map(|(memory, pointer)| Coroutine {
            root: NativeRoot::Stack {
                thread: super::NO_THREAD,
                name: String::new(),
                range: pointer..memory.end,
                sure: true,
            },
            memory,
        }));
        coroutines.sort_by_key(|coroutine| coroutine.memory.start);
        coroutines.dedup_by(|next, last| next.memory.start < last.memory.end);
        self.coroutines = coroutines;
    }

    fn contexts(&self, copy: &Copy, modules: &Modules) -> Vec<Context> {
        let globals = modules.all().iter().flat_map(|module| &module.globals).cloned();
        let frames = self.stacks.iter().filter_map(|stack| stack.frames.clone());
        let parts: Vec<(Range<u64>, Range<u64>)> = globals
            .chain(frames)
            .flat_map(|range| {
                let parts = pieces(self.pages.present(range.clone())).into_iter().flatten();
                parts.map(move |part| (part, range.clone())).collect::<Vec<_>>()
            })
            .collect();
        let mut found = parallel::flat_map(&parts, |(part, whole)| {
            let mut found = Vec::new();
            let part = part.start.max(whole.start)..part.end.min(whole.end);
            each_in(copy, part, whole, &mut |context| found.push(context));
            found
        });
        found.extend(parallel::flat_map(&copy.pieces(), |piece| {
            let mut found = Vec::new();
            self.pages.each_start_in(copy, piece, Kind::Glibc, &mut |start, _| {
                let bytes = usable(copy, start);
                if bytes >= CONTEXT {
                    ends(copy, start..start.saturating_add(bytes), &mut |context| {
                        found.push(context)
                    });
                }
            });
            found
        }));
        let mut see = |context| found.push(context);
        for region in copy.regions() {
            if region.writable && !region.shared && self.pages.kind_at(copy, region.range.start) == Kind::Unknown {
                ends(copy, region.range.clone(), &mut see);
            }
        }
        found
    }

    /// Whether the memory is a mapping, static, or an allocated chunk.
    fn is_in_use(&self, copy: &Copy, memory: &Range<u64>) -> bool {
        let last = memory.end - 8;
        match self.pages.kind_at(copy, last) {
            Kind::Glibc => self
                .chunk_at(copy, last)
                .is_some_and(|chunk| chunk.start <= memory.start),
            Kind::None | Kind::Unknown => true,
            Kind::Pool | Kind::Extent => false,
        }
    }

    fn chunk_at(&self, copy: &Copy, address: u64) -> Option<Range<u64>> {
        let granule = copy.granule(address)?;
        if self.pages.kind(granule) != Kind::Glibc {
            return None;
        }
        let start = self.pages.start_before(granule, address)?;
        // The program may use the last word, too.
        let end = start.checked_add(usable(copy, start))?.next_multiple_of(16);
        (start..end).contains(&address).then_some(start..end)
    }

    /// Whether this is the memory of a coroutine's stack.
    pub(super) fn is_of_coroutine(&self, address: u64) -> bool {
        let place = (self.coroutines).partition_point(|coroutine| coroutine.memory.end <= address);
        (self.coroutines.get(place)).is_some_and(|coroutine| coroutine.memory.start <= address)
    }

    /// The part of a chunk before a stack in it; `None` if the address is in the stack.
    pub(super) fn outside_stacks(&self, chunk: super::Chunk, address: u64) -> Option<super::Chunk> {
        let place = self
            .coroutines
            .partition_point(|coroutine| coroutine.memory.end <= chunk.start);
        let memory = match self.coroutines.get(place) {
            Some(coroutine) if coroutine.memory.start < chunk.start + chunk.bytes => &coroutine.memory,
            _ => return Some(chunk),
        };
        let bytes = memory.start.saturating_sub(chunk.start);
        (address < memory.start && bytes >= 8).then_some(super::Chunk { bytes, ..chunk })
    }
}

/// The contexts at the beginning and the end of a range.
fn ends(copy: &Copy, range: Range<u64>, see: &mut dyn FnMut(Context)) {
    if range.end - range.start <= 2 * PAGE {
        return each(copy, range, see);
    }
    each(copy, range.start..range.start + PAGE, see);
    each(copy, range.end - PAGE..range.end, see);
}
