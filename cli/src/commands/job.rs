//! `culeak report` over several processes: one report of the job.

use std::process::ExitCode;

use culeak::analysis::job::Options;
use culeak::analysis::report;

use super::report::inputs::Inputs;
use super::report::{ReportArgs, Rules};
use crate::document;
use crate::errors::{Failure, USAGE};
use crate::load::many::{self, How};
use crate::options::output::Form;
use crate::options::rows_shown;
use crate::{html, progress, text};

/// The most values of processes in the charts of a page, over all call sites.
const CHART_VALUES: usize = 40_000;

/// Reports every input that can be read; any other input makes the exit code 2.
///
/// # Errors
/// No input can be read.
pub fn execute(args: &ReportArgs, rules: &Rules, inputs: Inputs, form: Form) -> Result<ExitCode, Failure> {
    let how = How {
        names: &args.names,
        at: args.selection.point(),
        report: report::Options {
            suppressions: rules.suppressions.clone(),
            ..args.options(String::new(), &rules.categories, form)
        },
    };
    let top = args.selection.top;
    let options = Options {
        top: match form {
            Form::Html => Some(top.filter(|&top| top > 0).unwrap_or(html::ROWS).min(html::ROWS)),
            _ => rows_shown(top, form != Form::Json),
        },
        min_bytes: args.selection.min_bytes,
        filter: how.report.filter.clone(),
        values: form == Form::Html,
    };
    let places: Vec<_> = inputs.places.collect();
    let mut job = many::job(&places, &how, &options);
    // A text on standard error lists them.
    let lists = args.output.on_stderr && form == Form::Text && args.output.output.is_none();
    if !lists || job.processes.is_empty() {
        many::fail_unreadable(&job.unreadable);
    }
    if job.processes.is_empty() {
        if job.elsewhere > 0 {
            progress::fail(&Failure::new(
                "no process uses the devices of --device; leave it out to see which each process uses".to_owned(),
            ));
        }
        return Ok(ExitCode::from(USAGE));
    }
    let title = format!("culeak: {}", document::counted(job.processes.len(), "process"));
    let charts = CHART_VALUES / job.processes.len().max(1);
    job.sites.iter_mut().skip(charts).for_each(|row| row.values.clear());
    let shown = if form == Form::Html {
        Some(html::ROWS)
    } else {
        options.top
    };
    let page = || text::job::page(&job, shown, &args.selection.again());
    args.output.page(form, &title, &job, page)?;
    let all_read = inputs.unreadable == 0 && job.unreadable.is_empty();
    Ok(ExitCode::from(if all_read { 0 } else { USAGE }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{NameArgs, Place};
    use crate::text::sample::leaky;

    #[test]
    fn values_of_processes_add_up_to_the_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut places = Vec::new();
        for rank in 0..6_u32 {
            let mut snapshot = leaky();
            snapshot.process.pid = 100 + rank;
            snapshot.process.ranks.insert("RANK".to_owned(), (5 - rank).to_string());
            let bytes = u64::from(rank + 1);
            snapshot
                .allocations
                .change(|_, allocation, _| allocation.bytes *= bytes);
            let path = folder.path().join(format!("{rank}.json"));
            std::fs::write(&path, serde_json::to_vec(&snapshot).expect("JSON")).expect("written");
            places.push(Place::File(path));
        }
        let names = NameArgs {
            no_symbol_cache: true,
            ..NameArgs::default()
        };
        let how = How {
            names: &names,
            at: None,
            report: report::Options::default(),
        };
        let options = Options {
            values: true,
            ..Options::default()
        };
        let job = many::job(&places, &how, &options);
        assert!(!job.sites.is_empty());
        for row in &job.sites {
            let values: Vec<i64> = row.values.iter().map(|value| value.1).collect();
            assert_eq!(values.iter().sum::<i64>().unsigned_abs(), row.range.sum_bytes());
            assert!(values.is_sorted() && values.len() == 6, "{values:?}");
        }
        // Ranks are in reverse.
        let numbers = job.processes.iter().map(|process| process.number);
        assert!(numbers.eq((0..6).rev()));
    }
}
