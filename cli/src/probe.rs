//! Questions that only another process may be asked, because the answer may be a crash, a hang or a loaded driver.
//!
//! The child is given a time limit and killed beyond it. Deliberately absent: streaming; answers are short.

use std::env;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::driver::Findings;
use crate::errors::Failure;

/// The hidden command that runs [`answer`] in the child.
pub const COMMAND: &str = "__probe-driver";
/// Initializing eight GPUs without a persistence daemon takes this long on real machines.
const DRIVER_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// What a finished child said.
#[derive(Debug)]
pub struct Answer {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the command to its end, or to the limit.
///
/// # Errors
/// It could not be started, or was killed because it took too long.
pub fn ask(command: &mut Command, limit: Duration) -> io::Result<Answer> {
    // Files instead of pipes: nobody has to read while the child writes.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?);
    let mut child = command.spawn()?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {} s", limit.as_secs()),
            ));
        }
        thread::sleep(PAUSE);
    };
    Ok(Answer {
        status,
        stdout: text(&mut stdout)?,
        stderr: text(&mut stderr)?,
    })
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What the CUDA driver says, when a fresh process opens it; with a folder, the driver that lies there.
///
/// # Errors
/// One line that says why there is no driver to talk to.
pub fn driver(folder: Option<&Path>) -> Result<Findings, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
    let mut command = Command::new(program);
    command.arg(COMMAND).env_remove("LD_PRELOAD");
    if let Some(folder) = folder {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let answer = ask(&mut command, DRIVER_LIMIT).map_err(|error| format!("asking the driver failed: {error}"))?;
    if !answer.status.success() {
        let said = answer.stderr.trim();
        return Err(if said.is_empty() {
            format!("the driver ended its process ({})", answer.status)
        } else {
            said.to_owned()
        });
    }
    serde_json::from_str(&answer.stdout).map_err(|error| format!("the driver's process answered strangely: {error}"))
}

/// The other side of [`driver`]: this process opens the driver and prints what it says.
pub fn answer() -> Result<ExitCode, Failure> {
    match Findings::gather() {
        Ok(findings) => crate::text::print_json(&findings).map(|()| ExitCode::SUCCESS),
        Err(reason) => {
            eprintln!("{reason}");
            Ok(ExitCode::FAILURE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_both_outputs_and_the_status() {
        let answer = ask(
            Command::new("/bin/sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::MAX,
        )
        .expect("runs");
        assert_eq!(
            (answer.stdout.as_str(), answer.stderr.as_str(), answer.status.code()),
            ("out\n", "err\n", Some(3))
        );
    }

    #[test]
    fn a_child_that_hangs_is_ended() {
        let error = ask(Command::new("sleep").arg("1000"), Duration::ZERO).expect_err("too slow");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
