//! Progress bars: what takes longer than half a second shows how far it has come, on standard error if that is a terminal.
//!
//! The one place for them. Work says how far it is through [`culeak::progress`]; several pieces of work that go on at once
//! (files of a folder, records of one file) stand below each other, and each is gone without a trace when it is over.
//! Whatever else is said on standard error meanwhile goes through [`say`], above the bars. Deliberately absent: anything
//! where standard error is a file or a pipe, or where the live view has the screen.

use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use culeak::progress::{Progress, Unit};
use culeak::progress::{Shown, show_on};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work is over before anyone could read a bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// From now on work is shown, if there is a terminal to show it on.
pub fn show() {
    if stderr().is_terminal() {
        show_on(|what, total, unit| Box::new(Bar::new(what, total, unit)));
    }
}

/// Says something on standard error without tearing a bar.
pub fn say(words: impl Display) {
    bars().suspend(|| eprintln!("culeak: {words}"));
}

fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
}

struct Bar {
    bar: ProgressBar,
    began: Instant,
    visible: AtomicBool,
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
        Bar {
            bar,
            began: Instant::now(),
            visible: AtomicBool::new(false),
        }
    }
}

impl Shown for Bar {
    fn at(&self, done: u64) {
        // Relaxed: who comes first shows it, and that is all there is to agree on.
        if !self.visible.load(Ordering::Relaxed)
            && self.began.elapsed() > PATIENCE
            && !self.visible.swap(true, Ordering::Relaxed)
        {
            bars().add(self.bar.clone());
        }
        self.bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        bars().remove(&self.bar);
    }
}
