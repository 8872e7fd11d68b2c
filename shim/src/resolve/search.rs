//! The next definition of a function: the one that its caller would reach if this library were not loaded.
//!
//! ```text
//! the loader's order:   program ─ preloads ─ THIS LIBRARY ─ preloads ─ linked libraries │ the library that calls, and what
//!                                                                                       │ it was linked with, breadth first
//!                       └──────────── loaded at start-up, in this order ──────────────┘ └─ opened later by dlopen
//! ```
//!
//! `dlsym` would answer this, but its lock is held while constructors of libraries run: a constructor that waits for a
//! thread that calls CUDA would deadlock. So the order is derived here from the ELF tables of the loaded objects, under
//! the short lock of `dl_iterate_phdr`, which no constructor runs under. That lock is recursive: an outer call of
//! `dl_iterate_phdr` holds it, so that no object is loaded or unloaded during the calls inside it.
//!
//! A library that is opened with `RTLD_GLOBAL` after start-up joins the global order. The tables do not show that, and
//! such a library is searched last ([`Objects::anywhere`]).

use libc::c_void;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use crate::resolve::loader::{self, Answer, Name, Tables};
use crate::resolve::own;
use culeak::system::{Scratch, Uncancelled};

/// The most objects that are searched; further ones are ignored.
const MAXIMUM: usize = 2048;

/// How many objects the loader loaded at start-up. They are first in its list, in the order in which their symbols are
/// searched, and are never unloaded. 0: not counted yet.
static AT_START: AtomicUsize = AtomicUsize::new(0);

/// What the search needs of a loaded object.
#[derive(Clone, Copy)]
#[repr(C)]
struct Object {
    tables: Tables,
    /// Hashes of its soname and of its file's name: other objects may be linked with it by either.
    names: [u32; 2],
}

/// The loaded objects in the loader's order. All zeros is an empty list.
#[repr(C)]
pub struct Objects {
    count: usize,
    own: usize,
    /// Number + 1 of the object that contains the caller; 0: no object does.
    caller: usize,
    /// The version that the caller's object refers to: a string in its tables, valid while the list's lock is held.
    /// Null: none.
    version: *const u8,
    version_length: usize,
    list: [Object; MAXIMUM],
    /// The queue of the breadth-first search, and the objects that it has reached.
    queue: [u16; MAXIMUM],
    reached: [bool; MAXIMUM],
}

/// A definition.
#[derive(Clone, Copy)]
pub struct Definition {
    pub address: *mut c_void,
    /// Found among the objects loaded at start-up, regardless of a version: every caller gets the same answer, for
    /// good.
    pub is_global: bool,
}

/// Calls `work` with the loaded objects while none can be loaded or unloaded. `None` in a forked child, or if memory
/// runs out.
pub fn with_objects<R>(caller: u64, work: impl FnOnce(&mut Objects) -> R) -> Option<R> {
    if loader::list_is_unsafe() {
        return None;
    }
    let _uncancelled = Uncancelled::begin();
    // SAFETY: integers, booleans and a pointer: all zeros is a value.
    let mut objects = unsafe { Scratch::<Objects>::zeroed() }.ok()?;
    let mut work = Some(work);
    loader::find_loaded(|_| {
        objects.collect(caller);
        work.take().map(|work| work(&mut objects))
    })
}

/// What the code at `caller` would reach by this name without this library. Where the order does not decide, a library
/// whose name starts with `kind` is preferred.
pub fn next(name: &CStr, caller: u64, kind: &[u8]) -> Option<Definition> {
    with_objects(caller, |objects| {
        objects.want(name);
        objects.global_behind_us(name).or_else(|| {
            let address = objects
                .in_scope_of_caller(name)
                .or_else(|| objects.anywhere(name, kind))?;
            Some(Definition {
                address,
                is_global: false,
            })
        })
    })
    .flatten()
}

impl Objects {
    fn collect(&mut self, caller: u64) {
        let here = own::here();
        loader::find_loaded(|loaded| {
            let index = self.count;
            if index == MAXIMUM {
                return Some(());
            }
            if loaded.contains(here) {
                self.own = index;
            }
            if loaded.contains(caller) {
                self.caller = index + 1;
            }
            // An object without tables defines nothing, but has a number.
            if let Some(tables) = loaded.tables() {
                // SAFETY: the object is loaded.
                let soname = unsafe { tables.soname() };
                self.list[index] = Object {
                    tables,
                    names: [name_hash(soname), name_hash(loaded.name())],
                };
            }
            self.count += 1;
            None
        });
        if AT_START.load(Relaxed) == 0 {
            AT_START.store(self.count_at_start(), Relaxed);
        }
    }

    fn at_start(&self) -> usize {
        AT_START.load(Relaxed).min(self.count)
    }

    /// Constructors that ran before this library may have opened more objects. In the list, an object's dependencies
    /// come after it, and preloaded libraries come before the loader's own entry. So the first object after that entry
    /// that no earlier object depends on was opened later, and so were all that follow.
    fn count_at_start(&mut self) -> usize {
        self.reached[..self.count].fill(false);
        let mut is_behind_loader = false;
        for index in 0..self.count {
            if is_behind_loader && !self.reached[index] {
                return index;
            }
            is_behind_loader |= self.list[index].tables.is_loaded_at(loader::loader_bias());
            self.reach_needed(index, |_, _| {});
        }
        self.count
    }

    /// Restricts the search for `name` to the version that the caller's object was linked with.
    fn want(&mut self, name: &CStr) {
        let Some(caller) = self.caller.checked_sub(1) else {
            return;
        };
        let tables = self.list[caller].tables;
        // SAFETY: nothing is unloaded while the list's lock is held.
        if let Some(version) = unsafe { tables.version_wanted(name) } {
            (self.version, self.version_length) = (version.as_ptr(), version.len());
        }
    }

    fn ask(&self, index: usize, name: Name) -> Answer {
        // SAFETY: set together, from a string in an object that stays loaded while the list's lock is held.
        let version =
            (!self.version.is_null()).then(|| unsafe { std::slice::from_raw_parts(self.version, self.version_length) });
        // SAFETY: nothing is unloaded while the list's lock is held.
        match unsafe { self.list[index].tables.look_up(name, version) } {
            Answer::Defined { address, .. } if own::is_ours(address as u64) => Answer::Absent,
            answer => answer,
        }
    }

    fn definition(&self, index: usize, name: Name) -> Option<*mut c_void> {
        match self.ask(index, name) {
            Answer::Defined { address, .. } => Some(address.cast_mut()),
            Answer::Absent | Answer::OtherVersion => None,
        }
    }

    /// The first definition after this library among the objects loaded at start-up.
    pub fn global_behind_us(&self, name: &CStr) -> Option<Definition> {
        let name = Name::new(name);
        let mut is_global = true;
        for index in self.own + 1..self.at_start() {
            match self.ask(index, name) {
                Answer::Absent => {}
                Answer::OtherVersion => is_global = false,
                Answer::Defined { address, in_any, .. } => {
                    return Some(Definition {
                        address: address.cast_mut(),
                        is_global: is_global && in_any,
                    });
                }
            }
        }
        None
    }

    /// Whether an object loaded at start-up defines it before this library and, if `after_caller`, after the caller.
    pub fn is_global_before_us(&self, name: &CStr, after_caller: bool) -> bool {
        let name = Name::new(name);
        let first = if after_caller { self.caller } else { 0 };
        (first..self.own.min(self.at_start())).any(|index| self.definition(index, name).is_some())
    }

    /// Whether the caller precedes this library in the global order.
    pub fn caller_is_before_us(&self) -> bool {
        (1..=self.own).contains(&self.caller)
    }

    /// The first definition in the scope of a library opened later, which is that library and its dependencies, the
    /// caller's object among them. The library that was opened with the caller's object as a dependency precedes it in
    /// the list; one that was opened later and depends on it follows.
    pub fn in_scope_of_caller(&mut self, name: &CStr) -> Option<*mut c_void> {
        let name = Name::new(name);
        let caller = self.caller.checked_sub(1)?;
        let at_start = self.at_start();
        if caller < at_start {
            return None;
        }
        (at_start..self.count).find_map(|root| {
            let scope = self.reach(root);
            self.reached[caller].then(|| self.first_of(scope, name)).flatten()
        })
    }

    /// Any definition; one in a library whose name starts with `kind` is preferred.
    pub fn anywhere(&self, name: &CStr, kind: &[u8]) -> Option<*mut c_void> {
        let name = Name::new(name);
        let first = if self.own < self.at_start() { self.own + 1 } else { 0 };
        let mut any = None;
        for index in first..self.count {
            let Some(found) = self.definition(index, name) else {
                continue;
            };
            // SAFETY: nothing is unloaded while the list's lock is held.
            if unsafe { self.list[index].tables.soname() }.starts_with(kind) {
                return Some(found);
            }
            any = any.or(Some(found));
        }
        any
    }

    /// Fills the queue with an object and its dependencies, breadth first; returns how many they are.
    fn reach(&mut self, root: usize) -> usize {
        self.reached[..self.count].fill(false);
        self.reached[root] = true;
        self.queue[0] = root as u16;
        let (mut done, mut length) = (0, 1);
        while done < length {
            let index = self.queue[done] as usize;
            done += 1;
            self.reach_needed(index, |objects, needed| {
                objects.queue[length] = needed as u16;
                length += 1;
            });
        }
        length
    }

    /// Marks an object's dependencies as reached; calls `newly` with those that were not.
    fn reach_needed(&mut self, index: usize, mut newly: impl FnMut(&mut Objects, usize)) {
        let tables = self.list[index].tables;
        // SAFETY: nothing is unloaded while the list's lock is held.
        unsafe {
            tables.for_each_needed(|needed| {
                let wanted = name_hash(needed);
                let meant = self.list[..self.count]
                    .iter()
                    .position(|object| object.names.contains(&wanted));
                if let Some(index) = meant.filter(|&index| !self.reached[index]) {
                    self.reached[index] = true;
                    newly(self, index);
                }
            });
        }
    }

    fn first_of(&self, length: usize, name: Name) -> Option<*mut c_void> {
        self.queue[..length]
            .iter()
            .find_map(|&index| self.definition(index.into(), name))
    }
}

static IS_SECOND_COPY: AtomicBool = AtomicBool::new(false);

/// Whether another copy of this library was preloaded before this one. That copy records; this one passes calls
/// through.
pub fn is_second_copy() -> bool {
    IS_SECOND_COPY.load(Relaxed)
}

/// Finds out at start-up whether this is a second copy; `own` is the address of this copy's `name`. It calls nothing:
/// a sanitizer's functions may precede libc's and may not be ready.
pub fn look_for_other_copies(name: &CStr, own: *const c_void) {
    let first = loader::first_definition(name);
    IS_SECOND_COPY.store(first.is_some_and(|first| first != own), Relaxed);
}

/// The hash of a path's file name; 0 if it is empty.
fn name_hash(name: &[u8]) -> u32 {
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    if file.is_empty() {
        return 0;
    }
    let hash = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    file.iter().fold(0x811c_9dc5, hash).max(1)
}
