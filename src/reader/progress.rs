//! Progress of long work, for a program that displays it.
//!
//! Reading ten million records takes seconds, in functions that have no terminal. They report what they do and how
//! far they are; a program that displays it calls [`show_on`] once, as with a logger. Without a display this costs one
//! branch. Deliberately absent: progress bars; the CLI draws them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// Items with this name.
    Of(&'static str),
}

/// The display of one piece of work; dropped at its end.
pub trait Shown: Send + Sync {
    fn at(&self, done: u64);
}

/// Starts the display of a piece of work, given its name (`reading`), its total and its unit.
pub type Screen = fn(&str, u64, Unit) -> Box<dyn Shown>;

static SCREEN: OnceLock<Screen> = OnceLock::new();

/// Displays the work of this process from now on. Only the first call has an effect.
pub fn show_on(screen: Screen) {
    let _ = SCREEN.set(screen);
}

/// A piece of work in progress; it ends when dropped. Several threads may advance it.
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

    /// Adds finished work. Call it per thousand items rather than per item.
    pub fn advance(&self, more: u64) {
        if let Some(shown) = &self.shown {
            // Relaxed: the number is only displayed and publishes nothing.
            shown.at(self.done.fetch_add(more, Ordering::Relaxed) + more);
        }
    }

    /// For loops: call it with the index of each item; it advances by 4,096 items at a time.
    #[inline]
    pub fn tick(&self, nth: usize) {
        const OFTEN: usize = 1 << 12;
        if nth % OFTEN == OFTEN - 1 {
            self.advance(OFTEN as u64);
        }
    }
}
