//! `culeak run --why`: a process waits until its memory is copied, at its end and when memory runs out, and goes on whatever
//! happens to culeak.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};
use serde_json::Value;
use tempfile::TempDir;

use crate::interpreters::{Python, recorded};
use crate::support::process;
use crate::support::profile::{fake_driver_folder, folder};
use crate::support::{Lookup, culeak, profile, sources, victim};

mod waiting;

/// Longer than any test runs: a process that waits so long does not go on by itself.
const FOR_EVER: &str = "1h";

/// Recorded by `run`, or by `check` if it has a rule.
pub fn run(options: &[&str], folder: &Path, program: &[&str]) -> Command {
    let mut command = Command::new(culeak());
    let judges = options.contains(&"--fail-on");
    command
        .args([if judges { "check" } else { "run" }, "--why", "-o"])
        .arg(folder)
        .args(options)
        .args(
            (!options.contains(&"--why-limit"))
                .then_some(["--why-limit", FOR_EVER])
                .into_iter()
                .flatten(),
        )
        .arg("--")
        .args(program)
        .env_remove("LD_PRELOAD")
        .env("CULEAK_CACHE_DIR", "")
        .env("LD_LIBRARY_PATH", fake_driver_folder());
    command
}

fn python<'p>(python: &'p Python, script: &'p str, case: &'p str) -> [&'p str; 4] {
    [python.command.to_str().expect("text"), "-B", script, case]
}

fn script() -> String {
    sources().join("victims/why.py").display().to_string()
}

fn native() -> String {
    victim("why", Lookup::Linked).display().to_string()
}

/// What a run left, and printed on stderr.
struct Done {
    folder: TempDir,
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn done(options: &[&str], program: &[&str]) -> Done {
    done_with(options, program, |_| {})
}

fn done_with(options: &[&str], program: &[&str], change: impl FnOnce(&mut Command)) -> Done {
    let folder = folder();
    let mut command = run(options, folder.path(), program);
    // Whatever the tests were started by.
    on_interrupt(&mut command, SigHandler::SigDfl);
    change(&mut command);
    let ended = process::run(&mut command);
    Done {
        folder,
        code: ended.status.code(),
        stdout: String::from_utf8_lossy(&ended.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
    }
}

impl Done {
    fn files(&self, ending: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path()).expect("the folder").flatten();
        let paths = entries.map(|entry| entry.path());
        let mut paths: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
        paths.sort();
        paths
    }

    /// What `culeak why` says of the only recording.
    fn why(&self, options: &[&str]) -> String {
        let mut command = Command::new(culeak());
        command.arg("why").args(self.files(".culeak")).args(options);
        let output = command.env("CULEAK_CACHE_DIR", "").output().expect("culeak runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The classes by the size of the blocks, of each process.
    fn classes(&self) -> Vec<BTreeMap<u64, String>> {
        self.files(".culeak-why").iter().map(|path| classes(path)).collect()
    }

    /// Whether the answer says that the process did not run while its memory was copied.
    fn stood(&self) -> bool {
        let search = &sidecar(&self.files(".culeak-why")[0])["holders"]["search"];
        search["paused_ns"].as_u64() > Some(0)
    }

    #[track_caller]
    fn expect(&self, expected: &[(u64, &str)], what: &str) {
        assert_eq!(self.classes(), [these(expected)], "{what}: {}", self.stderr);
    }
}

fn sidecar(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON")
}

fn classes(path: &Path) -> BTreeMap<u64, String> {
    let holders = &sidecar(path)["holders"];
    let class = |block: &Value| {
        let path = block["path"].as_u64().expect("an index") as usize;
        holders["paths"][path]["class"].as_str().expect("a class").to_owned()
    };
    let blocks = holders["blocks"].as_array().expect("blocks").iter();
    blocks
        .map(|block| (block["bytes"].as_u64().expect("bytes"), class(block)))
        .collect()
}

fn these(expected: &[(u64, &str)]) -> BTreeMap<u64, String> {
    expected
        .iter()
        .map(|&(bytes, class)| (bytes, class.to_owned()))
        .collect()
}

const ALL: [(u64, &str); 3] = [(1000, "held"), (2000, "cycle"), (3000, "lost")];

#[test]
fn a_script_is_searched_before_its_interpreter_collects_cycles() {
    for interpreter in recorded() {
        let done = done(&[], &python(interpreter, &script(), "all"));
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.expect(&ALL, &interpreter.version);
        assert!(
            done.stderr.contains("__main__.keep"),
            "the report shows the holder: {}",
            done.stderr
        );
        assert!(done.stood(), "{}", done.stderr);
    }
}

#[test]
fn the_layers_of_a_model_are_below_the_line_that_made_it() {
    for interpreter in recorded() {
        let done = done(&[], &python(interpreter, &script(), "model"));
        let lines: Vec<&str> = done.stderr.lines().map(str::trim).collect();
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        for text in [
            "11.7 KiB  in 3 blocks  __main__.keep[1] (Module)",
            "11.7 KiB  in 3 blocks    layers.*.linear (3 × Module)",
            "1000 B  in 1 block   (no module)",
        ] {
            assert!(has(text), "{}: {text} is not in\n{}", interpreter.version, done.stderr);
        }
        let recording = &done.files(".culeak")[0];
        let mut report = Command::new(culeak());
        let report = report.args(["report", "--by", "module"]).arg(recording);
        let report = process::run(report.env("CULEAK_CACHE_DIR", ""));
        let text = String::from_utf8_lossy(&report.stdout);
        assert!(text.contains("__main__.keep[1] (Module)\n"), "{text}");
        assert!(text.contains("layers.*.linear (3 × Module)"), "{text}");
    }
}

/// Its callbacks take the blocks out of what holds them, and then free them.
#[test]
fn what_a_script_frees_in_its_exit_callbacks_has_its_holder() {
    for interpreter in recorded().iter().filter(|interpreter| calls_first(interpreter)) {
        for (how, code) in [("nothing", 0), ("exit", 3), ("raise", 1), ("daemon", 0), ("thread", 0)] {
            let script = script();
            let mut program = python(interpreter, &script, "callbacks").to_vec();
            program.push(how);
            let done = done(&["--no-report"], &program);
            let answer = done.why(&[]);
            let what = format!("{how}, {}: {}{answer}", interpreter.version, done.stderr);
            assert_eq!(done.code, Some(code), "{what}");
            let mut expected = these(&ALL);
            expected.insert(4000, "held".to_owned());
            if how == "thread" {
                expected.insert(5000, "held".to_owned());
            }
            assert_eq!(done.classes(), [expected], "{what}");
            for holder in ["__main__.keep", "finalize._registry"] {
                assert!(answer.contains(holder), "{what}");
            }
        }
    }
}

/// Whether culeak's callback is called before those that a script registers after its last allocation.
fn calls_first(interpreter: &Python) -> bool {
    !interpreter.version.starts_with("3.8.")
}

#[test]
fn the_end_of_a_script_is_seen_without_signal_handlers() {
    for interpreter in recorded() {
        let removed = done(&["--no-report"], &python(interpreter, &script(), "without_handlers"));
        removed.expect(&ALL, &interpreter.version);
        // 3.8 takes no pending calls in exit callbacks.
        let is_registered_there = calls_first(interpreter);
        let cases = ["all", "first_in_callback"];
        for case in &cases[..1 + usize::from(is_registered_there)] {
            let ignored = done_with(&["--no-report"], &python(interpreter, &script(), case), |command| {
                // As for background commands of a shell script.
                on_interrupt(command, SigHandler::SigIgn);
            });
            ignored.expect(&ALL, &format!("{case}, {}", interpreter.version));
        }
    }
}

/// What SIGINT does in the program.
fn on_interrupt(command: &mut Command, handler: SigHandler) {
    // SAFETY: between fork and exec only async-signal-safe functions may run; signal is one, and it installs no handler.
    unsafe { command.pre_exec(move || Ok(signal(Signal::SIGINT, handler).map(drop)?)) };
}

#[test]
fn what_callbacks_free_that_were_registered_before_is_held_too() {
    for interpreter in recorded() {
        let done = done(&["--no-report"], &python(interpreter, &script(), "earlier"));
        done.expect(&ALL, &interpreter.version);
    }
}

#[test]
fn local_variables_of_daemon_threads_hold_memory_at_the_end() {
    for interpreter in recorded() {
        let done = done(&["--no-report"], &python(interpreter, &script(), "daemon_local"));
        done.expect(&ALL, &interpreter.version);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
    }
}

/// The cases in which the callback is registered late, again, or by another thread or process.
#[test]
fn the_end_is_seen_wherever_the_first_allocation_is() {
    for interpreter in recorded() {
        for case in [
            "worker",
            "worker_process",
            "clears_callbacks",
            "first_in_callback",
            "other_interpreter",
            "raises",
        ] {
            let done = done(&["--no-report"], &python(interpreter, &script(), case));
            done.expect(&ALL, &format!("{case}, {}", interpreter.version));
            assert_eq!(done.code, Some(i32::from(case == "raises")), "{case}: {}", done.stderr);
            assert!(!done.stderr.contains("SystemError"), "{case}: {}", done.stderr);
        }
    }
}

#[test]
fn callbacks_that_a_script_calls_itself_are_not_its_end() {
    for interpreter in recorded() {
        let done = done(&["--no-report"], &python(interpreter, &script(), "calls_callbacks"));
        let expected = [(2000, "cycle"), (3000, "lost"), (4000, "held")];
        done.expect(&expected, &interpreter.version);
    }
}

#[test]
fn an_object_that_a_script_has_put_in_the_place_of_atexit_register_is_not_called() {
    for interpreter in recorded() {
        for case in ["replaces_register", "keeps_register_replaced"] {
            let done = done(&["--no-report"], &python(interpreter, &script(), case));
            assert_eq!(done.code, Some(0), "{case}, {}: {}", interpreter.version, done.stderr);
            done.expect(&ALL, &format!("{case}, {}", interpreter.version));
        }
    }
}

#[test]
fn a_search_that_stops_at_its_limit_says_what_it_left_out() {
    let script = script();
    let program = python(&recorded()[0], &script, "all");
    // To read the tables of the interpreter's libraries takes longer, before anything is searched.
    let done = done(&["--no-report", "--why-search-limit", "1ms"], &program);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let files = done.files(".culeak-why");
    let search = &sidecar(&files[0])["holders"]["search"];
    assert_eq!(search["stopped"], "time", "{search}");
    let json: Value = serde_json::from_str(&done.why(&["--json"])).expect("JSON");
    assert_eq!(json["search"]["stopped"], "time");
    // None of the three blocks is called lost.
    assert_eq!(json["not_searched"]["count"], 3, "{json:#}");
    let text = done.why(&[]);
    for part in [
        "or not reached before the search stopped",
        "the search stopped after 1 ms",
        "--why-search-limit TIME",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_process_that_leaves_at_once_is_searched() {
    let interpreter = &recorded()[0];
    let done = done(&["--no-report"], &python(interpreter, &script(), "leave_at_once"));
    assert_eq!(done.code, Some(3), "{}", done.stderr);
    done.expect(&ALL, "os._exit");
    assert_eq!(
        sidecar(&done.files(".culeak-why")[0])["holders"]["search"]["point"],
        "exit"
    );
}

#[test]
#[ignore = "needs ptrace"]
fn threads_that_run_on_do_not_prevent_the_search() {
    let done = done(&["--no-report"], &python(&recorded()[0], &script(), "thread"));
    done.expect(&ALL, "a daemon thread");
    assert!(done.stood(), "{}", done.stderr);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

#[test]
fn processes_that_wait_at_the_same_time_are_all_searched() {
    let done = done(&["--no-report"], &python(&recorded()[0], &script(), "forks"));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(done.classes(), [these(&ALL), these(&ALL)], "{}", done.stderr);
}

#[test]
fn the_snapshot_of_a_request_that_failed_has_holders() {
    let done = done(&["--no-report"], &python(&recorded()[0], &script(), "out_of_memory"));
    let snapshot = done.files(".out-of-memory-1.culeak-why");
    assert_eq!(snapshot.len(), 1, "{}", done.stderr);
    assert_eq!(classes(&snapshot[0]), these(&ALL));
    let at_end = done.files(".culeak-why").into_iter().find(|path| *path != snapshot[0]);
    assert_eq!(
        classes(&at_end.expect("one of the end")),
        these(&ALL[2..]),
        "the script freed the others"
    );
}

#[test]
fn threads_that_change_memory_do_not_prevent_the_search_when_memory_runs_out() {
    let case = "out_of_memory_beside_threads";
    let done = done(&["--no-report"], &python(&recorded()[0], &script(), case));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let snapshot = &done.files(".out-of-memory-1.culeak-why")[0];
    let mut found = classes(snapshot);
    // That of the other threads.
    found.remove(&500);
    let holders = &sidecar(snapshot)["holders"];
    // A thread in the driver may have the address of any block on its stack.
    let blocks = holders["blocks"].as_array().expect("blocks");
    let lost = blocks
        .iter()
        .find(|block| block["bytes"] == 3000)
        .expect("the lost block");
    let path = &holders["paths"][lost["path"].as_u64().expect("an index") as usize];
    if path["root"] == "stack" && path["possibly"] == true {
        found.insert(3000, "lost".to_owned());
    }
    assert_eq!(found, these(&ALL), "{}\n{holders}", done.stderr);
}

#[test]
fn processes_that_run_out_of_memory_at_the_same_time_are_all_searched() {
    let case = "forks_out_of_memory";
    let done = done(&["--no-report"], &python(&recorded()[0], &script(), case));
    let snapshots = done.files(".out-of-memory-1.culeak-why");
    let found: Vec<_> = snapshots.iter().map(|path| classes(path)).collect();
    assert_eq!(found, [these(&ALL), these(&ALL)], "{}", done.stderr);
}

#[test]
fn a_program_that_runs_out_of_memory_often_waits_a_few_times_only() {
    let done = done(&["--no-report"], &python(&recorded()[0], &script(), "retries"));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let searched = done.files(".culeak-why");
    let at_failures = searched
        .iter()
        .filter(|path| path.to_string_lossy().contains(".out-of-memory-"));
    assert_eq!(at_failures.count(), 3, "{searched:?}");
}

/// Memory of native code, when `main` returned.
const NATIVE: [(u64, &str); 3] = [(1000, "held"), (2000, "held"), (3000, "lost")];

#[test]
fn native_code_is_searched_before_its_globals_are_destroyed() {
    let done = done(&[], &[&native(), "returns"]);
    done.expect(&NATIVE, "exit handlers");
    assert_eq!(done.stdout, "done\ndestroyed\n");
    // Only what is left is shown, by what held it at the end.
    let holder = |size: &str| done.stderr.contains(&format!(" {size} held by "));
    assert!(holder("2 KiB") && !holder("1000 B"), "{}", done.stderr);
}

#[test]
fn threads_that_replace_blocks_meanwhile_lose_none() {
    /// Those of the program that replace blocks.
    const THREADS: usize = 2;
    let done = done(&["--no-report"], &[&native(), "replaces"]);
    let holders = &sidecar(&done.files(".culeak-why")[0])["holders"];
    let blocks = holders["blocks"].as_array().expect("blocks");
    // Those that were freed between the end of the script and the copy are left out.
    assert!(blocks.len() >= 32, "{} blocks", blocks.len());
    // A thread that was stopped within a call may have the block of that call nowhere.
    let class = |block: &Value| {
        let path = block["path"].as_u64().expect("an index") as usize;
        holders["paths"][path]["class"].as_str().expect("a class")
    };
    let others = blocks.iter().filter(|block| class(block) != "held");
    assert!(others.clone().count() <= THREADS, "{holders}");
    assert!(others.clone().all(|block| class(block) == "lost"), "{holders}");
}

#[test]
fn native_programs_are_searched_however_they_exit() {
    for case in [
        "leaves_at_once",
        "leaves_by_c99",
        "leaves_quickly",
        "closes_descriptors",
    ] {
        let done = done(&["--no-report"], &[&native(), case]);
        done.expect(&NATIVE, case);
        assert_eq!(done.code, Some(0), "{case}: {}", done.stderr);
    }
}

#[test]
fn a_process_that_has_no_end_is_mentioned() {
    for (case, code) in [("aborts", 134), ("becomes_another", 0)] {
        let done = done(&["--no-report"], &[&native(), case]);
        assert_eq!(done.code, Some(code), "{case}: {}", done.stderr);
        assert!(done.classes().is_empty());
        assert!(
            done.stderr.contains("no process with a recording reached its end"),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn a_process_whose_main_thread_has_ended_is_searched_or_mentioned() {
    let done = done(&["--no-report"], &[&native(), "ends_in_another_thread"]);
    done.expect(&NATIVE, "pthread_exit");
}

#[test]
fn many_children_that_end_at_the_same_time_are_all_searched() {
    let done = done(&["--no-report"], &[&native(), "has_children"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let found = done.classes();
    assert_eq!(found.len(), 12, "{}", done.stderr);
    assert!(found.iter().all(|found| *found == these(&NATIVE)), "{found:?}");
}

#[test]
fn the_stack_of_a_thread_that_begins_to_wait_is_searched() {
    let done = done(&["--no-report"], &[&native(), "children_hold_by_stacks"]);
    let found = done.classes();
    assert_eq!(found.len(), 12, "{}", done.stderr);
    assert!(
        found.iter().all(|found| *found == these(&[(4000, "held")])),
        "{found:?}"
    );
    for path in done.files(".culeak-why") {
        assert_eq!(sidecar(&path)["holders"]["search"].get("limits"), None, "{path:?}");
    }
}

#[test]
fn a_child_of_vfork_that_leaves_does_not_wait_in_its_parents_place() {
    let done = done(&["--no-report"], &[&native(), "vforks"]);
    done.expect(&NATIVE, "vfork");
    assert_eq!(
        sidecar(&done.files(".culeak-why")[0])["holders"]["search"]["point"],
        "end"
    );
}

#[test]
fn errno_is_preserved_while_memory_is_copied() {
    let done = done(&["--no-report"], &[&native(), "runs_out_of_memory"]);
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    assert_eq!(done.files(".out-of-memory-1.culeak-why").len(), 1, "{}", done.stderr);
}

#[test]
fn nothing_waits_without_the_option() {
    let hold = PathBuf::from(env!("CULEAK_HOLD_FILE"));
    let outcome = profile("why")
        .arg("returns")
        .with_preload(crate::support::Preload::AfterCuleak, hold)
        .run();
    outcome.expect_success();
    assert_eq!(outcome.stdout, "done\ndestroyed\n");
}

#[test]
fn holders_of_the_end_are_shown_at_the_end_only() {
    let done = done(&["--no-report", "--timeline"], &[&native(), "returns"]);
    let of = |command: &str, options: &[&str]| {
        let mut culeak = Command::new(culeak());
        culeak
            .arg(command)
            .args(done.files(".culeak"))
            .args(options)
            .env("CULEAK_CACHE_DIR", "");
        let output = culeak.output().expect("culeak runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, text) = of("report", &["--why", "--at", "end"]);
    assert!(code == Some(0) && text.contains("held by local in why"), "{text}");
    let (code, text) = of("check", &["--fail-on", "lost", "--at", "0s"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("no verdict: whether memory is lost is not known"),
        "{text}"
    );
    assert!(text.contains("holders are known of the end only"), "{text}");
    let (code, text) = of("why", &["--pause"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("--pause is about the search of a running process"),
        "{text}"
    );
}

#[test]
fn a_check_can_fail_by_what_holds_memory() {
    let interpreter = &recorded()[0];
    let judge = |case: &str, fail_on: &str| {
        let options = ["--fail-on", fail_on];
        done(&options, &python(interpreter, &script(), case))
    };
    assert_eq!(judge("only_held", "lost,cycle").code, Some(0), "held by a global");
    let lost = judge("all", "lost");
    assert_eq!(lost.code, Some(1), "{}", lost.stderr);
    assert!(
        lost.stderr.contains("lost: 2.9 KiB in 1 block of lose why.py:"),
        "{}",
        lost.stderr
    );
    assert!(!lost.stderr.contains("cycle: "), "{}", lost.stderr);
    let cycle = judge("all", "cycle");
    assert_eq!(cycle.code, Some(1), "{}", cycle.stderr);
    assert!(
        cycle.stderr.contains("uncollected cycle Block.itself"),
        "{}",
        cycle.stderr
    );
    // The recording is judged later by what was found.
    let recording = &lost.files(".culeak")[0];
    let check = |words: &[&str]| {
        Command::new(culeak())
            .arg("check")
            .arg(recording)
            .args(words)
            .output()
            .expect("starts")
    };
    assert_eq!(check(&["--fail-on", "lost"]).status.code(), Some(1));
    assert_eq!(
        check(&["--fail-on", "native-holder,over-counted"]).status.code(),
        Some(0)
    );
    fs::remove_file(recording.with_extension("culeak-why")).expect("it is there");
    let unknown = check(&["--fail-on", "lost"]);
    let text = String::from_utf8_lossy(&unknown.stdout).into_owned();
    assert_eq!(unknown.status.code(), Some(2), "{text}");
    assert!(text.contains("record with culeak run --why"), "{text}");
}
