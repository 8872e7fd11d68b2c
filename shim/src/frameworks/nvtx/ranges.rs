//! Ranges and marks of NVTX: the callbacks that this library fills in.
//!
//! A program's copy of NVTX, of which each of its libraries may have one, calls [`InitializeInjectionNvtx2`] at its first
//! call. It passes a function that returns tables; the table of callbacks leads to the slots of each module, and what is
//! stored in a slot is called from then on. Slots that stay empty cost the program a test, as without a tool.
//!
//! The handle of a domain or of a registered string is the number of its name, so that it is valid in each copy of NVTX and in
//! a forked child.

use libc::{c_char, c_int, c_void, wchar_t};
use std::ffi::CStr;

use crate::frameworks::{names, phases};
use crate::recorder;
use culeak::recording::PHASE_NAME_MAX;

const CALLBACKS: u32 = 1;
/// Modules of callbacks: ranges of the default domain, and domains.
const CORE: u32 = 1;
const DOMAINS: u32 = 5;

/// The table of callbacks.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    /// Stores the address of a module's slots and their number, the unused slot 0 included. Returns 0 on failure.
    slots: Option<unsafe extern "C" fn(module: u32, slots: *mut *const Slot, count: *mut u32) -> c_int>,
}

/// The address of the pointer that NVTX calls.
type Slot = *mut *const c_void;

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    bytes: u16,
    category: u32,
    color_kind: i32,
    color: u32,
    payload_kind: i32,
    reserved: i32,
    payload: u64,
    message_kind: i32,
    message: *const c_void,
}
const _: () = assert!(size_of::<Attributes>() == 48);

const PLAIN: i32 = 1;
const WIDE: i32 = 2;
const REGISTERED: i32 = 3;

/// NVTX calls it once for each of its copies. Returns 1.
///
/// # Safety
/// `table_of` is null or NVTX's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn InitializeInjectionNvtx2(
    table_of: Option<unsafe extern "C" fn(table: u32) -> *const c_void>,
) -> c_int {
    let core: [(usize, *const c_void); 11] = [
        (1, mark_ex as *const c_void),
        (2, mark as *const c_void),
        (3, mark_wide as *const c_void),
        (4, start_ex as *const c_void),
        (5, start as *const c_void),
        (6, start_wide as *const c_void),
        (7, end as *const c_void),
        (8, push_ex as *const c_void),
        (9, push as *const c_void),
        (10, push_wide as *const c_void),
        (11, pop as *const c_void),
    ];
    let domains: [(usize, *const c_void); 9] = [
        (1, domain_mark_ex as *const c_void),
        (2, domain_start_ex as *const c_void),
        (3, domain_end as *const c_void),
        (4, domain_push_ex as *const c_void),
        (5, domain_pop as *const c_void),
        (10, register as *const c_void),
        (11, register_wide as *const c_void),
        (12, create_domain as *const c_void),
        (13, create_domain_wide as *const c_void),
    ];
    let Some(table_of) = table_of else { return 0 };
    // SAFETY: NVTX's function, which returns null or its table.
    let Some(callbacks) = (unsafe { table_of(CALLBACKS).cast::<Callbacks>().as_ref() }) else {
        return 0;
    };
    let Some(slots_of) = callbacks.slots.filter(|_| callbacks.bytes >= size_of::<Callbacks>()) else {
        return 0;
    };
    for (module, functions) in [(CORE, &core[..]), (DOMAINS, &domains[..])] {
        let (mut slots, mut count) = (std::ptr::null(), 0);
        // SAFETY: NVTX's function, and room for its results.
        if unsafe { slots_of(module, &mut slots, &mut count) } == 0 || slots.is_null() {
            continue;
        }
        for &(number, function) in functions {
            if number < count as usize {
                // SAFETY: the module has this many slots.
                let slot = unsafe { *slots.add(number) };
                if !slot.is_null() {
                    // SAFETY: the address of a pointer that NVTX reads after this function has returned.
                    unsafe { slot.write(function) };
                }
            }
        }
    }
    1
}

/// The bytes of a C string; empty for null.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn plain<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Calls `work` with a wide string as UTF-8, truncated to the longest name.
///
/// # Safety
/// `text` is null or a wide string that ends with 0.
unsafe fn with_wide<R>(text: *const wchar_t, work: impl FnOnce(&[u8]) -> R) -> R {
    let mut buffer = [0; PHASE_NAME_MAX];
    let mut used = 0;
    let mut next = text;
    // SAFETY: not beyond the 0 at the end.
    while !next.is_null() && unsafe { *next } != 0 {
        // SAFETY: as above.
        let character = char::from_u32(unsafe { *next } as u32).unwrap_or(char::REPLACEMENT_CHARACTER);
        let bytes = character.len_utf8();
        if used + bytes > buffer.len() {
            break;
        }
        character.encode_utf8(&mut buffer[used..]);
        used += bytes;
        // SAFETY: the element was not the last.
        next = unsafe { next.add(1) };
    }
    work(&buffer[..used])
}

/// Calls `work` with the message of an event; empty if it has none.
///
/// # Safety
/// `attributes` is null or a description of an event.
unsafe fn with_message<R>(attributes: *const Attributes, work: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: the caller vouches for it.
    let attributes = unsafe { attributes.as_ref() };
    // A shorter description, of an older version, has no message.
    let Some(event) = attributes.filter(|event| usize::from(event.bytes) >= size_of::<Attributes>()) else {
        return work(b"");
    };
    match event.message_kind {
        // SAFETY: the message is of this kind.
        PLAIN => work(unsafe { plain(event.message.cast()) }),
        // SAFETY: as above.
        WIDE => unsafe { with_wide(event.message.cast(), work) },
        REGISTERED => work(names::name(event.message as usize as u32).unwrap_or_default()),
        _ => work(b""),
    }
}

/// The number of the name of a domain; 0 for the default domain.
fn domain_number(domain: *const c_void) -> u32 {
    domain as usize as u32
}

fn handle_of(name: &[u8]) -> *const c_void {
    let number = recorder::quietly(|| names::number(name)).unwrap_or(0);
    number as usize as *const c_void
}

unsafe extern "C" fn mark(text: *const c_char) {
    // SAFETY: the message of the event.
    phases::mark(unsafe { plain(text) });
}

unsafe extern "C" fn mark_wide(text: *const wchar_t) {
    // SAFETY: as above.
    unsafe { with_wide(text, phases::mark) };
}

unsafe extern "C" fn mark_ex(event: *const Attributes) {
    // SAFETY: a description of the event.
    unsafe { with_message(event, phases::mark) };
}

unsafe extern "C" fn domain_mark_ex(_domain: *const c_void, event: *const Attributes) {
    // SAFETY: as above.
    unsafe { mark_ex(event) };
}

unsafe extern "C" fn push(text: *const c_char) -> c_int {
    // SAFETY: the message of the range.
    phases::push(0, unsafe { plain(text) })
}

unsafe extern "C" fn push_wide(text: *const wchar_t) -> c_int {
    // SAFETY: as above.
    unsafe { with_wide(text, |name| phases::push(0, name)) }
}

unsafe extern "C" fn push_ex(event: *const Attributes) -> c_int {
    // SAFETY: a description of the range.
    unsafe { domain_push_ex(std::ptr::null(), event) }
}

unsafe extern "C" fn domain_push_ex(domain: *const c_void, event: *const Attributes) -> c_int {
    // SAFETY: as above.
    unsafe { with_message(event, |name| phases::push(domain_number(domain), name)) }
}

extern "C" fn pop() -> c_int {
    phases::pop(0)
}

extern "C" fn domain_pop(domain: *const c_void) -> c_int {
    phases::pop(domain_number(domain))
}

unsafe extern "C" fn start(text: *const c_char) -> u64 {
    // SAFETY: the message of the range.
    phases::start(0, unsafe { plain(text) })
}

unsafe extern "C" fn start_wide(text: *const wchar_t) -> u64 {
    // SAFETY: as above.
    unsafe { with_wide(text, |name| phases::start(0, name)) }
}

unsafe extern "C" fn start_ex(event: *const Attributes) -> u64 {
    // SAFETY: a description of the range.
    unsafe { domain_start_ex(std::ptr::null(), event) }
}

unsafe extern "C" fn domain_start_ex(domain: *const c_void, event: *const Attributes) -> u64 {
    // SAFETY: as above.
    unsafe { with_message(event, |name| phases::start(domain_number(domain), name)) }
}

extern "C" fn end(id: u64) {
    phases::end(id);
}

extern "C" fn domain_end(_domain: *const c_void, id: u64) {
    phases::end(id);
}

unsafe extern "C" fn register(_domain: *const c_void, text: *const c_char) -> *const c_void {
    // SAFETY: the text to register.
    handle_of(unsafe { plain(text) })
}

unsafe extern "C" fn register_wide(_domain: *const c_void, text: *const wchar_t) -> *const c_void {
    // SAFETY: as above.
    unsafe { with_wide(text, handle_of) }
}

unsafe extern "C" fn create_domain(name: *const c_char) -> *const c_void {
    // SAFETY: the name of the domain.
    handle_of(unsafe { plain(name) })
}

unsafe extern "C" fn create_domain_wide(name: *const wchar_t) -> *const c_void {
    // SAFETY: as above.
    unsafe { with_wide(name, handle_of) }
}
