//! The last rows of a report: what is live, failed requests, peaks, and losses.

use std::iter;

use culeak::analysis::framework::owner_of_domain;
use culeak::analysis::handles::Handles;
use culeak::analysis::points::{DRIVER, Peak, PeakSite};
use culeak::analysis::report::{FailedRow, Report, Tally};
use culeak::analysis::words::of_kind;
use culeak::point::Point;
use culeak::snapshot::{Allocator, BY_HISTORY, BY_PYTORCH, BY_READING, Capture, Losses, READABLE, Sampling};
use culeak::table;

use crate::document::{self, Cell, Rows, Site, counted, things_about};
use crate::escape::Escaped;
use crate::text::units::{unless_zero, when};
use crate::text::{ledger, objects, parts, units};

/// A row's name and its text. A row that continues the one above has an empty name.
pub type Sum = (&'static str, String);

/// What the rows were made of, where that is not all memory, exactly: names, sampling, the filter, objects, failed requests.
pub fn conditions(report: &Report, lists_objects: bool) -> Vec<Sum> {
    // The page begins with a request that caused the snapshot.
    let has_failed = report.totals.failed.count > 0 && report.trigger.is_none();
    let failed = has_failed.then(|| failed_requests(report)).into_iter().flatten();
    let rows = selection(report).into_iter().chain(objects_row(report, lists_objects));
    let odd = report.handles.as_ref().filter(|handles| handles.is_odd()).map(handles);
    rows.chain(odd).chain(failed).chain(source(report)).collect()
}

/// The process: `python train.py, pid 4711, on node7, exited after 12 s`.
pub fn process(report: &Report) -> String {
    match report.taken.is_by_pytorch() {
        true => format!(
            "memory of PyTorch's allocator, in {}",
            Escaped(report.process.recording)
        ),
        false => format!("process {}", parts::process(&report.process)),
    }
}

/// `lists_objects`: the report lists them itself.
pub fn totals(report: &Report, lists_objects: bool) -> Vec<Sum> {
    let mut rows = Vec::new();
    let totals = &report.totals;
    let word = if report.finished { "leaked" } else { "held" };
    let shows_peak = report.taken.point == Some(Point::Peak);
    let held = &totals.held;
    let parts_of_it = [
        (held.blocks, "tensors and buffers"),
        (held.device, "device"),
        (held.managed, "managed"),
        (held.host, "host"),
    ];
    let parts_of_it: Vec<String> = parts_of_it
        .iter()
        .filter(|(tally, _)| tally.count > 0)
        .map(|(tally, name)| format!("{} {name}", units::bytes(tally.bytes)))
        .collect();
    let about = parts::about(report.totals_estimated);
    rows.push((
        word,
        match held.total() {
            Tally { count: 0, .. } if !report.opaque_pools.is_empty() => "nothing outside pools".to_owned(),
            Tally { count: 0, .. } => "nothing".to_owned(),
            total => format!("{about}{}: {}", parts::tally_of(report, total), parts_of_it.join(", ")),
        },
    ));
    rows.extend(selection(report));
    if !totals.claims.is_empty() {
        let claims: Vec<_> = totals
            .claims
            .iter()
            .map(|(kind, count)| of_kind(*count, kind))
            .collect();
        rows.push(("claims", format!("{} (claims hold no memory)", claims.join(", "))));
    }
    rows.extend(objects_row(report, lists_objects));
    rows.extend(report.handles.as_ref().map(handles));
    if totals.pool.count > 0 {
        rows.push((
            "pools",
            format!("{} held by caching allocators", parts::tally(totals.pool)),
        ));
    }
    if totals.alive_at_shutdown.count > 0 {
        let constructed = totals.from_static_constructors;
        let constructed = when(constructed.count > 0, || {
            format!(", {} of it allocated by static constructors", parts::tally(constructed))
        });
        rows.push((
            "shutdown",
            format!(
                "{} live when CUDA shut down{constructed}; later frees by static destructors are not recorded",
                parts::tally(totals.alive_at_shutdown)
            ),
        ));
    }
    rows.extend(failed_requests(report));
    if let Some(source) = source(report) {
        rows.push(source);
        rows.extend(marks(report));
        return rows;
    }
    if report.devices.is_empty() {
        rows.push(("peak", "0 B".to_owned()));
    }
    for device in &report.devices {
        let name = when(!device.name.is_empty(), || format!(", {}", Escaped(device.name)));
        let place = format!("GPU {}", device.ordinal);
        let of_device = || report.points.peak.iter().filter(|peak| peak.place == place);
        let driver = of_device().find(|peak| peak.level == DRIVER);
        let live = match (&report.filter, report.finished, &report.when) {
            (Some(_), ..) => String::new(),
            (None, true, _) => format!(", at exit {}", units::bytes(device.live.bytes)),
            (None, false, None) => format!(", now {}", units::bytes(device.live.bytes)),
            _ if shows_peak => String::new(),
            (None, false, Some(when)) => format!(", {} {}", Escaped(when), units::bytes(device.live.bytes)),
        };
        let (bytes, time) = (units::bytes(device.peak_bytes), driver.map(reached).unwrap_or_default());
        rows.push(("peak", format!("{bytes} on {place}{name}{time}{live}")));
        let with_sites = report.filter.is_none() && !shows_peak;
        let sites = |peak: &Peak| if with_sites { peak_sites(peak) } else { Vec::new() };
        driver
            .map(sites)
            .into_iter()
            .flatten()
            .for_each(|line| rows.push(("", line)));
        for peak in of_device().filter(|peak| peak.level != DRIVER) {
            let level = match peak.level {
                "tensor" => "tensors",
                "buffer" => "buffers",
                _ => "other blocks",
            };
            rows.push(("", format!("{level}: {}{}", units::bytes(peak.bytes), reached(peak))));
            sites(peak).into_iter().for_each(|line| rows.push(("", line)));
        }
    }
    // Allocations are counted until the last state.
    if !shows_peak {
        let (allocated, freed) = (units::count(totals.allocated), units::count(totals.freed));
        // Frees in a window may be those of blocks that are older.
        let text = match report.taken.after_ns.is_some() {
            true => format!("{allocated} allocations and {freed} frees in the window"),
            false => format!("{allocated}, of which {freed} freed"),
        };
        rows.push(("allocations", text));
    }
    rows.extend(marks(report));
    rows.push(("process", parts::process(&report.process)));
    rows
}

/// What the rows were selected from: names, sampling, the filter.
fn selection(report: &Report) -> Vec<Sum> {
    let mut rows = Vec::new();
    if !report.bare_modules.is_empty() {
        rows.push(("names", without_debug_information(&report.bare_modules)));
    }
    if let Some(sampling) = report.sampling {
        rows.push(("stacks", sampled(sampling, report.totals_estimated)));
    }
    if let Some(filter) = &report.filter {
        rows.push(("filter", parts::filter(filter, report.objects.left_out)));
        rows.push(("", "failed, peak and allocations ignore the filter".to_owned()));
    }
    rows
}

/// Objects without an address. `listed`: the report lists them itself.
fn objects_row(report: &Report, listed: bool) -> Option<Sum> {
    let hint = if listed { "" } else { " (--view objects lists them)" };
    objects::line(&report.objects).map(|objects| ("objects", format!("{objects}{hint}")))
}

/// `handles  20 mapped (40 GiB), 1 without a mapping (2 GiB); 120 of physical memory created, 99 freed`.
fn handles(handles: &Handles) -> Sum {
    let states = [
        (handles.mapped, "mapped"),
        (handles.released, "released and still mapped"),
        (handles.unmapped, "without a mapping"),
        (handles.retained, "retained more than once"),
    ];
    let states = states.iter().filter(|(tally, _)| tally.count > 0);
    let live: Vec<String> = states
        .map(|(tally, state)| format!("{} {state} ({})", units::count(tally.count), units::bytes(tally.bytes)))
        .collect();
    let live = if live.is_empty() {
        "none live".to_owned()
    } else {
        live.join(", ")
    };
    let (created, freed) = (units::count(handles.created), units::count(handles.freed));
    let failed = unless_zero(handles.failed_releases, |failed| {
        format!(", {} failed", counted(failed, "release"))
    });
    (
        "handles",
        format!("{live}; {created} of physical memory created, {freed} freed{failed}"),
    )
}

fn failed_requests(report: &Report) -> Vec<Sum> {
    let failed = report.totals.failed;
    let sum = match failed.count {
        0 => "0 calls".to_owned(),
        n => format!("{} for {}", counted(n, "call"), units::bytes(failed.bytes)),
    };
    let lines = failed_lines(report);
    let more = lines.len().saturating_sub(FAILED_SHOWN);
    let shown = iter::once(sum).chain(lines.into_iter().take(FAILED_SHOWN));
    let more = (more > 0).then(|| format!("… and {more} more kinds"));
    let drivers = report.ledger.devices.iter().filter_map(|device| device.driver);
    let limits = drivers.filter_map(|driver| ledger::limits_in_words(driver.limits));
    titled("failed", shown.chain(more).chain(limits.take(1)).collect())
}

/// What PyTorch itself wrote, or what was read of its allocator, and what that lacks.
fn source(report: &Report) -> Option<Sum> {
    let text = match report.taken.by {
        ref by if by == BY_PYTORCH => format!(
            "PyTorch's allocator, in {}; it records no peak, no process and no frees",
            Escaped(report.process.recording)
        ),
        ref by if report.taken.is_by_pytorch() => format!(
            "recorded by {}, in {}; it records no peak, no process and no frees",
            Escaped(by),
            Escaped(report.process.recording)
        ),
        ref by if by == BY_READING => {
            format!("the live blocks of the allocators of {READABLE}, read in the process")
        }
        ref by if by == BY_HISTORY => "PyTorch's own history, which the process was asked for".to_owned(),
        _ => return None,
    };
    Some(("source", text))
}

/// `train has no debug information; build it with -g, or point --debug-dir at its debug files`.
fn without_debug_information(modules: &[&str]) -> String {
    const NAMED: usize = 3;
    let mut names: Vec<String> = modules
        .iter()
        .take(NAMED)
        .map(|name| Escaped(name).to_string())
        .collect();
    if modules.len() > NAMED {
        names.push(format!("{} more", modules.len() - NAMED));
    }
    let (have, them, their) = match modules.len() {
        1 => ("has", "it", "its"),
        _ => ("have", "them", "their"),
    };
    format!(
        "{} {have} no debug information; build {them} with -g, or point --debug-dir at {their} debug files",
        names.join(", ")
    )
}

/// What is estimated in a report of sampled stacks. `totals`: the totals too.
fn sampled(sampling: Sampling, totals: bool) -> String {
    let each = units::bytes(sampling.bytes);
    let fewer = when(sampling.most() > sampling.bytes, || {
        format!(", down to one for each {}", units::bytes(sampling.most()))
    });
    let totals = if totals {
        "so are the totals"
    } else {
        "totals are exact"
    };
    format!(
        "sampled, one for each {each} on average{fewer}: sums of call sites are estimates (≈, ± standard error), {totals}"
    )
}

/// `, after 40.5 s in epoch 3 / backward`.
fn reached(peak: &Peak) -> String {
    if peak.time_ns == 0 {
        return String::new();
    }
    let phase = peak.phase.iter().map(|phase| format!(" in {}", Escaped(phase)));
    format!(", after {}{}", units::duration(peak.time_ns), phase.collect::<String>())
}

/// Call sites that are listed for each peak.
const PEAK_SITES_SHOWN: usize = 3;

/// The largest call sites of a peak, one per line.
fn peak_sites(peak: &Peak) -> Vec<String> {
    let (shown, listed) = peak.sites.split_at(peak.sites.len().min(PEAK_SITES_SHOWN));
    let count = |site: &&PeakSite| things_about(parts::about(site.estimated.is_some()), site.count, "block");
    let mark = |site: &PeakSite| parts::mark_of(site.pool, site.allocator, site.library);
    let rows = Rows::of(shown)
        .tally(|site| Cell::Estimate(site.bytes, site.estimated), count)
        .column("call site", |site| {
            Site::at(&site.label, site.place.as_deref(), mark(site))
        });
    let mut lines = rows.lines();
    let more = (listed.len() + peak.other_sites) as u64;
    if more > 0 {
        let bytes = listed
            .iter()
            .fold(peak.others.bytes, |sum, site| sum.saturating_add(site.bytes));
        let rest = format!(" with {}; --at peak shows all", units::bytes(bytes));
        lines.push(document::more(more, "call site", rest));
    }
    if peak.difference != 0 {
        let size = units::bytes(u64::try_from(peak.difference.unsigned_abs()).unwrap_or(u64::MAX));
        let word = if peak.difference < 0 { "less" } else { "more" };
        lines.push(format!(
            "together {size} {word} than the peak, which other threads changed at that instant"
        ));
    }
    lines
}

fn marks(report: &Report) -> Option<Sum> {
    let last = report.marks.last()?;
    let count = counted(report.marks.len(), "mark");
    let time = units::duration(last.time_ns);
    let text = format!(
        "{count} set by the program, the last after {time}: {}",
        Escaped(&last.name)
    );
    Some(("marks", text))
}

/// Failed requests, largest first. Requests that differ only in their callers share a line.
fn failed_lines(report: &Report) -> Vec<String> {
    let mut lines: Vec<(String, u64)> = Vec::new();
    for failed in &report.failed {
        let line = request(failed);
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count = count.saturating_add(failed.count),
            None => lines.push((line, failed.count)),
        }
    }
    lines.into_iter().map(|(line, count)| times(count) + &line).collect()
}

/// `3 times cudaMalloc of 64 TiB on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (2), grow cache.cu:9`.
pub fn failed(failed: &FailedRow) -> String {
    times(failed.count) + &request(failed)
}

fn times(count: u64) -> String {
    match count {
        1 => String::new(),
        count => format!("{} times ", units::count(count)),
    }
}

fn request(failed: &FailedRow) -> String {
    let name = failed.error_name.map_or_else(
        || format!("error {}", failed.error),
        |name| format!("{name} ({})", failed.error),
    );
    let site = failed.stack.site().map_or(String::new(), |site| {
        let place = site.short_place().map(|place| format!(" {place}")).unwrap_or_default();
        format!(", {}{}", parts::short_name(&site.name()), Escaped(&place))
    });
    format!(
        "{} of {} on {}: {name}{site}",
        Escaped(failed.api),
        units::bytes(failed.bytes),
        failed.device
    )
}

/// Kinds of failed requests that are listed.
const FAILED_SHOWN: usize = 5;

/// What the recording lacks, and what that means for the numbers above. With `all`, zeros are listed too, then what was
/// compared and the time that recording took.
pub fn losses(report: &Report, all: bool) -> Vec<Sum> {
    let mut texts = Vec::new();
    if let Some(missing) = outside_pytorch(report.taken) {
        texts.push(missing);
    } else {
        texts.extend(losses_in_words(report.losses, report.taken, all));
        let lossy = report.allocators.iter().filter(|allocator| lacks_events(allocator));
        texts.extend(lossy.map(of_allocator));
        if texts.is_empty() {
            texts.push("nothing lost".to_owned());
        }
    }
    let mut rows = titled("not recorded", texts);
    if all && !report.taken.covers_allocators_only() {
        let complete = report.allocators.iter().filter(|allocator| !lacks_events(allocator));
        rows.extend(titled("compared", complete.map(of_allocator).collect()));
        let (time, events) = (units::duration(report.losses.recorder_ns), report.losses.events);
        let events = counted(events, "event");
        rows.push(("recorder", format!("about {time} for {events}")));
    }
    rows
}

/// What says whether a recording is complete.
pub type Recorded<'r> = (&'r Losses, &'r Capture, &'r [Allocator]);

/// What the recording lacks, and what it counted besides without a loss.
pub fn losses_and_notes((losses, taken, allocators): Recorded) -> (Vec<String>, Vec<String>) {
    if taken.covers_allocators_only() {
        return (outside_pytorch(taken).into_iter().collect(), Vec::new());
    }
    let of = |means| move |&(loss, _): &(Loss, _)| loss == means;
    let texts = |means| losses_of(losses, taken, false).filter(of(means)).map(|(_, text)| text);
    let lossy = allocators.iter().filter(|allocator| lacks_events(allocator));
    (
        texts(Loss::Missing).chain(lossy.map(of_allocator)).collect(),
        texts(Loss::Counted).collect(),
    )
}

/// What is missing if only PyTorch's allocator is known.
fn outside_pytorch(taken: &Capture) -> Option<String> {
    (taken.covers_allocators_only()).then(|| match &*taken.by {
        BY_READING => format!(
            "lines, ages and peaks, and memory outside the allocators of {READABLE}: the process was not recorded"
        ),
        BY_HISTORY => BEFORE_THE_HISTORY.to_owned(),
        _ => OUTSIDE_PYTORCH.to_owned(),
    })
}

const BEFORE_THE_HISTORY: &str = "lines of blocks that are older than PyTorch's history, ages and peaks, and memory outside its allocator: the process was not recorded";
const OUTSIDE_PYTORCH: &str = "memory outside PyTorch's allocator, and what PyTorch's snapshot leaves out";

/// What the recording lacks, without the statistics of allocators. With `all`, zeros are listed too.
pub fn losses_in_words(losses: &Losses, taken: &Capture, all: bool) -> impl Iterator<Item = String> {
    losses_of(losses, taken, all).map(|(_, text)| text)
}

fn losses_of(losses: &Losses, taken: &Capture, all: bool) -> impl Iterator<Item = (Loss, String)> {
    let counted = counted_losses(losses, taken).into_iter();
    counted
        .filter(move |(count, ..)| all || *count > 0)
        .map(move |(count, loss, what, means, remedy)| {
            let what = what.replace("{s}", if count == 1 { "" } else { "s" });
            let text = match (count, all && !remedy.is_empty()) {
                (0, _) => what,
                (_, false) => format!("{what}: {means}"),
                (_, true) => format!("{what}: {means}; {remedy}"),
            };
            (loss, format!("{} {text}", units::count(count)))
        })
}

/// Rows under one name.
pub fn titled(name: &'static str, texts: Vec<String>) -> Vec<Sum> {
    iter::once(name).chain(iter::repeat("")).zip(texts).collect()
}

/// What a count of losses says about the numbers of a report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Something is missing in them.
    Missing,
    /// This memory is counted all the same.
    Counted,
    /// Nothing: libraries do it everywhere.
    Usual,
}

const SPACE: &str = "free disk space, raise the program's limits (`ulimit -f`, `-d`, `-v`), or record to another disk";
const FROM_THE_START: &str = "start the program with `culeak run`";
const LATER: &str = "read it again while the program waits, or after its end";

/// Every count of losses: its name, in which `{s}` is the plural; what it means for the report; and what to do, if something can be done.
fn counted_losses(losses: &Losses, taken: &Capture) -> [(u64, Loss, &'static str, &'static str, &'static str); 20] {
    use Loss::{Counted, Missing, Usual};
    table! {
        losses.lost_allocations, Missing, "allocation{s}", "the totals are too low", SPACE;
        losses.lost_stacks, Missing, "stack{s}", "this memory has no call site", SPACE;
        losses.lost_python, Missing, "Python stack{s}", "lines of Python are missing",
            "free disk space; which interpreters are read: `culeak help limits`";
        losses.lost_details, Missing, "name{s} of modules, threads, devices, contexts or owners of pages", "shown without a name", SPACE;
        losses.lost_snapshots, Missing, "automatic snapshot{s}", "not written", SPACE;
        losses.lost_events, Missing, "event{s} of the timeline", "not written, for lack of space", SPACE;
        losses.lost_phases, Missing, "phase{s}", "not recorded, because there was no space or there were too many",
            "free disk space, or open fewer phases";
        losses.lost_marks, Missing, "mark{s}", "not recorded, because there was no space or there were too many",
            "free disk space, or set fewer marks";
        losses.lost_segments, Missing, "segment{s} of the kernel driver", "the ledger lacks this memory", SPACE;
        losses.unknown_frees, Missing, "unknown free{s}",
            "allocated before the recording began, or with a function that culeak does not hook", FROM_THE_START;
        losses.unknown_blocks, Missing, "unknown free{s} of framework blocks",
            "allocated before the recording began, or not reported to culeak", FROM_THE_START;
        losses.failed_frees, Missing, "failed free{s}", "this memory still counts as live",
            "look for double frees and wrong pointers";
        losses.teardown_frees, Counted, "free{s} at shutdown", "counted as freed", "";
        losses.implicit_frees, Counted, "implicit free{s}",
            "a destroyed context, a device reset or a graph launch freed the memory", "";
        losses.vanished, Missing, "vanished allocation{s}",
            "the address was allocated again without a recorded free; counted as freed", "please report a bug";
        losses.captured_not_launched, Counted, "allocation{s} in graphs that were never launched", "0 B live", "";
        losses.export_tables, Usual, "private driver table{s}", "calls through them are not recorded", "";
        losses.unhooked.len() as u64, Missing, "unhooked function{s}", "what they may have allocated is missing",
            "please report a bug that names them";
        taken.in_flight, Missing, "free{s} in flight", "whether the memory was freed is unknown", LATER;
        taken.events_during_read, Missing, "event{s} during the read", "rows list memory that was live throughout", LATER;
    }
}

/// The counts of losses as a table of Markdown, for docs/limits.md.
#[cfg(test)]
pub fn losses_table() -> String {
    let rows = counted_losses(&Losses::default(), &Capture::default()).map(|(_, loss, what, means, remedy)| {
        assert!(loss != Loss::Missing || !remedy.is_empty(), "{what}: what to do?");
        format!("| {} | {means} | {remedy} |\n", what.replace("{s}", "s"))
    });
    format!("| count | means | what to do |\n|---|---|---|\n{}", rows.concat())
}

fn lacks_events(allocator: &Allocator) -> bool {
    allocator.mismatches > 0 || allocator.unseen_bytes > 0
}

fn of_allocator(allocator: &Allocator) -> String {
    format!(
        "{}: {}, {} with a different total than recorded, {} allocated before the recording began",
        Escaped(owner_of_domain(&allocator.domain)),
        counted(allocator.events, "event"),
        units::count(allocator.mismatches),
        units::bytes(allocator.unseen_bytes)
    )
}
