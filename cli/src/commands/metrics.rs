//! `culeak metrics`: the figures of recordings for Prometheus, printed, written or served.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use culeak_metrics::agent::{Agent, Outlet, Update};
use culeak_metrics::text::{Format, encode};

use crate::errors::{Failure, USAGE};
use crate::monitor::{self, End, Reading, SeriesArgs};
use crate::options::NameArgs;
use crate::output::Overwrite;
use crate::text;

/// Export the memory of recorded processes to Prometheus: an HTTP endpoint, a textfile, or text
#[derive(Debug, Args)]
#[command(after_help = "\
Only recordings are read; their processes are neither stopped nor changed. Without --listen and --textfile the \
figures are printed once, as OpenMetrics text. docs/metrics.md lists the metrics.

Exit code: 0; 2 if an input cannot be read or a file cannot be written.

Examples:
  culeak metrics runs/                                       print the figures
  culeak metrics runs/ --listen                              serve http://127.0.0.1:9477/metrics
  culeak metrics runs/ --listen 0.0.0.0:9477 --every 30s     for scrapers on other machines
  culeak metrics 4711 --textfile /var/lib/prometheus/node-exporter/culeak.prom")]
pub struct MetricsArgs {
    /// Recordings, folders of recordings (new ones are found), process ids, snapshots, or patterns
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<OsString>,
    #[command(flatten)]
    pub series: SeriesArgs,
    /// Read again at this interval, from 100ms to 1d [default: once; with --listen 15s]
    #[arg(long, value_name = "TIME", value_parser = monitor::parse_interval)]
    pub every: Option<Duration>,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// Prints the page.
struct Printed;

impl Outlet for Printed {
    fn updated(&mut self, update: &Update) -> Result<(), String> {
        let page = encode(&update.page, Format::OpenMetrics);
        text::print_lines(|out| out.write_all(page.as_bytes())).map_err(|failure| failure.message)
    }
}

pub fn execute(args: &MetricsArgs) -> Result<ExitCode, Failure> {
    let series = &args.series;
    let mut settings = series.settings(args.every);
    let is_printed = series.listen.is_none() && series.textfile.is_none();
    if is_printed && args.every.is_some() {
        return Err(Failure::new(
            "--every needs a destination that can be written again; add --listen or --textfile FILE.prom",
        ));
    }
    series.check(args.overwrite)?;
    monitor::sort(&args.inputs, &mut settings)?;
    let every = args.every.or(series.listen.map(|_| settings.interval));
    let agent = Agent::new(settings, None);
    let end = monitor::run(agent, Reading::new(args.names.clone()), every, || {
        let mut outlets = series.outlets(args.overwrite)?;
        if is_printed {
            outlets.push(Box::new(Printed));
        }
        Ok(outlets)
    })?;
    let is_complete = end != End::Once { complete: false };
    Ok(ExitCode::from(if is_complete { 0 } else { USAGE }))
}
