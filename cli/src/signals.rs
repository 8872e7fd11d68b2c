//! SIGINT, SIGTERM and SIGHUP as events: they end the waiting and not this program.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::errors::Failure;

/// Blocks the signals. Call this before starting threads, which would receive them.
///
/// # Errors
/// The kernel refuses.
pub fn block() -> Result<SignalFd, Failure> {
    let blocked = try_block();
    blocked.map_err(|error| Failure::new(format!("cannot wait for signals: {error}; is a seccomp filter active?")))
}

fn try_block() -> io::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(SignalFd::with_flags(
        &signals,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?)
}

/// Waits until a time, or for a signal, which is returned.
pub fn wait(signals: &SignalFd, until: Instant) -> Option<Signal> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up to milliseconds; otherwise the last millisecond would be spent spinning.
        let timeout = PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], timeout);
        if let Ok(Some(arrived)) = signals.read_signal() {
            return Signal::try_from(arrived.ssi_signo.cast_signed()).ok();
        }
        if Instant::now() >= until {
            return None;
        }
    }
}
