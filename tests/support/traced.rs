//! A program under ptrace: stopped at each of its system calls, and after each of its stores to a mapped file.
//!
//! ```text
//! watched       mappings of the file are made read-only ─► a store faults ─► writable, one step, read-only ─► `Event::Stored`
//! not watched   the program runs at full speed, from system call to system call
//! ```
//!
//! A store is what one instruction stores: a process that is killed dies between two of them. The mappings change only while the
//! thread is stopped, by system calls that the tracer makes in its name.

use std::collections::HashMap;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use nix::libc::{self, c_long, c_uint, user_regs_struct};

/// Far more than any program here needs: one that hangs is killed, and the claim fails.
const LIMIT: Duration = Duration::from_secs(300);
/// A program that makes more system calls at which it stops is in a loop.
const MOST_CALLS: usize = 100_000;

/// A system call of the program.
pub struct Call {
    pub number: c_long,
    pub arguments: [u64; 6],
    /// Before the call: a result that the program gets. Afterwards: the result.
    pub result: Option<i64>,
    /// Whether the call is made although its result is chosen.
    pub is_made: bool,
}

/// The system calls at which the program is stopped. Others run at full speed.
#[derive(Clone, Copy)]
pub enum Calls<'c> {
    Only(&'c [c_long]),
    AllBut(&'c [c_long]),
}

impl Calls<'_> {
    fn filter(self) -> Vec<libc::sock_filter> {
        let (numbers, listed, others) = match self {
            Calls::Only(numbers) => (numbers, libc::SECCOMP_RET_TRACE, libc::SECCOMP_RET_ALLOW),
            Calls::AllBut(numbers) => (numbers, libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_TRACE),
        };
        let row = |code: c_uint, jt, k| libc::sock_filter {
            code: code as u16,
            jt,
            jf: 0,
            k,
        };
        // The number of the call is the first word of what a filter reads.
        let mut filter = vec![row(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
        let mut add = |number: c_long, result| {
            let equals = row(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, number as u32);
            filter.extend([
                libc::sock_filter { jf: 1, ..equals },
                row(libc::BPF_RET | libc::BPF_K, 0, result),
            ]);
        };
        // It is made before the tracer can be told of it.
        add(libc::SYS_execve, libc::SECCOMP_RET_ALLOW);
        numbers.iter().for_each(|number| add(*number, listed));
        filter.push(row(libc::BPF_RET | libc::BPF_K, 0, others));
        filter
    }
}

pub enum Event<'e> {
    /// The call may be changed, or replaced by a result.
    Entered(&'e mut Call),
    Left(&'e Call),
    /// The program has stored to a file that is mapped and watched.
    Stored(&'e Path),
}

/// Where an event happened.
pub struct Traced<'t> {
    pub pid: u32,
    tid: i32,
    registers: user_regs_struct,
    tracer: &'t mut Tracer,
}

impl Traced<'_> {
    /// Whether stores are watched from now on.
    pub fn watch(&mut self, wanted: bool) {
        self.tracer.is_watching = wanted;
    }

    pub fn is_watched(&self) -> bool {
        self.tracer.is_watching
    }

    /// The file behind a descriptor of the program.
    pub fn file(&self, descriptor: u64) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/fd/{}", self.tid, descriptor as i32)).ok()
    }

    /// Text of the program, up to its zero byte.
    pub fn text(&self, address: u64) -> Option<String> {
        let mut text = vec![0; 256];
        let memory = fs::File::open(format!("/proc/{}/mem", self.tid)).ok()?;
        let read = memory.read_at(&mut text, address).ok()?;
        let text = text[..read].split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// The file whose code is running.
    pub fn code(&mut self) -> Option<PathBuf> {
        let maps = self.tracer.code.entry(self.pid).or_insert_with(|| code_of(self.tid));
        let found = maps
            .iter()
            .find(|(start, end, _)| (*start..*end).contains(&self.registers.rip));
        found.map(|(_, _, path)| path.clone())
    }

    /// The library or program that made this system call through the C library: the first return address on the stack that is
    /// not in the C library itself.
    pub fn caller(&mut self) -> Option<PathBuf> {
        let registers = self.registers;
        let maps = self.tracer.code.entry(self.pid).or_insert_with(|| code_of(self.tid));
        let memory = fs::File::open(format!("/proc/{}/mem", self.tid)).ok()?;
        let mut stack = vec![0; 4096];
        let read = memory.read_at(&mut stack, registers.rsp).ok()?;
        let words = stack[..read].chunks_exact(8).map(|word| {
            let word: [u8; 8] = word.try_into().expect("eight bytes");
            u64::from_le_bytes(word)
        });
        let is_libc = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| {
                ["libc.so", "libpthread", "ld-linux"]
                    .iter()
                    .any(|of| name.starts_with(of))
            })
        };
        let owner = |address: u64| maps.iter().find(|(start, end, _)| (*start..*end).contains(&address));
        if let Some((_, _, path)) = owner(registers.rip)
            && !is_libc(path)
        {
            return Some(path.clone());
        }
        // Words that are left on the stack may look like code: a return address follows a call.
        let follows_call = |address: u64| {
            let mut before = [0; 7];
            memory.read_exact_at(&mut before, address - 7).is_ok()
                && (before[2] == 0xe8
                    || (2..=7).any(|length| before[7 - length] == 0xff && before[8 - length] >> 3 & 7 == 2))
        };
        let mut found = words.filter_map(|word| Some((word, owner(word)?)));
        found
            .find(|(word, (_, _, path))| !is_libc(path) && follows_call(*word))
            .map(|(_, (_, _, path))| path.clone())
    }
}

/// Code of a process: start, end, file.
fn code_of(tid: i32) -> Vec<(u64, u64, PathBuf)> {
    let maps = fs::read_to_string(format!("/proc/{tid}/maps")).unwrap_or_default();
    let code = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let path = words.nth(3)?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        rights
            .contains('x')
            .then_some((number(start)?, number(end)?, PathBuf::from(path)))
    };
    maps.lines().filter_map(code).collect()
}

/// A mapping of a watched file.
#[derive(Clone)]
struct Mapping {
    start: u64,
    bytes: u64,
    path: PathBuf,
    is_protected: bool,
}

#[derive(Default)]
struct Thread {
    pid: u32,
    /// The system call that it is in, once it is known.
    call: Option<Call>,
    /// It was created, and has not stopped for the first time.
    is_new: bool,
}

struct Tracer {
    is_watched: fn(&Path) -> bool,
    is_watching: bool,
    /// System calls so far.
    calls: usize,
    threads: HashMap<i32, Thread>,
    /// Threads that stopped before their creation was reported.
    early: Vec<i32>,
    mappings: HashMap<u32, Vec<Mapping>>,
    code: HashMap<u32, Vec<(u64, u64, PathBuf)>>,
    /// The address of an instruction that makes a system call, by process.
    gates: HashMap<u32, u64>,
}

/// Runs a program to its end, with the files that `is_watched` accepts watched once `see` asks for it. Children are traced, too.
///
/// # Panics
/// If it does not end.
pub fn run(
    command: &mut Command,
    calls: Calls,
    is_watched: fn(&Path) -> bool,
    mut see: impl FnMut(&mut Traced, Event),
) -> ExitStatus {
    let mut filter = calls.filter();
    let trace_me = move || {
        let filter = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: a filter that exists, and requests without operands.
        let done = unsafe {
            libc::ptrace(libc::PTRACE_TRACEME) == 0
                && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        };
        match done {
            true => Ok(()),
            false => Err(Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes system calls alone.
    let mut child = unsafe { command.pre_exec(trace_me) }.spawn().expect("it starts");
    let first = child.id() as i32;
    let (done, ended) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let is_late = ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
        if is_late {
            // SAFETY: the program that was started; it has not been waited for.
            unsafe { libc::kill(first, libc::SIGKILL) };
        }
        is_late
    });
    let mut tracer = Tracer {
        is_watched,
        is_watching: false,
        calls: 0,
        threads: HashMap::new(),
        early: Vec::new(),
        mappings: HashMap::new(),
        code: HashMap::new(),
        gates: HashMap::new(),
    };
    let status = tracer.run(first, &mut see);
    drop(done);
    let is_late = watchdog.join().expect("it ends");
    assert!(!is_late, "still running after {LIMIT:?}, killed: {command:?}");
    // It was waited for by the tracer.
    let _ = child.try_wait();
    status
}

fn request(request: c_uint, tid: i32, data: usize) -> Result<(), Error> {
    // SAFETY: requests whose data are a number.
    match unsafe { libc::ptrace(request, tid, 0usize, data) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

fn registers(tid: i32) -> Option<user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::<user_regs_struct>::uninit();
    // SAFETY: room for the registers, which the request fills in if it succeeds.
    unsafe {
        (libc::ptrace(libc::PTRACE_GETREGS, tid, 0usize, registers.as_mut_ptr()) == 0).then(|| registers.assume_init())
    }
}

fn set_registers(tid: i32, registers: &user_regs_struct) {
    // SAFETY: the registers are read.
    unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0usize, std::ptr::from_ref(registers)) };
}

/// The address of the fault that a thread is stopped with.
fn fault(tid: i32) -> Option<u64> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: room for the result, which the request fills in if it succeeds; it is that of a fault.
    unsafe {
        (libc::ptrace(libc::PTRACE_GETSIGINFO, tid, 0usize, info.as_mut_ptr()) == 0)
            .then(|| info.assume_init().si_addr() as u64)
    }
}

fn wait(tid: i32) -> Option<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: room for the status. Children of this thread alone: other tests have children, too.
        let tid = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        match tid {
            -1 if Error::last_os_error().kind() == ErrorKind::Interrupted => {}
            -1 => return None,
            tid => return Some((tid, status)),
        }
    }
}

impl Tracer {
    fn run(&mut self, first: i32, see: &mut impl FnMut(&mut Traced, Event)) -> ExitStatus {
        let (_, status) = wait(first).expect("it stops at its start");
        assert!(libc::WIFSTOPPED(status), "it ended before its start");
        let options = libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACESECCOMP
            | libc::PTRACE_O_EXITKILL;
        request(libc::PTRACE_SETOPTIONS, first, options as usize).expect("options are set");
        self.threads.insert(
            first,
            Thread {
                pid: first as u32,
                ..Thread::default()
            },
        );
        self.go_on(first, 0);
        let mut result = None;
        while !self.threads.is_empty() {
            let (tid, status) = wait(-1).expect("there are threads");
            if !libc::WIFSTOPPED(status) {
                self.threads.remove(&tid);
                if tid == first {
                    result = Some(ExitStatus::from_raw(status));
                }
                continue;
            }
            if !self.threads.contains_key(&tid) {
                self.early.push(tid);
                continue;
            }
            let signal = self.stopped(tid, status, see);
            self.go_on(tid, signal);
        }
        result.expect("the first process ended")
    }

    /// Returns the signal that the thread gets.
    fn stopped(&mut self, tid: i32, status: i32, see: &mut impl FnMut(&mut Traced, Event)) -> i32 {
        let signal = libc::WSTOPSIG(status);
        let pid = self.threads[&tid].pid;
        match (signal, status >> 16) {
            (
                libc::SIGTRAP,
                event @ (libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK),
            ) => {
                self.created(tid, event);
                0
            }
            (libc::SIGTRAP, libc::PTRACE_EVENT_EXEC) => {
                self.threads.get_mut(&tid).expect("known").call = None;
                self.mappings.remove(&pid);
                self.code.remove(&pid);
                self.gates.remove(&pid);
                0
            }
            (signal, event) if signal == libc::SIGTRAP | 0x80 || event == libc::PTRACE_EVENT_SECCOMP => {
                self.at_call(tid, pid, see);
                0
            }
            (libc::SIGSTOP, _) if self.threads[&tid].is_new => {
                self.threads.get_mut(&tid).expect("known").is_new = false;
                0
            }
            (libc::SIGSEGV, _) => match fault(tid).and_then(|at| self.protected(pid, at)) {
                Some(mapping) => {
                    let path = self.mappings[&pid][mapping].path.clone();
                    if self.step_over(tid, pid, mapping) {
                        self.tell(tid, pid, Event::Stored(&path), see);
                    }
                    0
                }
                None => signal,
            },
            _ => signal,
        }
    }

    /// To the end of its system call, or to the next one.
    fn go_on(&self, tid: i32, signal: i32) {
        let is_in_call = self.threads.get(&tid).is_some_and(|thread| thread.call.is_some());
        let how = if is_in_call {
            libc::PTRACE_SYSCALL
        } else {
            libc::PTRACE_CONT
        };
        // It may have been killed meanwhile.
        let _ = request(how, tid, signal as usize);
    }

    fn tell(&mut self, tid: i32, pid: u32, event: Event, see: &mut impl FnMut(&mut Traced, Event)) {
        let Some(registers) = registers(tid) else { return };
        self.calls += usize::from(matches!(event, Event::Entered(_)));
        if self.calls > MOST_CALLS {
            // SAFETY: a process that this tracer started.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        let mut traced = Traced {
            pid,
            tid,
            registers,
            tracer: self,
        };
        see(&mut traced, event);
    }

    fn created(&mut self, by: i32, event: i32) {
        let mut new: libc::c_ulong = 0;
        // SAFETY: room for the number.
        unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, by, 0usize, &raw mut new) };
        let (new, parent) = (new as i32, self.threads[&by].pid);
        let is_early = self.early.iter().position(|tid| *tid == new);
        let pid = if event == libc::PTRACE_EVENT_CLONE {
            parent
        } else {
            new as u32
        };
        self.threads.insert(
            new,
            Thread {
                pid,
                is_new: is_early.is_none(),
                ..Thread::default()
            },
        );
        // A child of vfork has its parent's memory, whose mappings are not its own to change.
        if event == libc::PTRACE_EVENT_FORK
            && let Some(mappings) = self.mappings.get(&parent)
        {
            self.mappings.insert(pid, mappings.clone());
        }
        if let Some(early) = is_early {
            self.early.remove(early);
            self.go_on(new, 0);
        }
    }

    fn at_call(&mut self, tid: i32, pid: u32, see: &mut impl FnMut(&mut Traced, Event)) {
        let Some(before) = registers(tid) else { return };
        let mut at = before;
        // The instruction before this one made the call.
        self.gates.insert(pid, at.rip - 2);
        let Some(mut call) = self.threads.get_mut(&tid).expect("known").call.take() else {
            let mut call = Call {
                number: at.orig_rax as c_long,
                arguments: [at.rdi, at.rsi, at.rdx, at.r10, at.r8, at.r9],
                result: None,
                is_made: false,
            };
            self.tell(tid, pid, Event::Entered(&mut call), see);
            if call.result.is_some() && !call.is_made {
                at.orig_rax = u64::MAX;
            }
            [at.rdi, at.rsi, at.rdx, at.r10, at.r8, at.r9] = call.arguments;
            if self.is_watching && self.watched_mapping(tid, &call).is_some() {
                at.rdx &= !(libc::PROT_WRITE as u64);
            }
            set_registers(tid, &at);
            self.threads.get_mut(&tid).expect("known").call = Some(call);
            return;
        };
        match call.result {
            Some(result) => {
                at.rax = result as u64;
                set_registers(tid, &at);
            }
            None => call.result = Some(at.rax as i64),
        }
        self.note_mappings(tid, pid, &call, at.rdx & libc::PROT_WRITE as u64 == 0);
        // The program's own registers: a changed argument is the tracer's.
        if call.number == libc::SYS_mmap {
            at.rdx = call.arguments[2];
            set_registers(tid, &at);
        }
        self.tell(tid, pid, Event::Left(&call), see);
        self.synchronize(tid, pid);
    }

    /// The file that this call maps, if it is watched.
    fn watched_mapping(&self, tid: i32, call: &Call) -> Option<PathBuf> {
        let [_, _, protection, flags, descriptor, _] = call.arguments;
        let is_shared = call.number == libc::SYS_mmap
            && flags & libc::MAP_SHARED as u64 != 0
            && protection & libc::PROT_WRITE as u64 != 0;
        if !is_shared {
            return None;
        }
        let path = fs::read_link(format!("/proc/{tid}/fd/{}", descriptor as i32)).ok()?;
        (self.is_watched)(&path).then_some(path)
    }

    fn note_mappings(&mut self, tid: i32, pid: u32, call: &Call, is_protected: bool) {
        let result = call.result.unwrap_or(-1);
        if result < 0 && result > -4096 {
            return;
        }
        if matches!(call.number, libc::SYS_mmap | libc::SYS_mprotect | libc::SYS_munmap) {
            self.code.remove(&pid);
        }
        if let Some(path) = self.watched_mapping(tid, call) {
            self.mappings.entry(pid).or_default().push(Mapping {
                start: result as u64,
                bytes: call.arguments[1],
                path,
                is_protected,
            });
        }
        if call.number == libc::SYS_munmap {
            let gone = call.arguments[0]..call.arguments[0] + call.arguments[1];
            let mappings = self.mappings.entry(pid).or_default();
            mappings.retain(|mapping| !gone.contains(&mapping.start));
        }
    }

    fn protected(&self, pid: u32, address: u64) -> Option<usize> {
        let mappings = self.mappings.get(&pid)?;
        mappings.iter().position(|mapping| {
            mapping.is_protected && (mapping.start..mapping.start + mapping.bytes).contains(&address)
        })
    }

    /// Makes one system call in the name of a thread that is stopped, and leaves its registers as they were.
    fn call(&mut self, tid: i32, pid: u32, number: c_long, arguments: [u64; 3]) {
        let before = registers(tid).expect("it is stopped");
        let [rdi, rsi, rdx] = arguments;
        let made = user_regs_struct {
            rip: self.gates[&pid],
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            ..before
        };
        set_registers(tid, &made);
        let (signal, _) = step(tid).expect("it goes on");
        let result = registers(tid).expect("it is stopped").rax;
        assert!(
            signal == libc::SIGTRAP && result == 0,
            "the tracer's own system call: signal {signal}, result {result:#x}"
        );
        set_registers(tid, &before);
    }

    fn protect(&mut self, tid: i32, pid: u32, mapping: usize, is_protected: bool) {
        let rights = if is_protected {
            libc::PROT_READ
        } else {
            libc::PROT_READ | libc::PROT_WRITE
        };
        let Mapping { start, bytes, .. } = self.mappings[&pid][mapping];
        self.call(tid, pid, libc::SYS_mprotect, [start, bytes, rights as u64]);
        self.mappings.get_mut(&pid).expect("known")[mapping].is_protected = is_protected;
    }

    /// Protects the mappings of a process whose thread is stopped if stores are watched, and lets them be written if not.
    fn synchronize(&mut self, tid: i32, pid: u32) {
        let wanted = self.is_watching;
        let count = self.mappings.get(&pid).map_or(0, Vec::len);
        for mapping in 0..count {
            if self.mappings[&pid][mapping].is_protected != wanted {
                self.protect(tid, pid, mapping, wanted);
            }
        }
    }

    /// Lets the instruction that faulted store. False: the thread has ended.
    fn step_over(&mut self, tid: i32, pid: u32, mapping: usize) -> bool {
        let mut opened = vec![mapping];
        self.protect(tid, pid, mapping, false);
        loop {
            let Some((signal, is_over)) = step(tid) else {
                return false;
            };
            if is_over {
                break;
            }
            // It stores to another mapping, too.
            let other = fault(tid).and_then(|at| self.protected(pid, at));
            let Some(other) = other.filter(|_| signal == libc::SIGSEGV) else {
                panic!("signal {signal} in a store");
            };
            self.protect(tid, pid, other, false);
            opened.push(other);
        }
        if self.is_watching {
            for mapping in opened {
                self.protect(tid, pid, mapping, true);
            }
        }
        true
    }
}

/// Lets a thread execute one instruction. The signal that it is stopped with, and whether that is the end of the instruction.
fn step(tid: i32) -> Option<(i32, bool)> {
    request(libc::PTRACE_SINGLESTEP, tid, 0).ok()?;
    let (_, status) = wait(tid)?;
    libc::WIFSTOPPED(status).then(|| {
        let signal = libc::WSTOPSIG(status);
        (signal, signal == libc::SIGTRAP)
    })
}
