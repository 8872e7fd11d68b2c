//! A progress bar for symbolizing, which shows itself only on a terminal and only when it takes a while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work is over before anyone could read a bar.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    visible: bool,
    quiet: bool,
    /// Where the current group began.
    group: u64,
}

impl Progress {
    pub fn over(addresses: usize, quiet: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(addresses as u64), ProgressDrawTarget::hidden());
        bar.set_style(
            ProgressStyle::with_template("looking up names {bar:30} {pos}/{len}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Progress {
            bar,
            started: Instant::now(),
            visible: false,
            quiet,
            group: 0,
        }
    }

    pub fn advance(&mut self, addresses: usize) {
        if !self.visible && !self.quiet && self.started.elapsed() > PATIENCE {
            self.visible = true;
            // indicatif draws nothing when stderr is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(addresses as u64);
    }

    /// Counts a group as done, whatever part of it was advanced through.
    pub fn end_group(&mut self, addresses: usize) {
        self.group += addresses as u64;
        self.bar.set_position(self.group);
    }

    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
