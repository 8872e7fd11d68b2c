//! `culeak doctor`: what this machine offers, what does not work here, and what to do about it.
//!
//! Each check is a function that returns findings; this file runs the checks in order and prints the findings. Only a finding
//! of level `fail`, with which recording does not work, changes the exit code. Deliberately absent: repairs.

mod confinement;
mod driver;
mod finding;
mod job;
mod machine;
mod preloading;
mod program;

pub use job::launched::{COMMAND as PROBE_COMMAND, ProbeRankArgs, answer as answer_probe};

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::words::quoted;
use serde::Serialize;

use crate::document::{self, BAD, Document, GOOD, Rows, WARN, counted, styled};
use crate::errors::Failure;
use crate::text;
use crate::text::units::plural;
use finding::{Finding, Level};

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
    let failures = count(findings, Level::Fail);
    match args.json {
        true => text::print_json(&Findings {
            format: "culeak-doctor",
            version: 1,
            failures,
            warnings: count(findings, Level::Warn),
            findings,
            job,
        })?,
        false => document::print(|| {
            let mut page = page(findings);
            match job {
                Some(job) => job.write(failures, &mut page),
                None => write_end(findings, &args.launcher, &mut page),
            }
            page
        })?,
    }
    Ok(ExitCode::from(u8::from(failures > 0)))
}

fn page(findings: &[Finding]) -> Document {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let table = Rows::of(findings)
        .column("", |finding| match finding.level {
            Level::Ok => styled(GOOD, "ok"),
            Level::Warn => styled(WARN, "warn"),
            Level::Fail => styled(BAD, "fail"),
        })
        .column("", |finding| finding.subject.to_string())
        .column("", |finding| finding.text.clone())
        .below(|finding, below| {
            if let Some(remedy) = &finding.remedy {
                below.indented("warn".len() + 2 + width + 2, format!("→ {remedy}"));
            }
        });
    let mut page = Document::default();
    page.table(table.indent(0).bare());
    page
}

/// `program`: what was examined, with its arguments.
fn write_end(findings: &[Finding], program: &[OsString], page: &mut Document) {
    let warned = counted(count(findings, Level::Warn), "warning");
    page.blank();
    match count(findings, Level::Fail) {
        0 => {
            page.line(format!("culeak works here, {warned}"));
            let words = program.iter().map(|word| quoted(&word.to_string_lossy()));
            page.next(match program.is_empty() {
                true => "culeak demo".to_owned(),
                false => format!("culeak run -- {}", words.collect::<Vec<_>>().join(" ")),
            });
        }
        failures => page.line(format!(
            "{}, {warned}",
            plural(failures, "check failed", "checks failed")
        )),
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
            let mut page = Document::default();
            write_end(&[], &program, &mut page);
            page.plain()
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
        let mut page = page(&findings);
        write_end(&findings, &[], &mut page);
        let text = page.plain();
        assert!(text.contains("ok    driver         580\n"), "{text}");
        assert!(
            text.contains("fail  output folder  read-only\n                     → use --output\n"),
            "{text}"
        );
        assert!(text.contains("1 check failed, 0 warnings"), "{text}");
    }
}
