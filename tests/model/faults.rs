//! Each system call of the preload library fails once, with each error that it may give. The program runs as without the library, and what
//! was lost is said: by the recording, or in a line if there is none.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use culeak::snapshot::Snapshot;
use nix::libc::{self, c_long};
use tempfile::TempDir;

use super::compare::{compare, compare_log, is_memory};
use super::instants::script_of;
use super::{Mode, models, not_recorded, program};
use crate::support::model::Model;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::script::{Answer, Script};
use crate::support::traced::{self, Calls, Event};

mod commands;

/// What becomes of a system call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    Error(i32),
    /// It reads or writes half of what it should.
    Short,
}

/// The errors that a system call may give. None: it cannot fail, or has no effect.
pub fn faults(call: c_long) -> Vec<Fault> {
    let errors: &[i32] = match call {
        libc::SYS_openat | libc::SYS_open => &[
            libc::EMFILE,
            libc::EACCES,
            libc::EINTR,
            libc::ENOSPC,
            libc::ENOMEM,
            libc::EIO,
        ],
        libc::SYS_mmap => &[libc::ENOMEM, libc::EPERM],
        libc::SYS_munmap | libc::SYS_madvise | libc::SYS_mprotect => &[libc::ENOMEM],
        libc::SYS_fallocate => &[
            libc::ENOSPC,
            libc::EIO,
            libc::EINTR,
            libc::EPERM,
            libc::EOPNOTSUPP,
            libc::ENOSYS,
        ],
        libc::SYS_ftruncate | libc::SYS_fsync => &[libc::EIO, libc::EINTR, libc::ENOSPC],
        libc::SYS_write | libc::SYS_pwrite64 => &[libc::ENOSPC, libc::EIO, libc::EINTR, libc::EPERM],
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_getdents64 => &[libc::EIO, libc::EINTR],
        libc::SYS_close => &[libc::EIO, libc::EINTR],
        libc::SYS_fcntl => &[libc::EMFILE, libc::EPERM],
        libc::SYS_fstat
        | libc::SYS_newfstatat
        | libc::SYS_stat
        | libc::SYS_statx
        | libc::SYS_fstatfs
        | libc::SYS_lseek => &[libc::EIO, libc::EPERM],
        libc::SYS_readlink | libc::SYS_getcwd | libc::SYS_rename | libc::SYS_unlink => &[libc::EIO, libc::EACCES],
        libc::SYS_process_vm_readv | libc::SYS_prctl | libc::SYS_ptrace => &[libc::EPERM],
        libc::SYS_mkdir | libc::SYS_mkdirat => &[libc::EACCES, libc::ENOSPC, libc::EROFS],
        libc::SYS_unlinkat | libc::SYS_renameat | libc::SYS_renameat2 => &[libc::EIO, libc::EACCES],
        libc::SYS_pipe | libc::SYS_pipe2 | libc::SYS_dup => &[libc::EMFILE],
        libc::SYS_memfd_create | libc::SYS_signalfd4 => &[libc::EMFILE, libc::ENOMEM],
        libc::SYS_poll | libc::SYS_ppoll => &[libc::EINTR, libc::ENOMEM],
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => &[libc::EAGAIN, libc::ENOMEM],
        libc::SYS_socket => &[libc::EMFILE, libc::EACCES],
        libc::SYS_bind => &[libc::EADDRINUSE, libc::EACCES],
        libc::SYS_listen | libc::SYS_setsockopt | libc::SYS_getsockname => &[libc::ENOBUFS],
        libc::SYS_connect => &[libc::ECONNREFUSED, libc::EINTR],
        libc::SYS_accept4 | libc::SYS_accept => &[libc::EMFILE, libc::ECONNABORTED, libc::EINTR],
        libc::SYS_sendto | libc::SYS_recvfrom => &[libc::ECONNRESET, libc::EINTR],
        _ => &[],
    };
    let is_partial = [libc::SYS_write, libc::SYS_pwrite64, libc::SYS_read, libc::SYS_pread64].contains(&call);
    errors
        .iter()
        .map(|error| Fault::Error(*error))
        .chain(is_partial.then_some(Fault::Short))
        .collect()
}

impl Fault {
    pub fn apply(self, call: &mut traced::Call) {
        match self {
            Fault::Short => call.arguments[2] = (call.arguments[2] / 2).max(1),
            Fault::Error(error) => {
                call.result = Some(-i64::from(error));
                // The kernel closes the file even so.
                call.is_made = call.number == libc::SYS_close;
            }
        }
    }
}

/// Calls without a fault, which are not worth a stop.
pub const UNINTERESTING: [c_long; 12] = [
    libc::SYS_clock_gettime,
    libc::SYS_futex,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigaction,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_brk,
    libc::SYS_exit_group,
    libc::SYS_exit,
    libc::SYS_sigaltstack,
];

/// A run of a script.
struct Run {
    folder: TempDir,
    status: std::process::ExitStatus,
    /// The calls of the library, each with its file.
    calls: Vec<(c_long, String)>,
    stdout: String,
    stderr: String,
    answers: Vec<Answer>,
    /// No call met the fault.
    is_whole: bool,
}

/// Runs a script; the library's system call with this number, from 0 on, fails, or the first one after it that can fail so: files of the
/// system have other lengths in each run, so the number of calls before it is not always the same.
fn run(script: &Script, mode: Mode, mut fault: Option<(usize, Fault)>) -> Run {
    let folder = folder();
    let mut command = program(script, mode, folder.path()).command(folder.path());
    let file = |name: &str| fs::File::create(folder.path().join(name)).expect("created");
    command
        .stdin(std::process::Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"));
    let mut calls = Vec::new();
    let status = traced::run(
        &mut command,
        Calls::AllBut(&UNINTERESTING),
        |_| false,
        |at, event| {
            let Event::Entered(call) = event else { return };
            let possible = faults(call.number);
            if possible.is_empty() || !at.caller().is_some_and(|path| is_shim(&path)) {
                return;
            }
            if let Some((_, now)) = fault.take_if(|(number, now)| *number <= calls.len() && possible.contains(now)) {
                now.apply(call);
            }
            let file = match call.number {
                libc::SYS_openat => at.text(call.arguments[1]),
                libc::SYS_mmap => at.file(call.arguments[4]).map(|path| path.display().to_string()),
                _ => at.file(call.arguments[0]).map(|path| path.display().to_string()),
            };
            calls.push((call.number, file.unwrap_or_default()));
        },
    );
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    Run {
        status,
        calls,
        stdout: text("stdout"),
        stderr: text("stderr"),
        answers: Answer::all(&text("transcript")),
        folder,
        is_whole: fault.is_some(),
    }
}

fn is_shim(path: &Path) -> bool {
    path == crate::support::shim()
}

/// What the program does, as far as it does not depend on addresses and numbers of processes.
fn behaviour(run: &Run) -> Vec<String> {
    let own = run.stderr.lines().filter(|line| !line.starts_with("culeak"));
    let answers = run
        .answers
        .iter()
        .map(|answer| format!("{} {} {:?}", answer.id, answer.result, answer.device));
    [run.status.to_string(), run.stdout.clone()]
        .into_iter()
        .chain(own.map(str::to_owned))
        .chain(answers)
        .collect()
}

/// Everything that the recording says is lost.
fn lost(snapshot: &Snapshot) -> u64 {
    not_recorded(snapshot).iter().sum::<u64>() + snapshot.losses.unknown_frees
}

/// What the recording of a run must say.
fn check(script: &Script, mode: Mode, run: &Run) {
    let models: BTreeMap<u32, Model> = models(script, &run.answers, |_, _| ());
    let recordings = recordings_in(&run.folder.path().join("out"));
    let says = |what: &str| {
        run.stderr
            .lines()
            .any(|line| line.starts_with("culeak") && line.contains(what))
    };
    let mut found = Vec::new();
    for path in &recordings {
        match culeak::reader::read_timeline(path) {
            Ok((snapshot, timeline)) => found.push((path, snapshot, timeline)),
            Err(error) => assert!(says("nothing is recorded"), "{error}, and no message:\n{}", run.stderr),
        }
    }
    for (pid, model) in &models {
        let of_process = found.iter().find(|(_, snapshot, _)| snapshot.process.pid == *pid);
        let Some((path, snapshot, timeline)) = of_process else {
            assert!(
                !model.is_recording || says("nothing is recorded"),
                "no recording of {pid}, and no message:\n{}",
                run.stderr
            );
            continue;
        };
        let losses = &snapshot.losses;
        if lost(snapshot) == 0 {
            crate::support::invariants::check(snapshot, true);
            compare(snapshot, model, mode);
            match timeline {
                Some(timeline) => compare_log(snapshot, timeline, model),
                None => assert!(
                    mode != Mode::Logged || says("log"),
                    "no log, and no message:\n{}",
                    run.stderr
                ),
            }
        }
        // Names, devices and stacks may be lost, too.
        let modelled: Vec<_> = model
            .live
            .iter()
            .filter(is_memory)
            .map(|record| (record.kind, record.address, record.bytes))
            .collect();
        let rows: Vec<_> = snapshot
            .allocations
            .iter()
            .map(|row| (row.kind, row.address, row.bytes))
            .collect();
        let invented: Vec<_> = rows.iter().filter(|row| !modelled.contains(row)).collect();
        assert!(invented.is_empty(), "not in the model: {invented:?}");
        let missing = modelled.len() - rows.len();
        assert!(
            missing as u64 <= losses.lost_allocations,
            "{missing} are missing: {losses:?}"
        );
        let files = fs::read_dir(path.parent().expect("a folder"))
            .expect("readable")
            .flatten();
        let snapshots = files.filter(|file| {
            file.path()
                .extension()
                .is_some_and(|ending| ending == "culeak-snapshot")
        });
        let readable = snapshots
            .filter(|file| culeak::reader::read(&file.path()).is_ok())
            .count();
        let wanted = model.snapshots.len() + usize::from(!model.failed.is_empty());
        // Without a row for the failed request there is no snapshot of it.
        assert!(
            readable as u64 + losses.lost_snapshots + losses.lost_details >= wanted as u64,
            "{readable} of {wanted} snapshots: {losses:?}"
        );
        let device = model.devices.values().map(|(live, _)| live).sum::<u64>();
        // A process without a recording names none.
        let own = format!(".{pid}.culeak");
        let is_own = |line: &str| models.len() == 1 || line.contains(&own);
        let mut lines = run.stderr.lines();
        assert!(
            device == 0 || !lines.any(|line| line.contains("no memory still live") && is_own(line)),
            "{device} bytes are live:\n{}",
            run.stderr
        );
    }
}

/// A program that uses most of what makes system calls.
fn busy() -> Script {
    let mut lines = vec![
        "0 primary 0",
        "0 alloc 100",
        "0 stream 0",
        "0 async 4096 3",
        "0 mark loaded",
        "0 free 2 0",
        "0 alloc 1099511627776",
        "0 snapshot named",
        "0 begin phase",
        "0 end 9",
        "0 alloc 1048576",
    ];
    // More records than the first extent has.
    lines.extend([
        "0 blocks arena 11 60 512",
        "0 blocks cache 11 60 512",
        "0 blocks pages 11 60 512",
        "0 blocks more 11 60 512",
    ]);
    lines.extend(["1 primary 0", "1 alloc 300", "1 ends"]);
    script_of(lines)
}

/// Programs of several processes, with snapshots and a free.
fn family() -> Script {
    script_of([
        "0 primary 0",
        "0 alloc 100",
        "0 snapshot first",
        "0 fork",
        "0 alloc 300",
        "0 mark child",
        "0 snapshot forked",
        "0 done",
        "0 spawn",
        "0 primary 0",
        "0 alloc 131072",
        "0 alloc 1099511627776",
        "0 done",
        "0 free 2 0",
        "0 alloc 262144",
        "0 mark last",
    ])
}

/// Whether everything is tried, as at night.
pub fn is_exhaustive() -> bool {
    std::env::var_os("CULEAK_MODEL_FAULTS").is_some()
}

/// Calls `run` with numbers of calls and faults, and fails with those for which it panics. One of `stride` calls fails, by day and at
/// night, with one of its errors by turns; with a stride of 1, with each. Besides, unless few are tried, all that let a recording grow.
fn each_fault(calls: &[(c_long, String)], stride: [usize; 2], run: impl Fn(usize, Fault)) {
    let stride = stride[usize::from(is_exhaustive())];
    let (mut runs, mut failed) = (0, Vec::new());
    for (number, (call, file)) in calls.iter().enumerate() {
        let possible = faults(*call);
        let grows = stride < 97 && file.ends_with(".culeak") && [libc::SYS_fallocate, libc::SYS_mmap].contains(call);
        let chosen: Vec<Fault> = match number.is_multiple_of(stride) || grows {
            true if stride == 1 => possible,
            true => vec![possible[number / stride % possible.len()]],
            false => Vec::new(),
        };
        for fault in chosen {
            runs += 1;
            if catch_unwind(AssertUnwindSafe(|| run(number, fault))).is_err() {
                failed.push(format!("call {number}, which is {call} of {file}: {fault:?}"));
            }
        }
    }
    println!("{} system calls, {runs} runs", calls.len());
    assert!(failed.is_empty(), "{} of {runs}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
#[ignore = "needs ptrace"]
fn a_program_whose_recorder_fails_in_any_system_call_runs_as_without_it() {
    fails_anywhere(&busy(), Mode::Plain, [7, 1]);
}

#[test]
#[ignore = "needs ptrace"]
fn processes_of_a_program_run_as_usual_if_their_recorder_fails_with_a_log_or_a_sample() {
    fails_anywhere(&family(), Mode::Logged, [97, 7]);
    fails_anywhere(&family(), Mode::Sampled, [97, 7]);
}

fn fails_anywhere(script: &Script, mode: Mode, stride: [usize; 2]) {
    let whole = run(script, mode, None);
    assert!(whole.status.success(), "{}", whole.stderr);
    check(script, mode, &whole);
    assert!(whole.calls.len() > 300, "{} calls", whole.calls.len());
    let without_fault = Cell::new(0);
    each_fault(&whole.calls, stride, |number, fault| {
        let run = run(script, mode, Some((number, fault)));
        without_fault.update(|count| count + u32::from(run.is_whole));
        let (faulty, usual) = (behaviour(&run), behaviour(&whole));
        assert_eq!(faulty, usual, "with the fault (left) and without\n{}", run.stderr);
        check(script, mode, &run);
    });
    // The last calls of the longest runs.
    assert!(
        without_fault.get() <= 10,
        "{} runs without their fault",
        without_fault.get()
    );
}
