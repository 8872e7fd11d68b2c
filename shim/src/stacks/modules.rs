//! Which module an address belongs to, and what becomes of stacks when modules go away.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

use culeak_walker as walker;

use super::python;
use crate::resolve::loader::{self, Loaded};
use crate::resolve::real;
use culeak::recording::{ModuleSeen, Recording};
use culeak::system::{Uncancelled, anonymous};

/// How many calls of dlclose are under way: meanwhile nothing that was cached by address is believed.
static CLOSING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How many of those are this thread's own.
    static HERE: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is in a `dlclose`, as a signal handler or a destructor is: an object may be unmapped and still
/// stand in the loader's list, whose lock does not keep its own thread out.
pub fn is_closing_here() -> bool {
    HERE.with(|here| here.get() != 0)
}

pub fn are_closing() -> bool {
    CLOSING.load(Acquire) != 0
}

/// The row and load bias of the module that contains an address.
pub fn module_of(recording: &Recording, address: u64, ask_loader: bool) -> Option<(u32, u64)> {
    if !ask_loader && let Some(known) = recording.loaded_module_at(address) {
        return Some(known);
    }
    identify(recording, address)
}

/// Asks the loader, and registers the module on first sight. Its buffers are kept off the stack, which may be the small
/// one of a signal handler.
#[cold]
#[inline(never)]
fn identify(recording: &Recording, address: u64) -> Option<(u32, u64)> {
    let _uncancelled = Uncancelled::new();
    let scratch = anonymous(SCRATCH).ok()?;
    // SAFETY: mapped just now with this length, zeroed, and ours alone until it is unmapped.
    let buffer = unsafe { std::slice::from_raw_parts_mut(scratch, SCRATCH) };
    let found = loader::find_containing(address, |loaded| {
        if python::is_interpreter(loaded) {
            python::interpreter_seen();
        }
        let (start, end) = loaded.bounds();
        let path = path_of(loaded, start, buffer);
        let seen = ModuleSeen {
            path,
            build_id: loaded.build_id(),
            bias: loaded.bias(),
            start,
            end,
        };
        let row = recording.module(&seen).or_else(|| recording.add_module(&seen));
        row.map(|row| (row, seen.bias))
    })
    .flatten();
    // SAFETY: mapped above; nothing borrows it any more.
    unsafe { libc::munmap(scratch.cast(), SCRATCH) };
    found
}

const SCRATCH: usize = 16 << 10;

/// An absolute path: the loader's name where it is one, else what the kernel says is mapped there.
fn path_of<'a>(loaded: &'a Loaded, start: u64, buffer: &'a mut [u8]) -> &'a [u8] {
    let name = loaded.name();
    if name.first() == Some(&b'/') || name.starts_with(b"linux-vdso") {
        return name;
    }
    match loader::mapped_path(start, buffer) {
        b"" => name,
        path => path,
    }
}

/// A `dlclose` under way.
pub struct Closing {
    unloads: u64,
}

impl Closing {
    pub fn begin() -> Closing {
        // Whose code and addresses we use must stay. Here the loader may be asked to see to that.
        real::pin_driver();
        python::pin();
        // AcqRel: captures that begin from now on see it.
        CLOSING.fetch_add(1, AcqRel);
        HERE.with(|here| here.set(here.get() + 1));
        walker::closing_began();
        Closing {
            unloads: loader::unloads(),
        }
    }

    /// After the real call: modules that are gone get their end, and a new generation voids what was cached.
    pub fn end(self) {
        if loader::unloads() != self.unloads {
            if let Some(recording) = crate::recorder::running() {
                end_unloaded_modules(recording);
            }
            real::generation_changed();
            walker::generation_changed();
        }
        walker::closing_ended();
        HERE.with(|here| here.set(here.get().saturating_sub(1)));
        CLOSING.fetch_sub(1, AcqRel);
    }
}

fn end_unloaded_modules(recording: &Recording) {
    // One bit per module row. Rows beyond would keep their module loaded, until something else lands in its place.
    let mut present = [0u64; 64];
    loader::find_loaded(|loaded| {
        let bounds = loaded.bounds();
        recording.for_each_loaded_module(|row, start, end| {
            if (start, end) == bounds
                && let Some(bits) = present.get_mut(row as usize / 64)
            {
                *bits |= 1 << (row % 64);
            }
        });
        None::<()>
    });
    recording.for_each_loaded_module(|row, _, _| {
        if present
            .get(row as usize / 64)
            .is_some_and(|bits| bits & 1 << (row % 64) == 0)
        {
            recording.module_unloaded(row);
        }
    });
}
