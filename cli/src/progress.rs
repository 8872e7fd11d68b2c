//! Progress bars: what takes longer than half a second shows how far it has come, on standard error if that is a terminal.
//!
//! The one place for them. Work says how far it is through [`culeak::reader::progress`]; several pieces of work that go on at once
//! (files of a folder, records of one file) stand below each other, and each is gone without a trace when it is over.
//! Whatever else is said on standard error meanwhile goes through [`say`], above the bars. Deliberately absent: anything
//! where standard error is a file or a pipe, or where the live view has the screen.

use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use culeak::reader::progress::{Progress, Unit};
use culeak::reader::progress::{Shown, show_on};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::signal::SigSet;

use crate::errors::Failure;

/// Shorter work is over before anyone could read a bar.
const PATIENCE: Duration = Duration::from_millis(500);
/// Once a bar was seen, what comes next is shown after this time.
const LATER: Duration = Duration::from_millis(150);
/// Between two looks at what goes on.
const TICK: Duration = Duration::from_millis(100);

/// From now on work is shown, if there is a terminal to show it on.
pub fn show() {
    if !stderr().is_terminal() {
        return;
    }
    // Signals are for other threads, some of which wait for them.
    let before = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK);
    let started = thread::Builder::new().name("progress".to_owned()).spawn(|| {
        let mut patience = PATIENCE;
        loop {
            thread::sleep(TICK);
            for work in going_on().iter_mut() {
                work.look(patience);
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

/// Says something on standard error without tearing a bar.
pub fn say(words: impl Display) {
    bars().suspend(|| eprintln!("culeak: {words}"));
}

/// Reports a failure.
pub fn fail(failure: &Failure) {
    say(format_args!("error: {failure}"));
}

fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
}

/// Work that is under way, shown or not yet.
fn going_on() -> MutexGuard<'static, Vec<Work>> {
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
    fn look(&mut self, patience: Duration) {
        if !self.shown && self.began.elapsed() > patience {
            bars().add(self.bar.clone());
            self.shown = true;
        }
        if self.shown {
            self.bar.tick();
        }
    }
}

/// Work as it sees itself: a number to set, and nothing that takes time.
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
        let mut going_on = going_on();
        let number = going_on.last().map_or(0, |last| last.number + 1);
        going_on.push(Work {
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
        let mut going_on = going_on();
        going_on.retain(|work| work.number != self.number);
        self.bar.finish_and_clear();
        bars().remove(&self.bar);
    }
}
