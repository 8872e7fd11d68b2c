//! Runs a program to its end: forwards signals to it and returns its exit status.
//!
//! The program stays in this process group, so signals of the terminal (Ctrl-C, Ctrl-\) reach it directly; signals sent to
//! this process alone are forwarded. All signals arrive through a signalfd, and so does the end of the child. No handler
//! runs, and no signal can reach a reused process id, because one loop both forwards and reaps. Deliberately absent: killing
//! processes that the program left running.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::{fs, io};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// Signals that are forwarded. Stopping and continuing are left to the terminal.
const FORWARDED: [Signal; 13] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    // Batch systems send the first one at the limit of a job.
    Signal::SIGXCPU,
    Signal::SIGPWR,
    Signal::SIGIO,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
];

/// Which standard descriptors were closed when this process started, one bit for each. Before `main`, Rust's runtime opens /dev/null
/// in their place, which the program must not inherit.
static CLOSED: AtomicU8 = AtomicU8::new(0);
const STANDARD: Range<i32> = 0..3;

/// Signals that were ignored when this process started, one bit for each. Rust's runtime and this module change both, which the program
/// must not inherit.
static IGNORED: AtomicU8 = AtomicU8::new(0);
const CHANGED: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGCHLD];

/// Runs before the runtime.
extern "C" fn note_closed() {
    for number in STANDARD {
        // SAFETY: F_GETFD has no preconditions, also for a number that is no descriptor.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << number, Relaxed);
        }
    }
    for (bit, signal) in CHANGED.into_iter().enumerate() {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a query with a valid out-parameter, which is read only if it was written.
        let is_ignored = unsafe {
            libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
                && action.assume_init().sa_sigaction == libc::SIG_IGN
        };
        IGNORED.fetch_or(u8::from(is_ignored) << bit, Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

/// Closes what was closed and ignores what was ignored. Only in a child that is about to execute a program.
pub fn restore() {
    for (bit, signal) in CHANGED.into_iter().enumerate() {
        if IGNORED.load(Relaxed) & 1 << bit != 0 {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    for number in STANDARD.filter(|number| CLOSED.load(Relaxed) & 1 << number != 0) {
        // SAFETY: /dev/null, which nothing in this child uses: it executes another program now.
        unsafe { libc::close(number) };
    }
}

/// How a program ended.
pub struct Ended {
    pub status: ExitStatus,
    /// Its name at the end (`/proc/PID/comm`), which differs from the name at the start if it replaced itself.
    pub name: Option<String>,
}

/// Runs the program to its end. This process must have one thread: any other would receive the signals.
///
/// # Errors
/// The program cannot be started.
pub fn run(command: &mut Command) -> io::Result<Ended> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    for forwarded in FORWARDED {
        signals.add(forwarded);
    }
    // If SIGCHLD was inherited as ignored, the kernel would discard the child's exit status.
    // SAFETY: no handler is installed, and the default action of SIGCHLD does nothing.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    // Blocked before the child starts, so that its end cannot be missed.
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // SAFETY: between fork and exec only async-signal-safe functions may run; setting the signal mask is one, and so are `close` and `signal`.
    unsafe {
        command.pre_exec(move || {
            restore();
            before.thread_set_mask().map_err(io::Error::from)
        })
    };
    let outcome = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)
        .map_err(io::Error::from)
        .and_then(|arrivals| attend(&mut command.spawn()?, &arrivals));
    before.thread_set_mask()?;
    outcome
}

/// Forwards signals until the child has ended.
fn attend(child: &mut Child, arrivals: &SignalFd) -> io::Result<Ended> {
    let id = Pid::from_raw(child.id().cast_signed());
    // A process keeps its name until it is reaped.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        // The kernel also returns stops, while another thread of this process traces the child (`source::live`).
        let has_ended = |state: WaitStatus| matches!(state, WaitStatus::Exited(..) | WaitStatus::Signaled(..));
        if waitid(Id::Pid(id), look).is_ok_and(has_ended) {
            let name = fs::read_to_string(format!("/proc/{id}/comm")).ok();
            return Ok(Ended {
                status: child.wait()?,
                name: name.map(|name| name.trim_end_matches('\n').to_owned()),
            });
        }
        match arrivals.read_signal() {
            Ok(Some(arrived)) => {
                if let Some(signal) = to_forward(&arrived) {
                    // Harmless if the child is a zombie.
                    let _ = kill(id, signal);
                }
            }
            Ok(None) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The terminal signals the whole process group, including the program. So only signals from processes are forwarded, and
/// SIGALRM, whose timer may have been set before this program was executed.
fn to_forward(arrived: &siginfo) -> Option<Signal> {
    let from_kernel = arrived.ssi_code > 0;
    let signal = Signal::try_from(arrived.ssi_signo.cast_signed()).ok()?;
    let ours = FORWARDED.contains(&signal) && (!from_kernel || signal == Signal::SIGALRM);
    ours.then_some(signal)
}

/// The exit code that a shell reports: the program's own, or 128 plus the number of the signal that ended it.
pub fn shell_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    // Both fit: the kernel keeps eight bits of an exit code, and signal numbers end at 64.
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
