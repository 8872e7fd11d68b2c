//! loom's atomics, with a say in every operation: where a thread dies, and which mistake is planted.
//!
//! A model that cannot fail proves nothing. So every operation with an ordering is a *site*, known by its place in the
//! source, and a mistake can be planted at each without touching the code: an ordering taken away, a fence left out, a
//! compare-and-swap that does not look at the upper half of its word (where tags and generations live). `Proof` runs a
//! set of models, then plants every mistake there is and expects each to be caught by one of them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::Ordering::{self, *};

use ::loom::sync::atomic as looms;
use ::loom::thread::ThreadId;

/// What is done wrong at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {
    /// Relaxed, where the source says more.
    Relaxed,
    /// As `Relaxed`, for the case in which a compare-and-swap fails.
    RelaxedOnFailure,
    /// No fence.
    NoFence,
    /// Only the lower half of the word is compared.
    HalfCompared,
}

/// A place in the source and what can be done wrong there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    file: &'static str,
    line: u32,
    column: u32,
    pub mistake: Mistake,
}

impl Site {
    fn of(at: &'static Location<'static>, mistake: Mistake) -> Site {
        Site {
            file: at.file(),
            line: at.line(),
            column: at.column(),
            mistake,
        }
    }

    /// The source around it, by which people know it: line numbers change.
    fn source(&self) -> String {
        let text = std::fs::read_to_string(self.file)
            .or_else(|_| std::fs::read_to_string(format!("{}/{}", env!("CARGO_MANIFEST_DIR"), self.file)))
            .or_else(|_| std::fs::read_to_string(format!("{}/../../{}", env!("CARGO_MANIFEST_DIR"), self.file)))
            .unwrap_or_default();
        let line = text.lines().nth(self.line as usize - 1).unwrap_or_default();
        format!("{}:{}: {:?}: {}", self.file, self.line, self.mistake, line.trim())
    }
}

// One model runs on one thread of the test process, loom's threads included.
thread_local! {
    static PLANTED: Cell<Option<Site>> = const { Cell::new(None) };
    static MET: RefCell<BTreeSet<Site>> = const { RefCell::new(BTreeSet::new()) };
    /// A lock that is never free. loom tries another order of two operations only if it takes them to depend on each
    /// other, and of each word it remembers the last access alone: that a load of one thread races with the store of
    /// another is forgotten when the other one loads the word first, as every compare-and-swap loop does. So every
    /// operation also asks for this lock, in vain, which makes all of them depend on each other and orders nothing.
    static HELD: Cell<Option<&'static ::loom::sync::Mutex<()>>> = const { Cell::new(None) };
    static TOTAL_ORDER: Cell<bool> = const { Cell::new(false) };
    static STORES_IN_ORDER: Cell<bool> = const { Cell::new(false) };
    static SEQ_CST_BEFORE: RefCell<HashSet<ThreadId>> = RefCell::new(HashSet::new());
    /// Who dies, and before which of its next operations.
    static DYING: Cell<Option<(ThreadId, u32)>> = const { Cell::new(None) };
}

/// Whether this mistake is to be made here.
fn wrong(at: &'static Location<'static>, mistake: Mistake) -> bool {
    let site = Site::of(at, mistake);
    MET.with_borrow_mut(|met| met.insert(site));
    PLANTED.get() == Some(site)
}

fn order(at: &'static Location<'static>, order: Ordering, mistake: Mistake) -> Ordering {
    if order != Relaxed && wrong(at, mistake) {
        Relaxed
    } else {
        order
    }
}

/// To be called first by a model of two threads that each write one word and then read the other's. loom takes SeqCst
/// accesses for AcqRel ones, but knows SeqCst fences: with one between every two such accesses of a thread, they are
/// ordered as the language orders them. Other accesses are then ordered too well, so all other models do without.
pub fn in_one_total_order() {
    TOTAL_ORDER.set(true);
}

/// To be called first by a model of words that one thread stores to while another swaps them. loom does not know that
/// what a swap has replaced comes right before it among all values of the word, and lets a thread that has stored to the
/// word since then read the swap's value. Relaxed stores are then made swaps themselves, which loom keeps in order.
pub fn with_stores_in_order() {
    STORES_IN_ORDER.set(true);
}

/// Comes before every access.
fn ordered(ordering: Ordering) {
    if ordering == SeqCst && TOTAL_ORDER.get() {
        let thread = ::loom::thread::current().id();
        if SEQ_CST_BEFORE.with_borrow_mut(|threads| !threads.insert(thread)) {
            looms::fence(SeqCst);
        }
    }
}

/// Thrown through a thread that dies.
struct Died;

/// One operation.
fn step() {
    if let Some(held) = HELD.get() {
        assert!(held.try_lock().is_err());
    }
    let Some((who, left)) = DYING.get() else { return };
    if who == ::loom::thread::current().id() {
        if left == 0 {
            DYING.set(None);
            // Not a panic: nobody has to read about it.
            resume_unwind(Box::new(Died));
        }
        DYING.set(Some((who, left - 1)));
    }
}

/// Does `work`, but dies before its atomic operation number `at`, like a thread that is killed there: nothing after it
/// happens. `None` if it died.
pub fn dying<R>(at: u32, work: impl FnOnce() -> R) -> Option<R> {
    DYING.set(Some((::loom::thread::current().id(), at)));
    let result = catch_unwind(AssertUnwindSafe(work));
    DYING.set(None);
    match result {
        Ok(result) => Some(result),
        Err(thrown) if thrown.is::<Died>() => None,
        Err(thrown) => resume_unwind(thrown),
    }
}

macro_rules! atomics {
    ($($name:ident $value:ty;)*) => { $(
        #[derive(Default, Debug)]
        pub struct $name(looms::$name);

        impl $name {
            #[track_caller]
            pub fn new(value: $value) -> $name {
                $name(looms::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, ordering: Ordering) -> $value {
                step();
                let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
                ordered(ordering);
                self.0.load(ordering)
            }

            #[track_caller]
            pub fn store(&self, value: $value, ordering: Ordering) {
                step();
                let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
                ordered(ordering);
                if ordering == Relaxed && STORES_IN_ORDER.get() {
                    self.0.swap(value, ordering);
                } else {
                    self.0.store(value, ordering);
                }
            }

            #[track_caller]
            pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                step();
                let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
                ordered(ordering);
                self.0.swap(value, ordering)
            }
        }
    )* };
}
atomics! {
    AtomicU64 u64;
    AtomicU32 u32;
    AtomicBool bool;
}

macro_rules! integers {
    ($($name:ident $value:ty;)*) => { $(
        impl $name {
            #[track_caller]
            pub fn compare_exchange(
                &self,
                mut seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                let at = Location::caller();
                const HALF: u32 = <$value>::BITS / 2;
                if wrong(at, Mistake::HalfCompared) {
                    let now = self.0.load(Relaxed);
                    if now << HALF == seen << HALF {
                        seen = now;
                    }
                }
                let success = order(at, success, Mistake::Relaxed);
                let failure = order(at, failure, Mistake::RelaxedOnFailure);
                ordered(success);
                self.0.compare_exchange(seen, new, success, failure)
            }

            /// Without failures for no reason: they change nothing that the models look at, and double their number.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, new, success, failure)
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $value, ordering: Ordering) -> $value {
                step();
                let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
                ordered(ordering);
                self.0.fetch_add(value, ordering)
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $value, ordering: Ordering) -> $value {
                step();
                let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
                ordered(ordering);
                self.0.fetch_sub(value, ordering)
            }

            #[track_caller]
            pub fn fetch_max(&self, value: $value, ordering: Ordering) -> $value {
                step();
                let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
                ordered(ordering);
                self.0.fetch_max(value, ordering)
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(new) = change(seen) {
                    match self.compare_exchange(seen, new, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(other) => seen = other,
                    }
                }
                Err(seen)
            }
        }
    )* };
}
integers! {
    AtomicU64 u64;
    AtomicU32 u32;
}

pub struct AtomicPtr<T>(looms::AtomicPtr<T>);

impl<T> Default for AtomicPtr<T> {
    #[track_caller]
    fn default() -> AtomicPtr<T> {
        AtomicPtr(looms::AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl<T> AtomicPtr<T> {
    #[track_caller]
    pub fn load(&self, ordering: Ordering) -> *mut T {
        step();
        let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
        ordered(ordering);
        self.0.load(ordering)
    }

    #[track_caller]
    pub fn compare_exchange(
        &self,
        seen: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        step();
        let at = Location::caller();
        let success = order(at, success, Mistake::Relaxed);
        let failure = order(at, failure, Mistake::RelaxedOnFailure);
        ordered(success);
        self.0.compare_exchange(seen, new, success, failure)
    }
}

#[track_caller]
pub fn fence(ordering: Ordering) {
    step();
    if !wrong(Location::caller(), Mistake::NoFence) {
        looms::fence(ordering);
    }
}

/// How often a model may take a running thread off its processor. Switches that a thread brings about itself, by
/// ending or by waiting for another, are not counted.
const PREEMPTIONS: usize = 2;

pub fn explore(model: fn(), preemptions: usize) -> u64 {
    let mut builder = ::loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = executions.clone();
    builder.check(move || {
        counter.fetch_add(1, Relaxed);
        let held: &'static _ = Box::leak(Box::new(::loom::sync::Mutex::new(())));
        std::mem::forget(held.lock());
        HELD.set(Some(held));
        TOTAL_ORDER.set(false);
        STORES_IN_ORDER.set(false);
        SEQ_CST_BEFORE.take();
        model();
    });
    executions.load(Relaxed)
}

/// Models over one lock-free part.
pub struct Proof {
    /// Where mistakes are planted: what these files use is proven by itself.
    pub files: &'static [&'static str],
    pub models: &'static [(&'static str, fn())],
    /// Mistakes that are none, by a piece of their source line, each with the reason. They are not tried.
    pub harmless: &'static [(Mistake, &'static str, &'static str)],
}

impl Proof {
    /// Every model holds, and every mistake that can be planted is noticed by one of them.
    pub fn check(&self) {
        let mut where_met: BTreeMap<Site, Vec<(u64, usize)>> = BTreeMap::new();
        for (number, (name, model)) in self.models.iter().enumerate() {
            MET.take();
            let executions = explore(*model, PREEMPTIONS);
            println!("{executions:8} executions: {name}");
            for site in MET
                .take()
                .into_iter()
                .filter(|site| self.files.iter().any(|file| site.file.ends_with(file)))
            {
                where_met.entry(site).or_default().push((executions, number));
            }
        }
        let (mut unnoticed, mut used) = (Vec::new(), BTreeSet::new());
        for (site, mut models) in where_met {
            // The cheapest first.
            models.sort_unstable();
            let source = site.source();
            let excuse = self
                .harmless
                .iter()
                .position(|(mistake, piece, _)| *mistake == site.mistake && source.contains(piece));
            if let Some(excuse) = excuse {
                println!("{source}\n    harmless: {}", self.harmless[excuse].2);
                used.insert(excuse);
                continue;
            }
            let noticed = models.iter().find(|&&(_, number)| {
                PLANTED.set(Some(site));
                let outcome = quiet(|| {
                    explore(self.models[number].1, PREEMPTIONS);
                });
                PLANTED.set(None);
                outcome.is_err()
            });
            match noticed {
                Some(&(_, number)) => println!("{source}\n    noticed: {}", self.models[number].0),
                None => unnoticed.push(source),
            }
        }
        assert!(unnoticed.is_empty(), "no model notices:\n{}", unnoticed.join("\n"));
        let idle: Vec<_> = (0..self.harmless.len()).filter(|n| !used.contains(n)).collect();
        assert!(
            idle.is_empty(),
            "nothing of that kind is in the source any more: reasons {idle:?}"
        );
    }
}

/// Does what is expected to fail, and need not say so.
pub fn quiet(work: impl FnOnce()) -> std::thread::Result<()> {
    thread_local! {
        static QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            if !QUIET.get() {
                usual(what);
            }
        }));
    });
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    outcome
}
