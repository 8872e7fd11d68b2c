//! `culeak metrics`: the figures of recordings for Prometheus, printed, written or served.

use std::process::ExitCode;

use clap::Args;
use culeak_metrics::agent::{Agent, Outlet, Update};
use culeak_metrics::text::encode;

use crate::errors::{Failure, USAGE};
use crate::monitor::{self, End, Reading, SeriesArgs};
use crate::options::again::AgainArgs;
use crate::output::Overwrite;
use crate::text;

/// Export the memory of recorded processes to Prometheus: an HTTP endpoint, a textfile, or text
#[derive(Debug, Args)]
#[command(after_help = "\
Only recordings are read; their processes are neither stopped nor changed. Without --listen and --textfile the \
figures are printed once, in Prometheus' format; with --listen they are read every 15s, or at --every. docs/metrics.md lists the metrics.

Exit code: 0; 2 if an input cannot be read or a file cannot be written.

Examples:
  culeak metrics runs/                                       print the figures
  culeak metrics runs/ --listen                              serve http://127.0.0.1:9477/metrics
  culeak metrics runs/ --listen 0.0.0.0:9477 --every 30s     for scrapers on other machines
  culeak metrics 4711 --textfile /var/lib/prometheus/node-exporter/culeak.prom")]
pub struct MetricsArgs {
    #[command(flatten)]
    pub again: AgainArgs,
    #[command(flatten)]
    pub series: SeriesArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// Prints the page.
struct Printed;

impl Outlet for Printed {
    fn updated(&mut self, update: &Update) -> Result<(), String> {
        let page = encode(&update.page);
        text::print_lines(|out| out.write_all(page.as_bytes())).map_err(|failure| failure.message)
    }
}

pub fn execute(args: &MetricsArgs) -> Result<ExitCode, Failure> {
    let (again, series) = (&args.again, &args.series);
    let mut settings = series.settings(again.job.as_deref(), again.every);
    let is_printed = series.listen.is_none() && series.textfile.is_none();
    if is_printed && again.every.is_some() {
        return Err(Failure::new(
            "--every needs a destination that can be written again; add --listen or --textfile FILE.prom",
        ));
    }
    series.check(args.overwrite)?;
    monitor::sort(&again.inputs, &mut settings)?;
    let every = again.every.or(series.listen.map(|_| settings.interval));
    let agent = Agent::new(settings);
    let end = monitor::run(agent, Reading::new(again.names.clone()), every, || {
        let mut outlets = series.outlets(args.overwrite)?;
        if is_printed {
            outlets.push(Box::new(Printed));
        }
        Ok(outlets)
    })?;
    let is_complete = end != End::Once { complete: false };
    Ok(ExitCode::from(if is_complete { 0 } else { USAGE }))
}
