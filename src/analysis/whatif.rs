//! What PyTorch's caching allocator would have reserved under other settings: the log of a run, replayed against a model of it.
//!
//! | module | contents |
//! |---|---|
//! | [`settings`] | `PYTORCH_CUDA_ALLOC_CONF` |
//! | [`stated`] | the version and the settings of a run |
//! | [`model`] | the allocator |
//! | `replay` | the requests of a run, given to the model |
//! | [`trace`] | the requests of a run, from its log |
//! | `layout` | the free ranges of its segments |
//! | `plan` | what a plan needs that knows when each block is freed |
//! | [`version`] | what differs between versions of PyTorch |
//!
//! The model proves itself on each run before it advises: with the settings of the run it must reproduce the segments after each
//! request, as many of each size. If it is off by more than [`MOST_ERROR`] of the peak, there is no advice.
//!
//! The log has the sizes of blocks. A block of more than 1 MiB may be up to 1 MiB larger than its request, so the figures of other
//! settings are rather too high than too low. Deliberately absent: the time that driver calls take; their number stands for it.
//! Streams are concluded, and so are the pools of a `MemPool`: a recording has neither.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;

use crate::analysis::framework::{OWNERS, Watched};
use crate::analysis::report::{ProcessLine, process_line};
use crate::analysis::site::CallStacks;
use crate::kind::Kind;
use crate::snapshot::{Allocations, Snapshot};
use crate::timeline::Timeline;

mod layout;
pub mod model;
mod plan;
mod replay;
pub mod settings;
pub mod stated;
pub mod trace;
pub mod version;

use model::Model;
use replay::{Plan, Replayed, replay};
use settings::{LARGE_SEGMENT, ROUNDING, SPLIT, Settings, expandable_text};
pub use stated::{CALL, Stated, VARIABLE, ignored_expandable, ignored_settings, without_limit};
use stated::{ignored_variable, version_of};
use trace::{Conflicts, Recorded, Trace};
use version::{OLDEST_RECORD_FIRST, Version};

/// The value of [`WhatIf::format`].
pub const FORMAT: &str = "culeak-whatif";
pub const VERSION: u32 = 2;

/// The largest part of the recorded peak by which the model may be off.
pub const MOST_ERROR: f64 = 0.02;
/// The most streams and private pools. With more, or with fewer than two segments for each, they may explain any run.
const MOST_POOLS: u32 = 16;
/// What a recommended setting saves at least: by so much predictions were off (docs/fragmentation.md).
const WORTH: f64 = 0.1;
/// The same where blocks are not split: which one serves a request then depends on sizes that the log has rounded.
const WORTH_UNSPLIT: f64 = 0.15;
const RECOMMENDED: usize = 3;
/// Marks with a row.
const MARKS: usize = 3;
/// The most pools of which each two are tried as one.
const PAIRED: u32 = 6;
const CANDIDATES: [&str; 10] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "max_split_size_mb:128,roundup_power2_divisions:8",
    "max_split_size_mb:128,expandable_segments:True",
];
/// It takes effect only if the process limits its memory.
const COLLECTING: &str = "garbage_collection_threshold:0.8";

/// What is asked beyond the table.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Other settings to try.
    pub settings: Vec<String>,
    /// The memory of a device that the run should fit on.
    pub device_memory: Option<u64>,
    /// Whether the request that failed would have fitted.
    pub failed_request: bool,
}

/// How much would be reserved under other settings.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WhatIf<'a> {
    pub format: &'static str,
    pub version: u32,
    pub process: ProcessLine<'a>,
    /// The version of PyTorch; `None`: it is not known.
    pub pytorch: Option<&'a str>,
    /// The version that the run is modelled as.
    pub modelled_as: String,
    /// That the versions differ, that a variable with settings had no effect, or that the run has other pools.
    pub notes: Vec<String>,
    pub devices: Vec<OnDevice>,
}

/// PyTorch's allocator on one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OnDevice {
    pub ordinal: i32,
    /// The settings of the run, as its environment had them or as its segments show.
    pub settings: String,
    /// The variable that had them, or the call by which the program set them; `None`: none was recorded.
    pub variable: Option<String>,
    /// Settings that had no effect.
    pub ignored: Option<String>,
    #[serde(flatten)]
    pub of: Recorded,
    /// The most bytes, after any request, in segments that only the model has, or only the recording.
    pub error_bytes: u64,
    /// The same as a part of the recorded peak.
    pub error: f64,
    /// Streams and private pools that the model tells apart.
    pub pools: u32,
    /// Why there is no advice; then there are no predictions.
    pub no_advice: Option<String>,
    /// The memory of the device that was asked for.
    pub device_bytes: Option<u64>,
    /// The request that failed, if it was asked for.
    pub failed_bytes: Option<u64>,
    /// The run's own settings first.
    pub predictions: Vec<Prediction>,
    /// Indices into `predictions`, the best first.
    pub recommended: Vec<usize>,
    /// Marks without a prediction: giving the cache back there gives less or nothing.
    pub marks_left_out: usize,
}

/// What the allocator would have done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Prediction {
    pub label: String,
    /// The value for the environment variable, with those of the run's settings that do not matter here; `None`: it is no setting.
    pub settings: Option<String>,
    pub peak_reserved_bytes: u64,
    /// The least: where blocks are left whole, it can depend on sizes of requests that the log does not have.
    pub least_peak_reserved_bytes: u64,
    pub end_reserved_bytes: u64,
    /// Calls that take memory from the driver or give it back.
    pub driver_calls: u64,
    /// Whether everything fits on the device that was asked for.
    pub fits_device: Option<bool>,
    /// Whether the request that failed would have fitted.
    pub failed_request: Option<FailedRequest>,
}

/// Whether a request would have fitted into what the driver had given, the best answer first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailedRequest {
    Fits,
    /// It needs less than the request did, but more than was reserved; what the driver had left is not recorded.
    Perhaps,
    Fails,
}

impl<'a> WhatIf<'a> {
    /// `last`: the final state, which the timeline was read with.
    ///
    /// # Errors
    /// The log does not have all requests, or there are none.
    pub fn of(
        snapshot: &'a Snapshot,
        last: &Allocations,
        timeline: &Timeline,
        stacks: &CallStacks,
        question: &Question,
    ) -> Result<WhatIf<'a>, String> {
        let (version, note) = version_of(snapshot);
        for text in &question.settings {
            Settings::parse(text, version).map_err(|why| format!("--try {text}: {why}"))?;
        }
        let own = Stated::of(snapshot).settings.unwrap_or_default();
        let traces = Trace::of_devices(snapshot, last, timeline, stacks, &own, u64::MAX)?;
        let devices = snapshot.devices.iter().zip(&traces);
        let devices: Vec<OnDevice> = devices
            .filter(|(_, trace)| trace.of.allocations + trace.of.elsewhere > 0)
            .map(|(device, trace)| on_device(snapshot, device.ordinal, trace, stacks, question))
            .collect();
        if devices.is_empty() {
            let why = "PyTorch's caching allocator handed out no block; other allocators are not modelled";
            return Err(why.to_owned());
        }
        if question.failed_request && devices.iter().all(|device| device.failed_bytes.is_none()) {
            return Err("no request to PyTorch's allocator failed for lack of memory".to_owned());
        }
        Ok(WhatIf {
            format: FORMAT,
            version: VERSION,
            process: process_line(snapshot),
            pytorch: version::of_process(snapshot),
            modelled_as: version.to_string(),
            notes: notes(snapshot, stacks, note),
            devices,
        })
    }
}

fn notes(snapshot: &Snapshot, stacks: &CallStacks, of_version: Option<String>) -> Vec<String> {
    let changed = format!("the program changed its settings while it ran ({CALL}); only the last ones are modelled");
    let changed = Stated::of(snapshot).is_changed.then_some(changed);
    let all = [
        of_version,
        ignored_variable(snapshot),
        without_limit(snapshot),
        changed,
        other_pools(snapshot, stacks),
    ]
    .into_iter();
    all.flatten().collect()
}

fn other_pools(snapshot: &Snapshot, stacks: &CallStacks) -> Option<String> {
    let watched = Watched::of(snapshot);
    let requested = (0..snapshot.stacks.len()).filter_map(|stack| stacks.get(Some(stack)).allocator);
    let known: BTreeSet<&str> = watched
        .names()
        .chain(requested)
        .filter(|name| OWNERS.contains(name))
        .collect();
    let of_driver = snapshot.ever_had(Kind::Async).then_some("CUDA (cudaMallocAsync)");
    let all: Vec<&str> = of_driver
        .into_iter()
        .chain(known)
        .filter(|name| *name != "PyTorch")
        .collect();
    (!all.is_empty()).then(|| format!("not modelled: the pools of {}", all.join(", ")))
}

fn on_device(snapshot: &Snapshot, ordinal: i32, trace: &Trace, stacks: &CallStacks, question: &Question) -> OnDevice {
    let stated = Stated::of(snapshot);
    let mut own = stated.settings.clone().unwrap_or_default();
    let is_as_stated = own.expandable == trace.expandable;
    let shown = (!is_as_stated).then(|| expandable_text(trace.expandable));
    let settings = [stated.text.as_str()].into_iter().chain(shown);
    let settings: Vec<&str> = settings.filter(|part| !part.is_empty()).collect();
    let is_ignored = stated.settings.is_ok() && own.expandable && !is_as_stated;
    let mut ignored: Vec<String> = is_ignored
        .then(|| expandable_text(true).to_owned())
        .into_iter()
        .collect();
    own.expandable = trace.expandable;
    // The sizes of the log are rounded already.
    own.divisions = Settings::default().divisions;
    let peak = trace.of.recorded_peak_bytes;
    let is_off = |of: &Explained| of.run.error as f64 > MOST_ERROR * peak as f64;
    let mut explained = explain(snapshot, trace, &own);
    for key in [SPLIT, ROUNDING, LARGE_SEGMENT] {
        let set = settings::only(&stated.text, |of| of == key);
        if set.is_empty() || stated.settings.is_err() || !is_off(&explained) {
            continue;
        }
        let rest = settings::only(&stated.text, |of| of != key);
        let other = Settings {
            expandable: own.expandable,
            divisions: own.divisions,
            ..Settings::parse(&rest, version_of(snapshot).0).unwrap_or_default()
        };
        let without = explain(snapshot, trace, &other);
        if !is_off(&without) && !may_explain_anything(trace, &without.classes) {
            ignored.push(set);
            explained = without;
        }
    }
    let run = &explained.run;
    let pools = pools(&explained.classes);
    let error = run.error as f64 / peak.max(1) as f64;
    let no_advice = match &stated.settings {
        Err(why) => Some(format!(
            "the run's own settings, {}, are not understood: {why}",
            stated.text
        )),
        Ok(_) if peak == 0 || trace.of.elsewhere > trace.of.allocations => {
            Some("the memory that the blocks lie in was not recorded, or is of another allocator".to_owned())
        }
        Ok(_) if error > MOST_ERROR => Some(format!(
            "the model does not reproduce this run: it is off by up to {:.1} % of the peak, and {:.0} % is the most with which its \
             figures for other settings mean anything. Streams that use each other's blocks (record_stream), CUDA graphs and \
             allocators that the program installs are known causes",
            error * 100.0,
            MOST_ERROR * 100.0
        )),
        Ok(_) if may_explain_anything(trace, &explained.classes) => Some(format!(
            "the model reproduces this run only with {pools} streams or pools for {} segments, and so many would reproduce any run",
            trace.segments
        )),
        Ok(_) => None,
    };
    let mut found = OnDevice {
        ordinal,
        settings: settings.join(","),
        variable: stated.source.map(str::to_owned),
        ignored: (!ignored.is_empty()).then(|| ignored.join(",")),
        of: trace.of.clone(),
        error_bytes: run.error,
        error,
        pools,
        no_advice,
        device_bytes: question.device_memory,
        failed_bytes: trace.failed_bytes.filter(|_| question.failed_request),
        ..OnDevice::default()
    };
    if found.no_advice.is_none() {
        let version = version_of(snapshot).0;
        predict(trace, &explained, (&stated, version), stacks, question, &mut found);
        found.recommended = recommended(&found);
    }
    found
}

/// With what a run is reproduced.
struct Explained {
    classes: Vec<u32>,
    own: Settings,
    plan: Plan,
    run: Replayed,
}

fn pools(classes: &[u32]) -> u32 {
    classes.iter().max().map_or(1, |most| most + 1)
}

/// Whether so many pools would reproduce any run. Those of expandable segments are recorded, and each capture of a graph has one at most.
fn may_explain_anything(trace: &Trace, classes: &[u32]) -> bool {
    let of_graphs: BTreeSet<u32> = trace
        .of_graphs
        .keys()
        .map(|&segment| classes[segment as usize])
        .collect();
    let captures: BTreeSet<u64> = trace.of_graphs.values().copied().collect();
    if of_graphs.len() > captures.len() {
        return true;
    }
    let segments = classes
        .iter()
        .zip(0..)
        .filter(|of| !trace.of_graphs.contains_key(&of.1));
    let (count, pools) = (
        segments.clone().count() as u32,
        segments.map(|of| of.0 + 1).max().unwrap_or(1),
    );
    !trace.expandable && pools > 1 && (pools > MOST_POOLS || count < 2 * pools)
}

/// The explanation that needs least, of those that reproduce the run best.
fn explain(snapshot: &Snapshot, trace: &Trace, own: &Settings) -> Explained {
    let peak = trace.of.recorded_peak_bytes;
    let newest = version_of(snapshot).0 >= OLDEST_RECORD_FIRST;
    let orders = [Some(newest), version::of_process(snapshot).is_none().then_some(!newest)];
    let limits = [Some(None), trace.was_forced.then_some(Some(peak))];
    let mut ways = Vec::new();
    for by in [Conflicts::None, Conflicts::NewSegments, Conflicts::All] {
        for limit in limits.into_iter().flatten() {
            ways.extend(orders.into_iter().flatten().map(|order| (by, limit, order)));
        }
    }
    let explained = |(by, limit, oldest_record_first): (Conflicts, Option<u64>, bool)| {
        let (mut own, mut plan, classes) = (own.clone(), Plan::default(), trace.classes(by));
        own.oldest_record_first = oldest_record_first;
        (plan.forced, plan.limit) = (limit.is_none(), limit);
        let run = replay(trace, &own, &classes, plan);
        Explained {
            classes,
            own,
            plan,
            run,
        }
    };
    let rank = |of: &Explained| {
        let is_weak = may_explain_anything(trace, &of.classes);
        (of.run.error as f64 > MOST_ERROR * peak as f64, is_weak, of.run.error)
    };
    let best = ways.into_iter().map(explained).min_by_key(rank);
    best.expect("there are ways")
}

fn predict(
    trace: &Trace,
    explained: &Explained,
    (stated, version): (&Stated, Version),
    stacks: &CallStacks,
    question: &Question,
    found: &mut OnDevice,
) {
    let Explained { classes, own, run, .. } = explained;
    // What was not given in the run is given under no settings.
    let plan = Plan {
        limit: (trace.was_forced || trace.of.limited_by_program).then_some(trace.of.recorded_peak_bytes),
        device_bytes: question.device_memory,
        ..Plan::default()
    };
    let prediction = |label: String, settings: Option<String>, of: &Settings, classes: &[u32], plan: Plan| {
        // Which one is true is not known, so what is worse counts.
        let may_be_smaller = of != own && of.max_split < u64::MAX;
        let sizes = [Some(false), may_be_smaller.then_some(true)].into_iter().flatten();
        let run = |smaller| replay(trace, of, classes, Plan { smaller, ..plan });
        let runs: Vec<Replayed> = sizes.map(run).collect();
        let most = |of: fn(&Model) -> u64| runs.iter().map(|run| of(&run.model)).max().unwrap_or(0);
        let failed_request = runs.iter().filter_map(|run| run.failed_request).max();
        Prediction {
            label,
            settings,
            peak_reserved_bytes: most(|model| model.peak),
            least_peak_reserved_bytes: runs.iter().map(|run| run.model.peak).min().unwrap_or(0),
            end_reserved_bytes: most(|model| model.reserved),
            driver_calls: most(|model| model.driver_calls),
            fits_device: plan.device_bytes.map(|_| most(|model| model.failed) == 0),
            failed_request: failed_request.filter(|_| question.failed_request),
        }
    };
    let first = question.device_memory.map_or(explained.plan, |_| plan);
    let rows = &mut found.predictions;
    rows.push(prediction("as recorded".to_owned(), None, own, classes, first));
    let is_limited = plan.limit.or(plan.device_bytes).is_some();
    let candidates = CANDIDATES.into_iter().chain(is_limited.then_some(COLLECTING));
    let oldest_record_first = own.oldest_record_first;
    let as_run = |of: Settings| Settings {
        oldest_record_first,
        ..of
    };
    let mut tried = vec![own.clone()];
    tried.extend(stated.settings.clone().map(as_run));
    let kept = settings::without_effect(&stated.text);
    for text in candidates.chain(question.settings.iter().map(String::as_str)) {
        // A call leaves those of the variable as they are.
        let is_by_call = stated.source == Some(CALL) && !text.contains("expandable_segments");
        let is_left = is_by_call && Settings::parse(stated.of_variable, version).is_ok_and(|of| of.expandable);
        let other = if is_left { expandable_text(false) } else { "" };
        let parts = [text, other, &kept].into_iter().filter(|part| !part.is_empty());
        let whole = parts.collect::<Vec<&str>>().join(",");
        let mut parsed = Settings::parse(text, version).map(as_run);
        parsed
            .iter_mut()
            .for_each(|of| of.limits_memory |= own.limits_memory || text == COLLECTING);
        let Some(settings) = parsed.ok().filter(|of| !tried.contains(of)) else {
            continue;
        };
        let label = match text {
            "" => "default".to_owned(),
            COLLECTING => format!("{COLLECTING} and set_per_process_memory_fraction"),
            _ => text.to_owned(),
        };
        // It needs a change of the program, too.
        let whole = (text != COLLECTING).then_some(whole);
        rows.push(prediction(label, whole, &settings, classes, plan));
        tried.push(settings);
    }
    let idle = &run.idle_at_marks;
    let mut marks: Vec<usize> = (0..idle.len()).filter(|&mark| idle[mark] > 0).collect();
    marks.sort_by_key(|&mark| std::cmp::Reverse(idle[mark]));
    marks.truncate(MARKS);
    found.marks_left_out = idle.len() - marks.len();
    for mark in marks {
        let label = format!("empty_cache() at mark:{}", trace.marks[mark]);
        let empty_at = Some(mark);
        rows.push(prediction(label, None, own, classes, Plan { empty_at, ..first }));
    }
    // The pools of graphs come last; no stream of the program's choice is theirs.
    let ordinary = classes
        .iter()
        .zip(0..)
        .filter(|of| !trace.of_graphs.contains_key(&of.1));
    let pools = ordinary.map(|of| of.0 + 1).max().unwrap_or(0);
    if pools < 2 || trace.expandable {
        return;
    }
    let as_one = |label: &str, pools: Range<u32>, into: u32| {
        let joined = classes
            .iter()
            .map(|class| if pools.contains(class) { into } else { *class });
        prediction(label.to_owned(), None, own, &joined.collect::<Vec<u32>>(), first)
    };
    rows.push(as_one("all requests on one stream", 0..pools, 0));
    let pairs = (0..pools).flat_map(|b| (0..b).map(move |a| (a, b)));
    let pairs = pairs.filter(|_| (3..=PAIRED).contains(&pools));
    let row = |(a, b)| {
        let [first, second] = [a, b].map(|class| line_of(trace, stacks, classes, class));
        as_one(
            &format!("one pool for two: that of {first} and that of {second}"),
            b..b + 1,
            a,
        )
    };
    rows.extend(pairs.map(row).min_by_key(|row| row.peak_reserved_bytes));
}

/// The line whose blocks lay in most segments of a pool.
fn line_of(trace: &Trace, stacks: &CallStacks, classes: &[u32], class: u32) -> String {
    let of_class = |segments: &BTreeSet<u32>| segments.iter().filter(|&&of| classes[of as usize] == class).count();
    let most = trace.sites.iter().max_by_key(|(_, segments)| of_class(segments));
    let (label, place) = stacks.get(most.and_then(|(site, _)| site.1)).site_names();
    place.unwrap_or(label)
}

/// Indices of the predictions that save more than the error of the model, best first.
fn recommended(found: &OnDevice) -> Vec<usize> {
    let recorded = &found.predictions[0];
    let own = recorded.peak_reserved_bytes;
    let worth = |of: &Prediction| {
        let is_unsplit = of.settings.iter().any(|text| text.contains("max_split_size_mb"));
        let part = if is_unsplit { WORTH_UNSPLIT } else { WORTH };
        ((own as f64 * part) as u64).max(found.error_bytes)
    };
    let fits = |of: &Prediction| (of.fits_device == Some(false), of.failed_request);
    let rank = |of: &Prediction| (fits(of), of.peak_reserved_bytes, of.driver_calls);
    let saves = |of: &Prediction| {
        let helps = of.failed_request == Some(FailedRequest::Fits) || of.fits_device > recorded.fits_device;
        of.settings.is_some() && (helps || of.peak_reserved_bytes.saturating_add(worth(of)) < own)
    };
    let all = &found.predictions;
    let mut best: Vec<usize> = (1..all.len()).filter(|&nth| saves(&all[nth])).collect();
    best.sort_by_key(|&nth| rank(&all[nth]));
    // A combination that gains no more than one of its settings is not worth it.
    best.dedup_by_key(|nth| rank(&all[*nth]));
    best.truncate(RECOMMENDED);
    best
}

#[cfg(test)]
mod tests;
