//! Progress bars on standard error, for work that takes longer than half a second, and messages that do not disturb them.
//!
//! Work reports its progress through [`culeak::reader::progress`]. Concurrent work (the files of a folder, the records of one
//! file) has one bar each, and a bar disappears when its work is done. Messages go through [`say`], which prints them above
//! the bars; [`note`] and [`detail`] obey `--quiet` and `--verbose`. Deliberately absent: bars if standard error is not a terminal, or if the live view has the screen.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use culeak::reader::progress::{Progress, Unit};
use culeak::reader::progress::{Shown, show_on};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::signal::SigSet;

use crate::errors::Failure;

/// Work that is shorter gets no bar.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same limit once a bar has been shown.
const LATER: Duration = Duration::from_millis(150);
/// Interval between updates of the bars.
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
        let mut patience = PATIENCE;
        loop {
            thread::sleep(TICK);
            for work in current_work().iter_mut() {
                work.update(patience);
                if work.shown {
                    patience = LATER;
                }
            }
        }
    });
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    if started.is_ok() {
        show_on(|what, total, unit| Box::new(Bar::new(what, total, unit)));
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

/// Prints a message on standard error, above the bars.
pub fn say(words: impl Display) {
    SAID.set(SAID.get() + 1);
    if let Some(heard) = HEARD.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        heard.push(words.to_string());
        return;
    }
    bars().suspend(|| eprintln!("culeak: {words}"));
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

fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
}

/// All current work.
fn current_work() -> MutexGuard<'static, Vec<Work>> {
    static WORK: Mutex<Vec<Work>> = Mutex::new(Vec::new());
    WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Work {
    number: u64,
    bar: ProgressBar,
    began: Instant,
    shown: bool,
}

impl Work {
    fn update(&mut self, patience: Duration) {
        if !self.shown && self.began.elapsed() > patience {
            bars().add(self.bar.clone());
            self.shown = true;
        }
        if self.shown {
            self.bar.tick();
        }
    }
}

/// The handle through which work sets its position.
struct Bar {
    number: u64,
    bar: ProgressBar,
}

impl Bar {
    fn new(what: &str, total: u64, unit: Unit) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let numbers = match unit {
            Unit::Bytes => "{bytes}/{total_bytes}".to_owned(),
            Unit::Of(things) => format!("{{human_pos}}/{{human_len}} {things}"),
        };
        let style = ProgressStyle::with_template(&format!("{{msg:20}} {{bar:30}} {numbers}"));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        let mut work = current_work();
        let number = work.last().map_or(0, |last| last.number + 1);
        work.push(Work {
            number,
            bar: bar.clone(),
            began: Instant::now(),
            shown: false,
        });
        Bar { number, bar }
    }
}

impl Shown for Bar {
    fn at(&self, done: u64) {
        self.bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        let mut work = current_work();
        work.retain(|work| work.number != self.number);
        self.bar.finish_and_clear();
        bars().remove(&self.bar);
    }
}
