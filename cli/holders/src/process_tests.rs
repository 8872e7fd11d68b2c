//! Processes that tests examine.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::source::live::Process;

/// A process that waits until it is killed.
pub struct Victim {
    pid: libc::pid_t,
    child: Option<Child>,
    /// What it printed in its first line.
    pub line: String,
}

impl Victim {
    /// A copy of this process, with the calling thread only.
    pub fn fork() -> Victim {
        // SAFETY: the child calls nothing that needs a lock.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "forked");
        if pid == 0 {
            loop {
                // SAFETY: no preconditions. The child ends with the thread that made it.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::pause();
                }
            }
        }
        let line = String::new();
        Victim { pid, child: None, line }
    }

    /// Starts a program, which prints a line when it is ready.
    pub fn start(program: &Path) -> Victim {
        // Cargo's has the preload library, once it was built, before those of the program's own folder.
        let mut child = Command::new(program)
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        Victim {
            pid: child.id() as libc::pid_t,
            child: Some(child),
            line: line.trim_end().to_owned(),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    pub fn process(&self) -> Process {
        Process::new(self.pid()).expect("our child")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        // SAFETY: our child, which is reaped here only.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Compiles C into a file in the folder.
pub fn compile(folder: &Path, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
    let (from, to) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&from, source).expect("written");
    let status = Command::new("cc")
        .args(["-g", "-o"])
        .args([&to, &from])
        .args(arguments)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "{name}.c is compiled");
    to
}

/// Pages of this process, which a forked child has too.
pub fn pages(count: usize) -> &'static mut [u64] {
    let start = culeak::system::anonymous(count << 12).expect("mapped").cast();
    // SAFETY: mapped above with this length, and never unmapped.
    unsafe { std::slice::from_raw_parts_mut(start, count << 9) }
}
