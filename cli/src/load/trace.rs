//! `report --trace`: PyTorch's own allocation history in a process that was never recorded.
//!
//! CPython 3.14 and newer run a script for a debugger, between two lines of the main thread (`sys.remote_exec`). The interpreter of the
//! process itself is asked to send it, since the versions must agree. The script switches the history on and writes what PyTorch knows to a
//! file: then blocks that are allocated from now on have lines.

use std::io::{IsTerminal, Read, Write, stderr, stdin};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use culeak::reader::open_no_link;

use super::{Loaded, unrecorded};
use crate::errors::Failure;

/// How long the process may take until it runs the script.
const PATIENCE: Duration = Duration::from_secs(30);

/// In the script, `FOLDER` and `ON` are replaced.
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
        with open(folder + "/snapshot.pickle", "wb") as file:
            pickle.dump(memory._snapshot(), file)
    except BaseException as error:
        answer = repr(error).encode()
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
    let result = run(pid, &inside, &folder).and_then(|()| written(&folder.join("snapshot.pickle")));
    // A script that is still to be run is needed.
    if result.is_ok() || folder.join("answer").exists() {
        let _ = fs::remove_dir_all(&folder);
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
    let script = script.replace("ON", if on { "True" } else { "False" });
    fs::write(folder.join("script.py"), script)?;
    let owner = fs::metadata(format!("/proc/{pid}"))?;
    if owner.uid() != nix::unistd::geteuid().as_raw() {
        // Nothing is written there afterwards: it could be a link.
        chown(folder.join("script.py"), Some(owner.uid()), Some(owner.gid()))?;
        chown(&folder, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok((inside, folder))
}

/// A file that the process wrote.
fn written(path: &Path) -> Result<Vec<u8>, String> {
    let failure = |error| format!("{} was not written: {error}", path.display());
    let mut bytes = Vec::new();
    // No link or pipe that the process may have put there.
    let file = open_no_link(path);
    file.and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(failure)?;
    Ok(bytes)
}

/// Sends the script to the process, and waits until it was run.
fn run(pid: u32, inside: &Path, folder: &Path) -> Result<(), String> {
    let executable = format!("/proc/{pid}/exe");
    let name = fs::read_link(&executable).unwrap_or_default();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
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
    let output = sender
        .output()
        .map_err(|error| format!("its interpreter {} cannot be started: {error}", name.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let why = text
            .trim()
            .lines()
            .last()
            .unwrap_or("its executable is no Python interpreter")
            .to_owned();
        let _ = fs::remove_dir_all(folder);
        return Err(format!("it does not take a script: {why}"));
    }
    let (began, answer) = (Instant::now(), folder.join("answer"));
    while began.elapsed() < PATIENCE {
        match written(&answer) {
            Ok(text) if text == b"ok" => return Ok(()),
            Ok(text) => return Err(format!("the script failed in it: {}", String::from_utf8_lossy(&text))),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    Err(format!(
        "its main thread has not run the script for {} s: it is in native code. It will run {} when it comes back",
        PATIENCE.as_secs(),
        folder.join("script.py").display()
    ))
}
