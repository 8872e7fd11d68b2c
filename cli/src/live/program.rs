//! The program that the view starts: it runs under the recorder, and its output goes to a file because the view owns the
//! screen.
//!
//! The program runs in a separate process group without a terminal to read from, so that the view gets all keys. culeak
//! exits with the program's exit code. Leaving the view does not end the program: culeak waits for it and forwards
//! signals. Deliberately absent: a screen for its output; `tail -f` shows the file.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::Message;
use crate::errors::Failure;
use crate::launch::supervise::{self, shell_code};

pub struct Running {
    /// `None` once the child was reaped, because the kernel may reuse its process id.
    group: Arc<Mutex<Option<Pid>>>,
    pub output: PathBuf,
}

/// Starts the program and sends a message when it ends. `mask`: the signals that were blocked before the view started.
///
/// # Errors
/// The output file cannot be created (exit code 2), or the program cannot be executed (`not_executable`).
pub fn start(
    mut command: Command,
    output: PathBuf,
    mask: SigSet,
    not_executable: u8,
    messages: Sender<Message>,
) -> Result<Running, Failure> {
    let file = File::options().write(true).create_new(true).open(&output);
    let files = file.and_then(|file| Ok((file.try_clone()?, file)));
    let (stdout, stderr) = files.map_err(|error| {
        let shown = output.display();
        Failure::new(format!(
            "{shown}: cannot be created for the program's output ({error}); choose another folder with --output"
        ))
    })?;
    command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    // SAFETY: between fork and exec only async-signal-safe functions may run; setting the signal mask is one.
    unsafe {
        command.pre_exec(move || {
            supervise::restore();
            mask.thread_set_mask().map_err(io::Error::from)
        })
    };
    let child = command.spawn().map_err(|error| {
        let _ = std::fs::remove_file(&output);
        let shown = Path::new(command.get_program()).display();
        Failure::with_exit(
            format!("{shown}: cannot be executed: {error}; check its path and its permissions"),
            not_executable,
        )
    })?;
    let group = Arc::new(Mutex::new(Some(Pid::from_raw(child.id().cast_signed()))));
    let shared = Arc::clone(&group);
    thread::spawn(move || wait(child, &shared, &messages));
    Ok(Running { group, output })
}

fn wait(mut child: Child, group: &Mutex<Option<Pid>>, messages: &Sender<Message>) {
    let id = Pid::from_raw(child.id().cast_signed());
    // WNOWAIT does not reap the child, so its process id stays valid until the lock is held.
    while let Err(nix::errno::Errno::EINTR) = waitid(Id::Pid(id), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {}
    *group.lock().unwrap_or_else(PoisonError::into_inner) = None;
    if let Ok(status) = child.wait() {
        let _ = messages.send(Message::Ended(status));
    }
}

impl Running {
    /// Sends a signal to the program's process group, if the program still runs.
    pub fn signal(&self, signal: Signal) {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = *group {
            let _ = killpg(group, signal);
        }
    }
}

/// `the program exited with code 3`.
pub fn in_words(status: ExitStatus) -> String {
    match status.code() {
        Some(0) => "the program exited with code 0".to_owned(),
        Some(code) => format!("the program exited with code {code}"),
        None => {
            let number = i32::from(shell_code(status)) - 128;
            let name =
                Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.to_string());
            format!("the program was ended by {name}")
        }
    }
}
