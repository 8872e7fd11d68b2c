//! `culeak report --view segments`: why caching allocators hold memory that no live block uses.

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;

use culeak::analysis::groups::Groups;
use culeak::analysis::ledger::segments::{IdleReason, Segments};
use culeak::analysis::site::CallStacks;
use culeak::analysis::whatif::Stated;
use culeak::analysis::whatif::trace::{Trace, of_graphs};
use culeak::format::ADDRESS;
use culeak::point::Point;

use super::report::ReportArgs;
use crate::errors::Failure;
use crate::load::{self, at};
use crate::options::output::Form;
use crate::options::rows_shown;
use crate::text;

/// # Errors
/// The input cannot be read, or its blocks at that point are not known.
pub fn execute(args: &ReportArgs, form: Form) -> Result<ExitCode, Failure> {
    let (mut item, timeline) = load::single(args.input()?)?.load_with_events()?;
    args.names.name_frames(&mut item);
    let logged = timeline.map(|timeline| (item.snapshot.clone(), timeline));
    let point = match args.selection.point() {
        // The rows of a peak have no addresses, but the event log has the state at its time.
        Some(Point::Peak) if item.snapshot.taken.point.is_none() => {
            let peaks = item.snapshot.device_peaks.iter();
            peaks
                .max_by_key(|peak| peak.peak_bytes)
                .map(|peak| Point::Time(peak.time_ns))
        }
        point => point.cloned(),
    };
    at::show(&mut item, point.as_ref(), &args.names)?;
    let failed = |why: &str| Err(Failure::new(format!("{}: {why}", item.source)));
    if item.snapshot.allocations.is_summed() {
        return failed("at the peak, blocks are known by stack and not by address; record with culeak run --timeline");
    }
    let at_ns = item.snapshot.taken.at_ns;
    let (mut idle, mut private, mut not_known) = (HashMap::new(), HashSet::new(), None);
    if let Some((whole, timeline)) = logged {
        // A point has no more than the log, which has no pools.
        private.extend(of_graphs(&whole.allocations, at_ns).map(|(address, _)| address));
        let (stacks, own) = (CallStacks::of(&whole), Stated::of(&whole).settings.unwrap_or_default());
        match Trace::of_devices(&whole, &whole.allocations, &timeline, &stacks, &own, at_ns) {
            Ok(traces) => {
                for trace in traces {
                    idle.extend(trace.unfit.into_iter().map(|address| (address, IdleReason::Size)));
                    idle.extend(
                        trace
                            .passed_over
                            .into_iter()
                            .map(|address| (address, IdleReason::OtherPool)),
                    );
                }
            }
            Err(why) => {
                not_known = Some(format!(
                    "whether idle segments are of other streams or sizes is not known: {why}"
                ))
            }
        }
    }
    let stacks = CallStacks::of(&item.snapshot);
    let groups = Groups::of(&item.snapshot, &stacks);
    let top = rows_shown(args.selection.top, form != Form::Json);
    let mut segments = Segments::of(&item.snapshot, &stacks, &groups, top, |address| {
        match address & ADDRESS {
            address if private.contains(&address) => Some(IdleReason::PrivatePool),
            address => idle.get(&address).copied(),
        }
    });
    segments.warnings.extend(not_known);
    if segments.pools.is_empty() && item.snapshot.taken.is_of_unrecorded() {
        return failed("no segments of PyTorch's allocator could be read in the process, which was not recorded");
    }
    if segments.pools.is_empty() {
        return failed(
            "no caching allocator holds memory here whose blocks were recorded; culeak report --view ledger shows the rest",
        );
    }
    let title = format!("culeak: segments of {}", text::parts::process(&segments.process));
    args.output
        .page(form, &title, &segments, || text::segments::page(&segments))?;
    Ok(ExitCode::SUCCESS)
}
