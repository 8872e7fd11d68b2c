//! `culeak report` over several processes: one report of the job.

use std::collections::HashMap;
use std::process::ExitCode;

use culeak::analysis::job::sites::Sites;
use culeak::analysis::job::{Job, JobReport, Options};
use culeak::analysis::report;
use culeak::facts::{Row, by_site};

use super::report::inputs::Inputs;
use super::report::{ReportArgs, Rules};
use crate::document;
use crate::errors::{Failure, USAGE};
use crate::load::Place;
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
    };
    let places: Vec<_> = inputs.places.collect();
    let (job, values) = match form {
        Form::Html => with_values(&places, &how, &options),
        _ => (many::job(&places, &how, &options), Vec::new()),
    };
    many::fail_unreadable(&job.unreadable);
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
    let shown = if form == Form::Html {
        Some(html::ROWS)
    } else {
        options.top
    };
    let page = || text::job::page(&job, shown, &values[..values.len().min(charts)]);
    args.output.page(form, &title, &job, page)?;
    let all_read = inputs.unreadable == 0 && job.unreadable.is_empty();
    Ok(ExitCode::from(if all_read { 0 } else { USAGE }))
}

/// The report, and of each of its call sites the bytes of each process.
fn with_values(places: &[Place], how: &How, options: &Options) -> (JobReport, Vec<Vec<u64>>) {
    let (side, sites) = many::side(places, how, Sites::default());
    let mut job = Job::default();
    for (number, sums) in (0..).zip(&side.processes) {
        job.add(number, sums.clone());
    }
    let report = JobReport {
        earlier_snapshots: side.earlier_snapshots,
        unreadable: side.unreadable,
        ..job.finish(&sites, options)
    };
    let of_report = report.processes.iter().enumerate();
    let number_of: HashMap<&str, usize> = of_report
        .map(|(nth, process)| (process.row.source.as_str(), nth))
        .collect();
    let rows = report.sites.iter().enumerate();
    let row_of: HashMap<_, usize> = rows
        .map(|(nth, row)| ((&row.program, row.site.fingerprint, row.site.pool), nth))
        .collect();
    let mut values = vec![vec![0; report.processes.len()]; report.sites.len()];
    for sums in &side.processes {
        let Some(&process) = number_of.get(sums.row.source.as_str()) else {
            continue;
        };
        for Row { site, tally, .. } in by_site(&sums.sites) {
            let key = sites.key(site);
            if let Some(&row) = row_of.get(&(&sums.row.member.program, key.exact, key.pool)) {
                values[row][process] += tally.bytes;
            }
        }
    }
    (report, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::NameArgs;
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
        let (job, values) = with_values(&places, &how, &Options::default());
        assert_eq!(job, many::job(&places, &how, &Options::default()));
        assert_eq!(values.len(), job.sites.len());
        for (row, values) in job.sites.iter().zip(&values) {
            assert_eq!(values.iter().sum::<u64>(), row.sum_bytes);
            // Ranks are in reverse, so the largest is first.
            assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
        }
    }
}
