//! `culeak whatif`: what PyTorch's allocator would have reserved under other settings.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::site::CallStacks;
use culeak::analysis::whatif::settings::Settings;
use culeak::analysis::whatif::version::NEWEST;
use culeak::analysis::whatif::{Question, WhatIf};

use crate::errors::{Failure, USAGE};
use crate::load::NameArgs;
use crate::load::timeline::one_with_timeline;
use crate::options::output::OutputArgs;
use crate::text;

/// Show what PyTorch would have reserved under other settings
#[derive(Debug, Args)]
#[command(after_help = "\
The model of PyTorch's allocator must reproduce the recording first. If it is off by more than 2 % of the peak, there is no
advice.

Exit codes: 0 done, 2 no advice, wrong usage or unreadable input.

Examples:
  culeak whatif train.node7.4711.culeak                          the usual settings, and the best of them
  culeak whatif train.node7.4711.culeak --device-memory 24GiB    would the run fit on a smaller GPU
  culeak whatif train.node7.4711.culeak --oom                    would the request that failed have fitted
  culeak whatif train.node7.4711.culeak --try max_split_size_mb:256,roundup_power2_divisions:4")]
pub struct WhatIfArgs {
    /// A recording of run --timeline
    #[arg(value_name = "RECORDING")]
    pub input: OsString,
    /// Also try these settings, as in PYTORCH_CUDA_ALLOC_CONF; repeatable
    #[arg(long = "try", value_name = "SETTINGS", value_parser = settings)]
    pub settings: Vec<String>,
    /// Also show whether the run would fit on a GPU with this much memory
    #[arg(long, value_name = "SIZE", value_parser = text::units::parse_size)]
    pub device_memory: Option<u64>,
    /// Also show whether the last request that failed for lack of memory would have fitted
    #[arg(long)]
    pub oom: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub names: NameArgs,
}

fn settings(text: &str) -> Result<String, String> {
    Settings::parse(text, NEWEST).map(|_| text.to_owned())
}

/// # Errors
/// The input cannot be read, or its log does not have all requests.
pub fn execute(args: &WhatIfArgs) -> Result<ExitCode, Failure> {
    let form = args.output.form()?;
    let (mut item, timeline) = one_with_timeline(&args.input)?;
    args.names.name_frames(&mut item);
    let stacks = CallStacks::of(&item.snapshot);
    let question = Question {
        settings: args.settings.clone(),
        device_memory: args.device_memory,
        failed_request: args.oom,
    };
    let whatif = WhatIf::of(
        &item.snapshot,
        &item.snapshot.allocations,
        &timeline,
        &stacks,
        &question,
    )
    .map_err(|reason| format!("{}: {reason}", item.source))?;
    let title = format!("culeak: settings for {}", text::parts::process(&whatif.process));
    args.output
        .page(form, &title, &whatif, || text::whatif::page(&whatif, &item.source))?;
    let has_no_advice = whatif.devices.iter().any(|device| device.no_advice.is_some());
    Ok(ExitCode::from(if has_no_advice { USAGE } else { 0 }))
}
