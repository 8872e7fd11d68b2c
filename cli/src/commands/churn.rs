//! `culeak report --view churn`: temporary allocations, lifetimes and reuse, by call site.

use std::process::ExitCode;

use culeak::analysis::report::By;
use culeak::analysis::stats::{Options, Sort, Stats};

use super::report::ReportArgs;
use crate::errors::Failure;
use crate::load::timeline::{one_with_timeline, time_of};
use crate::options::output::Form;
use crate::options::rows_shown;
use crate::text;

/// # Errors
/// The input cannot be read, or has no log of events.
pub fn execute(args: &ReportArgs, form: Form) -> Result<ExitCode, Failure> {
    let (mut item, timeline) = one_with_timeline(args.input()?)?;
    args.selection.suits(&item)?;
    let failed = |reason: String| Failure::new(format!("{}: {reason}", item.source));
    let between = match args.selection.window() {
        Some([from, to]) => {
            let time = |point| time_of(&item.snapshot, &timeline, point).map_err(failed);
            Some((time(from)?, time(to)?))
        }
        None => None,
    };
    let sort = args.view.sort.as_deref().and_then(Sort::from_name);
    let options = Options {
        sort: sort.unwrap_or_default(),
        by_stack: args.view.by == Some(By::Stack),
        top: rows_shown(args.selection.top, form != Form::Json),
        filter: args.selection.filter(&args.categories.read()?),
        between,
        source: item.source.clone(),
    };
    args.names.name_frames(&mut item);
    let stats =
        Stats::of(&item.snapshot, &timeline, &options).map_err(|unknown| format!("{}: {unknown}", item.source))?;
    let title = format!("culeak: events of {}", text::parts::process(&stats.process));
    let page = || text::stats::page(&stats, args.view.full_stacks);
    args.output.page(form, &title, &stats, page)?;
    Ok(ExitCode::SUCCESS)
}
