//! The native stack of the calling thread, as a hash.

use std::sync::atomic::{AtomicBool, Ordering::*};

use culeak_cpython::Chains;
use culeak_walker::{self as walker, End, ReadSets, Registers};

use crate::resolve::closing::generation;
use crate::resolve::own;
use culeak::lockfree::index::mix;
use culeak::lockfree::shards::{OWN, Shard};

/// Whether libgcc unwinds instead of the walker.
#[unsafe(link_section = ".data.culeak_events")]
static LIBGCC: AtomicBool = AtomicBool::new(false);

/// The known stacks of the thread that owns a shard. Threads that share one walk every stack.
static READ_SETS: [ReadSets; OWN] = [const { ReadSets::new() }; OWN];

/// Their Python frames. Used only by the walk that uses the read sets.
static CHAINS: [Chains; OWN] = [const { Chains::none() }; OWN];

pub fn set_libgcc(libgcc: bool) {
    LIBGCC.store(libgcc, Relaxed);
}

pub fn uses_libgcc() -> bool {
    LIBGCC.load(Relaxed)
}

/// In a forked child.
pub fn forked() {
    READ_SETS.iter().for_each(ReadSets::forked);
}

/// The native frames of the calling thread without our own, as a hash. The frames are not kept: a stack is usually
/// known, and a new one is walked again.
struct Native {
    count: usize,
    /// The most frames to count.
    limit: usize,
    /// There are more frames, or the walk failed.
    cut: bool,
    /// Two hashes in turn, since each multiplication depends on the previous one of its hash.
    hash: [u64; 2],
    ours: (u64, u64),
}

impl Native {
    #[inline(always)]
    fn none(depth: usize) -> Native {
        Native {
            count: 0,
            limit: depth,
            cut: false,
            hash: [generation(), 0],
            ours: own::bounds(),
        }
    }

    /// By our own walker: a few loads per frame.
    #[inline(always)]
    fn walk(&mut self, at: Registers) {
        let walked = walker::walk_each(at, |index, address, _| {
            if index == 0 {
                self.clear();
            }
            self.add(address)
        });
        self.cut = walked.end != End::Root;
    }

    /// By libgcc: portable, and the reference that the walker is tested against.
    #[cold]
    #[inline(never)]
    fn unwind(&mut self) {
        self.cut = unwind(|address, _| self.add(address));
    }

    /// All 64 bits matter: a stack is identified by its hash.
    fn hash(&self) -> u64 {
        mix(mix(self.hash[0]) ^ self.hash[1] ^ (u64::from(self.cut) << 32 | self.count as u64))
    }

    /// Adds a frame. False if the limit was reached before.
    #[inline(always)]
    fn add(&mut self, address: u64) -> bool {
        // Our own frames are at the start, and where a runtime hook is around a driver hook.
        if (self.ours.0..self.ours.1).contains(&address) {
            return true;
        }
        if self.count == self.limit {
            return false;
        }
        self.count += 1;
        let [first, second] = self.hash;
        self.hash = [second, walker::mix_in(first, address)];
        true
    }

    fn clear(&mut self) {
        self.count = 0;
        self.hash = [generation(), 0];
    }
}

/// Calls `keep` with the code address and stack pointer of each frame that libgcc finds, until it returns false.
/// Returns whether it did.
pub fn unwind(mut keep: impl FnMut(u64, u64) -> bool) -> bool {
    let mut stopped = false;
    let visit = |frame: &backtrace::Frame| {
        let address = frame.ip() as u64;
        stopped = address != 0 && !keep(address, frame.sp() as u64);
        address != 0 && !stopped
    };
    // SAFETY: "unsynchronized" concerns the crate's symbolizer, which is not used here: the walk itself
    // (_Unwind_Backtrace over _dl_find_object) keeps no shared state.
    unsafe { backtrace::trace_unsynchronized(visit) };
    stopped
}

/// The number of the calling thread's stack, if it was remembered with this key, or with its Python frames where they are all that the
/// key is made of.
#[inline(always)]
pub fn known(at: Registers, is_python_key: bool, key: impl FnOnce() -> u64, shard: Shard) -> Option<u32> {
    let (sets, chains) = (READ_SETS.get(shard.number())?, &CHAINS[shard.number()]);
    // SAFETY: an owned shard is the calling thread's alone; shared ones have none. The chain is of an entry, and the chains are cleared
    // after all entries.
    unsafe { sets.find(at, |chain| is_python_key && chains.hold(chain), key) }
}

/// Remembers the number of the calling thread's stack, which has this hash and was seen before.
pub fn remember(at: Registers, depth: usize, hash: u64, (key, is_python_key): (u64, bool), shard: Shard, stack: u32) {
    let Some(sets) = READ_SETS.get(shard.number()).filter(|_| !uses_libgcc()) else {
        return;
    };
    // SAFETY: as above.
    if unsafe { sets.found_again(at, key, stack) } {
        return;
    }
    let mut native = Native::none(depth);
    let keep = |address| {
        native.cut = !native.add(address);
        !native.cut
    };
    // SAFETY: as above.
    let Some(mut kept) = (unsafe { sets.walk(at, keep) }).filter(|_| native.hash() == hash) else {
        return;
    };
    let chains = &CHAINS[shard.number()];
    // SAFETY: the read sets are in use by this walk, and no stack has any of the chains that are cleared.
    let chain = unsafe {
        if chains.is_full() {
            kept.forget_all();
            return chains.clear();
        }
        if is_python_key { chains.remember() } else { None }
    };
    kept.remember(key, stack, chain.unwrap_or(0));
}

/// The hash of the calling thread's native stack; `None` if it is empty.
#[inline(always)]
pub fn hash(at: Registers, depth: usize) -> Option<u64> {
    let mut native = Native::none(depth);
    if uses_libgcc() {
        native.unwind();
    } else {
        native.walk(at);
    }
    (native.count > 0).then(|| native.hash())
}
