//! Of processes that were never recorded, whose frameworks' allocators are read.

use std::path::Path;

use super::*;
use crate::support::library;

/// A program with the tables of PyTorch's allocator, which was never recorded.
fn unrecorded(options: &[&str]) -> (std::process::Child, tempfile::TempDir, [u64; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let source = sources().join("victims/unrecorded.c");
    let compile = |name: &str, arguments: &[&str]| {
        let mut command = Command::new("cc");
        command
            .current_dir(folder.path())
            .args(["-O1", "-o", name])
            .arg(&source);
        let status = command.args(options).args(arguments).status();
        assert!(status.expect("a C compiler").success(), "{command:?}");
    };
    compile("libc10_cuda.so", &["-DALLOCATOR", "-shared", "-fPIC"]);
    compile("program", &["-L.", "-l:libc10_cuda.so", "-Wl,-rpath,$ORIGIN", "-ldl"]);
    let mut program = Command::new(folder.path().join("program"));
    if options.contains(&"-DCOPY") {
        std::fs::create_dir(folder.path().join("copy")).expect("a folder");
        compile("copy/libc10_cuda.so", &["-DALLOCATOR", "-DUNUSED", "-shared", "-fPIC"]);
        program.arg(folder.path().join("copy/libc10_cuda.so"));
    }
    let (child, numbers) = ready(&mut program);
    (child, folder, numbers)
}

#[test]
fn blocks_are_found_whatever_became_of_pytorchs_library() {
    // Another copy is loaded, and not used; the file has another name, and is gone; another version is in its place.
    let (mut child, folder, [_, bytes_held]) = unrecorded(&["-DCOPY"]);
    let library = folder.path().join("libc10_cuda.so");
    let expect_all = |when: &str| {
        let report = json(&["report", &child.id().to_string(), "--json"]);
        assert_eq!(sum(&report["rows"]), bytes_held, "{when}: {report}");
    };
    expect_all("beside a copy");
    let renamed = folder.path().join("libc10_cuda-0a1b2c3d.so.2");
    std::fs::rename(&library, &renamed).expect("renamed");
    expect_all("renamed");
    std::fs::copy(folder.path().join("copy/libc10_cuda.so"), &library).expect("copied");
    expect_all("replaced");
    std::fs::remove_file(&renamed).expect("deleted");
    expect_all("deleted");
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
#[ignore = "needs g++"]
fn the_buffers_of_xla_are_read_in_a_process_that_was_never_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let compile = |name: &str, arguments: &[&str]| {
        let mut command = Command::new("g++");
        command.current_dir(folder.path()).args(["-O1", "-o", name]);
        command
            .arg(sources().join("victims/unrecorded_xla.cpp"))
            .args(arguments);
        assert!(command.status().expect("g++ starts").success(), "{command:?}");
    };
    compile("xla_cuda_plugin.so", &["-DALLOCATOR", "-shared", "-fPIC"]);
    compile("program", &["-L.", "-l:xla_cuda_plugin.so", "-Wl,-rpath,$ORIGIN"]);
    let (mut child, [count, bytes_held]) = ready(&mut Command::new(folder.path().join("program")));
    let pid = child.id().to_string();
    let why = json(&["why", &pid, "--json"]);
    assert_eq!(
        (bytes(&why["total"]), why["total"]["count"].as_u64()),
        (bytes_held, Some(count))
    );
    assert!(why["origins"].to_string().contains("kept"), "{why}");
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
fn the_blocks_of_cupy_are_read_in_a_process_that_was_never_recorded() {
    expect_origins("unrecorded_cupy.py", &["kept", "plans"]);
}

#[test]
fn the_buffers_of_rmm_are_read_in_a_process_that_was_never_recorded() {
    let all = ["__main__.kept", "__main__.small", "__main__.on_default_stream"];
    expect_origins("unrecorded_rmm.py", &all);
}

#[test]
fn the_buffers_of_rmm_are_on_the_devices_that_each_version_stores() {
    let (first, second) = (256, 20 * 4096 + 3 * 1024);
    let by_version = [
        ("23.10.00", vec![("GPU 0", first + second)]),
        ("25.12.00", vec![("GPU 0", first), ("GPU 1", second)]),
        ("26.02.00", vec![("GPU 0", first), ("GPU 1", second)]),
        ("26.10.00", vec![("GPU 0", first), ("GPU 1", second)]),
    ];
    for (version, expected) in by_version {
        let folder = tempfile::tempdir().expect("a folder");
        let mut program = Command::new("python3");
        let script = sources().join("victims/unrecorded_rmm.py");
        let (mut child, _) = ready(program.arg(script).arg(folder.path()).arg(version));
        let report = json(&["report", &child.id().to_string(), "--by", "device", "--json"]);
        let rows = lists(&report["rows"]).iter();
        let mut found: Vec<_> = rows
            .map(|row| (row["label"].as_str().expect("a label"), bytes(row)))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{version}");
        drop(child.stdin.take());
        child.wait().expect("ended");
    }
}

#[test]
fn the_memory_of_numba_is_read_in_a_process_that_was_never_recorded() {
    expect_origins("unrecorded_numba.py", &["__main__.kept"]);
}

/// Starts such a Python program.
fn started(python: &Path, script: &str) -> (std::process::Child, [u64; 2], tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = sources().join("victims").join(script);
    let (child, numbers) = ready(Command::new(python).arg(script).arg(folder.path()));
    (child, numbers, folder)
}

/// With each interpreter, all blocks of such a Python program are found, and these hold some of them.
fn expect_origins(script: &str, names: &[&str]) {
    for python in recorded() {
        let (mut child, [count, bytes_held], _folder) = started(&python.command, script);
        let why = json(&["why", &child.id().to_string(), "--json"]);
        assert_eq!(
            (bytes(&why["total"]), why["total"]["count"].as_u64()),
            (bytes_held, Some(count)),
            "Python {}",
            python.version
        );
        drop(child.stdin.take());
        child.wait().expect("ended");
        let text = why["origins"].to_string();
        assert!(
            names.iter().all(|name| text.contains(name)),
            "Python {}: {text}",
            python.version
        );
    }
}

/// A program with the history of PyTorch's allocator, run by this interpreter, and what it is told line by line.
struct Traced {
    child: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Traced {
    /// Words with `=` are variables of the environment.
    fn start(python: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Traced {
        let mut command = Command::new(python);
        let variables = words.iter().filter_map(|word| word.split_once('='));
        command
            .envs(variables)
            .arg(sources().join("victims/unrecorded_trace.py"))
            .args(words.iter().filter(|word| !word.contains('=')))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        Traced { child, lines }
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{line}").expect("written");
        self.lines.next().expect("a line").expect("text")
    }

    /// Exit code, output and messages of `culeak report PID` with these words.
    fn report(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(culeak());
        let command = command.args(["report", &self.child.id().to_string()]).args(words);
        let output = command.stdin(Stdio::null()).output().expect("the CLI starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("ended");
    }
}

#[test]
fn a_trace_asks_before_it_runs_code_and_needs_an_interpreter_that_takes_it() {
    for python in recorded() {
        let mut traced = Traced::start(&python.command, &[]);
        let (code, _, messages) = traced.report(&["--trace"]);
        assert!(code == Some(2) && messages.contains("--yes agrees"), "{messages}");
        let (code, _, messages) = traced.report(&["--trace", "--yes"]);
        let is_old = python.minor < 14;
        assert_eq!(code, Some(if is_old { 2 } else { 0 }), "{messages}");
        assert_eq!(is_old, messages.contains("3.14 is needed"), "{messages}");
        let history = traced.say("quit");
        assert_eq!(is_old, history == "[]", "{history}");
    }
}

#[test]
#[ignore = "needs CPython 3.14"]
fn blocks_that_are_allocated_after_the_trace_began_have_lines() {
    let python = std::env::var_os("TRACE_PYTHON").expect("TRACE_PYTHON is CPython 3.14 or newer");
    let mut traced = Traced::start(&python, &[]);
    let report = |traced: &Traced, words: &[&str]| {
        let (code, text, messages) = traced.report(words);
        assert_eq!(code, Some(0), "{text}{messages}");
        text
    };
    let before = report(&traced, &["--trace", "--yes"]);
    assert!(
        before.contains("in 1 block") && !before.contains("train_step"),
        "{before}"
    );
    assert_eq!(traced.say("allocate"), "allocated");
    let after = report(&traced, &["--trace", "--yes"]);
    let line = "train_step  unrecorded_trace.py:";
    assert!(after.contains("2 call sites") && after.contains(line), "{after}");
    assert!(after.contains("older than PyTorch's history"), "{after}");
    assert!(
        !after.contains("running for"),
        "the time of an event is shown as the age of the process\n{after}"
    );
    report(&traced, &["--trace=off", "--yes"]);
    // It was on when it was asked for the second time.
    assert_eq!(traced.say("quit"), "[('state', 'python'), (None, 'all')]");

    let failing = Traced::start(&python, &["fails"]);
    let (code, _, messages) = failing.report(&["--trace", "--yes"]);
    assert!(
        code == Some(2) && messages.contains("no CUDA GPUs are available"),
        "{messages}"
    );
    drop(failing);
    let disabled = Traced::start(&python, &["PYTHON_DISABLE_REMOTE_DEBUG=1"]);
    let (code, _, messages) = disabled.report(&["--trace", "--yes"]);
    assert!(
        code == Some(2) && messages.contains("it does not take a script"),
        "{messages}"
    );
}

#[test]
fn the_live_view_of_a_process_that_was_never_recorded_has_a_row_for_each_holder() {
    let (mut child, _folder, [count, bytes_held]) = unrecorded(&[]);
    let once = || {
        let pid = child.id().to_string();
        let output = Command::new(culeak()).args(["live", &pid, "--once"]).output();
        let output = output.expect("the CLI starts");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, text) = once();
    assert_eq!(code, Some(0), "{text}");
    let held = format!(
        "holds {} in {count} blocks at 1 holder",
        culeak::analysis::words::bytes(bytes_held)
    );
    assert!(text.contains(&held), "{held}\n{text}");
    assert!(text.contains("kept in program"), "{text}");
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
fn the_blocks_of_pytorch_are_read_in_a_process_that_was_never_recorded() {
    let (mut child, folder, [count, bytes_held]) = unrecorded(&[]);
    let pid = child.id().to_string();
    let report = json(&["report", &pid, "--json"]);
    assert_eq!(sum(&report["rows"]), bytes_held, "{report}");
    assert_eq!(
        sum(&report["held_by"]),
        bytes_held,
        "holders are all that a reader can go by"
    );
    let why = json(&["why", &pid, "--json"]);
    assert_eq!(
        (bytes(&why["total"]), why["total"]["count"].as_u64()),
        (bytes_held, Some(count))
    );
    let stored = folder.path().join("first.json");
    let stored = stored.to_str().expect("a path in UTF-8");
    let run = |words: &[&str]| Command::new(culeak()).args(words).output().expect("the CLI starts");
    assert!(run(&["snapshot", &pid, "--why", "-o", stored]).status.success());
    assert_eq!(
        json(&["why", stored, "--json"])["origins"],
        why["origins"],
        "the snapshot has the answer"
    );
    assert_eq!(
        segments(stored),
        2 * 200 * (8 << 20) + (41 << 20),
        "what the allocator has from the driver"
    );
    let text = String::from_utf8(run(&["report", &pid]).stdout).expect("text");
    assert!(text.contains("was not recorded"), "{text}");
    // What was freed, and what lies outside the allocator, is not known.
    for input in [&*pid, stored] {
        let check = run(&["check", input, "--allow", "1TiB", "--allow-losses"]);
        let said = String::from_utf8_lossy(&check.stderr).into_owned() + &String::from_utf8_lossy(&check.stdout);
        assert_eq!(check.status.code(), Some(2), "{said}");
        assert!(said.contains("was not recorded"), "{said}");
    }
    drop(child.stdin.take());
    child.wait().expect("ended");
}

/// The bytes of segments in a snapshot.
fn segments(file: &str) -> u64 {
    let snapshot: Value = serde_json::from_str(&std::fs::read_to_string(file).expect("read")).expect("JSON");
    let counters = snapshot["counters"].as_array().expect("a list").iter();
    let of_segments = counters.filter(|counter| counter["kind"] == "device");
    of_segments
        .map(|counter| counter["live_bytes"].as_u64().expect("bytes"))
        .sum()
}

#[test]
fn segments_of_a_device_whose_sum_the_allocator_does_not_state_are_left_out() {
    let of_busy_device = 200 * (8 << 20) + (20 << 20);
    for (options, expected, is_mentioned) in [
        (&["-DWRONG_SUM=1"][..], of_busy_device, true),
        (&["-DIDLE"], of_busy_device + (21 << 20), false),
        (&["-DIDLE", "-DWRONG_SUM=0"], 21 << 20, true),
    ] {
        let (mut child, folder, _) = unrecorded(options);
        let stored = folder.path().join("first.json");
        let stored = stored.to_str().expect("a path in UTF-8");
        let taken = Command::new(culeak())
            .args(["snapshot", &child.id().to_string(), "--why", "-o", stored])
            .output()
            .expect("the CLI starts");
        let said = String::from_utf8_lossy(&taken.stderr);
        assert!(taken.status.success(), "{said}");
        assert_eq!(segments(stored), expected, "{options:?}");
        assert_eq!(
            said.matches("PyTorch's segments could not all be read").count(),
            usize::from(is_mentioned),
            "{said}"
        );
        drop(child.stdin.take());
        child.wait().expect("ended");
    }
}

#[test]
fn a_process_that_was_never_recorded_is_read_for_no_longer_than_the_limit() {
    let (child, ..) = unrecorded(&[]);
    let (of_numba, _, _folder) = started(&recorded()[0].command, "unrecorded_numba.py");
    let process = |child: &std::process::Child| Process::new(child.id()).expect("our child");
    let pytorch = pytorch::live_blocks(&process(&child), Deadline::after(Duration::ZERO)).map(|_| ());
    let numba = objects::live_blocks(&process(&of_numba), Deadline::after(Duration::ZERO)).pop();
    for read in [pytorch, numba.expect("numba is loaded").map(|_| ())] {
        assert!(read.is_err_and(|why| why.contains("--limit TIME")));
    }
    for mut child in [child, of_numba] {
        drop(child.stdin.take());
        child.wait().expect("ended");
    }
}

#[test]
fn lists_without_an_end_cost_bounded_time_and_memory() {
    for (list, code) in [("-DHOSTILE=1", 0), ("-DHOSTILE=2", 0), ("-DHOSTILE=3", 2)] {
        let (mut child, ..) = unrecorded(&[list]);
        // A reader that follows them to the end needs all of it, or does not end.
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 4000000; exec \"$0\" report \"$1\""])
            .arg(culeak())
            .arg(child.id().to_string())
            .output()
            .expect("the CLI starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{list}: {said}");
        let reason = [
            "PyTorch's segments could not all be read",
            "layout that is not understood",
        ][usize::from(code > 0)];
        assert!(said.contains(reason), "{list}: {said}");
        drop(child.stdin.take());
        child.wait().expect("ended");
    }
}

#[test]
#[ignore = "needs ptrace"]
fn a_stopped_process_that_was_never_recorded_is_stopped_for_no_longer_than_the_limit() {
    let (mut child, _, _folder) = started(&recorded()[0].command, "unrecorded_numba.py");
    // The copy alone takes longer.
    let output = Command::new(culeak())
        .args(["why", &child.id().to_string(), "--pause", "--limit", "1ms"])
        .output()
        .expect("the CLI starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--limit TIME"), "{said}");
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
fn storages_of_tensors_are_found_by_their_class_where_pytorchs_allocator_is_not_understood() {
    let nvml = library("nvml", "libnvidia-ml.so.1", &[], &[]);
    for (allocator, reason) in [
        (
            "-DOTHER_BACKEND",
            "has a layout that is not understood (libc10_cuda.so: another backend than the native one, or an unknown version)",
        ),
        (
            "-DUNCACHED",
            "has given out no block, as with PYTORCH_NO_CUDA_MEMORY_CACHING=1",
        ),
    ] {
        let (mut child, folder, [count, bytes_held]) = unrecorded(&[allocator, "-DSTORAGES"]);
        let asked = folder.path().join("asked");
        let pid = child.id().to_string();
        let why = json(&["why", &pid, "--json"]);
        assert_eq!(
            (bytes(&why["total"]), why["total"]["count"].as_u64()),
            (bytes_held, Some(count))
        );
        assert!(why["origins"].to_string().contains("kept"), "{why}");
        let output = Command::new(culeak())
            .args(["why", &pid])
            .env("LD_LIBRARY_PATH", nvml.parent().expect("a folder"))
            .env("NVML_PID", &pid)
            .env("NVML_OWN", (520u64 << 20).to_string())
            .env("NVML_ASKED", &asked)
            .output();
        let said = String::from_utf8(output.expect("the CLI starts").stderr).expect("text");
        let found = format!(
            "{reason}; the storages of its tensors were found by their class instead, without segments and what the allocator has \
             cached; found: {} of 520 MiB that NVML counts for the process\n",
            culeak::analysis::words::bytes(bytes_held)
        );
        assert_eq!(said.matches(&found).count(), 1, "{found}: {said}");
        // The process is read before the search and after it.
        let asked = std::fs::read_to_string(asked).expect("NVML was asked");
        assert!(asked.lines().count() >= 2, "{asked}");
        drop(child.stdin.take());
        child.wait().expect("ended");
    }
}

#[test]
fn objects_of_a_library_that_are_not_understood_are_counted() {
    let (mut child, _, _folder) = started(&recorded()[0].command, "unrecorded_numba.py");
    let output = Command::new(culeak())
        .args(["report", &child.id().to_string()])
        .output()
        .expect("the CLI starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("1 of 64 objects of numba's memory are not understood"),
        "{said}"
    );
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
fn a_process_without_pytorchs_own_allocator_is_refused_with_a_reason() {
    let (mut child, ..) = unrecorded(&["-DOTHER_BACKEND"]);
    for (pid, reason) in [
        (child.id(), "layout that is not understood"),
        (std::process::id(), "it uses none of them"),
    ] {
        let output = Command::new(culeak())
            .args(["why", &pid.to_string()])
            .output()
            .expect("the CLI starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("has no recording") && said.contains(reason), "{said}");
    }
    drop(child.stdin.take());
    child.wait().expect("ended");
}
