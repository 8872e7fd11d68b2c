//! Each system call of the preload library fails once, with each error that it may give. The program runs as without the library, and what
//! was lost is said: by the recording, or in a line if there is none.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use culeak::snapshot::Snapshot;
use nix::libc::{self, c_long};
use tempfile::TempDir;

use super::compare::{compare, is_memory};
use super::instants::script_of;
use super::{Mode, models, not_recorded, program};
use crate::interpreters::interpreters;
use crate::support::holders::start;
use crate::support::model::Model;
use crate::support::outcome::recordings_in;
use crate::support::profile::{fake_driver_folder, folder};
use crate::support::script::{Answer, Script};
use crate::support::traced::{self, Calls, Event};
use crate::support::{Lookup, program as program_at};

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
        match culeak::reader::read(path) {
            Ok(snapshot) => found.push((path, snapshot)),
            Err(error) => assert!(says("nothing is recorded"), "{error}, and no message:\n{}", run.stderr),
        }
    }
    for (pid, model) in &models {
        let Some((path, snapshot)) = found.iter().find(|(_, snapshot)| snapshot.process.pid == *pid) else {
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
        assert!(
            device == 0 || !says("no memory still live"),
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

/// Whether everything is tried, as at night.
pub fn is_exhaustive() -> bool {
    std::env::var_os("CULEAK_MODEL_FAULTS").is_some()
}

/// Calls `run` with numbers of calls and faults, and fails with those for which it panics. One of `stride` calls fails, by day and at
/// night, with one of its errors by turns; with a stride of 1, with each. Besides, all that let a recording grow.
fn each_fault(calls: &[(c_long, String)], stride: [usize; 2], run: impl Fn(usize, Fault)) {
    let stride = stride[usize::from(is_exhaustive())];
    let (mut runs, mut failed) = (0, Vec::new());
    for (number, (call, file)) in calls.iter().enumerate() {
        let possible = faults(*call);
        let grows = file.ends_with(".culeak") && [libc::SYS_fallocate, libc::SYS_mmap].contains(call);
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
    let (script, mode) = (busy(), Mode::Plain);
    let whole = run(&script, mode, None);
    assert!(whole.status.success(), "{}", whole.stderr);
    check(&script, mode, &whole);
    assert!(whole.calls.len() > 300, "{} calls", whole.calls.len());
    let without_fault = Cell::new(0);
    each_fault(&whole.calls, [7, 1], |number, fault| {
        let run = run(&script, mode, Some((number, fault)));
        without_fault.update(|count| count + u32::from(run.is_whole));
        let (faulty, usual) = (behaviour(&run), behaviour(&whole));
        assert_eq!(faulty, usual, "with the fault (left) and without\n{}", run.stderr);
        check(&script, mode, &run);
    });
    // The last calls of the longest runs.
    assert!(
        without_fault.get() <= 10,
        "{} runs without their fault",
        without_fault.get()
    );
}

/// A run of a command.
struct Ran {
    status: std::process::ExitStatus,
    calls: Vec<(c_long, String)>,
    stdout: String,
    stderr: String,
}

/// Runs the command; its system call with this number, from 0 on, fails. The loader's do not, nor do those that give it memory, nor those
/// of a program that it starts.
fn run_command(arguments: &[&OsStr], fault: Option<(usize, Fault)>) -> Ran {
    let folder = folder();
    let mut command = std::process::Command::new(crate::support::culeak());
    let file = |name: &str| fs::File::create(folder.path().join(name)).expect("created");
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", folder.path())
        .env("LC_ALL", "C")
        .env("CULEAK_CACHE_DIR", "")
        .env("LD_LIBRARY_PATH", fake_driver_folder())
        .current_dir(folder.path())
        .stdin(std::process::Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"));
    let memory = [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_madvise];
    let mut calls = Vec::new();
    let status = traced::run(
        &mut command,
        Calls::AllBut(&UNINTERESTING),
        |_| false,
        |at, event| {
            let Event::Entered(call) = event else { return };
            let is_loader = |path: &Path| path.to_string_lossy().contains("/ld-linux");
            let is_command = |path: PathBuf| path == crate::support::culeak();
            if memory.contains(&call.number)
                || faults(call.number).is_empty()
                || at.code().is_none_or(|path| is_loader(&path))
                || !fs::read_link(format!("/proc/{}/exe", at.pid)).is_ok_and(is_command)
            {
                return;
            }
            // Closing a folder does not fail, and Rust's standard library panics if it does.
            let of_folder =
                call.number == libc::SYS_close && at.file(call.arguments[0]).is_some_and(|path| path.is_dir());
            if let Some((number, fault)) = fault
                && number == calls.len()
                && faults(call.number).contains(&fault)
                && !of_folder
            {
                fault.apply(call);
            }
            let file = match call.number {
                libc::SYS_openat => at.text(call.arguments[1]),
                _ => at.file(call.arguments[0]).map(|path| path.display().to_string()),
            };
            calls.push((call.number, file.unwrap_or_default()));
        },
    );
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    Ran {
        status,
        calls,
        stdout: text("stdout"),
        stderr: text("stderr"),
    }
}

/// The figures that must not change. They are on standard output, or with `run` on standard error.
fn figures(ran: &Ran) -> Vec<&str> {
    let lines = ran.stdout.lines().chain(ran.stderr.lines());
    let is_figure = |line: &&str| line.contains("call site") || line.contains("MiB");
    // How long a search took, and how much it read.
    let is_of_search = |line: &&str| line.starts_with("search ");
    lines.filter(|line| is_figure(line) && !is_of_search(line)).collect()
}

/// How many system calls of a command are left out, as for [`each_fault`].
const STRIDE: [usize; 2] = [31, 7];

/// It answers, or says why not, with one of these exit codes. `after` is called after each run.
fn expect_an_answer(arguments: &[&OsStr], codes: &[i32], stride: [usize; 2], after: impl Fn(&Ran)) {
    let whole = run_command(arguments, None);
    let code = whole.status.code().expect("it ends by itself");
    assert!(codes.contains(&code), "{}{}", whole.stdout, whole.stderr);
    after(&whole);
    let says = |ran: &Ran| {
        let is_message = |line: &str| line.starts_with("culeak: ") || line.contains("not ");
        let is_usual = |line: &str| whole.stdout.contains(line) || whole.stderr.contains(line);
        let mut lines = ran.stdout.lines().chain(ran.stderr.lines());
        lines.any(|line| is_message(line) && !is_usual(line))
    };
    each_fault(&whole.calls, stride, |number, fault| {
        let ran = run_command(arguments, Some((number, fault)));
        let what = format!("{:?}\n{}\n{}", ran.status, ran.stdout, ran.stderr);
        let ended = ran.status.code().unwrap_or_else(|| panic!("{what}"));
        assert!(!ran.stderr.contains("panicked"), "{what}");
        assert!(codes.contains(&ended), "{what}");
        let is_the_same = ended == code && figures(&ran) == figures(&whole);
        assert!(is_the_same || says(&ran), "{what}");
        after(&ran);
    });
}

#[test]
#[ignore = "needs ptrace"]
fn a_command_that_fails_in_any_system_call_answers_or_says_why_not() {
    let first = run(&busy(), Mode::Plain, None);
    let second = run(&busy(), Mode::Plain, None);
    let recording = |of: &Run| recordings_in(&of.folder.path().join("out")).remove(0);
    let (first, second) = (recording(&first), recording(&second));
    let [first, second] = [first.as_os_str(), second.as_os_str()];
    expect_an_answer(&["report".as_ref(), first], &[0, 2], STRIDE, |_| ());
    expect_an_answer(&["diff".as_ref(), first, second], &[0, 2], STRIDE, |_| ());
    // It leaks: no error makes it pass.
    expect_an_answer(&["check".as_ref(), first], &[1, 2], STRIDE, |_| ());
    // It makes 6,000 calls.
    expect_an_answer(&["trend".as_ref(), first, second], &[0, 2], [211, 31], |_| ());
    let (_grows, logged) = crate::whatif::logged("grows", &[]);
    expect_an_answer(&["whatif".as_ref(), logged.as_os_str()], &[0, 2], STRIDE, |_| ());
}

#[test]
#[ignore = "needs ptrace"]
fn a_file_that_a_command_writes_is_whole_whichever_system_call_fails() {
    let recorded = run(&busy(), Mode::Plain, None);
    let recording = recordings_in(&recorded.folder.path().join("out")).remove(0);
    let folder = folder();
    // What is left in it if no names can be read.
    let blocks = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(folder.path().join(name)).expect("a file");
        if name.ends_with(".json") {
            let snapshot: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            return vec![snapshot["allocations"].to_string()];
        }
        assert!(text.ends_with('\n'), "{text}");
        let columns = |line: &str| line.split(',').take(3).collect();
        text.lines().map(columns).collect()
    };
    for (command, name) in [("snapshot", "out.json"), ("export", "out.csv")] {
        let (file, usual) = (folder.path().join(name), std::cell::OnceCell::new());
        let words = [command, "--force", "-o"].map(OsStr::new);
        let words = [&words[..], &[file.as_os_str(), recording.as_os_str()]].concat();
        // If the file cannot be replaced, the old one stays.
        expect_an_answer(&words, &[0, 2], STRIDE, |ran| {
            let (found, usual) = (blocks(name), usual.get_or_init(|| blocks(name)));
            assert!(found == *usual, "{command}: {found:?}\n{}", ran.stderr);
        });
    }
}

#[test]
#[ignore = "needs ptrace"]
fn a_program_runs_as_usual_whichever_system_call_of_culeak_run_fails_or_is_not_started() {
    let folder = folder();
    let [text, transcript] = ["script", "transcript"].map(|name| folder.path().join(name));
    fs::write(&text, busy().to_string()).expect("the script is written");
    let script = crate::support::victim("script", Lookup::Linked);
    let words = ["run", "-o", "out", "--"].map(OsStr::new);
    let words = [
        &words[..],
        &[script.as_os_str(), text.as_os_str(), transcript.as_os_str()],
    ]
    .concat();
    let answered = || fs::read_to_string(&transcript).map(|text| Answer::all(&text).len());
    let usual = std::cell::OnceCell::new();
    // 126: the program cannot be started.
    expect_an_answer(&words, &[0, 2, 126], STRIDE, |ran| {
        let Ok(answers) = answered() else {
            assert!(ran.status.code() != Some(0), "it was not started\n{}", ran.stderr);
            return;
        };
        let usual = usual.get_or_init(|| answers);
        assert!(*usual > 10 && answers == *usual, "{answers} answers\n{}", ran.stderr);
        fs::remove_file(&transcript).expect("removed");
    });
}

#[test]
#[ignore = "needs ptrace"]
fn a_search_that_fails_in_any_system_call_answers_or_says_why_not_and_lets_the_process_go_on() {
    let python = program_at(&interpreters()[0].command);
    let hostile = crate::support::sources().join("victims/holders/hostile.py");
    let victim = start(&python.arg("-B").arg(hostile).arg("quiet"));
    let (pid, stat) = (victim.pid.to_string(), format!("/proc/{}/stat", victim.pid));
    let goes_on = |ran: &Ran| {
        let stat = fs::read_to_string(&stat).expect("it runs");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        assert!(
            state != Some('T') && state != Some('t'),
            "it is stopped: {stat}\n{}",
            ran.stderr
        );
    };
    // It reads 10,000 times, mostly /proc.
    let (stride, words) = ([311, 31], ["why", &pid, "--pause"].map(OsStr::new));
    expect_an_answer(&words[..2], &[0, 2], stride, goes_on);
    expect_an_answer(&words, &[0, 2], stride, goes_on);
    victim.quit();
}
