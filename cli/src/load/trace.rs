//! `report --trace`: PyTorch's own allocation history in a process that was never recorded.
//!
//! CPython 3.14 and newer run a script for a debugger, between two lines of the main thread (`sys.remote_exec`). The interpreter of the
//! process itself is asked to send it, since the versions must agree. The script switches the history on and writes what PyTorch knows to a
//! file: then blocks that are allocated from now on have lines.
//!
//! The executable of the process and the files that it writes are its own, so the time, what is read of them, and what is deleted are limited.

use std::io::{self, IsTerminal, Read, Write, stderr, stdin};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use culeak::reader::open_no_link;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Loaded, unrecorded};
use crate::errors::Failure;
use crate::probe;

/// How long the process may take until it has run the script.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// The bytes that are read at most of what the process says, and of its snapshot: 100,000 blocks with 30 frames each have about 50 MB.
const MOST_SAID: u64 = 16 << 10;
const MOST_WRITTEN: u64 = 256 << 20;

/// The events of a history of the program's own that are read: the last ones.
const EVENTS: &str = "100000";

/// In the script, `FOLDER`, `ON` and `EVENTS` are replaced.
const SCRIPT: &str = r#"
def culeak(folder, on):
    import os, pickle, sys
    try:
        torch = sys.modules["torch"]
        memory = torch.cuda.memory
        if not on:
            memory._record_memory_history(None)
        elif not torch._C._cuda_isHistoryEnabled():
            memory._record_memory_history("state", stacks="python")
        answer = b"ok"
        snapshot = memory._snapshot()
        for trace in snapshot["device_traces"]:
            del trace[:-EVENTS]
        with open(folder + "/snapshot.pickle", "wb") as file:
            pickle.dump(snapshot, file)
    except BaseException as error:
        answer = repr(error)[:2000].encode()
    with open(folder + "/answer.part", "wb") as file:
        file.write(answer)
    os.rename(folder + "/answer.part", folder + "/answer")
culeak(FOLDER, ON)
"#;

const SENDER: &str = "import sys\nif not hasattr(sys, 'remote_exec'): sys.exit('it runs CPython %d.%d; 3.14 is needed' % \
     sys.version_info[:2])\nsys.remote_exec(int(sys.argv[1]), sys.argv[2])";

/// Reads the blocks of PyTorch's allocator with the lines that its history knows. `on`: the history is switched on, else off.
///
/// # Errors
/// The user does not agree, or the process cannot run the script; the message says why.
pub fn traced(pid: u32, on: bool, agreed: bool) -> Result<Loaded, Failure> {
    let failure = |why: String| Failure::new(format!("process {pid}: --trace: {why}"));
    if !super::process::is_unrecorded(pid) {
        // The error of a process that does not exist.
        super::recording_of(pid)?;
        return Err(failure(
            "it has a recording, which has all lines; leave out --trace".to_owned(),
        ));
    }
    if !agreed && !agrees(pid, on).map_err(failure)? {
        return Err(failure("nothing was done".to_owned()));
    }
    let (inside, folder) =
        folder(pid, on).map_err(|error| failure(format!("no folder can be made for it: {error}")))?;
    let result =
        run(pid, &inside, &folder, PATIENCE).and_then(|()| written(&folder.join("snapshot.pickle"), MOST_WRITTEN));
    // A script that is still to be run is needed.
    if result.is_ok() || folder.join("answer").exists() {
        clear(&folder);
    }
    let bytes = result.map_err(failure)?;
    unrecorded::of_history(pid, &bytes).map_err(failure)
}

fn agrees(pid: u32, on: bool) -> Result<bool, String> {
    let does = match on {
        true => {
            "switch PyTorch's own allocation history on (torch.cuda.memory._record_memory_history). It stays on until the process ends or --trace=off, \
             takes time at each allocation, and keeps the Python stack of each block. Then it will"
        }
        false => "switch PyTorch's own allocation history off, and",
    };
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(
            "it runs Python code in the process, so it asks first, and there is no terminal; --yes agrees".to_owned(),
        );
    }
    eprint!(
        "culeak: --trace runs Python code in process {pid}, between two lines of its main thread. It will {does} write what PyTorch \
         knows of its blocks to a file. Run it? [y/N] "
    );
    let _ = stderr().flush();
    let mut line = String::new();
    let _ = stdin().read_line(&mut line);
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// A folder that the process can write to, with the script: as the process calls it, and as we do.
fn folder(pid: u32, on: bool) -> std::io::Result<(PathBuf, PathBuf)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("tmp/culeak-trace-{}-{}", std::process::id(), now.as_nanos());
    let (inside, folder) = (
        Path::new("/").join(&name),
        Path::new(&format!("/proc/{pid}/root")).join(&name),
    );
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let script = SCRIPT.replace("FOLDER", &format!("'{}'", inside.display()));
    let script = script
        .replace("ON", if on { "True" } else { "False" })
        .replace("EVENTS", EVENTS);
    fs::write(folder.join("script.py"), script)?;
    let owner = fs::metadata(format!("/proc/{pid}"))?;
    if owner.uid() != nix::unistd::geteuid().as_raw() {
        // Nothing is written there afterwards: it could be a link.
        chown(folder.join("script.py"), Some(owner.uid()), Some(owner.gid()))?;
        chown(&folder, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok((inside, folder))
}

/// Deletes what the script wrote, and the folder unless the process has put more into it.
fn clear(folder: &Path) {
    for name in ["script.py", "snapshot.pickle", "answer.part", "answer"] {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

/// A file that the process wrote.
fn written(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let failure = |error| format!("{} was not written: {error}", path.display());
    let mut bytes = Vec::new();
    // No link or pipe that the process may have put there.
    let file = open_no_link(path);
    file.and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .map_err(failure)?;
    if bytes.len() as u64 > most {
        return Err(format!("{} has more than {most} bytes", path.display()));
    }
    Ok(bytes)
}

/// Runs a command to its end, for no longer than this: its status and the beginning of what it said on stderr.
fn ended(command: &mut Command, patience: Duration) -> io::Result<(ExitStatus, String)> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // Nothing is read meanwhile: a program that writes more than a pipe takes waits.
    let status = probe::ended(&mut child, patience)?;
    // Its own children may still have the pipe, so the end of what is in it may never come.
    let (mut said, mut count) = (vec![0; MOST_SAID as usize], 0);
    if let Some(mut pipe) = child.stderr.take()
        && poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)? > 0
    {
        count = pipe.read(&mut said)?;
    }
    Ok((status, String::from_utf8_lossy(&said[..count]).into_owned()))
}

/// Sends the script to the process, and waits until it was run.
fn run(pid: u32, inside: &Path, folder: &Path, patience: Duration) -> Result<(), String> {
    let executable = format!("/proc/{pid}/exe");
    let name = fs::read_link(&executable).unwrap_or_default();
    let environment = written(Path::new(&format!("/proc/{pid}/environ")), MOST_WRITTEN).unwrap_or_default();
    let owner = fs::metadata(format!("/proc/{pid}")).map_err(|error| error.to_string())?;
    let mut sender = Command::new(&executable);
    if owner.uid() != nix::unistd::geteuid().as_raw() {
        // Its program is its user's: it is not to run with more rights than these.
        sender.uid(owner.uid()).gid(owner.gid());
    }
    sender
        .arg0(&name)
        .args(["-S", "-B", "-c", SENDER, &pid.to_string()])
        .arg(inside.join("script.py"))
        .env_clear();
    for variable in environment.split(|byte| *byte == 0) {
        let text = String::from_utf8_lossy(variable);
        if let Some((name @ ("PYTHONHOME" | "LD_LIBRARY_PATH"), value)) = text.split_once('=') {
            sender.env(name, value);
        }
    }
    let (status, said) = ended(&mut sender, patience).map_err(|error| {
        clear(folder);
        format!("its interpreter {} cannot be run: {error}", name.display())
    })?;
    if !status.success() {
        let why = said
            .trim()
            .lines()
            .last()
            .unwrap_or("its executable is no Python interpreter");
        clear(folder);
        return Err(format!("it does not take a script: {why}"));
    }
    let (answer, began) = (folder.join("answer"), Instant::now());
    while began.elapsed() < patience {
        match written(&answer, MOST_SAID) {
            Ok(text) if text == b"ok" => return Ok(()),
            Ok(text) => return Err(format!("the script failed in it: {}", String::from_utf8_lossy(&text))),
            Err(_) => thread::sleep(PAUSE),
        }
    }
    Err(format!(
        "its main thread has not run the script for {} s: it is in native code. It will run {} when it comes back",
        patience.as_secs(),
        folder.join("script.py").display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_that_floods_sleeps_or_leaves_children_costs_bounded_time() {
        /// Waits without arguments. As the interpreter that sends a script it does what its name says.
        const HOSTILE: &str = r#"
            #include <string.h>
            #include <unistd.h>
            int main(int count, char **words) {
                static char flood[1 << 16];
                if (count == 1 || strstr(words[0], "sleeps")) for (;;) pause();
                memset(flood, 'x', sizeof flood);
                if (strstr(words[0], "floods") || fork() == 0) while (write(2, flood, sizeof flood) > 0);
                return 1;
            }"#;
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("hostile.c");
        fs::write(&source, HOSTILE).expect("written");
        for (name, expected) in [
            ("sleeps", "no answer within"),
            ("floods", "no answer within"),
            ("leaves", "it does not take a script: "),
        ] {
            let program = folder.path().join(name);
            let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).status();
            assert!(compiled.expect("a C compiler").success());
            let mut child = Command::new(&program).spawn().expect("started");
            let files = folder.path().join("files");
            fs::create_dir(&files).expect("a folder");
            let result = run(child.id(), &files, &files, Duration::from_millis(300));
            child.kill().expect("ours");
            child.wait().expect("ended");
            let why = result.expect_err(name);
            assert!(
                why.contains(expected) && why.len() <= MOST_SAID as usize + 200,
                "{name}: {why}"
            );
            assert!(!files.exists(), "{name}");
        }
    }

    #[test]
    fn a_file_is_read_as_far_as_its_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("answer");
        let file = fs::File::create(&path).expect("a file");
        file.set_len(8).expect("sparse");
        assert_eq!(written(&path, 8).map(|bytes| bytes.len()), Ok(8));
        // More than there is memory.
        file.set_len(1 << 42).expect("sparse");
        let why = written(&path, 8).expect_err("too large");
        assert!(why.contains("more than 8 bytes"), "{why}");
    }
}
