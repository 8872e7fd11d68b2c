//! `culeak report` over several processes: one report of the job.

use std::process::ExitCode;

use culeak::analysis::job::Options;
use culeak::analysis::report;

use super::report::{Inputs, ReportArgs, Rules};
use crate::errors::{Failure, USAGE};
use crate::load::many::{self, How};
use crate::options::rows_shown;
use crate::{progress, text};

/// Reports every input that can be read; any other input makes the exit code 2.
///
/// # Errors
/// No input can be read.
pub fn execute(args: &ReportArgs, rules: &Rules, inputs: Inputs) -> Result<ExitCode, Failure> {
    let how = How {
        names: &args.names,
        at: args.at.as_ref(),
        report: report::Options {
            suppressions: rules.suppressions.clone(),
            ..args.options(String::new(), &rules.categories)
        },
    };
    let options = Options {
        top: rows_shown(args.top, !args.json),
        min_bytes: args.min_bytes,
    };
    let places: Vec<_> = inputs.places.collect();
    let job = many::job(&places, &how, &options);
    const SHOWN: usize = 10;
    for input in job.unreadable.iter().take(SHOWN) {
        progress::fail(&Failure::new(format!("{}: {}", input.source, input.reason)));
    }
    let more = job.unreadable.len().saturating_sub(SHOWN);
    if more > 0 {
        progress::fail(&Failure::new(format!(
            "{more} more inputs cannot be read; --json lists them"
        )));
    }
    if job.processes.is_empty() {
        return Ok(ExitCode::from(USAGE));
    }
    match args.json {
        true => text::print_json(&job)?,
        false => text::print_lines(|out| text::job::write(&job, options.top, out))?,
    }
    let all_read = inputs.unreadable == 0 && job.unreadable.is_empty();
    Ok(ExitCode::from(if all_read { 0 } else { USAGE }))
}
