//! Programs without CUDA: no file, no thread, no descriptor, no signal handler, and the same output; and sanitizers.

use std::path::PathBuf;
use std::process::Command;

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::compile::{executable, library};
use crate::support::{Outcome, Preload, culeak, fake_driver, profile, program};

/// Runs a script with and without the recorder, bound lazily and at start.
#[track_caller]
fn runs_unchanged(interpreter: &str, script: &str) -> Outcome {
    for bind_now in ["", "1"] {
        let outcome = program(interpreter)
            .env("LD_BIND_NOW", bind_now)
            .arg("-c")
            .arg(script)
            .run();
        outcome.expect_success().expect_same_output_as_bare().expect_no_file();
        assert!(outcome.our_lines().is_empty(), "{}", outcome.stderr);
    }
    program(interpreter).arg("-c").arg(script).run()
}

#[test]
fn bash_runs_unchanged() {
    let outcome = runs_unchanged(
        "/bin/bash",
        "set -e; for i in 1 2 3; do (echo $i | cat | sort); done; x=$(seq 100 | tail -1); echo $x; trap 'echo bye' EXIT; \
         wait; echo ${BASH_VERSION%%.*}; sleep 0 & wait $!; kill -0 $$; exec 3>&1; echo fd >&3",
    );
    assert!(outcome.stdout.ends_with("bye\n"), "{}", outcome.everything());
}

#[test]
#[ignore = "needs git"]
fn git_runs_unchanged() {
    let outcome = runs_unchanged(
        "/bin/sh",
        "set -e; export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z; \
         rm -rf repository; git -c init.defaultBranch=main init -q repository; cd repository; \
         git config user.name T; git config user.email t@example.org; echo text >file; git add file; \
         git commit -qm 'first line'; git log --format='%H %s'; git gc -q; git status --short; git fsck",
    );
    assert!(outcome.stdout.contains("first line"), "{}", outcome.everything());
}

/// Prints what a program can observe of a recorder inside it.
const LOOK_AT_MYSELF: &str = "\
import ctypes, os, signal, subprocess, threading, multiprocessing\n\
status = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status'))\n\
print('threads', status['Threads'], 'caught', status['SigCgt'], 'ignored', status['SigIgn'], 'blocked', status['SigBlk'])\n\
print('descriptors', [os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in sorted(os.listdir('/proc/self/fd'), key=int) if os.path.exists(f'/proc/self/fd/{fd}')])\n\
print('output', subprocess.run(['echo', 'child'], capture_output=True).stdout)\n\
libc = ctypes.CDLL(None)\n\
print('libc', libc.abs(-5), hasattr(libc, 'no_such_name'))\n\
thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n\
print('cuda', hasattr(libc, 'cuMemAlloc_v2'), hasattr(libc, 'cudaMalloc'))\n\
pid = os.fork()\n\
if pid == 0: os._exit(5)\n\
print('forked', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n";

#[test]
fn a_program_finds_no_trace_of_the_recorder_in_itself() {
    let outcome = runs_unchanged(&python(), LOOK_AT_MYSELF);
    assert!(outcome.stdout.contains("cuda False False"), "{}", outcome.stdout);
}

fn python() -> String {
    let found = Command::new("sh")
        .args(["-c", "command -v python3"])
        .output()
        .expect("sh runs");
    String::from_utf8_lossy(&found.stdout).trim().to_owned()
}

#[test]
fn a_compiler_runs_unchanged() {
    let outcome = runs_unchanged(
        "/bin/sh",
        "set -e; printf '#include <stdio.h>\\nint main(void) { return puts(\"compiled\") < 0; }' >main.c; \
         gcc -O1 -o main main.c; ./main; gcc -c nothing.c 2>&1 || true; nm main | grep -c main",
    );
    assert!(outcome.stdout.contains("compiled"), "{}", outcome.everything());
}

#[test]
fn loading_libcuda_without_using_it_leaves_no_file() {
    // Many programs load it only to check whether there is a GPU.
    let outcome = program(python())
        .arg("-c")
        .arg("import ctypes; ctypes.CDLL('libcuda.so.1'); print('loaded')")
        .run();
    outcome.expect_success().expect_same_output_as_bare().expect_no_file();
}

#[test]
fn cuda_called_from_python_is_recorded() {
    let script = "\
import ctypes\n\
cuda = ctypes.CDLL('libcuda.so.1')\n\
context, address = ctypes.c_void_p(), ctypes.c_uint64()\n\
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n\
assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1234)) == 0\n\
print('done')\n";
    let outcome = program(python()).arg("-c").arg(script).run();
    outcome.expect_same_output_as_bare();
    outcome
        .only_snapshot()
        .expect_live(Device, 1, 1234)
        .expect_nothing_lost();
}

/// gcc's AddressSanitizer runtime, as a file that can be preloaded.
fn address_sanitizer() -> PathBuf {
    let path = Command::new("gcc")
        .arg("-print-file-name=libasan.so")
        .output()
        .expect("gcc runs")
        .stdout;
    let path = std::fs::canonicalize(String::from_utf8_lossy(&path).trim()).expect("gcc comes with libasan");
    assert!(path.is_absolute());
    path
}

/// Its check for leaks at the end stops the threads by ptrace.
#[test]
#[ignore = "needs ptrace"]
fn a_program_built_with_address_sanitizer_runs_unchanged() {
    let sanitized = executable("sanitized", &["-fsanitize=address"], &[fake_driver()]);
    let outcome = program(&sanitized)
        .with_preload(Preload::BeforeCuleak, address_sanitizer())
        .run();
    outcome.expect_success();
    assert!(!outcome.stderr.contains("AddressSanitizer"), "{}", outcome.stderr);
    outcome
        .only_snapshot()
        .expect_live(Device, 1, 100)
        .expect_nothing_lost();
    // As the CLI starts it: our library first, and the check of the order disabled.
    let outcome = program(&sanitized)
        .env("ASAN_OPTIONS", "verify_asan_link_order=0")
        .run();
    outcome.expect_success();
    outcome
        .only_snapshot()
        .expect_live(Device, 1, 100)
        .expect_nothing_lost();
}

#[test]
fn thread_sanitizer_finds_no_race_in_hooks() {
    let threads = executable("threads", &["-fsanitize=thread"], &[fake_driver()]);
    let outcome = program(&threads).tiny_driver().arg("key_destructor").run();
    outcome.expect_success();
    assert!(
        !outcome.stderr.contains("WARNING: ThreadSanitizer"),
        "{}",
        outcome.stderr
    );
    outcome.only_snapshot().expect_no_leaks();
}

/// `victims/sandboxed.c`, with the library that it closes.
fn sandboxed() -> [PathBuf; 2] {
    let plugin = library("sandboxed", "libplugin.so", &["-DPLUGIN"], &[]);
    [executable("sandboxed", &[], &[]), plugin]
}

#[test]
fn a_program_without_cuda_makes_no_system_call_of_the_recorder() {
    let [sandboxed, plugin] = sandboxed();
    let answers = library("sandboxed", "libanswers.so", &["-DANSWERS"], &[]);
    for words in [&[plugin.as_os_str()][..], &[plugin.as_os_str(), "_exit".as_ref()]] {
        let profile = program(&sandboxed).with_preload(Preload::AfterCuleak, answers.clone());
        let outcome = words.iter().fold(profile, |profile, word| profile.arg(word)).run();
        outcome.expect_success().expect_same_output_as_bare().expect_no_file();
        assert_eq!(outcome.stdout, "requests\nlook-ups\nclosed\nrequests\nforked\n");
    }
}

#[test]
fn a_sandboxed_program_without_cuda_ends_as_usual_under_run() {
    let [sandboxed, plugin] = sandboxed();
    for option in [&["--no-report"][..], &["--no-report", "--why"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(culeak());
        command.args(["run", "-o"]).arg(folder.path()).args(option).arg("--");
        let output = command.arg(&sandboxed).arg(&plugin).output().expect("culeak runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{option:?}: {stderr}");
    }
}

#[test]
fn a_missing_driver_is_reported_by_the_program_alone() {
    let outcome = profile("endings")
        .lookup(crate::support::Lookup::Dlsym)
        .without_driver()
        .arg("returns")
        .run();
    outcome.expect_exit(4).expect_same_output_as_bare().expect_no_file();
}
