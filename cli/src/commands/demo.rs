//! `culeak demo`: a tour on a program with known leaks, and a test of this installation.
//!
//! Every command line shown is executed as shown, in a separate folder unless one is given, and can be typed again. At the end the recording is
//! compared with what the program planted: exactly these leaks, in the functions that made them, or the demo fails.
//! Deliberately absent: prepared output.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::{env, fs, iter};

use clap::Args;
use culeak::analysis::words::quoted;
use culeak::snapshot::Snapshot;
use culeak::variables;
use culeak_driver::demo_program::{Planted, ROUND_DONE};

use crate::errors::Failure;
use crate::launch::shim;
use crate::load::in_folder;
use crate::text::parts::{BAD, BOLD, DIM, GOOD};
use crate::text::{self, units};
use crate::{load, probe};

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
    let (driver, libraries) = choose_driver(args.fake)?;
    let failed = |error: std::io::Error| {
        Failure::with_exit(format!("the demo cannot create its folder: {error}; set TMPDIR"), 1)
    };
    // Removed with its content when the demo ends.
    let temporary = tempfile::Builder::new()
        .prefix("culeak-demo-")
        .tempdir()
        .map_err(failed)?;
    let kept = args
        .output
        .as_deref()
        .map(|folder| match folder.to_string_lossy().starts_with('-') {
            true => Path::new(".").join(folder),
            false => folder.to_owned(),
        });
    fs::create_dir_all(kept.as_deref().unwrap_or(temporary.path())).map_err(failed)?;
    let tour = Tour {
        temporary: temporary.path().to_owned(),
        kept,
        libraries,
    };
    say(format_args!(
        "{BOLD}culeak demo: a program that leaks GPU memory{BOLD:#}"
    ));
    say(format_args!("It runs on {driver}."));

    heading("Record the program, and take a snapshot while it runs");
    // The messages about them would name files that the demo removes.
    let folder = tour.kept.as_ref().map(|folder| folder.display().to_string());
    let place: &[&str] = match &folder {
        None => &["--snapshot", "oom:0"],
        Some(folder) => &["-o", folder],
    };
    let (planted, process) =
        tour.record(&[&["run", "--no-report"][..], place, &["--", "culeak", "demo-program"]].concat())?;
    let recording = tour.recording(&process)?;

    heading("What it leaked, and where");
    tour.run(&["report", &recording], 0)?;

    heading("What the second round leaked");
    tour.run(&["diff", &tour.before(&process), &recording], 0)?;

    heading("A verdict for CI: no leak allowed (exit code 1), then 64 MiB allowed (exit code 0)");
    tour.run(&["check", &recording], 1)?;
    tour.run(&["check", &recording, "--allow", "64MiB"], 0)?;

    heading("Is the report correct?");
    let after = tour.name(format!("after.{process}.json"));
    tour.run(&["snapshot", &recording, "-o", &after], 0)?;
    let truth = compare(
        &planted,
        &load::one(tour.folder().join(format!("after.{process}.json")))?.snapshot,
    );
    match &truth {
        Ok(result) => say(format_args!("{GOOD}yes:{GOOD:#} {result}")),
        Err(wrong) => say(format_args!("{BAD}no:{BAD:#} {wrong}")),
    }
    match folder {
        None => say("\nThe demo's files were removed; keep them with --output DIR."),
        Some(folder) => say(format_args!("\nThe demo's files are in {folder}.")),
    }
    say("next: culeak run -- your-program");
    Ok(ExitCode::from(u8::from(truth.is_err())))
}

/// What the program runs on, and the folder of the fake driver if it is that.
fn choose_driver(fake: bool) -> Result<(String, Option<PathBuf>), Failure> {
    let why = match probe::driver(None) {
        _ if fake => "as requested".to_owned(),
        Ok(found) if !found.devices.is_empty() => {
            return Ok((
                format!("{}, CUDA driver {}", found.devices[0].name, found.cuda_version()),
                None,
            ));
        }
        Ok(_) => "the driver found no GPU".to_owned(),
        Err(reason) => reason,
    };
    Ok((
        format!("the built-in fake driver ({why})"),
        Some(shim::fake_driver_folder()?),
    ))
}

struct Tour {
    /// Where the commands are executed if no folder is given.
    temporary: PathBuf,
    /// The folder that was given, from the current one.
    kept: Option<PathBuf>,
    /// The folder of the fake driver.
    libraries: Option<PathBuf>,
}

impl Tour {
    fn folder(&self) -> &Path {
        self.kept.as_deref().unwrap_or(&self.temporary)
    }

    /// A file of the demo, as its commands name it.
    fn name(&self, file: String) -> String {
        match &self.kept {
            Some(folder) => folder.join(file).display().to_string(),
            None => file,
        }
    }

    /// The name of the snapshot of the first round.
    fn before(&self, process: &str) -> String {
        self.name(format!("before.{process}.json"))
    }

    /// A culeak command, printed as a user would type it.
    fn command(&self, words: &[&str]) -> Result<Command, Failure> {
        let shown: String = words.iter().map(|word| format!(" {}", quoted(word))).collect();
        say(format_args!("{DIM}$ culeak{shown}{DIM:#}"));
        let program = env::current_exe().map_err(|error| broken(words, error))?;
        let mut command = Command::new(&program);
        command.args(words.iter().map(|&word| match word {
            "culeak" => program.as_os_str(),
            word => OsStr::new(word),
        }));
        if self.kept.is_none() {
            command.current_dir(&self.temporary);
        }
        // A config file of the current project must not affect the demo.
        command.env(variables::CONFIG.name(), "/dev/null");
        text::pass_color_on(&mut command);
        if let Some(folder) = &self.libraries {
            let others = env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty());
            let folders: Vec<OsString> = iter::once(folder.clone().into_os_string()).chain(others).collect();
            command.env("LD_LIBRARY_PATH", folders.join(OsStr::new(":")));
        }
        Ok(command)
    }

    fn run(&self, words: &[&str], expected: i32) -> Result<(), Failure> {
        let status = self.command(words)?.status().map_err(|error| broken(words, error))?;
        match status.code() == Some(expected) {
            true => Ok(()),
            false => Err(broken(words, format_args!("ended with {status}"))),
        }
    }

    /// Records the program, and takes a snapshot between its rounds. Returns what it planted, and its process id.
    fn record(&self, words: &[&str]) -> Result<(Vec<Planted>, String), Failure> {
        let failed = |error: std::io::Error| broken(words, error);
        let mut command = self.command(words)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = WaitedFor(command.spawn().map_err(failed)?);
        let output = running.0.stdout.take().map(BufReader::new);
        let (mut planted, mut process) = (Vec::new(), String::new());
        for line in output.into_iter().flat_map(BufRead::lines) {
            let line = line.map_err(failed)?;
            say(&line);
            planted.extend(line.parse::<Planted>());
            if !line.starts_with(ROUND_DONE) {
                continue;
            }
            process = line.rsplit(' ').next().unwrap_or_default().to_owned();
            if let Some(mut input) = running.0.stdin.take() {
                self.run(&["snapshot", &process, "-o", &self.before(&process)], 0)?;
                writeln!(input).map_err(failed)?;
            }
        }
        let status = running.0.wait().map_err(failed)?;
        match status.success() {
            true => Ok((planted, process)),
            false => Err(broken(words, format_args!("the program ended with {status}"))),
        }
    }

    /// The name of this process's recording.
    fn recording(&self, process: &str) -> Result<String, Failure> {
        let ending = format!(".{process}.culeak");
        let found = in_folder(self.folder(), |name| name.ends_with(&ending));
        let name = found
            .first()
            .and_then(|path| path.file_name()?.to_str())
            .map(|name| self.name(name.to_owned()));
        name.ok_or_else(|| {
            let message = "the demo: the program ran, but nothing was recorded; run `culeak doctor` to find the reason";
            Failure::with_exit(message, 1)
        })
    }
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

fn broken(words: &[&str], what: impl std::fmt::Display) -> Failure {
    let command = words.join(" ");
    Failure::with_exit(
        format!("the demo: culeak {command}: {what}; run `culeak doctor` to find the reason"),
        1,
    )
}

/// Compares the recording with what was planted.
fn compare(planted: &[Planted], found: &Snapshot) -> Result<String, String> {
    let is_named = found.locations.iter().any(|location| !location.symbols.is_empty());
    let one = |kind, bytes, stack| Planted {
        kind,
        bytes,
        function: planter(found, stack, planted),
    };
    let blocks = found
        .allocations
        .iter()
        .map(|row| one(Some(row.kind), row.requested, row.stack));
    let failed = found.failed.iter().flat_map(|row| {
        let times = usize::try_from(row.count).unwrap_or(usize::MAX).min(1000);
        iter::repeat_n(one(None, row.bytes, row.stack), times)
    });
    let (mut missing, mut unplanted) = (planted.to_vec(), blocks.chain(failed).collect::<Vec<_>>());
    if !is_named {
        missing
            .iter_mut()
            .chain(&mut unplanted)
            .for_each(|one| one.function.clear());
    }
    unplanted.retain(|one| match missing.iter().position(|other| other == one) {
        Some(index) => {
            missing.swap_remove(index);
            false
        }
        None => true,
    });
    if !missing.is_empty() || !unplanted.is_empty() {
        let list = |these: &[Planted]| these.iter().map(Planted::to_string).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "missing [{}], not planted [{}]; please report it with the output of culeak doctor --json",
            list(&missing),
            list(&unplanted)
        ));
    }
    let leaked = || planted.iter().filter(|one| one.kind.is_some());
    let names = match is_named {
        true => "",
        false => " (functions were not compared, since this build has no symbols)",
    };
    Ok(format!(
        "the recording contains exactly the {} planted leaks ({}) and the {} failed requests{names}",
        leaked().count(),
        units::bytes(leaked().map(|one| one.bytes).sum()),
        planted.len() - leaked().count(),
    ))
}

/// The planted function that appears in a stack.
fn planter(found: &Snapshot, stack: Option<usize>, planted: &[Planted]) -> String {
    let frames = stack
        .and_then(|stack| found.stacks.get(stack))
        .map_or(&[][..], |stack| &stack.frames[..]);
    let symbols = frames.iter().flat_map(|&frame| &found.locations[frame].symbols);
    let is_in = |one: &Planted, name: &str| name.split("::").any(|part| part == one.function);
    let known = symbols.filter_map(|symbol| planted.iter().find(|one| is_in(one, &symbol.function)));
    known
        .map(|one| one.function.clone())
        .next()
        .unwrap_or_else(|| "unknown_function".to_owned())
}

/// Prints a line. A closed pipe does not end the demo, whose exit code still matters.
fn say(line: impl std::fmt::Display) {
    let mut out = anstream::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn heading(text: &str) {
    say(format_args!("\n{BOLD}── {text}{BOLD:#}"));
}
