//! Queries that run in a child process, because they may crash, hang or load the driver.
//!
//! A child that exceeds its time limit is killed. Deliberately absent: streaming; answers are short.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors::Failure;
use culeak_driver::Findings;

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
    Ok(Answer {
        status: ended(&mut command.spawn()?, limit)?,
        stdout: text(&mut stdout)?,
        stderr: text(&mut stderr)?,
    })
}

/// Waits for the end of a child.
///
/// # Errors
/// It exceeded the limit and was killed.
pub fn ended(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
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
    }
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs a hidden command of this program in a child, and parses the JSON that it prints. `what` is queried, for messages;
/// `arrange` adds the arguments.
///
/// # Errors
/// One line that says why there is no answer.
pub fn ask_self<T: DeserializeOwned>(
    what: &str,
    limit: Duration,
    arrange: impl FnOnce(&mut Command),
) -> Result<T, String> {
    let program = env::current_exe()
        .map_err(|error| format!("cannot find the culeak executable: {error}; start it by its full path"))?;
    let mut command = Command::new(program);
    command.env_remove("LD_PRELOAD");
    arrange(&mut command);
    let answer = ask(&mut command, limit)
        .map_err(|error| format!("querying {what} failed: {error}; culeak doctor checks the driver"))?;
    match answer.stderr.trim() {
        _ if answer.status.success() => serde_json::from_str(&answer.stdout).map_err(|error| {
            format!("the process that queries {what} printed invalid JSON: {error}; please report a bug")
        }),
        "" => Err(format!(
            "{what} crashed the process that queried it ({}); culeak doctor checks the driver",
            answer.status
        )),
        message => Err(message.to_owned()),
    }
}

/// Queries the CUDA driver in a child process; with a folder, the driver in it.
///
/// # Errors
/// One line that says why the driver cannot be used.
pub fn driver(folder: Option<&Path>) -> Result<Findings, String> {
    ask_self("the driver", DRIVER_LIMIT, |command| {
        command.arg(COMMAND);
        if let Some(folder) = folder {
            command.env("LD_LIBRARY_PATH", folder);
        }
    })
}

/// The child's part of [`driver`]: opens the driver and prints its answers.
pub fn answer() -> Result<ExitCode, Failure> {
    print(Findings::gather())
}

/// Prints the answer of a child, or the reason why it could not be computed.
pub fn print(answer: Result<impl Serialize, impl Display>) -> Result<ExitCode, Failure> {
    match answer {
        Ok(answer) => crate::text::print_json(&answer).map(|()| ExitCode::SUCCESS),
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
