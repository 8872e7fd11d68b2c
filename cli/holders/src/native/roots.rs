//! Where the native walk begins: static memory, stacks, registers and thread-local variables.
//!
//! A thread that glibc created has everything in one mapping:
//!
//! ```text
//! │ guard │ unused stack … sp │ frames │ static thread-local memory │ struct pthread │
//!                                                                   └ thread pointer, which is its own first word
//! ```
//!
//! The main thread's thread-local memory is in anonymous memory. Memory of libraries that were loaded later is in chunks,
//! to which struct pthread leads.

use std::ops::Range;

use crate::copy::{Image, PAGE, SEARCHED, pieces};
use crate::modules::{Module, Modules, Role};
use crate::parallel;
use crate::source::Thread;

use super::pages::{Heap, Pages};

/// Where the native walk begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeRoot {
    pub sort: RootSort,
    /// 0 for globals.
    pub thread: u32,
    /// Of the file, or of the thread.
    pub name: String,
    /// Where its words are; registers are nowhere.
    pub range: Range<u64>,
    /// Of registers.
    pub values: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootSort {
    /// Static memory of a loaded file.
    Globals,
    /// Thread-local variables of the files that were loaded at the start.
    ThreadLocals,
    /// The beginning of glibc's struct pthread: where the thread-local variables of files are that were loaded later.
    Descriptor,
    /// The rest of it: what `pthread_setspecific` stored. The CUDA driver and its runtime list a thread's objects there, so what it leads
    /// to is only possibly held.
    Stored,
    /// Static memory of a file of [`Role::Library`].
    Library,
    Registers,
    /// From the stack pointer to the end of the stack.
    Stack,
    /// The stack pointer, or where the stack ends, is not known.
    WholeStack,
}

impl RootSort {
    /// It consists of variables.
    pub fn is_static(self) -> bool {
        !matches!(self, RootSort::Registers | RootSort::Stack | RootSort::WholeStack)
    }

    /// Whether the memory may belong to the CUDA driver or to one of its libraries: its words hold nothing for certain.
    pub fn is_doubtful(self) -> bool {
        matches!(self, RootSort::Stored | RootSort::Library)
    }
}

/// Where a thread keeps its data.
#[derive(Debug, Clone, Default)]
pub struct Stack {
    pub thread: Thread,
    /// From the stack pointer to the first frame.
    pub frames: Option<Range<u64>>,
    sure: bool,
    pub locals: Option<Range<u64>>,
    /// The thread pointer.
    pub descriptor: Option<u64>,
    /// All of its memory, as far as that is known; without other memory in the same mapping.
    pub whole: Option<Range<u64>>,
    /// From the stack pointer on, if the thread runs on a stack that the program made itself.
    pub own: Option<Range<u64>>,
}

/// Bytes of glibc's struct pthread, at least.
const DESCRIPTOR: u64 = 2304;
/// In it: the number of the thread.
const THREAD_ID: u64 = 720;
/// Stacks that programs make themselves are rarely larger.
const OWN_STACK: u64 = 1 << 20;
/// No stack has more; an address is larger.
const MOST_STACK: u64 = 1 << 40;
/// Functions may use this much memory below the stack pointer.
const RED_ZONE: u64 = 128;

/// Whether a struct pthread of glibc on x86-64 is here: it refers to itself in its first and third words, and in the second to
/// the thread's blocks of thread-local memory, which begin with a generation, behind their number. Those of other machines
/// and C libraries are not known.
fn is_descriptor(copy: &Image, at: u64) -> bool {
    const MOST: u64 = 1 << 24;
    copy.word(at) == at && copy.word(at + 16) == at && {
        let blocks = copy.word(at + 8);
        copy.has(blocks) && copy.word(blocks) < MOST && (1..MOST).contains(&copy.word(blocks.wrapping_sub(16)))
    }
}

/// The memory that glibc notes as the stack of this thread, with its guard: a start and a number of bytes. `None`: the first thread.
fn noted(word: impl Fn(u64) -> u64, descriptor: u64) -> Option<Range<u64>> {
    // Behind the number of the thread, which is followed by an address.
    let words = (descriptor + THREAD_ID + 8..descriptor + DESCRIPTOR).step_by(8);
    let ranges = words.map(|at| word(at)..word(at).wrapping_add(word(at + 8)));
    let is_size = |range: &Range<u64>| range.end.wrapping_sub(range.start) <= MOST_STACK;
    let mut around = ranges.filter(|range| range.start >= PAGE && is_size(range) && range.contains(&descriptor));
    around.find(|range| range.end - descriptor <= DESCRIPTOR + PAGE)
}

/// The first struct pthread in this range, of this thread if the number can be compared.
fn descriptor(copy: &Image, pages: &Pages, range: Range<u64>, thread: u32) -> Option<u64> {
    let all = all_descriptors(copy, pages, std::slice::from_ref(&range));
    let mut inside = all.into_iter().filter(|at| range.contains(at));
    // Numbers differ between namespaces.
    let first = inside.next()?;
    let is_own = |at: &u64| copy.half(at + THREAD_ID) == thread;
    [first].into_iter().chain(inside).find(is_own).or(Some(first))
}

/// All struct pthreads in this memory.
fn all_descriptors(copy: &Image, pages: &Pages, memory: &[Range<u64>]) -> Vec<u64> {
    let present = memory.iter().flat_map(|range| pages.present(range.clone()));
    parallel::flat_map(&pieces(present, SEARCHED), |piece| {
        let mut found = Vec::new();
        for page in piece.iter().flat_map(|run| run.clone().step_by(PAGE as usize)) {
            let words = copy.page(page);
            let refers_to_itself = |at: &u64| words.is_some_and(|words| words[(at - page) as usize / 8] == *at);
            let places = (page..page + PAGE).step_by(64).filter(refers_to_itself);
            found.extend(places.filter(|at| is_descriptor(copy, *at)));
        }
        found
    })
}

/// The static thread-local memory and the struct pthread of a thread.
fn locals(copy: &Image, region: &Range<u64>, descriptor: u64) -> Range<u64> {
    const MOST_MODULES: u64 = 4096;
    // Blocks of modules, by number; those outside this mapping were allocated later.
    let blocks = copy.word(descriptor + 8);
    let count = copy.word(blocks.wrapping_sub(16)).min(MOST_MODULES);
    let static_blocks = (1..=count)
        .map(|module| copy.word(blocks.wrapping_add(module * 16)))
        .filter(|block| (region.start..descriptor).contains(block) && descriptor - block < 1 << 24);
    let start = static_blocks.min().unwrap_or(descriptor) & !7;
    start..(descriptor + DESCRIPTOR).next_multiple_of(PAGE).min(region.end)
}

/// Whether a thread runs on a stack that the program made itself: it is neither the one that the kernel made, nor is a
/// struct pthread at its end. In some core files, the kernel's has no name.
fn is_of_coroutine(copy: &Image, pages: &Pages, thread: &Thread, pointer: u64) -> bool {
    let is_stack = |descriptor| noted(|at| copy.word(at), descriptor).is_none_or(|stack| stack.contains(&pointer));
    copy.regions().iter().any(|region| region.name == "[stack]")
        && copy.region(pointer).is_some_and(|region| {
            region.name != "[stack]"
                && !descriptor(copy, pages, pointer..region.range.end, thread.id).is_some_and(is_stack)
        })
}

/// The stacks of all threads.
pub fn stacks(copy: &Image, pages: &Pages, memory: &[Range<u64>]) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    for thread in copy.threads().iter().cloned() {
        let mut stack = Stack::default();
        // A stack that the program made itself is memory of the heap.
        let own = |pointer: &u64| is_of_coroutine(copy, pages, &thread, *pointer);
        let pointer = thread.stack_pointer.filter(|pointer| !own(pointer));
        stack.sure = pointer.is_some();
        stack.own = thread.stack_pointer.filter(own).and_then(|pointer| {
            let start = pointer.saturating_sub(RED_ZONE) & !7;
            Some(start..copy.region(pointer)?.range.end.min(pointer + OWN_STACK))
        });
        let region = match pointer {
            Some(pointer) => copy.region(pointer),
            None if thread.is_main => copy.regions().iter().find(|region| region.name == "[stack]"),
            None => None,
        };
        if let Some(region) = region {
            let start = (pointer.map(|pointer| pointer.saturating_sub(RED_ZONE) & !7))
                .unwrap_or(region.range.start)
                .max(region.range.start);
            stack.frames = Some(start..region.range.end);
            stack.whole = match region.name.as_str() {
                "[stack]" => Some(region.range.clone()),
                _ => stack.frames.clone(),
            };
            let own = thread.thread_pointer.filter(|pointer| is_descriptor(copy, *pointer));
            let descriptor = own.or_else(|| match region.name.as_str() {
                "[stack]" => None,
                _ => descriptor(copy, pages, start..region.range.end, thread.id),
            });
            if let Some(descriptor) = descriptor {
                stack.set_descriptor(copy, descriptor);
            }
        }
        stack.thread = thread;
        stacks.push(stack);
    }
    let locals: Vec<&Range<u64>> = stacks.iter().flat_map(|stack| &stack.locals).collect();
    let mut others = all_descriptors(copy, pages, memory);
    others.retain(|at| !locals.iter().any(|range| range.contains(at)));
    for stack in stacks.iter_mut().filter(|stack| stack.locals.is_none()) {
        let own = |at: &u64| stack.thread.thread_pointer == Some(*at) || copy.half(at + THREAD_ID) == stack.thread.id;
        let only = || (others.len() == 1).then_some(0);
        if let Some(place) = others.iter().position(own).or_else(only) {
            stack.set_descriptor(copy, others.remove(place));
        }
    }
    let are_all_known = stacks.iter().all(|stack| stack.locals.is_some());
    for descriptor in others {
        let mut stack = Stack::default();
        stack.thread.id = copy.half(descriptor + THREAD_ID);
        stack.set_descriptor(copy, descriptor);
        // The kernel clears it; glibc may have set it to -1.
        if stack.thread.id as i32 <= 0 {
            // The thread has ended, and glibc keeps its stack for the next one. Until it is joined, it has a result.
            let result = (stack.thread.id == 0).then(|| descriptor..descriptor + DESCRIPTOR);
            (stack.frames, stack.locals) = (None, result);
        } else if are_all_known {
            continue;
        }
        stacks.push(stack);
    }
    stacks
}

impl Stack {
    fn set_descriptor(&mut self, copy: &Image, descriptor: u64) {
        let Some(region) = copy.region(descriptor) else { return };
        let noted = noted(|at| copy.word(at), descriptor).map(|noted| {
            let (start, end) = (noted.start.max(region.range.start), noted.end.min(region.range.end));
            start..end
        });
        let locals = locals(copy, noted.as_ref().unwrap_or(&region.range), descriptor);
        match &mut self.frames {
            Some(frames) if frames.start <= locals.start && locals.start < frames.end => {
                frames.end = locals.start;
                self.whole = noted.or(Some(frames.start..locals.end));
            }
            // The thread runs: its whole stack.
            None if noted.is_some() => {
                self.frames = noted.as_ref().map(|noted| noted.start..locals.start);
                self.whole = noted;
            }
            _ => {}
        }
        self.locals = Some(locals);
        self.descriptor = Some(descriptor);
    }

    fn roots(&self) -> Vec<NativeRoot> {
        let root = |sort, range| NativeRoot {
            sort,
            thread: self.thread.id,
            name: self.thread.name.clone(),
            range,
            values: Vec::new(),
        };
        let locals = self.locals.clone().unwrap_or_default();
        let descriptor = self.descriptor.unwrap_or(locals.end).clamp(locals.start, locals.end);
        let of_files = root(RootSort::ThreadLocals, locals.start..descriptor);
        let stored = locals.end.min(descriptor + 16);
        let of_glibc = root(RootSort::Descriptor, descriptor..stored);
        let stored = root(RootSort::Stored, stored..locals.end);
        let registers = (!self.thread.registers.is_empty()).then(|| NativeRoot {
            values: self.thread.registers.clone(),
            ..root(RootSort::Registers, 0..0)
        });
        let sort = if self.sure {
            RootSort::Stack
        } else {
            RootSort::WholeStack
        };
        let frames = self.frames.clone().map(|range| root(sort, range));
        let own = self.own.clone().map(|range| root(RootSort::WholeStack, range));
        let parts = [Some(of_files), Some(of_glibc), Some(stored), registers, frames, own];
        parts.into_iter().flatten().collect()
    }

    /// Its thread's number, if it was not found.
    pub fn missing(&self) -> Option<u32> {
        (self.frames.is_none() && self.thread.id as i32 > 0).then_some(self.thread.id)
    }
}

/// Whether threads exist, but the thread-local memory of none was found: that of this machine or C library is not known.
pub fn are_locals_missing(stacks: &[Stack]) -> bool {
    !stacks.is_empty() && stacks.iter().all(|stack| stack.locals.is_none())
}

/// Globals of the program first, then those of libraries, then variables of threads, then CUDA's libraries, then stacks.
pub fn all(modules: &Modules, stacks: &[Stack]) -> Vec<NativeRoot> {
    let of_module = |module: &Module| {
        let sort = match Role::of(&module.path) {
            Role::Program => RootSort::Globals,
            Role::Library => RootSort::Library,
            Role::System | Role::Driver | Role::Compiler => return Vec::new(),
        };
        let root = |range: &Range<u64>| NativeRoot {
            sort,
            thread: 0,
            name: module.file_name().to_owned(),
            range: range.clone(),
            values: Vec::new(),
        };
        module.globals.iter().map(root).collect()
    };
    let mut roots: Vec<NativeRoot> = modules.all().iter().flat_map(of_module).collect();
    roots.extend(stacks.iter().flat_map(Stack::roots));
    roots.sort_by_key(|root| match root.sort {
        RootSort::Globals => 0,
        RootSort::ThreadLocals => 1,
        RootSort::Descriptor => 2,
        RootSort::Stored => 3,
        RootSort::Library => 4,
        RootSort::Registers => 5,
        RootSort::Stack | RootSort::WholeStack => 6,
    });
    roots
}

/// Static memory and stacks contain no chunks.
pub fn exclude(copy: &Image, modules: &Modules, stacks: &[Stack], pages: &mut Pages) {
    for module in modules.all() {
        for range in &module.globals {
            pages.set_kind(copy, range.clone(), Heap::None);
        }
    }
    for stack in stacks {
        let whole = stack.whole.clone().unwrap_or_default();
        let locals = stack.locals.clone().unwrap_or_default();
        // The first and the last page of a stack may have other memory, too.
        let pages_of_stack = whole.start.next_multiple_of(PAGE)..whole.end & !(PAGE - 1);
        pages.set_kind(copy, pages_of_stack, Heap::None);
        if !whole.contains(&locals.start) {
            pages.set_kind(copy, locals, Heap::None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_local_memory_is_missing_if_that_of_no_thread_was_found() {
        let unknown = Stack::default();
        let known = Stack {
            locals: Some(PAGE..2 * PAGE),
            ..Stack::default()
        };
        assert!(are_locals_missing(&[unknown.clone(), unknown.clone()]));
        assert!(!are_locals_missing(&[unknown, known]) && !are_locals_missing(&[]));
    }

    #[test]
    fn the_number_of_a_thread_is_no_start_of_a_stack() {
        const AT: u64 = 0x7fbe_447f_f6c0;
        let stack = 0x7fbe_4470_0000..0x7fbe_4480_0000;
        // The list of robust mutexes is a field of struct pthread.
        let word = |at: u64| match at - AT {
            THREAD_ID => 5444,
            728 => AT + 736,
            1680 => stack.start,
            1688 => stack.end - stack.start,
            _ => 0,
        };
        assert_eq!(noted(word, AT), Some(stack.clone()));
    }
}
