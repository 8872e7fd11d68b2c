//! Every installed interpreter (see `support`): the frames of a walk equal those that the interpreter reports.

mod support;

use culeak::reader::python_line;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use support::{Python, recorded};

/// The library that the Python programs call.
fn probe() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("the target folder");
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--package",
                "culeak-cpython",
                "--example",
                "probe",
                "--target-dir",
            ])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the probe was not built");
        target.join("debug/examples/libprobe.so")
    })
}

fn run(python: &Python, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program);
    let mut command = Command::new(&python.command);
    command.arg("-B").arg(program).arg(probe()).args(arguments);
    command
        .env("PYTHONIOENCODING", "utf-8")
        .envs(environment.iter().copied());
    command.output().expect("the interpreter starts")
}

fn can_import(python: &Python, module: &str) -> bool {
    let imported = Command::new(&python.command)
        .args(["-c", &format!("import {module}")])
        .output();
    imported.expect("the interpreter starts").status.success()
}

/// The lines that a program wrote; asserts that it succeeded.
fn lines(python: &Python, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    let output = run(python, program, arguments, environment);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {:?}\n{errors}",
        python.version,
        output.status
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// File, function and line of a frame.
type Place = (Vec<u8>, Vec<u8>, Option<u32>);

/// The parsed output of the probe.
#[derive(Debug, Default)]
struct Walked {
    frames: Vec<Place>,
    /// Code and stamp of each frame.
    identities: Vec<(u64, u64)>,
    line_tables: Vec<Vec<u8>>,
    /// The number of frames before the boundary, its native frame, and that frame's symbol.
    boundaries: Vec<(usize, i64, String)>,
    end: String,
    /// Chains that hold.
    held: u32,
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

fn parse(text: &str) -> Walked {
    let mut walked = Walked::default();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "F" => {
                let number = |place: usize| words[place].parse::<u32>().unwrap();
                let address = |place: usize| u64::from_str_radix(words[place], 16).unwrap();
                let table = bytes(words[8].strip_prefix('+').expect("a line table"));
                let line = python_line(number(5), &table, number(4), number(3));
                walked.frames.push((bytes(words[6]), bytes(words[7]), line));
                walked.identities.push((address(1), address(2)));
                walked.line_tables.push(table);
            }
            "B" => walked
                .boundaries
                .push((walked.frames.len(), words[2].parse().unwrap(), words[3].to_owned())),
            "K" => walked.held = words[1].parse().unwrap(),
            _ => walked.end = words[1].to_owned(),
        }
    }
    walked
}

/// Parses one line that `check` wrote: the case, the frames that Python reports, the output of the probe.
fn case(line: &str) -> (String, Vec<Place>, Walked) {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let expected = value[1].as_array().expect("frames").iter().map(|frame| {
        let text = |place: usize| bytes(frame[place].as_str().unwrap());
        (text(0), text(1), frame[2].as_u64().map(|line| line as u32))
    });
    (
        value[0].as_str().unwrap().to_owned(),
        expected.collect(),
        parse(value[2].as_str().unwrap()),
    )
}

fn readable(frames: &[Place]) -> String {
    let one = |(file, function, line): &Place| {
        format!(
            "  {} {}:{line:?}\n",
            String::from_utf8_lossy(function),
            String::from_utf8_lossy(file)
        )
    };
    frames.iter().map(one).collect()
}

#[test]
fn frames_are_those_that_python_reports() {
    for python in recorded() {
        let lines = lines(python, "stacks.py", &[], &[]);
        assert!(lines.len() > 130, "{}: only {} stacks", python.version, lines.len());
        // Sub-interpreters need a module of CPython's own tests, which few installations have.
        let ran = lines.iter().any(|line| line.starts_with(r#"["sub-interpreter"#));
        assert_eq!(
            ran,
            can_import(python, "_testcapi"),
            "{}: sub-interpreters",
            python.version
        );
        expect_what_python_reports(python, &lines);
    }
}

/// A greenlet's part of the C stack is copied elsewhere while it is suspended.
#[test]
#[ignore = "needs pip"]
fn frames_of_greenlets_are_those_that_python_reports() {
    let mut tested = 0;
    for python in recorded() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("greenlet-3.{}", python.minor));
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--upgrade",
            "--only-binary=:all:",
            "--target",
        ];
        let installed = Command::new(&python.command)
            .args(pip)
            .arg(&folder)
            .arg("greenlet")
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            println!("{}: greenlet cannot be installed", python.version);
            continue;
        }
        let path = folder.to_str().expect("a path");
        let lines = lines(python, "stacks.py", &[], &[("PYTHONPATH", path)]);
        let greenlets = lines.iter().filter(|line| line.contains("greenlet")).count();
        assert!(greenlets >= 10, "{}: {greenlets} stacks of greenlets", python.version);
        expect_what_python_reports(python, &lines);
        tested += 1;
    }
    assert!(tested > 0, "greenlet could be installed for no interpreter");
}

fn expect_what_python_reports(python: &Python, lines: &[String]) {
    let (mut frames, mut held) = (0, 0);
    for line in lines {
        let (name, mut expected, walked) = case(line);
        let whole = expected.len();
        if name.starts_with("sub-interpreter") && python.minor < 12 {
            // There the thread's own state stays that of the main interpreter, whose frames are reported.
            assert!(
                !walked.frames.is_empty() && walked.end == "Root",
                "{} {name}: {walked:?}",
                python.version
            );
            continue;
        }
        if name.starts_with("more frames") {
            expected.truncate(32);
        }
        assert!(
            walked.frames == expected,
            "{}, {name}: Python reports\n{}and the walk\n{}",
            python.version,
            readable(&expected),
            readable(&walked.frames)
        );
        let end = if whole > expected.len() { "Full" } else { "Root" };
        assert_eq!(walked.end, end, "{} {name}", python.version);
        frames += expected.len();
        held += u32::from(walked.held > 0);
    }
    println!(
        "{}: {} stacks, {frames} frames, {held} known by their chain",
        python.version,
        lines.len()
    );
    assert!((held > 100) == (python.minor >= 12), "{}", python.version);
}

/// Each boundary lies in a different native frame, ordered from the inside out; if that frame has a symbol, it is the
/// interpreter's evaluation loop.
#[test]
fn boundaries_lie_in_native_frames_of_the_interpreter() {
    for python in recorded() {
        let (mut boundaries, mut named, mut unplaced) = (0, 0, 0);
        for line in lines(python, "stacks.py", &[], &[]) {
            let (name, _, walked) = case(&line);
            if name.contains("greenlet") || name.starts_with("sub-interpreter") {
                continue;
            }
            let mut before = -1;
            for (_, place, symbol) in &walked.boundaries {
                boundaries += 1;
                if *place < 0 {
                    unplaced += 1;
                    continue;
                }
                assert!(*place > before, "{}, {name}: {:?}", python.version, walked.boundaries);
                before = *place;
                named += u32::from(symbol.starts_with("_PyEval_EvalFrame"));
            }
            let closed = walked.boundaries.last().map_or(0, |boundary| boundary.0);
            assert!(
                closed == walked.frames.len() || walked.end == "Full",
                "{} {name}: {walked:?}",
                python.version
            );
        }
        println!(
            "{}: {boundaries} boundaries, {named} in the evaluation loop by its symbol, {unplaced} in no native frame",
            python.version
        );
        assert!(
            boundaries > 250 && unplaced == 0,
            "{}: {boundaries} boundaries, {unplaced} in no native frame",
            python.version
        );
        assert!(
            named == boundaries || python.minor >= 14,
            "{}: {named} of {boundaries}",
            python.version
        );
    }
}

/// 4,000 functions are created, called and dropped: their code objects reuse each other's addresses. Then 1,000 texts whose
/// code has the same names.
#[test]
fn a_code_object_at_the_address_of_another_is_distinguished() {
    for python in recorded() {
        let mut known: HashMap<(u64, u64), [Vec<u8>; 3]> = HashMap::new();
        let mut at: HashMap<u64, Vec<u8>> = HashMap::new();
        let (mut reused, mut wrong, mut functions) = (0, 0, 0);
        for line in lines(python, "generated.py", &["4000"], &[]) {
            let walked = parse(&line.replace(';', "\n"));
            functions += 1;
            let frames = walked.frames.into_iter().zip(walked.line_tables);
            for (((file, function, _), table), identity) in frames.zip(walked.identities) {
                let before = at.insert(identity.0, function.clone());
                reused += u32::from(before.is_some_and(|before| before != function));
                let described = [file, function, table];
                let first = known.entry(identity).or_insert_with(|| described.clone());
                wrong += u32::from(*first != described);
            }
        }
        println!(
            "{}: {functions} functions, {reused} at the address of another, {wrong} mistaken for it",
            python.version
        );
        assert_eq!((functions, wrong), (5_000, 0), "{}", python.version);
        assert!(
            reused > 1_000,
            "{}: only {reused} addresses were reused, so nothing was tested",
            python.version
        );
    }
}

/// Freed memory is overwritten, so that a read after free is noticed.
const OVERWRITTEN: [(&str, &str); 1] = [("MALLOC_PERTURB_", "85")];
/// Every object has its own pages, which are unmapped when it is freed.
const UNMAPPED: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "0"), ("MALLOC_MMAP_MAX_", "10000000")];

/// Daemon threads that walk without pause while the interpreter frees their frames under them.
fn interpreters_end(times: u32, environment: &[(&str, &str)]) {
    for python in recorded() {
        let environment: Vec<_> = environment.iter().copied().chain([python.frees_at_once()]).collect();
        for time in 0..2 * times {
            let announced = ["announced"];
            let arguments = &announced[..(time % 2) as usize];
            let output = run(python, "daemons.py", arguments, &environment);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{}: {:?}\n{errors}",
                python.version,
                output.status
            );
            let frames: u64 = String::from_utf8_lossy(&output.stdout)
                .trim()
                .parse()
                .expect("a number of frames");
            assert!(frames > 0, "{}: no frames were reported", python.version);
        }
    }
}

#[test]
fn threads_that_outlive_the_interpreter_are_safe() {
    interpreters_end(2, &OVERWRITTEN);
}

#[test]
fn threads_that_outlive_the_interpreter_are_safe_where_freed_memory_is_unmapped() {
    interpreters_end(1, &UNMAPPED);
}

#[test]
#[ignore = "needs minutes"]
fn threads_that_outlive_the_interpreter_are_safe_a_hundred_times() {
    interpreters_end(50, &OVERWRITTEN);
    interpreters_end(50, &UNMAPPED);
}
