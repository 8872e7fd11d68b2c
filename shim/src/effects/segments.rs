//! Memory that the kernel driver gives to the process, and channels: what the CUDA driver allocates, duplicates and frees by
//! `ioctl` (`culeak::rm`).
//!
//! Every byte that NVML reports for the process is here, with the stack of whoever needed it first; the driver's own memory
//! lies in it. The CUDA driver holds its locks during these calls, so CUDA is asked for nothing, and nothing waits.
//!
//! Other devices have requests of the same numbers, and a sandbox may permit none of the system calls that tell them apart. So a
//! request is forwarded at once before the process uses CUDA, then the file is examined, and only the driver's argument is read.
//! Memory that Vulkan or OpenGL obtains before CUDA is used is therefore not seen.
//!
//! Freeing a client, a device or a group of channels frees what is below it (`recorder::kernel_objects`). A duplicate within
//! the process takes no bytes until its original is freed; a duplicate of another process's memory takes none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::recorder::segment_state::{self, DUPLICATES, IMPLAUSIBLE, InFlight, LOST};
use crate::recorder::{
    self, AllocationEvent, FrameWord, current, kernel_name, kernel_objects, segment_entry, thread_and_shard,
};
use crate::resolve::{driver, search};
use culeak::cuda_functions::Api;
use culeak::format::Loss;
use culeak::kind::{Kind, Place};
use culeak::lockfree::index::mix;
use culeak::lockfree::table::{Attributes, Entry, Space, Withdrawn};
use culeak::recording::Recording;
use culeak::rm::{self, Allocated, Object, Request, Unknown, class};
use culeak_walker::Registers;

/// The entry of `ioctl`: `real` is the call with the program's own arguments. `number` and `argument` are the request's.
pub fn requests(fd: i32, number: u32, argument: u64, real: impl FnOnce() -> i32) -> i32 {
    let at = Registers::here();
    let begun = recorder::quietly(|| {
        let (number, argument) = transferred(fd, number, argument).unwrap_or((number, argument));
        begin(fd, number, argument).map(|begun| (begun, argument))
    });
    let result = real();
    if let Some((begun, argument)) = begun.flatten() {
        recorder::quietly(|| end(begun, fd, result == 0, argument, at));
    }
    result
}

/// What is known before the call.
enum Begun {
    Alloc {
        status: usize,
    },
    Duplicate,
    Heap,
    Free {
        object: Object,
        held: Option<(Withdrawn<'static>, Entry)>,
        /// The segment's parent is known.
        has_parent: bool,
        in_flight: InFlight,
        is_parent: bool,
        before: Before,
    },
}

/// When a call began: what came into being later is not freed by it.
#[derive(Clone, Copy)]
struct Before {
    time_ns: u64,
    births: u64,
}

/// [`Unknown::to_word`]: why nothing is recorded any more; 0: it is.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// So many in a row mean that the layout is another one.
const TOO_MANY: u32 = 8;
fn duplicates_of(original: u64) -> &'static AtomicU32 {
    &DUPLICATES[mix(original) as usize % DUPLICATES.len()]
}

/// The request within one of `NV_ESC_IOCTL_XFER_CMD`: its number and the address of its argument.
fn transferred(fd: i32, number: u32, argument: u64) -> Option<(u32, u64)> {
    let is_transfer = number as u16 == rm::TRANSFER && rm::request(number).is_none();
    if !is_transfer || !driver::is_used() || !is_drivers_file(fd) {
        return None;
    }
    read::<4>(argument).map(rm::transferred)
}

fn begin(fd: i32, number: u32, argument: u64) -> Option<Begun> {
    if !driver::is_used() || search::is_second_copy() {
        return None;
    }
    let request = match rm::request(number)? {
        Ok(request) => request,
        Err(why) => {
            if is_drivers_file(fd) {
                ended(why);
            }
            return None;
        }
    };
    if ENDED.load(Relaxed) != 0 {
        // It may have ended before the recording began.
        running();
        return None;
    }
    match request {
        Request::Alloc { status } => Some(Begun::Alloc { status }),
        Request::Duplicate => Some(Begun::Duplicate),
        Request::Heap => Some(Begun::Heap),
        Request::Free => {
            let recording = running();
            if (recording.is_none() && kernel_objects::are_none_known()) || !is_drivers_file(fd) {
                return None;
            }
            let [client, _, handle] = read::<3>(argument)?;
            let object = Object { client, handle };
            let key = recorder::key(Space::Segment, object.to_word());
            let is_parent = kernel_objects::is_known(object);
            let is_segment = || recording.is_some_and(|recording| recording.table(0).link(key).is_some());
            if !(is_parent || is_segment()) {
                return None;
            }
            let in_flight = InFlight::begin(object.to_word(), is_parent.then(|| recording.map_or(0, Recording::now)));
            let held = recording.and_then(|recording| {
                let held = recording.withdraw_out_of_line(key, thread_and_shard(recording).1)?;
                let entry = held.entry()?;
                Some((held, entry))
            });
            Some(Begun::Free {
                object,
                has_parent: (held.as_ref())
                    .is_some_and(|(_, entry)| kernel_objects::is_known(Object::from_word(entry.pool))),
                held,
                in_flight,
                is_parent,
                before: Before {
                    time_ns: recording.map_or(0, Recording::now),
                    births: kernel_objects::births(),
                },
            })
        }
    }
}

fn end(begun: Begun, fd: i32, returned_0: bool, argument: u64, at: Registers) {
    match begun {
        Begun::Alloc { status } if returned_0 && is_drivers_file(fd) => {
            let mut words = [0; 11];
            if read_into(argument, &mut words[..=status])
                && let Some(allocated) = Allocated::of(&words, status)
                && is_relevant(allocated.class)
            {
                record(&allocated, at);
            }
        }
        Begun::Duplicate if returned_0 && is_drivers_file(fd) => {
            if let Some([client, parent, handle, of_client, of_handle, _, 0]) = read::<7>(argument) {
                let source = Object {
                    client: of_client,
                    handle: of_handle,
                };
                duplicated(Object { client, handle }, parent, source, at);
            }
        }
        Begun::Free {
            object,
            held,
            has_parent,
            mut in_flight,
            is_parent,
            before,
        } => {
            let is_freed = returned_0 && read::<4>(argument).is_some_and(|words| words[3] == 0);
            if let (Some((held, entry)), Some(recording)) = (held, recorder::running()) {
                let (_, shard) = thread_and_shard(recording);
                if is_freed {
                    recording.commit(held, shard);
                    kernel_objects::count_segment(Object::from_word(entry.pool), false);
                    if is_without_bytes(&entry) {
                        forget_duplicate(entry.extra);
                    }
                    // A duplicate's own duplicates are its original's.
                    if entry.bytes > 0 && duplicates_of(object.to_word()).load(Relaxed) > 0 {
                        pass_on(recording, Some(object.to_word()));
                    }
                } else {
                    recording.restore(held, shard);
                    // Another thread has freed the parent, and the memory with it. It may have looked for segments while this one
                    // was withdrawn. If it has looked and has not forgotten the parent yet, the record stays.
                    if has_parent && !kernel_objects::is_known(Object::from_word(entry.pool)) {
                        free_orphan(recording, object, &entry);
                    }
                }
            }
            in_flight.end_handle();
            if is_freed && is_parent {
                freed_parent(object, before);
            }
            in_flight.end();
        }
        Begun::Heap if returned_0 && is_drivers_file(fd) => {
            if read::<15>(argument).is_some_and(|words| rm::is_heap_allocation(&words)) {
                LOST.fetch_add(1, Relaxed);
                running();
            }
        }
        Begun::Alloc { .. } | Begun::Duplicate | Begun::Heap => {}
    }
}

/// A new object of the kernel driver.
fn record(allocated: &Allocated, at: Registers) {
    let (object, class) = (allocated.object, allocated.class);
    let parent = Object {
        handle: allocated.parent,
        ..object
    };
    let kind = match class {
        class::LOCAL_MEMORY => Kind::Segment,
        class::SYSTEM_MEMORY => Kind::HostSegment,
        _ if class::is_channel(class) => Kind::Channel,
        _ => return remember(allocated),
    };
    let bytes = match kind {
        Kind::Channel => 0,
        _ => {
            let size = allocated.parameters.checked_add(rm::SIZE_OFFSET);
            let Some(words) = size.and_then(read) else {
                return lost();
            };
            match rm::memory_size(class, words) {
                Ok(bytes) => {
                    IMPLAUSIBLE.store(0, Relaxed);
                    bytes
                }
                Err(bytes) => return implausible(bytes),
            }
        }
    };
    let event = AllocationEvent {
        extra: class.into(),
        at,
        ..AllocationEvent::new(const { Api::of("NV_ESC_RM_ALLOC") }, kind, bytes)
    };
    publish(object, parent, &event);
}

/// Whether objects of this class are recorded or remembered.
fn is_relevant(class: u32) -> bool {
    matches!(
        class,
        class::LOCAL_MEMORY | class::SYSTEM_MEMORY | class::DEVICE | class::SUBDEVICE | class::CHANNEL_GROUP
    ) || class::is_channel(class)
        || class::CLIENTS.contains(&class)
}

/// Remembers an object that segments may belong to.
fn remember(allocated: &Allocated) {
    let device = match allocated.class {
        class::DEVICE => read::<1>(allocated.parameters).map(|[device]| device),
        _ => None,
    };
    if !kernel_objects::add(allocated.object, allocated.parent, device)
        && let Some(recording) = running()
    {
        recording.add(Loss::Details, 1);
    }
}

fn publish(object: Object, parent: Object, event: &AllocationEvent) {
    let Some(recording) = running() else {
        LOST.fetch_add(1, Relaxed);
        return;
    };
    let (_, shard) = thread_and_shard(recording);
    kernel_objects::end_left_creation();
    if event.kind == Kind::Segment {
        kernel_objects::note_size(parent, event.bytes);
    }
    let device = kernel_objects::device_row(recording, parent);
    let mut entry = Entry {
        pool: parent.to_word(),
        ..segment_entry(recording, event, device)
    };
    if let Some(pool) = pool_of_call(recording).filter(|_| event.kind == Kind::Segment && event.bytes > 0) {
        entry.extra = pool;
        entry.attributes.flags |= Attributes::HAS_POOL;
    } else if event.kind == Kind::Segment
        && event.bytes > 0
        && let Some(name) = kernel_name::current(recording)
    {
        entry.extra = name.to_word();
        entry.attributes.flags |= Attributes::NAMED;
    }
    let key = recorder::key(Space::Segment, object.to_word());
    if recording.allocated_out_of_line(shard, key, &entry) {
        kernel_objects::count_segment(parent, true);
    }
}

/// The pool that the calling thread is allocating from, if the program created it.
fn pool_of_call(recording: &Recording) -> Option<u64> {
    let pool = recorder::pool_of_call()?;
    let (_, shard) = thread_and_shard(recording);
    let is_recorded = recording.table(shard).link(recorder::key(Space::Pool, pool)).is_some();
    is_recorded.then_some(pool)
}

/// A handle for memory that another handle of this process, or another process, has.
fn duplicated(object: Object, parent: u32, source: Object, at: Registers) {
    let original = running().and_then(|recording| {
        let (_, shard) = thread_and_shard(recording);
        recording
            .table(shard)
            .get(recorder::key(Space::Segment, source.to_word()))
    });
    let is_imported = !kernel_objects::is_known(Object {
        handle: source.client,
        ..source
    });
    let (kind, requested) = match original {
        Some(original) => (original.attributes.kind, original.requested),
        None if is_imported => (Kind::Segment, 0),
        // An object of another class.
        None => return,
    };
    // That of a duplicate stays with the original.
    let of_duplicate = original.filter(is_without_bytes);
    let extra = of_duplicate.map_or(source.to_word(), |duplicate| duplicate.extra);
    if requested > 0 {
        duplicates_of(extra).fetch_add(1, Relaxed);
    }
    let event = AllocationEvent {
        requested,
        extra,
        at,
        ..AllocationEvent::new(const { Api::of("NV_ESC_RM_DUP_OBJECT") }, kind, 0)
    };
    let parent = Object {
        handle: parent,
        ..object
    };
    publish(object, parent, &event);
}

/// Removes memory that was freed with its parent.
fn free_orphan(recording: &Recording, object: Object, entry: &Entry) {
    let (_, shard) = thread_and_shard(recording);
    let key = recorder::key(Space::Segment, object.to_word());
    if let Some(held) = recording.withdraw_out_of_line(key, shard) {
        recording.commit(held, shard);
        if is_without_bytes(entry) {
            forget_duplicate(entry.extra);
        } else if duplicates_of(object.to_word()).load(Relaxed) > 0 {
            pass_on(recording, Some(object.to_word()));
        }
    }
}

/// Memory whose original handle was freed belongs to one of its duplicates, from now on. `original`: the handle; `None`: the first
/// that is found not to be live. Returns whether there was a duplicate.
fn pass_on(recording: &Recording, original: Option<u64>) -> bool {
    let (_, shard) = thread_and_shard(recording);
    let original = Cell::new(original);
    let mut heir = None;
    let has_record = |word: u64| {
        let key = recorder::key(Space::Segment, word);
        recording.table(shard).link(key).is_some()
    };
    // While a handle is being freed it has no record, and the free may fail. If it has failed between the first two questions, there
    // is a record again.
    let is_live = |word: u64| has_record(word) || segment_state::is_being_freed(word) || has_record(word);
    let wanted = |entry: &Entry| {
        is_without_bytes(entry)
            && match original.get() {
                Some(original) => entry.extra == original,
                None => !is_live(entry.extra),
            }
    };
    recording.change_all(shard, wanted, |key, entry| {
        original.set(Some(entry.extra));
        forget_duplicate(entry.extra);
        let time_ns = segment_state::time_of_change(recording.now());
        match heir {
            None => {
                heir = Some(key.address);
                Entry {
                    bytes: entry.requested,
                    extra: 0,
                    time_ns,
                    ..*entry
                }
            }
            Some(heir) => {
                duplicates_of(heir).fetch_add(1, Relaxed);
                Entry {
                    extra: heir,
                    time_ns,
                    ..*entry
                }
            }
        }
    });
    heir.is_some()
}

/// Whether this is a duplicate of memory that counts for another handle of this process.
fn is_without_bytes(entry: &Entry) -> bool {
    let is_duplicate = entry.attributes.api == const { Api::of("NV_ESC_RM_DUP_OBJECT").0 };
    entry.attributes.space == Space::Segment && is_duplicate && entry.bytes == 0 && entry.requested > 0
}

fn forget_duplicate(original: u64) {
    let _ = duplicates_of(original).fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
}

/// An object that others are below was freed, and they with it.
fn freed_parent(object: Object, before: Before) {
    if let Some(recording) = recorder::running()
        && kernel_objects::has_segments(object)
    {
        let (_, shard) = thread_and_shard(recording);
        recording.free_all(shard, |entry| {
            entry.attributes.kind.place() == Place::Segment
                && entry.time_ns <= before.time_ns
                && kernel_objects::is_below(Object::from_word(entry.pool), object)
        });
        // Each turn finds another original.
        while DUPLICATES.iter().any(|count| count.load(Relaxed) > 0) && pass_on(recording, None) {}
    }
    kernel_objects::forget(object, before.births);
}

/// The recording, if it has started. Passes on what happened before.
fn running() -> Option<&'static Recording> {
    let recording = recorder::running()?;
    if LOST.load(Relaxed) > 0 {
        recording.add(Loss::Segments, LOST.swap(0, Relaxed));
    }
    let ended = ENDED.load(Relaxed);
    if ended != 0 {
        recording.end_segments(ended);
    }
    Some(recording)
}

/// This driver's layouts are unknown: nothing is recorded from now on.
fn ended(why: Unknown) {
    let _ = ENDED.compare_exchange(0, why.to_word(), Relaxed, Relaxed);
    running();
}

fn lost() {
    if let Some(recording) = running() {
        recording.add(Loss::Segments, 1);
    }
}

fn implausible(bytes: u64) {
    lost();
    if IMPLAUSIBLE.fetch_add(1, Relaxed) + 1 >= TOO_MANY {
        ended(Unknown::Size { bytes });
    }
}

/// Whether a descriptor is that of a character device of NVIDIA's driver. Asked at each request, since a descriptor may be closed
/// and used again.
fn is_drivers_file(fd: i32) -> bool {
    // SAFETY: plain integers: all zeros is a value of `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid `stat`. The system call, because older libraries of C have no function of this name.
    let result = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut status) };
    result == 0
        && status.st_mode & libc::S_IFMT == libc::S_IFCHR
        && libc::major(status.st_rdev as libc::dev_t) as u32 == rm::MAJOR
}

/// Words at an address of the program; `None` if they cannot be read.
#[inline]
fn read<const N: usize>(address: u64) -> Option<[u32; N]> {
    let mut words = [0; N];
    read_into(address, &mut words).then_some(words)
}

/// Usually the words are in a frame of the caller. Of other addresses nothing is known: the call may be about to fail.
#[inline]
fn read_into(address: u64, words: &mut [u32]) -> bool {
    let here = std::ptr::from_ref(&words) as u64;
    let stack = culeak_walker::stack_bounds(here);
    let is_on_stack = address >= here && address < stack.top && stack.top - address >= size_of_val(words) as u64;
    if !is_on_stack || !address.is_multiple_of(4) {
        return culeak_walker::read(address, words);
    }
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: between a frame of the calling thread and the end of its stack, and aligned. Volatile, because it is read
        // through its address alone.
        *word = unsafe { (address as *const u32).add(index).read_volatile() };
    }
    true
}

/// Calls `real`, which creates a context on this device.
pub fn in_context_of(ordinal: i32, real: impl FnOnce() -> i32) -> i32 {
    let row = recorder::quietly(|| current::valid_device_row(recorder::running()?, ordinal)).flatten();
    let mut word = FrameWord::new();
    let is_begun = kernel_objects::begin_context(row, &mut word, Registers::here());
    let result = real();
    if is_begun && kernel_objects::end_context(&mut word, result == 0) {
        recorder::quietly(move_to_their_devices);
    }
    result
}

/// More is known of the kernel driver's devices than when their first segments were recorded.
fn move_to_their_devices() {
    let Some(recording) = recorder::running() else { return };
    let (_, shard) = thread_and_shard(recording);
    let row_of = |entry: &Entry| match entry.attributes.kind.place() {
        Place::Segment => kernel_objects::learned_row(Object::from_word(entry.pool)),
        _ => None,
    };
    let is_elsewhere = |entry: &Entry| row_of(entry).is_some_and(|row| row != entry.attributes.device);
    recording.change_all(shard, is_elsewhere, |_, entry| {
        let mut moved = Entry {
            time_ns: segment_state::time_of_change(recording.now()),
            ..*entry
        };
        moved.attributes.device = row_of(entry).unwrap_or(entry.attributes.device);
        moved
    });
}
