//! Stopping all threads of a process with ptrace.
//!
//! One thread of ours traces them for as long as the pause lasts. When it ends, for whatever reason, the kernel lets all
//! traced threads go on: also those that did not stop, and also if this program is killed.

use std::fs;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use culeak::proc;

use crate::source::Thread;
use crate::source::registers::Machine;

/// How often a thread is asked whether it has stopped, about a millisecond apart. A thread in a call of a driver stops
/// when that call ends.
const ATTEMPTS: u32 = 3000;

/// The process is stopped while this value lives.
pub struct Pause {
    threads: Vec<Thread>,
    /// The tracing thread ends when this is dropped.
    end: Option<Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl Pause {
    /// # Errors
    /// The process may not be traced, another process traces it, or one of its threads does not stop.
    pub fn begin(pid: u32) -> io::Result<Pause> {
        let (end, ended) = mpsc::channel();
        let (stopped, result) = mpsc::channel();
        let tracer = std::thread::Builder::new()
            .name("culeak pause".to_owned())
            .spawn(move || trace(pid, &stopped, &ended))?;
        let threads = result
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the tracing thread ended")));
        let mut pause = Pause {
            threads: Vec::new(),
            end: Some(end),
            tracer: Some(tracer),
        };
        // On an error, dropping the value waits until the process goes on.
        pause.threads = threads?;
        Ok(pause)
    }

    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.end = None;
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

/// The ids of all threads of a process but those without a stack in its memory: threads of the kernel, such as workers of io_uring, and
/// a main thread that has ended before the others.
pub fn ids(pid: u32) -> Vec<u32> {
    const PF_IO_WORKER: u32 = 0x10;
    const PF_USER_WORKER: u32 = 0x4000;
    const PF_KTHREAD: u32 = 0x20_0000;
    let folder = format!("/proc/{pid}/task");
    let has_no_stack = |id: u32| {
        let stat = proc::stat(format!("{folder}/{id}"));
        let is_of_kernel = |flags| flags & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD) != 0;
        stat.is_some_and(|stat| is_of_kernel(stat.flags) || matches!(stat.state, 'Z' | 'X'))
    };
    let all = proc::numbers(&folder).into_iter();
    let mut ids: Vec<u32> = all.flatten().filter(|id| !has_no_stack(*id)).collect();
    ids.sort_unstable();
    ids
}

pub fn name(pid: u32, thread: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()
}

/// A traced thread, and the signal to deliver when it goes on.
struct Traced {
    id: u32,
    signal: i32,
}

/// What the tracing thread does.
fn trace(pid: u32, stopped: &Sender<io::Result<Vec<Thread>>>, ended: &Receiver<()>) {
    let mut traced = Vec::new();
    let result = stop_all(pid, &mut traced);
    traced.retain(|thread| thread.signal != ENDED);
    let result = result.map(|()| traced.iter().map(|thread| described(pid, thread.id)).collect());
    let is_stopped = result.is_ok();
    if stopped.send(result).is_ok() && is_stopped {
        // An error means that the sender was dropped: the end of the pause.
        let _ = ended.recv();
    }
    for thread in &traced {
        request(libc::PTRACE_DETACH, thread.id, thread.signal as usize);
    }
}

/// Stops threads until no new ones appear.
fn stop_all(pid: u32, traced: &mut Vec<Traced>) -> io::Result<()> {
    loop {
        let is_known = |id: &u32| traced.iter().any(|thread| thread.id == *id);
        let new: Vec<u32> = ids(pid).into_iter().filter(|id| !is_known(id)).collect();
        if new.is_empty() {
            return if traced.is_empty() {
                Err(io::Error::from_raw_os_error(libc::ESRCH))
            } else {
                Ok(())
            };
        }
        let first = traced.len();
        for id in new {
            match request(libc::PTRACE_SEIZE, id, 0) {
                0 => {
                    request(libc::PTRACE_INTERRUPT, id, 0);
                    traced.push(Traced { id, signal: 0 });
                }
                // Ended meanwhile.
                libc::ESRCH => {}
                error => {
                    // An ended thread that is not reaped yet cannot be traced either.
                    if !has_ended(pid, id) {
                        return Err(io::Error::from_raw_os_error(error));
                    }
                    traced.push(Traced { id, signal: ENDED });
                }
            }
        }
        for thread in &mut traced[first..] {
            if thread.signal != ENDED {
                wait(pid, thread)?;
            }
        }
        // Ended threads stay in the list, so that they are not tried again.
        if traced.iter().all(|thread| thread.signal == ENDED) && ids(pid).len() <= traced.len() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
    }
}

/// In place of a signal: the thread no longer runs.
const ENDED: i32 = -1;

/// Waits until a thread has stopped or ended.
fn wait(pid: u32, thread: &mut Traced) -> io::Result<()> {
    for attempt in 0..ATTEMPTS {
        let mut status = 0;
        // SAFETY: `status` is valid. Only this tracer's children are asked for, so no other thread's events are taken.
        let seen = unsafe {
            let options = libc::__WALL | libc::WNOHANG | libc::__WNOTHREAD;
            libc::waitpid(thread.id as libc::pid_t, &mut status, options)
        };
        if seen < 0 || seen > 0 && !libc::WIFSTOPPED(status) {
            thread.signal = ENDED;
            return Ok(());
        }
        if seen > 0 {
            // A stop for a signal comes before the requested one; that signal is delivered in the end.
            if status >> 16 == 0 {
                thread.signal = libc::WSTOPSIG(status);
            }
            return Ok(());
        }
        if attempt < 10 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        format!(
            "thread {} ({}) does not stop: it waits inside the kernel, perhaps in a driver; try again, or run without --pause",
            thread.id,
            name(pid, thread.id)
        ),
    ))
}

fn has_ended(pid: u32, thread: u32) -> bool {
    let stat = proc::stat(format!("/proc/{pid}/task/{thread}"));
    stat.is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

/// Name and registers of a stopped thread.
fn described(pid: u32, id: u32) -> Thread {
    let mut thread = Thread {
        id,
        name: name(pid, id),
        is_main: id == pid,
        ..Thread::default()
    };
    const NT_PRSTATUS: usize = 1;
    Machine::HERE.store(&register_set(id, NT_PRSTATUS), &mut thread);
    thread
}

/// A register set as words; empty if the thread has ended.
fn register_set(id: u32, which: usize) -> Vec<u64> {
    let mut words = vec![0_u64; 64];
    let mut room = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(&words[..]),
    };
    // SAFETY: `room` describes the words; the kernel stores the length that it used.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, id as libc::pid_t, which, &mut room) };
    words.truncate(if result == 0 { room.iov_len / 8 } else { 0 });
    words
}

/// A request without an address. Returns 0 or the error number.
fn request(what: libc::c_uint, id: u32, data: usize) -> i32 {
    // SAFETY: these requests (seize, interrupt, detach) read no memory of this process.
    let result = unsafe { libc::ptrace(what, id as libc::pid_t, 0_usize, data) };
    if result < 0 {
        io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        0
    }
}
