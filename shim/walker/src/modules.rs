//! The loaded module that contains an address, and the index of its unwind tables.
//!
//! From glibc 2.35 on `_dl_find_object` answers: it takes no lock and works in signal handlers and under the loader's
//! lock. Its address comes from the modules' symbol tables, read once under the short list lock of `dl_iterate_phdr`:
//! `dlsym` would take the loader's lock.
//!
//! With an older glibc the walker keeps a sorted table of its own, built by `dl_iterate_phdr` and rebuilt when no module
//! in it contains an address. `dl_iterate_phdr` waits for the list lock (as libgcc does there at every frame), never for
//! the lock that is held while constructors run.

use culeak_elf::{Loaded, Name, find_loaded, find_object};
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};

/// A loaded object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Module {
    pub start: u64,
    pub end: u64,
    /// Address of `.eh_frame_hdr`; 0: none.
    pub index: u64,
}

pub fn containing(address: u64, closing: bool) -> Option<Module> {
    if !find_object::is_prepared() {
        let function = exported(c"_dl_find_object").map(|found| found.start as *const c_void);
        // SAFETY: the loader's function of that name.
        unsafe { find_object::prepare(function) };
    }
    if find_object::is_available() {
        return find_object::containing(address).map(|found| {
            // SAFETY: the object has a frame on this stack.
            let (start, end) = unsafe { found.bounds() };
            Module {
                start,
                end,
                index: found.unwind_index,
            }
        });
    }
    // While a module is being closed, only the loader's list is current.
    if closing {
        search(address)
    } else {
        KNOWN.containing(address)
    }
}

/// The set of modules has changed.
pub fn changed() {
    KNOWN.invalidate();
}

/// In a forked child: a thread that was rebuilding the table does not exist here.
pub fn forked() {
    KNOWN.building.store(false, Release);
}

/// As on a system whose loader has no `_dl_find_object`.
#[cfg(test)]
pub fn without_find_object() {
    // SAFETY: no function is passed.
    unsafe { find_object::prepare(None) };
}

/// The extent of an exported symbol: of the first module in the loader's order that defines it. Waits for the loader's
/// short list lock.
pub fn exported(name: &CStr) -> Option<Range<u64>> {
    let name = Name::new(name);
    // SAFETY: a module stays loaded while the callback runs.
    find_loaded(|loaded| unsafe { loaded.tables()?.extent(name) })
}

impl Module {
    fn of(loaded: &Loaded) -> Module {
        let (start, end) = loaded.bounds();
        Module {
            start,
            end: end.wrapping_add(0xfff) & !0xfff,
            index: loaded.unwind_index().unwrap_or(0),
        }
    }
}

fn search(address: u64) -> Option<Module> {
    find_loaded(|loaded| {
        let module = Module::of(loaded);
        (module.start..module.end).contains(&address).then_some(module)
    })
}

const MODULES: usize = 2048;

/// Two copies: one is read while the other is rebuilt; `version` selects the one to read. It changes whenever the copies
/// swap roles or the table is invalidated, and never takes a value twice. A reader that finds it changed may have read a
/// mixture of two versions and retries.
///
/// ```text
/// version  ┌ count of changes ┬ copy ┬ valid ┐
/// ```
struct ModuleTable {
    version: AtomicU64,
    building: AtomicBool,
    copies: [Listing; 2],
}

struct Listing {
    count: AtomicUsize,
    rows: [[AtomicU64; 3]; MODULES],
}

static KNOWN: ModuleTable = ModuleTable {
    version: AtomicU64::new(0),
    building: AtomicBool::new(false),
    copies: [const {
        Listing {
            count: AtomicUsize::new(0),
            rows: [const { [const { AtomicU64::new(0) }; 3] }; MODULES],
        }
    }; 2],
};

impl ModuleTable {
    fn containing(&self, address: u64) -> Option<Module> {
        if let Some(found) = self.look_up(address) {
            return Some(found);
        }
        self.rebuild();
        // Another thread may be rebuilding, or may have invalidated the table.
        self.look_up(address).or_else(|| search(address))
    }

    fn look_up(&self, address: u64) -> Option<Module> {
        for _ in 0..4 {
            // Acquire: pairs with the Release in `rebuild`, so the copy is complete.
            let version = self.version.load(Acquire);
            if version & 1 == 0 {
                return None;
            }
            let copy = &self.copies[(version >> 1 & 1) as usize];
            let rows = copy.rows.get(..copy.count.load(Relaxed))?;
            let after = rows.partition_point(|row| row[0].load(Relaxed) <= address);
            let found = after.checked_sub(1).map(|at| {
                let [start, end, index] = &rows[at];
                Module {
                    start: start.load(Relaxed),
                    end: end.load(Relaxed),
                    index: index.load(Relaxed),
                }
            });
            // Pairs with the fence in `rebuild`: a reader that has read a row of a later rebuild also reads a later version.
            fence(Acquire);
            if self.version.load(Relaxed) == version {
                return found.filter(|module| address < module.end);
            }
        }
        None
    }

    /// Run by one thread at a time; other threads, and a signal handler that interrupts it, use the current copy.
    fn rebuild(&self) {
        // Acquire: pairs with the Release at the end, so the version read below is the last rebuild's.
        if self.building.swap(true, Acquire) {
            return;
        }
        let version = self.version.load(Relaxed);
        let other = !version >> 1 & 1;
        let copy = &self.copies[other as usize];
        fence(Release);
        let mut count = 0;
        find_loaded(|loaded| {
            let module = Module::of(loaded);
            // Insertion sort: a loader lists hundreds of objects, not millions.
            let mut at = count;
            while at > 0 && copy.rows[at - 1][0].load(Relaxed) > module.start {
                for field in 0..3 {
                    copy.rows[at][field].store(copy.rows[at - 1][field].load(Relaxed), Relaxed);
                }
                at -= 1;
            }
            for (field, value) in [module.start, module.end, module.index].into_iter().enumerate() {
                copy.rows[at][field].store(value, Relaxed);
            }
            count += 1;
            (count == MODULES).then_some(())
        });
        copy.count.store(count, Relaxed);
        // Fails if the table was invalidated meanwhile: a listed module may be gone.
        let next = ((version >> 2) + 1) << 2 | other << 1 | 1;
        let _ = self.version.compare_exchange(version, next, Release, Relaxed);
        self.building.store(false, Release);
    }

    fn invalidate(&self) {
        let next = |version: u64| Some(((version >> 2) + 1) << 2 | version & 2);
        let _ = self.version.fetch_update(AcqRel, Relaxed, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walkers_table_agrees_with_the_loader() {
        let addresses = [search as *const () as u64, libc::malloc as *const () as u64];
        assert!(exported(c"_dl_find_object").is_some() || exported(c"gnu_get_libc_version").is_some());
        assert_eq!(exported(c"no such function"), None);
        for address in addresses {
            let theirs = containing(address, false).unwrap();
            let listed = search(address).unwrap();
            let ours = KNOWN.containing(address).unwrap();
            assert_eq!(ours, listed);
            assert_eq!(ours.index, theirs.index);
            assert!((ours.start..ours.end).contains(&address));
        }
        KNOWN.invalidate();
        assert_eq!(KNOWN.look_up(addresses[0]), None);
        assert!(KNOWN.containing(addresses[0]).is_some());
        assert_eq!(KNOWN.containing(8), None);
    }
}
