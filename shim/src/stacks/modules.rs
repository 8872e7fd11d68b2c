//! The modules that addresses belong to, and what happens to them when they are unloaded.

use culeak_walker as walker;

use super::{backward, forward, python};
use crate::resolve::loader::{self, Loaded};
use crate::resolve::{closing, driver, next};
use culeak::format::Loss;
use culeak::recording::{ModuleSeen, Recording};
use culeak::system::{Scratch, Uncancelled};

/// The row and load bias of the module that contains an address.
pub fn module_of(recording: &Recording, address: u64, ask_loader: bool) -> Option<(u32, u64)> {
    if !ask_loader && let Some(known) = recording.loaded_module_at(address) {
        return Some(known);
    }
    unknown(recording, address, ask_loader)
}

#[cold]
#[inline(never)]
fn unknown(recording: &Recording, address: u64, ask_loader: bool) -> Option<(u32, u64)> {
    // A stack without modules is not stored either if the disk is full, so each event would identify them again.
    if !ask_loader && !recording.has_room_for_module() {
        if python::is_absent() {
            loader::find_containing(address, note_interpreter);
        }
        return None;
    }
    identify(recording, address)
}

fn note_interpreter(loaded: &Loaded) {
    if python::is_interpreter(loaded) {
        python::interpreter_seen();
    }
}

/// Asks the loader, and adds the module to the recording if it is new. The buffer is mapped, since a signal handler's
/// stack may be small.
#[cold]
#[inline(never)]
fn identify(recording: &Recording, address: u64) -> Option<(u32, u64)> {
    let _uncancelled = Uncancelled::begin();
    // SAFETY: all zeros is a value of bytes.
    let mut buffer = unsafe { Scratch::<[u8; 16 << 10]>::zeroed() }.ok()?;
    loader::find_containing(address, |loaded| {
        note_interpreter(loaded);
        let (start, end) = loaded.bounds();
        let path = path_of(loaded, start, &mut *buffer);
        let seen = ModuleSeen {
            path,
            build_id: loaded.build_id(),
            bias: loaded.bias(),
            start,
            end,
        };
        let row = recording.module(&seen).or_else(|| {
            if path.is_empty() {
                recording.add(Loss::Details, 1);
            }
            recording.add_module(&seen)
        });
        row.map(|row| (row, seen.bias))
    })
    .flatten()
}

/// The absolute path: the loader's name if that is absolute, else the kernel's name of the mapping.
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

/// A running `dlclose`.
pub struct Closing {
    unloads: u64,
}

impl Closing {
    /// Before the real call.
    pub fn begin() -> Closing {
        // Libraries whose code or addresses this library uses must stay loaded. The loader may be asked to pin them
        // here.
        driver::pin();
        python::pin();
        closing::began();
        Closing {
            unloads: loader::unloads(),
        }
    }

    /// Whether something was unloaded since the start of the call.
    pub fn has_unloaded(&self) -> bool {
        loader::unloads() != self.unloads
    }

    pub fn end(self) {
        closing::ended();
    }
}

/// Something was unloaded: ends its modules in the recording, and voids what was cached by address.
pub fn unloaded(recording: Option<&Recording>) {
    if let Some(recording) = recording {
        end_unloaded_modules(recording);
    }
    next::unloaded();
    backward::unloaded();
    forward::unloaded();
    walker::generation_changed();
}

fn end_unloaded_modules(recording: &Recording) {
    // One bit per module row. Later rows keep their module until another takes its place.
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
