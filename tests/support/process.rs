//! Runs a process that must end by itself: one that hangs is killed with all its children, and the claim fails.

use std::io::Read;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Far more than any victim needs, since a loaded machine is no failure.
const LIMIT: Duration = Duration::from_secs(100);

pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Runs the command to its end, with its output collected.
pub fn run(command: &mut Command) -> Ended {
    start(command).finish()
}

/// A process in its own group, with its output being collected.
pub struct Started {
    pub child: Child,
    stderr: mpsc::Receiver<Vec<u8>>,
    stdout: Option<ChildStdout>,
    what: String,
}

pub fn start(command: &mut Command) -> Started {
    use std::os::unix::process::CommandExt;
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let what = format!("{command:?}");
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
    let stdout = child.stdout.take();
    let stderr = collect(child.stderr.take().expect("stderr is a pipe"));
    Started {
        child,
        stderr,
        stdout,
        what,
    }
}

impl Started {
    /// Its stdout, for claims that talk with it. What is read from it is not part of the outcome.
    pub fn stdout(&mut self) -> ChildStdout {
        self.stdout.take().expect("stdout is taken once")
    }

    pub fn kill(&self) {
        // It may have ended already.
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
    }

    /// Waits until the process has ended and its output is closed.
    pub fn finish(mut self) -> Ended {
        drop(self.child.stdin.take());
        let stdout = self.stdout.take().map(collect);
        let (done, ended) = mpsc::channel();
        let group = Pid::from_raw(self.child.id() as i32);
        let waiter = thread::spawn(move || {
            let status = self.child.wait();
            let out = stdout
                .map_or(Ok(Vec::new()), |stdout| stdout.recv())
                .unwrap_or_default();
            let err = self.stderr.recv().unwrap_or_default();
            // After the time limit, the receiver is gone.
            let _ = done.send((status, out, err));
        });
        match ended.recv_timeout(LIMIT) {
            Ok((status, stdout, stderr)) => {
                waiter.join().expect("the waiting thread has sent its answer");
                Ended {
                    status: status.expect("our own child can be waited for"),
                    stdout,
                    stderr,
                }
            }
            Err(_) => {
                let _ = killpg(group, Signal::SIGKILL);
                let output = ended
                    .recv_timeout(Duration::from_secs(5))
                    .map(|(_, out, err)| (out, err))
                    .unwrap_or_default();
                panic!(
                    "still running after {LIMIT:?}, killed: {}\nstdout: {}\nstderr: {}",
                    self.what,
                    String::from_utf8_lossy(&output.0),
                    String::from_utf8_lossy(&output.1)
                );
            }
        }
    }
}

fn collect(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (to, collected) = mpsc::channel();
    thread::spawn(move || {
        let mut all = Vec::new();
        // A broken pipe ends here.
        let _ = from.read_to_end(&mut all);
        let _ = to.send(all);
    });
    collected
}
