//! `culeak doctor`: what this machine offers, what does not work here, and what to do about it.
//!
//! Each check is a function that returns findings; this file runs the checks in order and prints the findings. Only a finding
//! of level `fail`, with which recording does not work, changes the exit code. Deliberately absent: repairs.

mod machine;
mod preloading;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::text;
use crate::text::parts::{BAD, GOOD, Styled, WARN};

/// Check whether culeak works on this machine, and suggest fixes
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 no check failed (there may be warnings), 1 a check failed.

Examples:
  culeak doctor
  culeak doctor --json | jq '.findings[] | select(.level == \"fail\")'")]
pub struct DoctorArgs {
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
    subject: &'static str,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    fn new(level: Level, subject: &'static str, text: impl Display, remedy: Option<String>) -> Finding {
        Finding {
            level,
            subject,
            text: text.to_string(),
            remedy,
        }
    }

    fn ok(subject: &'static str, text: impl Display) -> Finding {
        Finding::new(Level::Ok, subject, text, None)
    }

    fn warn(subject: &'static str, text: impl Display, remedy: impl Display) -> Finding {
        Finding::new(Level::Warn, subject, text, Some(remedy.to_string()))
    }

    fn fail(subject: &'static str, text: impl Display, remedy: impl Display) -> Finding {
        Finding::new(Level::Fail, subject, text, Some(remedy.to_string()))
    }
}

pub fn execute(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let checks: [fn() -> Vec<Finding>; 8] = [
        preloading::library,
        preloading::environment,
        machine::driver,
        machine::runtimes,
        machine::output_folder,
        machine::running_processes,
        machine::symbols,
        machine::container,
    ];
    let findings: Vec<Finding> = checks.iter().flat_map(|check| check()).collect();
    match args.json {
        true => text::print_json(&Findings {
            format: "culeak-doctor",
            version: 1,
            failures: count(&findings, Level::Fail),
            warnings: count(&findings, Level::Warn),
            findings: &findings,
        })?,
        false => text::print_lines(|out| write(&findings, out))?,
    }
    Ok(ExitCode::from(u8::from(count(&findings, Level::Fail) > 0)))
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
        writeln!(out, "{mark}  {subject:width$}  {}", Escaped(text))?;
        if let Some(remedy) = remedy {
            writeln!(out, "      {:width$}  → {}", "", Escaped(remedy))?;
        }
    }
    let (warnings, failures) = (count(findings, Level::Warn), count(findings, Level::Fail));
    let warned = text::units::plural(warnings, "warning", "warnings");
    match failures {
        0 => writeln!(out, "\nculeak works here, {warned}\nnext: culeak demo"),
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
    use super::*;

    #[test]
    fn a_remedy_follows_its_finding() {
        let findings = [
            Finding::ok("driver", "580"),
            Finding::fail("output folder", "read-only", "use --output"),
        ];
        let mut out = Vec::new();
        write(&findings, &mut out).expect("memory is writable");
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).expect("text")).to_string();
        assert!(text.contains("ok    driver         580\n"), "{text}");
        assert!(
            text.contains("fail  output folder  read-only\n                     → use --output\n"),
            "{text}"
        );
        assert!(text.contains("1 check failed, 0 warnings"), "{text}");
    }
}
