//! The dynamic loader: which objects it has mapped, and which of them contains an address.
//!
//! `_dl_find_object` takes no lock. `dl_iterate_phdr` takes only the loader's short list lock, never the one that is held
//! while constructors run. So both are safe where `dlopen`, `dlsym` and `dladdr` could deadlock, except that a forked
//! child must not iterate. Either is called once per module, not per event.

use crate::resolve::closing;
use culeak::system::{Descriptor, Errno};
use culeak_elf::find_object;
pub use culeak_elf::{Answer, LinkMap, Loaded, Name, Tables};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

/// The loader's list for debuggers, `struct r_debug` of <link.h>: readable before any function of libc may be called.
#[repr(C)]
struct DebugList {
    version: c_int,
    first: *const LinkMap,
    breakpoint: u64,
    state: c_int,
    loader_bias: u64,
    /// The list of the next namespace, if `version` is 2: since glibc 2.35, where `dlmopen` has opened one.
    next: AtomicPtr<DebugList>,
}

unsafe extern "C" {
    #[link_name = "_r_debug"]
    static DEBUG_LIST: DebugList;
}

/// The objects loaded at start-up, in the loader's order. Calls nothing.
fn debug_list() -> impl Iterator<Item = &'static LinkMap> {
    // SAFETY: the loader fills the list before it runs any code of ours, and an entry exists as long as its object is loaded.
    // Objects of the start-up stay loaded; libc, at which the later searches end, is one of them.
    let mut next = unsafe { DEBUG_LIST.first };
    std::iter::from_fn(move || {
        // SAFETY: as above.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

/// The first definition of a name in the loader's order, found without calling anything. At start-up only.
pub fn first_definition(name: &CStr) -> Option<*const c_void> {
    let name = Name::new(name);
    // SAFETY: the objects of the start-up stay loaded.
    debug_list().find_map(|object| unsafe { object.symbol(name) })
}

/// The definition of a name that follows the one at `own` in the loader's order, found without calling anything. At start-up,
/// and in a forked child.
pub fn definition_after(name: &CStr, own: *const c_void) -> Option<*const c_void> {
    let searched = Name::new(name);
    let mut is_behind = false;
    let next = debug_list().find_map(|object| {
        // SAFETY: the objects of the start-up stay loaded.
        let found = unsafe { object.symbol(searched) }?;
        let is_next = is_behind && found != own;
        is_behind |= found == own;
        is_next.then_some(found)
    });
    // This library was opened after the start.
    next.or_else(|| libc_symbol(name))
}

/// The address of libc's own `name`, found without calling anything: a sanitizer may have replaced even
/// `dl_iterate_phdr`, and may look up its first names before it can be called.
pub fn libc_symbol(name: &CStr) -> Option<*const c_void> {
    let name = Name::new(name);
    debug_list().find_map(|object| {
        // SAFETY: libc and libdl stay loaded; of other objects only the name is read.
        unsafe {
            let file = object.file_name();
            // glibc before 2.34 keeps some of the functions in libdl.
            let is_libc = file.starts_with(b"libc.so") || file.starts_with(b"libdl.so");
            is_libc.then(|| object.symbol(name)).flatten()
        }
    })
}

/// Calls `visit` for every loaded object until it returns a value.
pub fn find_loaded<R>(mut visit: impl FnMut(&Loaded) -> Option<R>) -> Option<R> {
    culeak_elf::find_loaded(|loaded| {
        // In a signal handler that interrupted this thread's own dlclose, the list may name an object that is unmapped.
        if closing::is_running_here() && !culeak_walker::read(loaded.info().dlpi_phdr as u64, &mut [0u64]) {
            return None;
        }
        visit(loaded)
    })
}

/// Calls `visit` for every object in the namespaces of `dlmopen` until it returns a value. Sees none before glibc 2.35.
pub fn find_in_namespaces<R>(mut visit: impl FnMut(&LinkMap) -> Option<R>) -> Option<R> {
    if closing::is_running_here() {
        return None;
    }
    // The loader changes no list of any namespace while it calls back.
    culeak_elf::find_loaded(|_| {
        // SAFETY: `version` is valid in every version of glibc.
        let mut list = unsafe { (&raw const DEBUG_LIST.version).read_volatile() == 2 }.then_some(&raw const DEBUG_LIST);
        let mut found = None;
        while let (None, Some(namespace)) = (&found, list) {
            // SAFETY: a list of version 2 has `next`, which is null or the address of another one; lists stay for ever.
            list = unsafe { (*namespace).next.load(Acquire).as_ref() }.map(std::ptr::from_ref);
            // SAFETY: as above.
            let mut object = list.and_then(|list| unsafe { (*list).first.as_ref() });
            while let (None, Some(loaded)) = (&found, object) {
                found = visit(loaded);
                // SAFETY: an entry exists as long as its object is loaded.
                object = unsafe { loaded.next.as_ref() };
            }
        }
        Some(found)
    })
    .flatten()
}

/// How many objects the loader has ever unloaded.
pub fn unloads() -> u64 {
    // Nothing of the first object is read: no system call is needed to check that it is mapped.
    culeak_elf::find_loaded(|loaded| Some(loaded.info().dlpi_subs)).unwrap_or(0)
}

/// Calls `then` with the loaded object that contains an address. The loader's list is searched only if
/// `_dl_find_object` does not exist (glibc before 2.35) or the object's headers are not in its first page.
pub fn find_containing<R>(address: u64, mut then: impl FnMut(&Loaded) -> R) -> Option<R> {
    // SAFETY: an object stays loaded while its code is being looked at.
    if let Some(info) = find_object::containing(address).and_then(|found| unsafe { found.info() }) {
        // SAFETY: as above.
        return Some(then(&unsafe { Loaded::new(&info) }));
    }
    if list_is_unsafe() || closing::is_running_here() {
        return None;
    }
    find_loaded(|loaded| loaded.contains(address).then(|| then(loaded)))
}

/// Set in a child forked from a process that was recording: the thread that held the list's lock may not exist here.
static LIST_IS_UNSAFE: AtomicBool = AtomicBool::new(false);

pub fn list_is_unsafe() -> bool {
    LIST_IS_UNSAFE.load(Relaxed)
}

pub fn forked() {
    LIST_IS_UNSAFE.store(true, Relaxed);
}

/// The bias of the loader itself.
pub fn loader_bias() -> u64 {
    // SAFETY: the loader writes it before it runs any code of ours, and never again.
    unsafe { DEBUG_LIST.loader_bias }
}

/// Finds `_dl_find_object`, once, at start-up.
pub fn prepare() {
    // SAFETY: libc's own function of that name.
    unsafe { find_object::prepare(libc_symbol(c"_dl_find_object")) };
}

/// The absolute path of the file mapped at `address`, from /proc/self/maps, for objects whose name is relative or empty.
/// The result borrows `buffer`, which must hold the longest line; empty if there is no such file.
pub fn mapped_path(address: u64, buffer: &mut [u8]) -> &[u8] {
    let Ok(file) = Descriptor::open(c"/proc/self/maps", libc::O_RDONLY) else {
        return b"";
    };
    let mut used = 0;
    let mut found = 0..0;
    'reading: while used < buffer.len() {
        // SAFETY: the range lies within the buffer.
        let got = unsafe { libc::read(file.number(), buffer.as_mut_ptr().add(used).cast(), buffer.len() - used) };
        match got {
            1.. => used += got as usize,
            _ if got < 0 && Errno::last().0 == libc::EINTR => continue,
            _ => break,
        }
        let mut line = 0;
        while let Some(length) = buffer[line..used].iter().position(|&byte| byte == b'\n') {
            if let Some(path) = path_if_containing(&buffer[line..line + length], address) {
                found = line + length - path.len()..line + length;
                break 'reading;
            }
            line += length + 1;
        }
        buffer.copy_within(line..used, 0);
        used -= line;
    }
    &buffer[found]
}

/// The path at the end of a line of /proc/self/maps that covers `address`.
fn path_if_containing(line: &[u8], address: u64) -> Option<&[u8]> {
    let mut fields = line.splitn(2, |&byte| byte == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let slash = line.iter().position(|&byte| byte == b'/')?;
    (start..end).contains(&address).then(|| &line[slash..])
}
