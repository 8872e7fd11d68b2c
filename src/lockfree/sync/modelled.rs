//! loom's atomics, with control over every operation: a thread can die at it, and a mistake can be planted in it.
//!
//! A model that cannot fail proves nothing. So every operation with an ordering is a *site*, identified by its place in the
//! source, and a mistake can be planted at each without changing the code: a weakened ordering, an omitted fence, a
//! compare-and-swap that ignores the upper half of its word (where tags and generations are). `Proof` runs a set of models,
//! then plants every possible mistake and expects one of them to catch it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::Ordering::{self, *};

use ::loom::sync::atomic as looms;
use ::loom::thread::ThreadId;

/// A mistake at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {
    /// Relaxed, where the source has a stronger ordering.
    Relaxed,
    /// As `Relaxed`, for the case in which a compare-and-swap fails.
    RelaxedOnFailure,
    /// No fence.
    NoFence,
    /// Only the lower half of the word is compared.
    HalfCompared,
}

/// A place in the source and a mistake that can be planted there.
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

    /// The source line, by which it is identified: line numbers change.
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
    /// A lock that is never free. loom tries another order of two operations only if it considers them dependent, and it
    /// remembers only the last access of each word: it forgets that one thread's load races with another thread's store
    /// when the other thread loads the word first, as every compare-and-swap loop does. So every operation also tries to
    /// take this lock and fails, which makes all operations dependent and orders nothing.
    static HELD: Cell<Option<&'static ::loom::sync::Mutex<()>>> = const { Cell::new(None) };
    static TOTAL_ORDER: Cell<bool> = const { Cell::new(false) };
    static STORES_IN_ORDER: Cell<bool> = const { Cell::new(false) };
    static SEQ_CST_BEFORE: RefCell<HashSet<ThreadId>> = RefCell::new(HashSet::new());
    /// The thread that dies, and before which of its next operations.
    static DYING: Cell<Option<(ThreadId, u32)>> = const { Cell::new(None) };
}

/// Whether this mistake is planted here.
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

/// To be called first by a model of two threads that each write one word and then read the other's. loom treats SeqCst
/// accesses as AcqRel, but supports SeqCst fences: with one between every two such accesses of a thread, they are
/// ordered as the language orders them. Other accesses are then ordered too strongly, so all other models do without.
pub fn in_one_total_order() {
    TOTAL_ORDER.set(true);
}

/// To be called first by a model of words that one thread stores to while another swaps them. loom does not enforce that
/// the value a swap replaces directly precedes it in the modification order of the word, and lets a thread that has stored
/// to the word since then read the swap's value. Relaxed stores then become swaps, which loom keeps in order.
pub fn with_stores_in_order() {
    STORES_IN_ORDER.set(true);
}

/// Called before every access.
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
            // Without the panic hook, which would print a message.
            resume_unwind(Box::new(Died));
        }
        DYING.set(Some((who, left - 1)));
    }
}

/// Begins an operation with one ordering, which a planted mistake may weaken.
#[track_caller]
fn begin(ordering: Ordering) -> Ordering {
    step();
    let ordering = order(Location::caller(), ordering, Mistake::Relaxed);
    ordered(ordering);
    ordering
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
                self.0.load(begin(ordering))
            }

            #[track_caller]
            pub fn store(&self, value: $value, ordering: Ordering) {
                let ordering = begin(ordering);
                if ordering == Relaxed && STORES_IN_ORDER.get() {
                    self.0.swap(value, ordering);
                } else {
                    self.0.store(value, ordering);
                }
            }

            #[track_caller]
            pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                self.0.swap(value, begin(ordering))
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

            /// Without spurious failures: they change nothing that the models check, and double the number of executions.
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
                self.0.fetch_add(value, begin(ordering))
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $value, ordering: Ordering) -> $value {
                self.0.fetch_sub(value, begin(ordering))
            }

            #[track_caller]
            pub fn fetch_max(&self, value: $value, ordering: Ordering) -> $value {
                self.0.fetch_max(value, begin(ordering))
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
        self.0.load(begin(ordering))
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

/// How often a model may preempt a running thread in one execution. Switches at the end of a thread or at a join do not count.
const PREEMPTIONS: usize = 2;

pub fn explore(model: fn(), preemptions: usize) -> u64 {
    let mut builder = ::loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS takes precedence.
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

/// Functions as models, each named after itself.
macro_rules! models {
    ($($model:ident),* $(,)?) => { &[$((stringify!($model), $model)),*] };
}
pub(crate) use models;

/// Models over one lock-free part.
pub struct Proof {
    /// The files in which mistakes are planted; what they use has its own proof.
    pub files: &'static [&'static str],
    pub models: &'static [(&'static str, fn())],
    /// Mistakes without effect, by a part of their source line, each with the reason. They are not tried.
    pub harmless: &'static [(Mistake, &'static str, &'static str)],
}

impl Proof {
    /// Checks that every model holds, and that every mistake that can be planted is noticed by one of them.
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
        for file in self.files {
            let met = where_met.keys().any(|site| site.file.ends_with(file));
            assert!(met, "no model performs an operation of {file}");
        }
        let (mut unnoticed, mut used) = (Vec::new(), BTreeSet::new());
        for (site, mut models) in where_met {
            // The fastest model first.
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
        assert!(idle.is_empty(), "no site in the source matches these reasons: {idle:?}");
    }
}

/// Runs work that is expected to panic, without printing the panic.
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
