//! Reads names in a child process, since reading a damaged file may crash.
//!
//! A damaged module can make the libraries that read it panic, exhaust memory or loop, and a file that shrinks while it is
//! mapped causes SIGBUS. So a child reads, with limits on time and memory that grow with the file. If it dies, the request has
//! no answer, and a new child handles the next request. Requests and answers are lines of JSON. If no child can be started,
//! this process reads.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, fs};

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use serde::{Deserialize, Serialize};

use super::{Names, Reader, locate};
use crate::errors::Failure;

/// The hidden command that runs [`answer`] in the child.
pub const COMMAND: &str = "__symbolize";

/// CPU time per file, per mebibyte of it, and per requested address.
const TIME: Duration = Duration::from_secs(1);
const TIME_OF_MEBIBYTE: Duration = Duration::from_millis(250);
const TIME_OF_ADDRESS: Duration = Duration::from_micros(500);
/// Memory per file, and the multiple of its size, since sections may be compressed.
const MEMORY: u64 = 96 << 20;
const TIMES_ITS_SIZE: u64 = 16;

#[derive(Serialize, Deserialize)]
struct Request {
    /// A path, which need not be UTF-8.
    path: Vec<u8>,
    debug_info: bool,
    calls: Vec<u64>,
}

/// Why a request has no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The library cannot read the file.
    Unreadable,
    /// The child died.
    Died,
}

/// Sends requests to a child process.
#[derive(Default)]
pub struct ChildReader {
    child: Option<Running>,
    /// Requests that killed a child; they are not repeated.
    deadly: HashSet<(PathBuf, bool)>,
    /// Used if no child can be started.
    here: Option<Reader>,
}

struct Running {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ChildReader {
    /// The symbols at each address of a file.
    ///
    /// # Errors
    /// The file is unreadable, or the child died reading it.
    pub fn lookup(&mut self, path: &Path, debug_info: bool, calls: &[u64]) -> Result<Names, Unanswered> {
        let attempt = (path.to_path_buf(), debug_info);
        if self.deadly.contains(&attempt) {
            return Err(Unanswered::Died);
        }
        if self.here.is_none() && self.child.is_none() {
            match Running::start() {
                Ok(child) => self.child = Some(child),
                Err(_) => self.here = Some(Reader::new()),
            }
        }
        if let Some(reader) = &self.here {
            return reader.lookup(path, debug_info, calls).ok_or(Unanswered::Unreadable);
        }
        let request = Request {
            path: path.as_os_str().as_bytes().to_vec(),
            debug_info,
            calls: calls.to_vec(),
        };
        let answer = self.child.as_mut().and_then(|child| child.ask(&request).ok());
        match answer {
            Some(names) => names
                .filter(|names| names.len() == calls.len())
                .ok_or(Unanswered::Unreadable),
            None => {
                self.child = None;
                self.deadly.insert(attempt);
                Err(Unanswered::Died)
            }
        }
    }
}

impl Running {
    fn start() -> io::Result<Running> {
        if cfg!(test) {
            return Err(io::Error::other("a test executable cannot be the child"));
        }
        let mut child = Command::new(env::current_exe()?)
            .arg(COMMAND)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Panic messages of a library do not help the user.
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a child without pipes"));
        };
        Ok(Running {
            child,
            requests,
            answers: BufReader::new(answers),
        })
    }

    fn ask(&mut self, request: &Request) -> io::Result<Option<Names>> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.write_all(&line)?;
        line.clear();
        self.answers.read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The child may still be working on a request.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's part: answers requests until standard input ends.
///
/// # Errors
/// The pipes fail.
pub fn answer() -> Result<ExitCode, Failure> {
    serve().map_err(|error| format!("requests for names: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

fn serve() -> io::Result<()> {
    let reader = Reader::new();
    let mut limits = Limits::new();
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        let request: Request = serde_json::from_slice(&line)?;
        let path = Path::new(OsStr::from_bytes(&request.path));
        let names = limits.within(path, request.calls.len(), || {
            reader.lookup(path, request.debug_info, &request.calls)
        });
        serde_json::to_writer(&mut output, &names)?;
        output.write_all(b"\n")?;
        output.flush()?;
        line.clear();
    }
    Ok(())
}

/// Limits of the child for each file. A limit that the system refuses is not enforced.
#[derive(Default)]
struct Limits {
    /// The remaining time per file.
    left: HashMap<PathBuf, Duration>,
}

impl Limits {
    fn new() -> Limits {
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
        let mut timer = SigSet::empty();
        timer.add(Signal::SIGPROF);
        let _ = timer.thread_unblock();
        // SAFETY: the default action installs no handler.
        let _ = unsafe { signal(Signal::SIGPROF, SigHandler::SigDfl) };
        Limits::default()
    }

    fn within<T>(&mut self, path: &Path, addresses: usize, read: impl FnOnce() -> T) -> T {
        let bytes: u64 = locate::with_companions(path)
            .iter()
            .filter_map(|path| Some(path.metadata().ok()?.len()))
            .sum();
        let _ = limit_memory(MEMORY.saturating_add(bytes.saturating_mul(TIMES_ITS_SIZE)));
        let mebibytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let left = self
            .left
            .entry(path.to_path_buf())
            .or_insert(TIME.saturating_add(TIME_OF_MEBIBYTE.saturating_mul(mebibytes)));
        *left += TIME_OF_ADDRESS.saturating_mul(u32::try_from(addresses).unwrap_or(u32::MAX));
        set_timer(*left);
        let result = read();
        *left = set_timer(Duration::ZERO);
        result
    }
}

/// Limits memory to what is used now plus `bytes`.
fn limit_memory(bytes: u64) -> io::Result<()> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    // SAFETY: `sysconf` has no preconditions.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let (_, most) = getrlimit(Resource::RLIMIT_AS)?;
    let limit = pages.saturating_mul(page).saturating_add(bytes).min(most);
    Ok(setrlimit(Resource::RLIMIT_AS, limit, most)?)
}

/// Ends this process by a signal after this much CPU time; zero: never. Returns the remaining time of the previous timer.
fn set_timer(time: Duration) -> Duration {
    let timeval = |time: Duration| libc::timeval {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_usec: time.subsec_micros().into(),
    };
    let timer = libc::itimerval {
        it_interval: timeval(Duration::ZERO),
        it_value: timeval(time),
    };
    let mut before = timer;
    // SAFETY: both pointers lead to live values; the first is read, the second written.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, &mut before) };
    let seconds = u64::try_from(before.it_value.tv_sec).unwrap_or(0);
    let micros = u64::try_from(before.it_value.tv_usec).unwrap_or(0);
    // Zero would mean "no limit" to the next file.
    (Duration::from_secs(seconds) + Duration::from_micros(micros)).max(Duration::from_micros(1))
}
