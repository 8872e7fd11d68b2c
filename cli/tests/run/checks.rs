//! Checks of programs of which a part was not recorded.

use std::ffi::OsStr;

use super::leaks::recordings;
use super::*;

/// Checks a shell script on the fake driver; `$0` is a program that uses CUDA.
fn check_of_script(options: &[&str], script: &str) -> Output {
    check_of_script_with(options, script, &[])
}

fn check_of_script_with(options: &[&str], script: &str, variables: &[(&str, &OsStr)]) -> Output {
    let folder = folder();
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let mut command = culeak(folder.path());
    match options {
        ["run"] => command.args(["run", "-o", "out"]),
        _ => command.args(["check", "-o", "out"]).args(options),
    };
    if !options.contains(&"--allow") && options != ["run"] {
        command.args(["--allow", "1GiB"]);
    }
    command.args(["--", "sh", "-c", script, CULEAK]);
    command.env("LD_LIBRARY_PATH", stdout(&driver).trim());
    command.envs(variables.iter().copied());
    command.output().expect("culeak starts")
}

#[test]
fn a_check_does_not_pass_while_a_process_may_still_begin_to_use_cuda() {
    let folder = folder();
    let words = ["--", "sh", "-c", "sleep 20 >/dev/null 2>&1 & echo $! >pid"];
    let output = check_in(&folder, &words);
    let pid = std::fs::read_to_string(folder.path().join("pid")).expect("written");
    let _ = Command::new("kill").arg(pid.trim()).status();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("1 process of the program still runs and may use CUDA: sleep ("),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(2), "{text}");
}

#[test]
#[ignore = "needs root"]
fn a_check_fails_if_a_process_that_used_cuda_was_not_recorded() {
    let recorded = check_of_script(&[], "$0 demo-program; exit 0");
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    let unrecorded: [(&[&str], &str, &str); 10] = [
        (&[], "exec env -u LD_PRELOAD \"$0\" demo-program", "keep LD_PRELOAD"),
        (&[], "rm -r out; $0 demo-program; exit 0", "could not be created in"),
        // One process has a recording, another has none.
        (
            &[],
            "$0 demo-program; mv out moved; ln -s out out; $0 demo-program; rm out; mv moved out",
            "could not be created in",
        ),
        (&["--only", "other*"], "$0 demo-program; exit 0", "--only"),
        (
            &["--no-follow-children"],
            "$0 demo-program; exit 0",
            "--no-follow-children",
        ),
        (&[], "CULEAK_DISABLE=1 $0 demo-program; exit 0", "CULEAK_DISABLE"),
        (
            &[],
            "$0 demo-program; CULEAK_DISABLE=1 $0 demo-program; exit 0",
            "CULEAK_DISABLE",
        ),
        (&[], "$0 demo-program; rm out/*; exit 0", "removed, moved"),
        (
            &[],
            "$0 demo-program; CULEAK_OUTPUT=$PWD/elsewhere.culeak $0 demo-program; exit 0",
            "is missing from",
        ),
        // It changes its user before its first CUDA call; needs root.
        (
            &[],
            "python3 -c 'import ctypes, os; cuda = ctypes.CDLL(\"libcuda.so.1\"); os.setuid(12345); cuda.cuInit(0)'; exit 0",
            "could not be created in",
        ),
    ];
    for (options, script, reason) in unrecorded {
        let output = check_of_script(options, script);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{script}: {message}");
        assert!(
            message.contains("no verdict") && message.contains(reason),
            "{script}: {message}"
        );
    }
}

/// By what `run` itself is asked for: a recording and its report.
#[test]
fn a_run_ends_with_code_2_if_it_could_not_record_or_report_what_used_cuda() {
    for (script, code) in [
        ("$0 demo-program; exit 0", 0),
        ("exit 0", 0),
        ("CULEAK_DISABLE=1 $0 demo-program; exit 0", 0),
        ("$0 demo-program; rm out/*.culeak; exit 0", 2),
        (
            "$0 demo-program; for of in out/*.culeak; do truncate -s 5000 $of; done; exit 0",
            2,
        ),
        ("$0 demo-program; rm out/*.culeak; exit 3", 3),
    ] {
        let output = check_of_script(&["run"], script);
        assert_eq!(output.status.code(), Some(code), "{script}: {}", stderr(&output));
    }
    let folder = folder();
    std::fs::write(folder.path().join("static.c"), "int main(void) { return 0; }").expect("written");
    let compiler = ["-static", "-o", "static", "static.c"];
    let compiled = Command::new("cc").args(compiler).current_dir(folder.path()).status();
    assert!(compiled.expect("cc starts").success());
    let output = run_in(&folder, &["./static"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn a_check_does_not_pass_if_a_process_was_recorded_elsewhere() {
    let cleared = "env -i LD_PRELOAD=\"$LD_PRELOAD\" LD_LIBRARY_PATH=\"$LD_LIBRARY_PATH\" $0 demo-program; exit 0";
    let nested = "$0 run --no-report -o inner -- $0 demo-program; exit 0";
    for elsewhere in [cleared, nested] {
        let beside = format!("$0 demo-program; {elsewhere}");
        for script in [elsewhere, &beside] {
            let output = check_of_script(&[], script);
            let message = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{script}: {message}");
            assert!(
                message.contains("1 recording of this run is missing") && message.contains("clears its environment"),
                "{script}: {message}"
            );
        }
        let accepted = check_of_script(&["--allow-losses"], &beside);
        assert_eq!(accepted.status.code(), Some(0), "{}", stderr(&accepted));
        // A leak that was seen fails in any case.
        let failed = check_of_script(&["--allow", "count=0"], &beside);
        assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    }
}

/// What a run did not record is known to a later check of its folder.
#[test]
fn a_check_of_a_folder_knows_what_its_run_did_not_record() {
    let folder = folder();
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let fifo = folder.path().join("fifo");
    let run = |script: &str| {
        let mut command = culeak(folder.path());
        command.args(["run", "--no-report", "-o", "out", "--", "sh", "-c", script, CULEAK]);
        command
            .env("LD_LIBRARY_PATH", stdout(&driver).trim())
            .env("FIFO", &fifo);
        command.output().expect("culeak starts")
    };
    let check = |input: &str| {
        let output = culeak(folder.path())
            .args(["check", input, "--allow", "1GiB"])
            .output()
            .expect("culeak starts");
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let note = || {
        let entries = fs::read_dir(folder.path().join("out")).expect("a folder");
        let mut names = entries.map(|entry| entry.expect("an entry").path());
        names.find(|path| path.extension().is_some_and(|ending| ending == "culeak-incomplete"))
    };
    run("$0 demo-program; exit 0");
    assert_eq!((note(), check("out").0), (None, Some(0)));
    for (script, reason) in [
        (
            "$0 demo-program; CULEAK_DISABLE=1 $0 demo-program; exit 0",
            "CULEAK_DISABLE",
        ),
        (
            "mkfifo \"$FIFO\"; cat \"$FIFO\" >/dev/null 2>&1 & $0 demo-program; exit 0",
            "cat (",
        ),
        ("$0 demo-program; exit 3", "the program failed with exit code 3"),
    ] {
        let said = stderr(&run(script));
        let is_said = said.contains(reason) && said.contains("have no verdict until you remove the file");
        assert!(is_said, "{script}: {said}");
        let links = folder.path().join("links");
        fs::create_dir_all(&links).expect("a folder");
        for entry in fs::read_dir(folder.path().join("out")).expect("a folder") {
            let path = entry.expect("an entry").path();
            let link = links.join(path.file_name().expect("a name"));
            if path.extension().is_some_and(|ending| ending == "culeak") && !link.exists() {
                std::os::unix::fs::symlink(&path, &link).expect("a link");
            }
        }
        for input in ["out", "out/*.culeak", "links/*.culeak"] {
            let (code, text) = check(input);
            assert_eq!(code, Some(2), "{script}: {text}");
            assert!(text.contains("no verdict") && text.contains(reason), "{script}: {text}");
        }
        fs::remove_file(note().expect("a note")).expect("removed");
        assert_eq!(check("out").0, Some(0));
    }
    fs::write(&fifo, "end").expect("written");
}

/// While a run lasts, more processes may follow. Files that are named instead of their folder are no other job.
#[test]
fn a_run_that_has_not_ended_is_known_to_a_check_of_its_files() {
    let folder = folder();
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let script = "$0 demo-program; $0 demo-program; $0 check out --allow 1GiB >during 2>&1; exit 0";
    let mut command = culeak(folder.path());
    command.args(["run", "--no-report", "-o", "out", "--", "sh", "-c", script, CULEAK]);
    command.env("LD_LIBRARY_PATH", stdout(&driver).trim());
    command.output().expect("culeak starts");
    let during = fs::read_to_string(folder.path().join("during")).expect("a verdict");
    assert!(
        during.contains("no verdict") && during.contains("its run has not ended"),
        "{during}"
    );
    let out = folder.path().join("out");
    let recordings = || {
        let names = fs::read_dir(&out)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path());
        let is_recording = |path: &std::path::PathBuf| path.extension().is_some_and(|ending| ending == "culeak");
        names.filter(is_recording).collect::<Vec<_>>()
    };
    let files = recordings();
    let check = |inputs: &[&std::path::PathBuf]| {
        let mut command = culeak(folder.path());
        let output = command.args(["check", "--allow", "1GiB"]).args(inputs).output();
        output.expect("culeak starts").status.code()
    };
    let all: Vec<_> = files.iter().collect();
    assert_eq!((files.len(), check(&all)), (2, Some(0)));
    let name = files[0].file_name().expect("a name").to_string_lossy().into_owned();
    let tag = name.split('.').nth(1).expect("a tag");
    let note = out.join(format!("{tag}.culeak-incomplete"));
    // As a full disk leaves it.
    fs::write(&note, "").expect("written");
    assert_eq!(check(&all), Some(2));
    assert_eq!(check(&all[..1]), Some(0), "one file speaks of its process alone");
}

/// Two of the three ranks that the launcher started on this machine are recorded.
#[test]
fn a_check_of_a_program_does_not_pass_without_each_of_its_ranks() {
    let rank = |rank: u32, besides: &str| {
        format!("RANK={rank} WORLD_SIZE=16 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=3 {besides} $0 demo-program;")
    };
    let script = rank(0, "") + &rank(1, "LD_PRELOAD=") + &rank(2, "") + "exit 0";
    let output = check_of_script(&[], &script);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("local rank 1 of 3 has no recording here"), "{message}");
    let all = rank(0, "") + &rank(1, "") + &rank(2, "") + "exit 0";
    let output = check_of_script(&[], &all);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // A rank that judges itself.
    let own = [
        ("RANK", "0"),
        ("WORLD_SIZE", "3"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "3"),
    ];
    let own = own.map(|(name, value)| (name, OsStr::new(value)));
    let output = check_of_script_with(&[], "$0 demo-program; exit 0", &own);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Its program starts ranks of its own.
    let output = check_of_script_with(&[], &script, &[("SLURM_PROCID", OsStr::new("0"))]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// The documents say what the exit code says.
#[test]
fn a_verdict_that_lacks_a_process_is_none_in_every_format() {
    let held = folder();
    let script = "$0 demo-program; CULEAK_DISABLE=1 $0 demo-program; exit 0";
    for (format, passed, lacking) in [
        ("json", "\"passed\": true", "raised privileges"),
        ("junit", "errors=\"0\"", "raised privileges"),
        ("sarif", "\"results\": []", "raised privileges"),
        ("markdown", "passed", "raised privileges"),
    ] {
        let file = held.path().join(format);
        let options = ["--format", format, "--verdict-file", file.to_str().expect("a path")];
        let output = check_of_script(&options, script);
        assert_eq!(output.status.code(), Some(2), "{format}: {}", stderr(&output));
        let text = fs::read_to_string(&file).expect("a verdict");
        assert!(!text.contains(passed) && text.contains(lacking), "{format}: {text}");
    }
}

#[test]
fn a_check_does_not_pass_if_a_process_outlives_the_program() {
    // The process ends when the test closes the other end of the FIFO.
    let script = "mkfifo \"$FIFO\"; cat \"$FIFO\" >/dev/null 2>&1 & $0 demo-program; exit 0";
    let outliving = |options: &[&str]| {
        let held = folder();
        let fifo = held.path().join("fifo");
        let output = check_of_script_with(options, script, &[("FIFO", fifo.as_os_str())]);
        fs::write(&fifo, "end").expect("written");
        output
    };
    let output = outliving(&[]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("1 process of the program still runs and may use CUDA: cat ("),
        "{message}"
    );
    for accepted in [
        &["--allow-losses"][..],
        &["--at", "exit"],
        &["--no-follow-children"],
        &["--only", "culeak"],
    ] {
        let output = outliving(accepted);
        let message = stderr(&output);
        assert!(
            output.status.code() == Some(0) || accepted == ["--no-follow-children"],
            "{accepted:?}: {message}"
        );
        assert!(
            accepted == ["--allow-losses"] || !message.contains("still runs and"),
            "{accepted:?}: {message}"
        );
    }
}

/// No verdict, for this reason; with `--allow-losses`, beside a recording, the rest is judged.
#[track_caller]
fn expect_no_verdict(script: &str, reason: &str) {
    let output = check_of_script(&[], script);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{script}: {message}");
    assert!(
        message.contains("no verdict") && message.contains(reason),
        "{script}: {message}"
    );
    let accepted = check_of_script(&["--allow-losses"], &format!("$0 demo-program; {script}"));
    assert_eq!(accepted.status.code(), Some(0), "{script}: {}", stderr(&accepted));
}

#[test]
fn a_check_does_not_pass_if_a_run_within_the_program_excludes_processes() {
    let excluded = "--only or --no-follow-children excludes";
    expect_no_verdict("$0 run --only x --no-report -q -- $0 demo-program; exit 0", excluded);
    expect_no_verdict(
        "$0 run --no-follow-children --no-report -q -- sh -c \"$0 demo-program; exit 0\"",
        excluded,
    );
    let disabled = "$0 run --no-report -q -- sh -c \"CULEAK_DISABLE=1 $0 demo-program; exit 0\"";
    expect_no_verdict(disabled, "CULEAK_DISABLE");
}

#[test]
fn a_check_does_not_pass_if_a_child_without_the_variable_of_the_run_is_excluded() {
    for cleared in ["env -u CULEAK_RUN", "env CULEAK_RUN="] {
        expect_no_verdict(
            &format!("{cleared} CULEAK_DISABLE=1 $0 demo-program; exit 0"),
            "CULEAK_DISABLE",
        );
        expect_no_verdict(&format!("{cleared} CULEAK_ONLY=x $0 demo-program; exit 0"), "excludes");
        expect_no_verdict(
            &format!("{cleared} CULEAK_OUTPUT=$PWD/elsewhere $0 demo-program; exit 0"),
            "is missing",
        );
    }
}

/// Libc's own `dlsym` finds the driver's own functions.
#[test]
fn a_check_does_not_pass_if_calls_went_past_the_library() {
    let script = |call: &str| {
        format!(
            "python3 -c 'import ctypes as c\nlibc, cuda = c.CDLL(\"libc.so.6\"), c.CDLL(\"libcuda.so.1\")\n\
             find = libc.dlsym\nfind.restype, find.argtypes = c.c_void_p, [c.c_void_p, c.c_char_p]\n\
             init = c.CFUNCTYPE(c.c_int, c.c_uint)(find(cuda._handle, b\"cuInit\"))\n{call}'; exit 0"
        )
    };
    expect_no_verdict(&script("assert init(0) == 0"), "past the preload library");
    // Another copy of the driver, alone and beside the recorded one.
    let elsewhere = "open = libc.dlmopen\nopen.restype, open.argtypes = c.c_void_p, [c.c_long, c.c_char_p, c.c_int]\n\
                     other = c.CFUNCTYPE(c.c_int, c.c_uint)(find(open(-1, b\"libcuda.so.1\", 2), b\"cuInit\"))\n";
    for uses in ["assert other(0) == 0", "assert cuda.cuInit(0) == 0 == other(0)"] {
        expect_no_verdict(&script(&format!("{elsewhere}{uses}")), "past the preload library");
    }
    // The driver is loaded and not used.
    for loads in ["", elsewhere] {
        let output = check_of_script(&[], &script(loads));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn a_check_does_not_pass_if_a_recording_was_replaced_by_an_earlier_copy() {
    let script = |copies: &str| {
        format!(
            "python3 -c 'import ctypes, os\nctypes.CDLL(\"libcuda.so.1\").cuInit(0)\n\
             assert os.system(\"for i in out/*.culeak; do {copies}; done\") == 0'"
        )
    };
    expect_no_verdict(
        &script("cp $i other; mv other $i"),
        "a copy, made before the process ended",
    );
    let output = check_of_script(&[], &script("cp $i other"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// As multiprocessing's workers end.
#[test]
fn copies_of_a_process_without_exit_handlers_are_judged_if_its_run_saw_the_end() {
    let folder = folder();
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let script =
        "import ctypes, os\nctypes.CDLL(\"libcuda.so.1\").cuInit(0)\nos.system(\"cp -r out early\")\nos._exit(0)";
    let mut command = culeak(folder.path());
    command.args(["run", "--no-report", "-o", "out", "--", "python3", "-c", script]);
    command.env("LD_LIBRARY_PATH", stdout(&driver).trim());
    let ran = command.output().expect("culeak starts");
    assert_eq!(
        (ran.status.code(), recordings(&folder.path().join("out"))),
        (Some(0), 1)
    );
    let copied = std::process::Command::new("cp")
        .args(["-r", "out", "copy"])
        .current_dir(folder.path())
        .status();
    assert!(copied.expect("cp starts").success());
    for (copy, code, says) in [("copy", 0, "passed"), ("early", 2, "its run has not ended")] {
        let output = culeak(folder.path())
            .args(["check", copy])
            .output()
            .expect("culeak starts");
        let text = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{copy}: {text}");
        assert!(text.contains(says), "{copy}: {text}");
    }
}

#[test]
fn the_holders_of_objects_are_named_beside_their_call_site() {
    let folder = folder();
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let program = "import ctypes\nfrom ctypes import byref\n\ncuda = ctypes.CDLL(\"libcuda.so.1\")\n\
                   context, block = ctypes.c_void_p(), ctypes.c_uint64()\n\
                   assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0\n\
                   assert cuda.cuMemAlloc_v2(byref(block), ctypes.c_size_t(1 << 20)) == 0\n\
                   streams = {number: ctypes.c_void_p() for number in range(40)}\n\
                   for stream in streams.values():\n    assert cuda.cuStreamCreate(byref(stream), 0) == 0\n";
    fs::write(folder.path().join("serve.py"), program).expect("written");
    let mut command = culeak(folder.path());
    command.args(["run", "--why", "--no-report", "-o", "out", "--", "python3", "serve.py"]);
    command.env("LD_LIBRARY_PATH", stdout(&driver).trim());
    let ran = command.output().expect("culeak starts");
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    let report = |options: &[&str]| {
        let output = culeak(folder.path()).args(["report", "out"]).args(options).output();
        stdout(&output.expect("culeak starts"))
    };
    let text = report(&["--view", "objects"]);
    assert!(
        text.contains("40 stream ") && text.contains("held by __main__.streams"),
        "{text}"
    );
    // They are no memory.
    let why = culeak(folder.path())
        .args(["why", "out"])
        .output()
        .expect("culeak starts");
    let text = stdout(&why);
    assert!(
        text.contains("1 MiB at 1 call site") && text.contains("held by __main__.streams"),
        "{text}"
    );
}

/// It maps the recording of the process that forked it, which is not its own.
#[test]
fn a_forked_process_outlives_the_program_although_that_was_recorded() {
    for later in ["open(fifo).read()", "os.execvp(\"cat\", [\"cat\", fifo])"] {
        let script = format!(
            "exec python3 -c 'import ctypes, os\nfifo = os.environ[\"FIFO\"]\nos.mkfifo(fifo)\n\
             ctypes.CDLL(\"libcuda.so.1\").cuInit(0)\n\
             if os.fork() == 0:\n null = os.open(os.devnull, os.O_RDWR)\n for of in range(3): os.dup2(null, of)\n {later}\n'"
        );
        let held = folder();
        let fifo = held.path().join("fifo");
        let output = check_of_script_with(&[], &script, &[("FIFO", fifo.as_os_str())]);
        fs::write(&fifo, "end").expect("written");
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("1 process of the program still runs"), "{message}");
    }
}

#[test]
fn a_check_fails_if_the_library_does_not_load() {
    let folder = folder();
    let mut command = culeak(folder.path());
    // The loader warns that it cannot preload this, and continues without it.
    fs::write(folder.path().join("broken.so"), "no library").expect("written");
    command.env("CULEAK_SHIM", folder.path().join("broken.so"));
    let output = command.args(["check", "--", "true"]).output().expect("culeak starts");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("was not loaded into the program"),
        "{}",
        stderr(&output)
    );
}
