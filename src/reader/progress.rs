//! How far long work has come, for whoever wants to show it.
//!
//! Reading ten million records takes seconds, deep inside functions that know nothing of terminals. They say what they are
//! about to do and how far they are; a program that wants to see it says so once ([`show_on`]), as with a log. Where
//! nobody does, all this costs a branch. Deliberately absent: bars; those are the CLI's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// Things of this name.
    Of(&'static str),
}

/// Where a piece of work is shown, until it is dropped.
pub trait Shown: Send + Sync {
    fn at(&self, done: u64);
}

/// Begins to show work: what it is (`reading`), how much, and of what.
pub type Screen = fn(&str, u64, Unit) -> Box<dyn Shown>;

static SCREEN: OnceLock<Screen> = OnceLock::new();

/// From now on, work of this process is shown there. The first call counts.
pub fn show_on(screen: Screen) {
    let _ = SCREEN.set(screen);
}

/// A piece of work under way; over when it is dropped. Several threads may advance it.
pub struct Progress {
    done: AtomicU64,
    shown: Option<Box<dyn Shown>>,
}

impl Progress {
    pub fn over(what: &str, total: u64, unit: Unit) -> Progress {
        Progress {
            done: AtomicU64::new(0),
            shown: SCREEN.get().map(|screen| screen(what, total, unit)),
        }
    }

    /// So much more is done. For every thousand things rather than for each.
    pub fn advance(&self, more: u64) {
        if let Some(shown) = &self.shown {
            // Relaxed: a number to look at, behind which nothing else stands.
            shown.at(self.done.fetch_add(more, Ordering::Relaxed) + more);
        }
    }

    /// The same for loops: counts one, and tells every 4,096th time.
    #[inline]
    pub fn tick(&self, nth: usize) {
        const OFTEN: usize = 1 << 12;
        if nth % OFTEN == OFTEN - 1 {
            self.advance(OFTEN as u64);
        }
    }
}
