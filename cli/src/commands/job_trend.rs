//! `culeak trend` over several processes that ran at the same time: one trend of the job.

use std::process::ExitCode;

use culeak::analysis::job::Options;
use culeak::analysis::job::trend::Job;
use culeak::analysis::trend::{self, Summary, Trend};

use super::trend::{Judgement, TrendArgs};
use crate::errors::Failure;
use crate::options::output::Form;
use crate::progress::{Progress, Unit};
use crate::text;

/// Judges each process, and prints what they have in common.
///
/// # Errors
/// `--fail-on` is given, and no process can be judged.
pub fn execute(
    args: &TrendArgs,
    lineages: Vec<Summary>,
    options: &trend::Options,
    unreadable: usize,
    form: Form,
) -> Result<ExitCode, Failure> {
    // Rows are cut when those of all processes are known.
    let each = trend::Options {
        top: None,
        min_bytes: 0,
        ..options.clone()
    };
    let mut job = Job::default();
    let mut judgement = Judgement::default();
    let progress = Progress::over("judging", lineages.len() as u64, Unit::Of("processes"));
    for lineage in lineages {
        let trend = Trend::of(&lineage, &each);
        judgement.add(&trend);
        job.add(&trend);
        progress.advance(1);
    }
    drop(progress);
    let trend = job.finish(&Options {
        top: options.top,
        min_bytes: options.min_bytes,
        ..Options::default()
    });
    args.output.page(form, "culeak trend: job", &trend, || {
        text::job::trend::page(&trend, &args.selection.again())
    })?;
    judgement.verdict(args, unreadable).map(ExitCode::from)
}
