//! `culeak demo`: a tour on a program with known leaks, and a test of this installation.
//!
//! Every command line shown is executed as shown, in a separate folder, and can be typed again. At the end the recording is
//! compared with what the program planted: exactly these leaks, in the functions that made them, or the demo fails.
//! Deliberately absent: prepared output.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::{env, fs};

use clap::Args;
use culeak::snapshot::Snapshot;
use culeak::variables;

use crate::errors::Failure;
use crate::launch::shim;
use crate::text::parts::{BAD, BOLD, DIM, GOOD, Styled};
use crate::text::{self, units};
use crate::{load, probe};
use culeak_driver::Findings;
use culeak_driver::demo_program::{Planted, ROUND_DONE};

/// Record, report, diff and check a small program with known leaks
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 the recording contains exactly the known leaks, 1 it does not, or a step failed.

Examples:
  culeak demo
  culeak demo --fake -o tour            keep the recording and the snapshots")]
pub struct DemoArgs {
    /// Use the built-in fake driver even if there is a GPU
    #[arg(long)]
    pub fake: bool,

    /// Keep the recording and the snapshots in this folder
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

pub fn execute(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let stage = Stage::set(args)?;
    say(format_args!(
        "{}",
        Styled(BOLD, "culeak demo: a program that leaks GPU memory")
    ));
    say(format_args!("It runs on {}.", stage.driver.description()));

    stage.heading("Record the program, and take a snapshot while it runs");
    let (planted, recording) = stage.record()?;

    stage.heading("What it leaked, and where");
    stage.run(&["report", &recording], 0)?;

    stage.heading("What the second round leaked");
    stage.run(&["diff", &stage.before, &recording], 0)?;

    stage.heading("A verdict for CI: no leak allowed (exit code 1), then 64 MiB allowed (exit code 0)");
    stage.run(&["check", &recording], 1)?;
    stage.run(&["check", &recording, "--max-leaked", "64MiB"], 0)?;

    stage.heading("Is the report correct?");
    stage.run(&["snapshot", &recording, "-o", &stage.after], 0)?;
    let after = load::one(stage.folder.join(&stage.after))?;
    let truth = compare(&planted, &after.snapshot);
    match &truth {
        Ok(result) => say(format_args!("{} {result}", Styled(GOOD, "yes:"))),
        Err(wrong) => say(format_args!("{} {wrong}", Styled(BAD, "no:"))),
    }
    stage.farewell();
    Ok(ExitCode::from(u8::from(truth.is_err())))
}

/// The setting of the demo: a folder for its files, and a driver.
struct Stage {
    folder: PathBuf,
    /// Removed with its content when the demo ends.
    temporary: Option<tempfile::TempDir>,
    program: PathBuf,
    driver: Driver,
    /// Names of the snapshots, which differ from those of earlier demos in the folder.
    before: String,
    after: String,
    /// Files that existed before.
    earlier: Vec<String>,
}

enum Driver {
    Real(Findings),
    Fake { folder: PathBuf, why: String },
}

impl Driver {
    fn choose(fake: bool) -> Result<Driver, Failure> {
        let why = match probe::driver(None) {
            _ if fake => "as requested".to_owned(),
            Ok(findings) if !findings.devices.is_empty() => return Ok(Driver::Real(findings)),
            Ok(_) => "the driver found no GPU".to_owned(),
            Err(reason) => reason,
        };
        Ok(Driver::Fake {
            folder: shim::fake_driver_folder()?,
            why,
        })
    }

    fn description(&self) -> String {
        match self {
            Driver::Real(findings) => {
                format!("{}, CUDA driver {}", findings.devices[0].name, findings.cuda_version())
            }
            Driver::Fake { why, .. } => format!("the built-in fake driver ({why})"),
        }
    }
}

impl Stage {
    fn set(args: &DemoArgs) -> Result<Stage, Failure> {
        let cannot =
            |what: &str, error: std::io::Error| Failure::with_exit(format!("the demo cannot {what}: {error}"), 1);
        let program = env::current_exe().map_err(|error| cannot("find its own executable", error))?;
        let driver = Driver::choose(args.fake)?;
        let (folder, temporary) = match &args.output {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(|error| cannot(&format!("create {}", folder.display()), error))?;
                (folder.clone(), None)
            }
            None => {
                let temporary = tempfile::Builder::new().prefix("culeak-demo-").tempdir();
                let temporary =
                    temporary.map_err(|error| cannot("create a folder for its files; set TMPDIR", error))?;
                (temporary.path().to_path_buf(), Some(temporary))
            }
        };
        let (before, after) = free_names(&folder);
        Ok(Stage {
            earlier: names_in(&folder),
            folder,
            temporary,
            program,
            driver,
            before,
            after,
        })
    }

    fn heading(&self, text: &str) {
        say(format_args!("\n{}", Styled(BOLD, format_args!("── {text}"))));
    }

    /// A culeak command in the demo's folder, printed as a user would type it.
    fn command(&self, words: &[&str]) -> Command {
        say(format_args!(
            "{}",
            Styled(DIM, format_args!("$ culeak {}", words.join(" ")))
        ));
        let program = self.program.as_os_str();
        let mut command = Command::new(program);
        command.args(
            words
                .iter()
                .map(|&word| if word == "culeak" { program } else { OsStr::new(word) }),
        );
        command.current_dir(&self.folder);
        // A config file of the current project must not affect the demo.
        command.env(variables::CONFIG.name(), "/dev/null");
        text::pass_color_on(&mut command);
        if let Driver::Fake { folder, .. } = &self.driver {
            let mut folders = folder.as_os_str().to_owned();
            if let Some(others) = env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty()) {
                folders.push(":");
                folders.push(others);
            }
            command.env("LD_LIBRARY_PATH", folders);
        }
        command
    }

    fn run(&self, words: &[&str], expected: i32) -> Result<(), Failure> {
        let status = self
            .command(words)
            .status()
            .map_err(|error| broken(words, &error.to_string()))?;
        if status.code() == Some(expected) {
            Ok(())
        } else {
            Err(broken(words, &format!("ended with {status}")))
        }
    }

    /// Records the program, and takes a snapshot between its rounds.
    fn record(&self) -> Result<(Vec<Planted>, String), Failure> {
        let mut words = vec!["run", "--no-report"];
        if self.temporary.is_some() {
            // The messages about it would name a file that the demo removes.
            words.extend(["--oom-snapshots", "0"]);
        }
        words.extend(["--", "culeak", "demo-program"]);
        let failed = |error: std::io::Error| broken(&words, &error.to_string());
        let mut command = self.command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = WaitedFor(command.spawn().map_err(failed)?);
        let output = running.0.stdout.take().map(BufReader::new);
        let mut planted = Vec::new();
        let mut process = String::new();
        for line in output.into_iter().flat_map(BufRead::lines) {
            let line = line.map_err(failed)?;
            say(format_args!("{line}"));
            planted.extend(line.parse::<Planted>());
            if !line.starts_with(ROUND_DONE) {
                continue;
            }
            process = line.rsplit(' ').next().unwrap_or_default().to_owned();
            if let Some(mut input) = running.0.stdin.take() {
                self.run(&["snapshot", &process, "-o", &self.before], 0)?;
                writeln!(input).map_err(failed)?;
            }
        }
        let status = running.0.wait().map_err(failed)?;
        if !status.success() {
            return Err(broken(&words, &format!("the program ended with {status}")));
        }
        Ok((planted, self.recording(&process)?))
    }

    /// The name of this process's recording.
    fn recording(&self, process: &str) -> Result<String, Failure> {
        let ending = format!(".{process}.culeak");
        let mut names = names_in(&self.folder).into_iter();
        let name = names.find(|name| name.ends_with(&ending) && !self.earlier.contains(name));
        name.ok_or_else(|| {
            let message = "the demo: the program ran, but nothing was recorded; run `culeak doctor` to find the reason";
            Failure::with_exit(message, 1)
        })
    }

    fn farewell(&self) {
        let files = match self.temporary {
            Some(_) => "The demo's files were removed; keep them with --output DIR.".to_owned(),
            None => format!("The demo's files are in {}.", self.folder.display()),
        };
        say(format_args!("\n{files}\nnext: culeak run -- your-program"));
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// `before.json` and `after.json`, or the first such pair with a number of which neither exists.
fn free_names(folder: &Path) -> (String, String) {
    let pair = |nth: u64| {
        let number = if nth == 1 { String::new() } else { format!("-{nth}") };
        (format!("before{number}.json"), format!("after{number}.json"))
    };
    let mut pairs = (1..).map(pair);
    let is_free = |(before, after): &(String, String)| !folder.join(before).exists() && !folder.join(after).exists();
    pairs.find(is_free).unwrap_or_else(|| pair(1))
}

/// A child that does not outlive the demo, even if a step fails.
struct WaitedFor(Child);

impl Drop for WaitedFor {
    fn drop(&mut self) {
        // The end of its input lets the program finish. Waiting for a child that has been reaped returns at once.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn broken(words: &[&str], what: &str) -> Failure {
    Failure::with_exit(
        format!(
            "the demo: culeak {}: {what}; run `culeak doctor` to find the reason",
            words.join(" ")
        ),
        1,
    )
}

/// Compares the recording with what was planted.
fn compare(planted: &[Planted], found: &Snapshot) -> Result<String, String> {
    let mut expected: Vec<Planted> = planted.to_vec();
    let mut recorded: Vec<Planted> = Vec::new();
    let named = found.locations.iter().any(|location| !location.symbols.is_empty());
    let by = |stack: Option<usize>| match named {
        true => planter(found, stack, planted),
        false => String::new(),
    };
    for row in &found.allocations {
        recorded.push(Planted {
            kind: Some(row.kind),
            bytes: row.requested,
            function: by(row.stack),
        });
    }
    for row in &found.failed {
        let failed = Planted {
            kind: None,
            bytes: row.bytes,
            function: by(row.stack),
        };
        recorded.extend(std::iter::repeat_n(
            failed,
            usize::try_from(row.count).unwrap_or(usize::MAX).min(1000),
        ));
    }
    if !named {
        expected.iter_mut().for_each(|one| one.function.clear());
    }
    expected.sort();
    recorded.sort();
    if expected != recorded {
        return Err(difference(&expected, &recorded));
    }
    let leaked: Vec<&Planted> = expected.iter().filter(|one| one.kind.is_some()).collect();
    let bytes = leaked.iter().map(|one| one.bytes).sum();
    let names = if named {
        ""
    } else {
        " (functions were not compared, since this build has no symbols)"
    };
    Ok(format!(
        "the recording contains exactly the {} planted leaks ({}) and the {} failed requests{names}",
        leaked.len(),
        units::bytes(bytes),
        expected.len() - leaked.len(),
    ))
}

/// The planted function that appears in a stack.
fn planter(found: &Snapshot, stack: Option<usize>, planted: &[Planted]) -> String {
    let frames = stack
        .and_then(|stack| found.stacks.get(stack))
        .map(|stack| stack.frames.as_slice())
        .unwrap_or_default();
    let names = frames
        .iter()
        .flat_map(|&frame| &found.locations[frame].symbols)
        .map(|symbol| symbol.function.as_str());
    let known = |name: &str| {
        planted
            .iter()
            .find(|one| name.split("::").any(|part| part == one.function))
    };
    names
        .into_iter()
        .find_map(known)
        .map_or_else(|| "unknown_function".to_owned(), |one| one.function.clone())
}

fn difference(expected: &[Planted], recorded: &[Planted]) -> String {
    let without = |these: &[Planted], others: &[Planted]| {
        let mut others = others.to_vec();
        let rest = these
            .iter()
            .filter(|one| match others.iter().position(|other| other == *one) {
                Some(index) => {
                    others.swap_remove(index);
                    false
                }
                None => true,
            });
        rest.map(Planted::to_string).collect::<Vec<_>>().join(", ")
    };
    format!(
        "missing [{}], not planted [{}]",
        without(expected, recorded),
        without(recorded, expected)
    )
}

/// Prints a line. A closed pipe does not end the demo, whose exit code still matters.
fn say(line: std::fmt::Arguments) {
    let mut out = anstream::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
