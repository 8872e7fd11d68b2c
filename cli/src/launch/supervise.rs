//! Starts the program and stands behind it like a shell: signals go to the program, its exit code comes back.
//!
//! The program stays in our process group, so the terminal's own signals (Ctrl-C, Ctrl-\) reach it without us; those
//! that somebody sends to us alone are passed on. All of them wait in a signalfd, where a dead child is just one more
//! signal: no handler runs, and no signal can go to a process id that was already given to someone else, because the
//! same loop that forwards is the one that reaps. Deliberately absent: killing what the program left running.

use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// Sent to us, meant for the program. Stopping and continuing are left to the terminal.
const FORWARDED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
];

/// How a program ended.
pub struct Ended {
    pub status: ExitStatus,
    /// What the kernel called it then (`/proc/PID/comm`): another name than at its start if it replaced itself.
    pub name: Option<String>,
}

/// Runs the program to its end. Call it while this process has one thread: another would swallow the signals.
///
/// # Errors
/// When it cannot be started, with the reason the kernel gave.
pub fn run(command: &mut Command) -> io::Result<Ended> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    for forwarded in FORWARDED {
        signals.add(forwarded);
    }
    // SAFETY: no handler is installed; the default action of SIGCHLD is to stay quiet. It may have been inherited as
    // ignored, and then the kernel would throw the child's exit status away.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    // Blocked before the child exists, so that its end cannot be missed.
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // SAFETY: between fork and exec only async-signal-safe functions may run; setting the signal mask is one.
    unsafe { command.pre_exec(move || before.thread_set_mask().map_err(io::Error::from)) };
    let outcome = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)
        .map_err(io::Error::from)
        .and_then(|arrivals| attend(&mut command.spawn()?, &arrivals));
    before.thread_set_mask()?;
    outcome
}

/// Passes signals on until the child has ended.
fn attend(child: &mut Child, arrivals: &SignalFd) -> io::Result<Ended> {
    let id = Pid::from_raw(child.id().cast_signed());
    // It keeps its name until it is reaped.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        if waitid(Id::Pid(id), look).is_ok_and(|state| state != WaitStatus::StillAlive) {
            let name = fs::read_to_string(format!("/proc/{id}/comm")).ok();
            return Ok(Ended {
                status: child.wait()?,
                name: name.map(|name| name.trim_end_matches('\n').to_owned()),
            });
        }
        match arrivals.read_signal() {
            Ok(Some(arrived)) => {
                if let Some(signal) = to_forward(&arrived) {
                    // The child may be a zombie by now; then there is nobody left to tell.
                    let _ = kill(id, signal);
                }
            }
            Ok(None) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the terminal sends goes to the whole process group, the program included; only what a process sent is for us,
/// and the alarm that somebody set before starting us.
fn to_forward(arrived: &siginfo) -> Option<Signal> {
    let from_kernel = arrived.ssi_code > 0;
    let signal = Signal::try_from(arrived.ssi_signo.cast_signed()).ok()?;
    let ours = FORWARDED.contains(&signal) && (!from_kernel || signal == Signal::SIGALRM);
    ours.then_some(signal)
}

/// The exit code a shell would report: the program's own, or 128 and the number of the signal that ended it.
pub fn shell_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    // Both lie between 0 and 255: the kernel keeps eight bits of an exit code, and signals end at 64.
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
