//! Queries that run in a child process, because they may crash, hang or load the driver.
//!
//! A child that exceeds its time limit is killed. Deliberately absent: streaming; answers are short.

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
/// Initializing eight GPUs without a persistence daemon can take this long.
const DRIVER_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// The output of a finished child.
#[derive(Debug)]
pub struct Answer {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the command to its end, or to the limit.
///
/// # Errors
/// The command cannot be started, or exceeded the limit and was killed.
pub fn ask(command: &mut Command, limit: Duration) -> io::Result<Answer> {
    // Files need no reader while the child writes; pipes would.
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

/// Queries the CUDA driver in a child process; with a folder, the driver in it.
///
/// # Errors
/// One line that says why the driver cannot be used.
pub fn driver(folder: Option<&Path>) -> Result<Findings, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find the culeak executable: {error}"))?;
    let mut command = Command::new(program);
    command.arg(COMMAND).env_remove("LD_PRELOAD");
    if let Some(folder) = folder {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let answer = ask(&mut command, DRIVER_LIMIT).map_err(|error| format!("querying the driver failed: {error}"))?;
    if !answer.status.success() {
        let message = answer.stderr.trim();
        return Err(if message.is_empty() {
            format!("the driver crashed the process that queried it ({})", answer.status)
        } else {
            message.to_owned()
        });
    }
    serde_json::from_str(&answer.stdout)
        .map_err(|error| format!("the process that queries the driver printed invalid JSON: {error}"))
}

/// The child's part of [`driver`]: opens the driver and prints its answers.
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
    fn a_child_that_hangs_is_killed() {
        let error = ask(Command::new("sleep").arg("1000"), Duration::ZERO).expect_err("too slow");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
