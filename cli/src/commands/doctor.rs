//! `culeak doctor`: what this machine offers, what does not work here, and what to do about it.
//!
//! Each check is a function that returns findings; this file runs the checks in order and prints the findings. Only a finding
//! of level `fail`, with which recording does not work, changes the exit code. Deliberately absent: repairs.

mod confinement;
mod driver;
mod job;
mod machine;
mod preloading;
mod program;

pub use job::launched::{COMMAND as PROBE_COMMAND, ProbeRankArgs, answer as answer_probe};

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::report::shell_word;
use serde::Serialize;

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::text;
use crate::text::parts::{BAD, GOOD, Styled, WARN};

/// Check whether culeak works on this machine, or why ranks of a job are not recorded, and suggest fixes
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 no check failed (there may be warnings), 1 a check failed, 2 wrong usage, or the launcher started no rank.

Examples:
  culeak doctor
  culeak doctor -- ./train                         also examines this program: setuid, static, musl …
  culeak doctor --job runs --ranks 64              which of 64 ranks have no recording in runs, and why
  culeak doctor --job runs -- srun --ntasks 64     before the job: starts a check instead of the program on each rank
  culeak doctor --json | jq '.findings[] | select(.level == \"fail\")'")]
pub struct DoctorArgs {
    /// Check a job: which of its ranks have no recording, and why
    #[arg(long)]
    pub job: bool,

    /// The job's recordings: folders, files, patterns [default: the current folder]
    #[arg(value_name = "RUNS", requires = "job")]
    pub inputs: Vec<OsString>,

    /// The number of ranks of the job [default: from the environment of the ranks]
    #[arg(long, value_name = "N", requires = "job", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ranks: Option<u32>,

    /// A program, which is examined and not started; with --job, a launcher with its options, without the program: start a
    /// check on each rank
    #[arg(last = true, value_name = "PROGRAM|LAUNCHER")]
    pub launcher: Vec<OsString>,

    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

/// The findings as JSON.
#[derive(Serialize)]
struct Findings<'f> {
    format: &'static str,
    version: u32,
    failures: u64,
    warnings: u64,
    findings: &'f [Finding],
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'f job::Summary>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    /// A feature that some users need does not work.
    Warn,
    /// Recording does not work.
    Fail,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    subject: Cow<'static, str>,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    fn new(level: Level, subject: impl Into<Cow<'static, str>>, text: impl Display, remedy: Option<String>) -> Finding {
        Finding {
            level,
            subject: subject.into(),
            text: text.to_string(),
            remedy,
        }
    }

    fn ok(subject: impl Into<Cow<'static, str>>, text: impl Display) -> Finding {
        Finding::new(Level::Ok, subject, text, None)
    }

    fn warn(subject: impl Into<Cow<'static, str>>, text: impl Display, remedy: impl Display) -> Finding {
        Finding::new(Level::Warn, subject, text, Some(remedy.to_string()))
    }

    fn fail(subject: impl Into<Cow<'static, str>>, text: impl Display, remedy: impl Display) -> Finding {
        Finding::new(Level::Fail, subject, text, Some(remedy.to_string()))
    }
}

pub fn execute(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    if args.job {
        let (findings, summary) = job::check(args)?;
        return print(args, &findings, Some(&summary));
    }
    let root = Path::new("/");
    let findings: Vec<Finding> = [
        preloading::library(),
        preloading::environment(),
        program::program(&args.launcher),
        driver::driver(root),
        machine::runtimes(),
        machine::config_file(),
        machine::output_folder(),
        confinement::running_processes(root, confinement::reads_own_memory),
        vec![program::symbols(&args.launcher).unwrap_or_else(machine::symbols)],
        confinement::security_modules(root),
        confinement::container(root),
        confinement::platform(root),
    ]
    .into_iter()
    .flatten()
    .collect();
    print(args, &findings, None)
}

fn print(args: &DoctorArgs, findings: &[Finding], job: Option<&job::Summary>) -> Result<ExitCode, Failure> {
    match args.json {
        true => text::print_json(&Findings {
            format: "culeak-doctor",
            version: 1,
            failures: count(findings, Level::Fail),
            warnings: count(findings, Level::Warn),
            findings,
            job,
        })?,
        false => text::print_lines(|out| {
            write(findings, out)?;
            match job {
                Some(job) => job.write(count(findings, Level::Fail), out),
                None => write_end(findings, &args.launcher, out),
            }
        })?,
    }
    Ok(ExitCode::from(u8::from(count(findings, Level::Fail) > 0)))
}

fn write(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    for Finding {
        level,
        subject,
        text,
        remedy,
    } in findings
    {
        let mark = match level {
            Level::Ok => Styled(GOOD, "ok  "),
            Level::Warn => Styled(WARN, "warn"),
            Level::Fail => Styled(BAD, "fail"),
        };
        writeln!(
            out,
            "{mark}  {:width$}  {}",
            Escaped(subject).to_string(),
            Escaped(text)
        )?;
        if let Some(remedy) = remedy {
            writeln!(out, "      {:width$}  → {}", "", Escaped(remedy))?;
        }
    }
    Ok(())
}

/// `program`: what was examined, with its arguments.
fn write_end(findings: &[Finding], program: &[OsString], out: &mut dyn Write) -> io::Result<()> {
    let (warnings, failures) = (count(findings, Level::Warn), count(findings, Level::Fail));
    let warned = text::units::plural(warnings, "warning", "warnings");
    match failures {
        0 => {
            let words = program.iter().map(|word| shell_word(&word.to_string_lossy()));
            let next = match program.is_empty() {
                true => "culeak demo".to_owned(),
                false => format!("culeak run -- {}", words.collect::<Vec<_>>().join(" ")),
            };
            writeln!(out, "\nculeak works here, {warned}\nnext: {}", Escaped(&next))
        }
        _ => writeln!(
            out,
            "\n{}, {warned}",
            text::units::plural(failures, "check failed", "checks failed")
        ),
    }
}

fn count(findings: &[Finding], level: Level) -> u64 {
    findings.iter().filter(|finding| finding.level == level).count() as u64
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A root folder with these files.
    pub fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, content).expect("written");
        }
        root
    }

    /// A line for each finding.
    pub fn text_of(findings: &[Finding]) -> String {
        let lines = findings.iter().map(|finding| {
            let Finding {
                level,
                subject,
                text,
                remedy,
            } = finding;
            format!(
                "{level:?} {subject}: {text} → {}\n",
                remedy.as_deref().unwrap_or_default()
            )
        });
        lines.collect()
    }

    #[test]
    fn the_next_command_records_the_program_that_was_examined() {
        let end = |program: &[&str]| {
            let program: Vec<OsString> = program.iter().map(OsString::from).collect();
            let mut out = Vec::new();
            write_end(&[], &program, &mut out).expect("memory is writable");
            String::from_utf8(out).expect("text")
        };
        assert!(end(&[]).ends_with("next: culeak demo\n"));
        assert!(end(&["./leak", "a b"]).ends_with("next: culeak run -- ./leak 'a b'\n"));
    }

    #[test]
    fn a_remedy_follows_its_finding() {
        let findings = [
            Finding::ok("driver", "580"),
            Finding::fail("output folder", "read-only", "use --output"),
        ];
        let mut out = Vec::new();
        write(&findings, &mut out).expect("memory is writable");
        write_end(&findings, &[], &mut out).expect("memory is writable");
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).expect("text")).to_string();
        assert!(text.contains("ok    driver         580\n"), "{text}");
        assert!(
            text.contains("fail  output folder  read-only\n                     → use --output\n"),
            "{text}"
        );
        assert!(text.contains("1 check failed, 0 warnings"), "{text}");
    }
}
