//! A progress bar on standard error, for work that takes longer than half a second, and messages that do not disturb it.
//!
//! Work reports its progress through [`culeak::reader::progress`]. Of concurrent work (the files of a folder, the records of one
//! file) that which began first is shown. Messages go through [`say`], which replaces the bar until it is drawn again;
//! [`note`] and [`detail`] obey `--quiet` and `--verbose`. Deliberately absent: a bar if standard error is not a terminal, or if the
//! live view has the screen.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use culeak::reader::progress::{Progress, Unit};
use culeak::reader::progress::{Shown, show_on};
use nix::sys::signal::SigSet;
use terminal_size::{Width, terminal_size_of};

use crate::document::cells::bar;
use crate::document::columns::first;
use crate::errors::Failure;
use crate::text::units;

/// Work that is shorter gets no bar.
const PATIENCE: Duration = Duration::from_millis(500);
/// Interval between updates of the bar.
const TICK: Duration = Duration::from_millis(100);

static QUIET: AtomicBool = AtomicBool::new(false);
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Chooses what is printed: without `quiet` notes and bars, with `verbose` also details.
pub fn choose_messages(quiet: bool, verbose: bool) {
    QUIET.store(quiet, Relaxed);
    VERBOSE.store(verbose, Relaxed);
}

/// Whether only errors, warnings and results are printed.
pub fn is_quiet() -> bool {
    QUIET.load(Relaxed)
}

/// Shows progress from now on, if standard error is a terminal.
pub fn show() {
    if is_quiet() || !stderr().is_terminal() {
        return;
    }
    // The new thread inherits a mask that leaves all signals to other threads.
    let before = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK);
    let started = thread::Builder::new().name("progress".to_owned()).spawn(|| {
        loop {
            thread::sleep(TICK);
            let work = current_work();
            let shown = work.iter().find(|bar| bar.began.elapsed() > PATIENCE);
            shown.into_iter().for_each(Bar::draw);
        }
    });
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    if started.is_ok() {
        show_on(|what, total, unit| Box::new(Handle::new(what, total, unit)));
    }
}

/// Messages that are part of an answer instead.
static HEARD: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Collects the messages of this work, which are not printed then.
pub fn heard<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let heard = || HEARD.lock().unwrap_or_else(PoisonError::into_inner);
    *heard() = Some(Vec::new());
    let result = work();
    let messages = heard().take();
    (result, messages.unwrap_or_default())
}

thread_local! {
    static SAID: Cell<usize> = const { Cell::new(0) };
}

/// How many messages this thread has had so far.
pub fn said_here() -> usize {
    SAID.get()
}

/// Prints a message on standard error, in place of the bar.
pub fn say(words: impl Display) {
    SAID.set(SAID.get() + 1);
    if let Some(heard) = HEARD.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        heard.push(words.to_string());
        return;
    }
    let _work = current_work();
    clear();
    eprintln!("culeak: {words}");
}

/// Prints a message that `--quiet` suppresses: neither an error nor a warning nor a result.
pub fn note(words: impl Display) {
    if !is_quiet() {
        say(words);
    }
}

/// Prints a message that only `--verbose` asks for.
pub fn detail(words: impl Display) {
    if VERBOSE.load(Relaxed) {
        say(words);
    }
}

/// Reports a failure.
pub fn fail(failure: &Failure) {
    say(format_args!("error: {failure}"));
}

/// All current work, in the order in which it began.
fn current_work() -> MutexGuard<'static, Vec<Bar>> {
    static WORK: Mutex<Vec<Bar>> = Mutex::new(Vec::new());
    WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last line on the terminal is a bar. It changes only while [`current_work`] is locked.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Removes the bar from the terminal until it is drawn again.
fn clear() {
    if IS_DRAWN.swap(false, Relaxed) {
        // The terminal may be gone.
        let _ = write!(stderr(), "\r\x1b[2K");
    }
}

struct Bar {
    began: Instant,
    what: String,
    total: u64,
    unit: Unit,
    done: Arc<AtomicU64>,
}

impl Bar {
    fn draw(&self) {
        let (done, total) = (self.done.load(Relaxed), self.total);
        let numbers = match self.unit {
            Unit::Bytes => format!("{} of {}", units::bytes(done), units::bytes(total)),
            Unit::Of(things) => format!("{} of {} {things}", units::count(done), units::count(total)),
        };
        let line = format!("{:20} {} {numbers}", self.what, bar(done, total));
        let columns = terminal_size_of(stderr()).map_or(80, |(Width(columns), _)| usize::from(columns));
        let _ = write!(stderr(), "\r\x1b[2K{}", first(&line, columns.saturating_sub(1)));
        IS_DRAWN.store(true, Relaxed);
    }
}

/// Through which work sets its position.
struct Handle(Arc<AtomicU64>);

impl Handle {
    fn new(what: &str, total: u64, unit: Unit) -> Handle {
        let done = Arc::new(AtomicU64::new(0));
        current_work().push(Bar {
            began: Instant::now(),
            what: what.to_owned(),
            total,
            unit,
            done: Arc::clone(&done),
        });
        Handle(done)
    }
}

impl Shown for Handle {
    fn at(&self, done: u64) {
        self.0.store(done, Relaxed);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut work = current_work();
        work.retain(|bar| !Arc::ptr_eq(&bar.done, &self.0));
        if work.is_empty() {
            clear();
        }
    }
}
