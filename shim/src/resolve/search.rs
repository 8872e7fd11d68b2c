//! The next definition of a function: the one that its caller would have reached if this library were not there.
//!
//! ```text
//! the loader's order:   program ─ preloads ─ THIS LIBRARY ─ preloads ─ linked libraries │ the library that calls, and what
//!                                                                                       │ it was linked with, breadth first
//!                       └──────────── loaded at start-up, in this order ──────────────┘ └─ opened later by dlopen
//! ```
//!
//! The loader answers such questions by `dlsym`, whose lock is held while constructors of libraries run: a constructor that
//! waits for a thread which calls CUDA would wait for ever. So the order is worked out here from the ELF tables of
//! the loaded objects, under the short lock of `dl_iterate_phdr`, which no constructor runs under. That lock may be taken
//! again by the thread that holds it: a first call of `dl_iterate_phdr` holds it, and the calls within it look around
//! while nothing can come or go.
//!
//! A library that was opened with `RTLD_GLOBAL` after the start joins the global order. The tables do not say so, and such
//! a library is found last ([`Objects::anywhere`]).

use libc::c_void;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use crate::resolve::loader::{self, Answer, Name, Tables};
use crate::resolve::real;
use culeak::system::{Uncancelled, anonymous};

/// Objects that are looked at; a process that has more is searched as far as this.
const MOST: usize = 2048;

/// How many objects the loader has loaded at start-up. They come first in its list, in the order in which their symbols
/// are searched, and stay for the life of the process. 0: not counted yet.
static AT_START: AtomicUsize = AtomicUsize::new(0);

/// A loaded object, as far as the search needs it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Object {
    tables: Tables,
    /// Of its soname and of its file's name, by either of which others may be linked with it.
    names: [u32; 2],
}

/// The loaded objects in the loader's order. All zeros is a value: none.
#[repr(C)]
pub struct Objects {
    count: usize,
    own: usize,
    /// Number + 1 of the object that contains the caller; 0: code that no object contains.
    caller: usize,
    /// The version that the caller refers to: a string of its tables, which lie still while the list's lock is held.
    /// Null: none.
    version: *const u8,
    version_length: usize,
    list: [Object; MOST],
    /// The breadth-first search's queue and its marks.
    queue: [u16; MOST],
    reached: [bool; MOST],
}

/// A definition.
#[derive(Clone, Copy)]
pub struct Found {
    pub address: *mut c_void,
    /// In what was loaded at start-up, and not by its version: the answer is the same for every caller and does not change.
    pub is_global: bool,
}

/// Shows the loaded objects to `work`, while none can come or go. `None` where they cannot be looked at: in the child
/// of a fork, and without memory.
pub fn with_objects<R>(caller: u64, work: impl FnOnce(&mut Objects) -> R) -> Option<R> {
    if loader::list_is_unsafe() {
        return None;
    }
    let _uncancelled = Uncancelled::new();
    let memory = anonymous(size_of::<Objects>()).ok()?;
    // SAFETY: mapped just now with this size, zeroed, which is a value of it, and ours alone until it is unmapped.
    let objects = unsafe { &mut *memory.cast::<Objects>() };
    let mut work = Some(work);
    let result = loader::find_loaded(|_| {
        objects.collect(caller);
        work.take().map(|work| work(objects))
    });
    // SAFETY: mapped above; nothing borrows it any more.
    unsafe { libc::munmap(memory.cast(), size_of::<Objects>()) };
    result
}

/// What the code at `caller` would reach by this name without us. `kind` is how the name of a library begins that is
/// preferred where the order does not decide.
pub fn next(name: &CStr, caller: u64, kind: &[u8]) -> Option<Found> {
    with_objects(caller, |objects| {
        objects.want(name);
        objects.global_behind_us(name).or_else(|| {
            let address = objects
                .in_scope_of_caller(name)
                .or_else(|| objects.anywhere(name, kind))?;
            Some(Found {
                address,
                is_global: false,
            })
        })
    })
    .flatten()
}

impl Objects {
    fn collect(&mut self, caller: u64) {
        let here = real::here();
        loader::find_loaded(|loaded| {
            let place = self.count;
            if place == MOST {
                return Some(());
            }
            if loaded.contains(here) {
                self.own = place;
            }
            if loaded.contains(caller) {
                self.caller = place + 1;
            }
            // An object without tables defines nothing, but keeps its place.
            if let Some(tables) = loaded.tables() {
                // SAFETY: the object is loaded.
                let soname = unsafe { tables.soname() };
                self.list[place] = Object {
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

    /// A constructor that ran before any code of ours may have opened more. What an object was linked with comes behind
    /// it in the list, and preloaded libraries come before the loader's own entry. So the first one that comes after that
    /// entry and that none before it was linked with was opened later, as was all that follows.
    fn count_at_start(&mut self) -> usize {
        self.reached[..self.count].fill(false);
        let mut is_behind_loader = false;
        for place in 0..self.count {
            if is_behind_loader && !self.reached[place] {
                return place;
            }
            is_behind_loader |= self.list[place].tables.is_loaded_at(loader::loader_bias());
            self.reach_needed(place, |_, _| {});
        }
        self.count
    }

    /// From here on, definitions of `name` are looked for in the version that the caller's library was linked with.
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

    fn ask(&self, place: usize, name: Name) -> Answer {
        // SAFETY: set together, from a string of a library that stays loaded while the list's lock is held.
        let version =
            (!self.version.is_null()).then(|| unsafe { std::slice::from_raw_parts(self.version, self.version_length) });
        // SAFETY: nothing is unloaded while the list's lock is held.
        match unsafe { self.list[place].tables.look_up(name, version) } {
            Answer::Defined { address, .. } if real::is_ours(address as u64) => Answer::Absent,
            answer => answer,
        }
    }

    fn definition(&self, place: usize, name: Name) -> Option<*mut c_void> {
        match self.ask(place, name) {
            Answer::Defined { address, .. } => Some(address.cast_mut()),
            Answer::Absent | Answer::OtherVersion => None,
        }
    }

    /// The first one that was loaded at start-up and comes after us.
    pub fn global_behind_us(&self, name: &CStr) -> Option<Found> {
        let name = Name::new(name);
        let mut is_global = true;
        for place in self.own + 1..self.at_start() {
            match self.ask(place, name) {
                Answer::Absent => {}
                Answer::OtherVersion => is_global = false,
                Answer::Defined { address, in_any } => {
                    return Some(Found {
                        address: address.cast_mut(),
                        is_global: is_global && in_any,
                    });
                }
            }
        }
        None
    }

    /// Whether one that was loaded at start-up comes before us and, if `after_caller`, after the caller.
    pub fn is_global_before_us(&self, name: &CStr, after_caller: bool) -> bool {
        let name = Name::new(name);
        let first = if after_caller { self.caller } else { 0 };
        (first..self.own.min(self.at_start())).any(|place| self.definition(place, name).is_some())
    }

    /// Whether the caller comes before us in the global order.
    pub fn caller_is_before_us(&self) -> bool {
        (1..=self.own).contains(&self.caller)
    }

    /// The first one among a library that was opened and what that was linked with, the caller's included. A library that
    /// brought the caller's along comes before it in the list; one that was opened later and needs it too comes behind.
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

    /// Any that is loaded: where the order does not say, a library of the right name comes before others.
    pub fn anywhere(&self, name: &CStr, kind: &[u8]) -> Option<*mut c_void> {
        let name = Name::new(name);
        let behind = if self.own < self.at_start() { self.own + 1 } else { 0 };
        let mut any = None;
        for place in behind..self.count {
            let Some(found) = self.definition(place, name) else {
                continue;
            };
            // SAFETY: nothing is unloaded while the list's lock is held.
            if unsafe { self.list[place].tables.soname() }.starts_with(kind) {
                return Some(found);
            }
            any = any.or(Some(found));
        }
        any
    }

    /// Puts an object and what it was linked with, breadth first, into the queue; returns how many they are.
    fn reach(&mut self, root: usize) -> usize {
        self.reached[..self.count].fill(false);
        self.reached[root] = true;
        self.queue[0] = root as u16;
        let (mut done, mut length) = (0, 1);
        while done < length {
            let place = self.queue[done] as usize;
            done += 1;
            self.reach_needed(place, |objects, needed| {
                objects.queue[length] = needed as u16;
                length += 1;
            });
        }
        length
    }

    /// Marks what an object was linked with; shows `newly` what was not marked before.
    fn reach_needed(&mut self, place: usize, mut newly: impl FnMut(&mut Objects, usize)) {
        let tables = self.list[place].tables;
        // SAFETY: nothing is unloaded while the list's lock is held.
        unsafe {
            tables.for_each_needed(|needed| {
                let wanted = name_hash(needed);
                let meant = self.list[..self.count]
                    .iter()
                    .position(|object| object.names.contains(&wanted));
                if let Some(place) = meant.filter(|&place| !self.reached[place]) {
                    self.reached[place] = true;
                    newly(self, place);
                }
            });
        }
    }

    fn first_of(&self, length: usize, name: Name) -> Option<*mut c_void> {
        self.queue[..length]
            .iter()
            .find_map(|&place| self.definition(place.into(), name))
    }
}

static IS_SECOND_COPY: AtomicBool = AtomicBool::new(false);

/// Whether another copy of this library was preloaded before this one. That one records; this one only passes calls on.
pub fn is_second_copy() -> bool {
    IS_SECOND_COPY.load(Relaxed)
}

/// Finds that out, at start-up. Nothing is called: a sanitizer's functions may stand before libc's, and may not be ready.
pub fn look_for_other_copies() {
    let own = crate::frameworks::client_api::exported_address();
    let first = loader::first_definition(c"culeak_interval_begin");
    IS_SECOND_COPY.store(first.is_some_and(|first| first != own), Relaxed);
}

/// Of the part of a name behind the last slash; 0 for an empty one.
fn name_hash(name: &[u8]) -> u32 {
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    if file.is_empty() {
        return 0;
    }
    let hash = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    file.iter().fold(0x811c_9dc5, hash).max(1)
}
