//! What PyTorch's caching allocator would have reserved under other settings: the log of a run, replayed against a model of it.
//!
//! | module | contents |
//! |---|---|
//! | [`settings`] | `PYTORCH_CUDA_ALLOC_CONF` |
//! | [`stated`] | the version and the settings of a run |
//! | [`model`] | the allocator |
//! | [`trace`] | the requests of a run, from its log |
//! | [`version`] | what differs between versions of PyTorch |
//!
//! The model proves itself on each run before it advises: with the settings of the run it must reproduce the bytes reserved after
//! each request. If it is off by more than [`MOST_ERROR`] of the peak, there is no advice.
//!
//! The log has the sizes of blocks. A block of more than 1 MiB may be up to 1 MiB larger than its request, so the figures of other
//! settings are rather too high than too low. Deliberately absent: the time that driver calls take; their number stands for it.

use foldhash::HashMap;
use serde::Serialize;

use crate::analysis::report::{ProcessLine, process_line};
use crate::analysis::site::CallStacks;
use crate::snapshot::{Allocations, Snapshot};
use crate::timeline::Timeline;

pub mod model;
pub mod settings;
pub mod stated;
pub mod trace;
pub mod version;

use model::Model;
use settings::{Settings, expandable_text};
pub use stated::{VARIABLE, ignored_setting, settings_of};
use stated::{ignored_variable, version_of};
use trace::{Conflicts, Step, Trace};
use version::OLDEST_RECORD_FIRST;

/// The value of [`WhatIf::format`].
pub const FORMAT: &str = "culeak-whatif";
pub const VERSION: u32 = 1;

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
const CANDIDATES: [&str; 7] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
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
    /// That the versions differ, or that a variable with settings had no effect.
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
    /// The variable that had them; `None`: none was recorded.
    pub variable: Option<String>,
    /// A setting that had no effect.
    pub ignored: Option<String>,
    pub allocations: u64,
    pub recorded_peak_bytes: u64,
    pub recorded_end_bytes: u64,
    /// From this time on, so many allocations were not replayed: a segment was freed while blocks in it were live.
    pub cut_off_ns: Option<u64>,
    pub cut_off_allocations: u64,
    /// The largest difference between the model and the recording after any request.
    pub error_bytes: u64,
    /// The same as a part of the recorded peak.
    pub error: f64,
    /// Streams and private pools that the model tells apart.
    pub pools: u32,
    /// Why there is no advice; then there are no predictions.
    pub no_advice: Option<String>,
    /// No allocator reserves less: the most bytes in live blocks.
    pub peak_live_bytes: u64,
    /// The same in whole pages of 2 MiB of each pool.
    pub peak_pages_bytes: u64,
    /// The memory of the device that was asked for.
    pub device_bytes: Option<u64>,
    /// The most that the process had on the device at any time beside PyTorch's segments.
    pub other_peak_bytes: u64,
    /// What the driver takes for itself (contexts, libraries) is in it.
    pub other_is_complete: bool,
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

/// How to replay.
#[derive(Clone, Copy, Default)]
struct Plan {
    /// The most that the driver gives to the allocator.
    limit: Option<u64>,
    /// The memory of the device, for the allocator and everything else.
    device_bytes: Option<u64>,
    /// Gives the cache back where the run did because the driver had no more.
    forced: bool,
    /// Gives the cache back at this mark too.
    empty_at: Option<usize>,
    /// Blocks that are just too large to be split, and may be so only because they were not split in the run, were requested
    /// smaller.
    smaller: bool,
}

struct Replayed {
    model: Model,
    /// The largest difference after any request.
    error: u64,
    failed_request: Option<FailedRequest>,
    /// By mark, the most that giving the cache back there gives.
    idle_at_marks: Vec<u64>,
}

fn replay(trace: &Trace, settings: &Settings, classes: &[u32], plan: Plan) -> Replayed {
    let mut model = Model::new(
        settings.clone(),
        plan.device_bytes.or(plan.limit),
        trace.addresses.clone(),
    );
    let mut blocks: HashMap<u32, u32> = HashMap::default();
    let (mut error, mut failed_request) = (0, None);
    let mut idle_at_marks = vec![0; trace.marks.len()];
    for &(step, recorded) in &trace.steps {
        match step {
            Step::Allocate {
                block,
                mut bytes,
                segment,
                is_whole,
            } => {
                let class = classes.get(segment as usize).copied().unwrap_or(0);
                let unsplit = settings.max_split..settings.max_split.saturating_add(model::SMALL);
                if plan.smaller && is_whole && unsplit.contains(&bytes) && !trace.cut_sizes.contains(&bytes) {
                    bytes = settings.max_split - model::SMALLEST;
                }
                blocks.insert(block, model.allocate(bytes, class));
            }
            Step::Free { block } => {
                if let Some(id) = blocks.remove(&block) {
                    model.free(id);
                }
            }
            Step::Release { by_force } if !by_force || plan.forced => model.release_cached(),
            Step::Mark(mark) if plan.empty_at == Some(mark) => model.release_cached(),
            Step::Mark(mark) => {
                idle_at_marks[mark] = model.idle().max(idle_at_marks[mark]);
                continue;
            }
            Step::Release { .. } => continue,
            Step::Failed { bytes } => {
                failed_request = Some(of_failed(&model, bytes, recorded));
                continue;
            }
            Step::OtherMemory(bytes) => {
                if let Some(device_bytes) = plan.device_bytes {
                    model.limit = Some(device_bytes.saturating_sub(bytes));
                    model.failed += u64::from(model.limit < Some(model.reserved));
                }
                continue;
            }
        }
        error = error.max(model.reserved.abs_diff(recorded));
    }
    Replayed {
        model,
        error,
        failed_request,
        idle_at_marks,
    }
}

/// Whether a request fits if the driver gives no more than was reserved when it failed.
fn of_failed(model: &Model, bytes: u64, recorded: u64) -> FailedRequest {
    let mut model = model.clone();
    model.limit = None;
    model.release_cached();
    model.allocate(bytes, 0);
    match model.reserved {
        needed if needed <= recorded => FailedRequest::Fits,
        needed if needed < recorded.saturating_add(model.segment_for(bytes)) => FailedRequest::Perhaps,
        _ => FailedRequest::Fails,
    }
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
        let own = settings_of(snapshot).1.unwrap_or_default();
        let traces = Trace::of_devices(snapshot, last, timeline, stacks, &own, u64::MAX)?;
        let used = snapshot
            .devices
            .iter()
            .zip(&traces)
            .filter(|(_, trace)| trace.allocations > 0);
        let devices: Vec<OnDevice> = used
            .map(|(device, trace)| on_device(snapshot, device.ordinal, trace, question))
            .collect();
        if devices.is_empty() {
            return Err(
                "PyTorch's caching allocator handed out no block; other allocators are not modelled".to_owned(),
            );
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
            notes: note.into_iter().chain(ignored_variable(snapshot)).collect(),
            devices,
        })
    }
}

fn on_device(snapshot: &Snapshot, ordinal: i32, trace: &Trace, question: &Question) -> OnDevice {
    let (variable, read) = settings_of(snapshot);
    let stated = variable.map_or("", |(_, value)| value);
    let mut own = read.clone().unwrap_or_default();
    let is_as_stated = own.expandable == trace.expandable;
    let shown = (!is_as_stated).then(|| expandable_text(trace.expandable));
    let settings: Vec<&str> = [stated]
        .into_iter()
        .chain(shown)
        .filter(|part| !part.is_empty())
        .collect();
    let ignored = read.is_ok() && own.expandable && !is_as_stated;
    own.expandable = trace.expandable;
    // The sizes of the log are rounded already.
    own.divisions = Settings::default().divisions;
    let version = version_of(snapshot).0;
    let orders = match version::of_process(snapshot) {
        Some(_) => &[version >= OLDEST_RECORD_FIRST][..],
        None => &[true, false],
    };
    let explained = explain(trace, &own, orders);
    let Explained {
        classes, run, order, ..
    } = &explained;
    own.oldest_record_first = *order;
    let pools = pools(classes);
    let error = run.error as f64 / trace.peak_reserved.max(1) as f64;
    let no_advice = match read {
        Err(why) => Some(format!("the run's own settings, {stated}, are not understood: {why}")),
        Ok(_) if trace.peak_reserved == 0 => Some("the memory that the blocks lie in was not recorded".to_owned()),
        Ok(_) if error > MOST_ERROR => Some(format!(
            "the model does not reproduce this run: it is off by up to {:.1} % of the peak, and {:.0} % is the most with which its \
             figures for other settings mean anything. Streams that use each other's blocks (record_stream), CUDA graphs and \
             allocators that the program installs are known causes",
            error * 100.0,
            MOST_ERROR * 100.0
        )),
        Ok(_) if may_explain_anything(trace, pools) => Some(format!(
            "the model reproduces this run only with {pools} streams or pools for {} segments, and so many would reproduce any run",
            trace.segments
        )),
        Ok(_) => None,
    };
    let mut found = OnDevice {
        ordinal,
        settings: settings.join(","),
        variable: variable.map(|(name, _)| name.to_owned()),
        ignored: ignored.then(|| expandable_text(true).to_owned()),
        allocations: trace.allocations,
        recorded_peak_bytes: trace.peak_reserved,
        recorded_end_bytes: trace.end_reserved,
        cut_off_ns: trace.cut_off.map(|(time_ns, _)| time_ns),
        cut_off_allocations: trace.cut_off.map_or(0, |(_, allocations)| allocations),
        error_bytes: run.error,
        error,
        pools,
        no_advice,
        peak_live_bytes: trace.peak_live,
        peak_pages_bytes: trace.peak_pages,
        device_bytes: question.device_memory,
        other_peak_bytes: trace.peak_other,
        other_is_complete: trace.other_is_known,
        failed_bytes: trace.failed_bytes.filter(|_| question.failed_request),
        ..OnDevice::default()
    };
    if found.no_advice.is_none() {
        predict(snapshot, trace, &own, &explained, question, &mut found);
        found.recommended = recommended(&found);
    }
    found
}

/// The classes, the plan and the order of equal blocks with which the run's own settings reproduce it.
struct Explained {
    classes: Vec<u32>,
    plan: Plan,
    order: bool,
    run: Replayed,
}

fn pools(classes: &[u32]) -> u32 {
    classes.iter().max().map_or(1, |most| most + 1)
}

/// Of expandable segments, the pools are recorded.
fn may_explain_anything(trace: &Trace, pools: u32) -> bool {
    !trace.expandable && pools > 1 && (pools > MOST_POOLS || trace.segments < 2 * pools)
}

/// The explanation that needs least, of those that reproduce the run best. `orders`: whether the oldest of equal blocks may come first.
fn explain(trace: &Trace, own: &Settings, orders: &[bool]) -> Explained {
    let forced = Plan {
        forced: true,
        ..Plan::default()
    };
    let limited = Plan {
        limit: Some(trace.peak_reserved),
        ..Plan::default()
    };
    let plans = if trace.was_forced {
        &[forced, limited][..]
    } else {
        &[forced]
    };
    let most_error = (MOST_ERROR * trace.peak_reserved as f64) as u64;
    let mut best: Option<((bool, bool, u64), Explained)> = None;
    for by in [Conflicts::None, Conflicts::NewSegments, Conflicts::All] {
        let classes = trace.classes(by);
        let is_weak = may_explain_anything(trace, pools(&classes));
        for (&plan, &order) in plans
            .iter()
            .flat_map(|plan| orders.iter().map(move |order| (plan, order)))
        {
            let own = Settings {
                oldest_record_first: order,
                ..own.clone()
            };
            let run = replay(trace, &own, &classes, plan);
            let rank = (run.error > most_error, is_weak, run.error);
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                let classes = classes.clone();
                best = Some((
                    rank,
                    Explained {
                        classes,
                        plan,
                        order,
                        run,
                    },
                ));
            }
        }
        if best.as_ref().is_some_and(|(rank, _)| *rank == (false, false, 0)) {
            break;
        }
    }
    best.expect("there are plans").1
}

fn predict(
    snapshot: &Snapshot,
    trace: &Trace,
    own: &Settings,
    explained: &Explained,
    question: &Question,
    found: &mut OnDevice,
) {
    let (stated, kept) = (
        settings_of(snapshot).1,
        settings_of(snapshot).0.map_or("", |(_, value)| value),
    );
    let kept = settings::without_effect(kept);
    // What the driver did not give in the run it gives under no settings.
    let plan = Plan {
        limit: trace.was_forced.then_some(trace.peak_reserved),
        device_bytes: question.device_memory,
        ..Plan::default()
    };
    let prediction = |label: String, text: Option<String>, settings: &Settings, classes: &[u32], plan: Plan| {
        // Which one is true is not known, so what is worse counts.
        let both = [false, true]
            .into_iter()
            .take(if settings == own || settings.max_split == u64::MAX {
                1
            } else {
                2
            });
        let runs: Vec<Replayed> = both
            .map(|smaller| replay(trace, settings, classes, Plan { smaller, ..plan }))
            .collect();
        let most = |of: fn(&Model) -> u64| runs.iter().map(|run| of(&run.model)).max().unwrap_or(0);
        Prediction {
            label,
            settings: text,
            peak_reserved_bytes: most(|model| model.peak),
            least_peak_reserved_bytes: runs.iter().map(|run| run.model.peak).min().unwrap_or(0),
            end_reserved_bytes: most(|model| model.reserved),
            driver_calls: most(|model| model.driver_calls),
            fits_device: plan.device_bytes.map(|_| most(|model| model.failed) == 0),
            failed_request: runs
                .iter()
                .filter_map(|run| run.failed_request)
                .max()
                .filter(|_| question.failed_request),
        }
    };
    let first = if question.device_memory.is_some() {
        plan
    } else {
        explained.plan
    };
    let classes = &explained.classes;
    found.predictions = vec![prediction("as recorded".to_owned(), None, own, classes, first)];
    let is_limited = plan.limit.or(plan.device_bytes).is_some();
    let candidates = CANDIDATES.into_iter().chain(is_limited.then_some(COLLECTING));
    let version = version_of(snapshot).0;
    let as_run = |settings: Settings| Settings {
        oldest_record_first: own.oldest_record_first,
        ..settings
    };
    let mut tried = vec![own.clone()];
    tried.extend(stated.map(as_run));
    for text in candidates.chain(question.settings.iter().map(String::as_str)) {
        let Ok(mut settings) = Settings::parse(text, version).map(as_run) else {
            continue;
        };
        settings.limits_memory |= own.limits_memory || text == COLLECTING;
        if tried.contains(&settings) {
            continue;
        }
        let label = match text {
            "" => "default".to_owned(),
            COLLECTING => format!("{COLLECTING} and set_per_process_memory_fraction"),
            _ => text.to_owned(),
        };
        // It needs a change of the program, too.
        let is_alone = text != COLLECTING;
        let whole: Vec<&str> = [text, &kept].into_iter().filter(|part| !part.is_empty()).collect();
        let whole = is_alone.then(|| whole.join(","));
        found
            .predictions
            .push(prediction(label, whole, &settings, classes, plan));
        tried.push(settings);
    }
    let idle = &explained.run.idle_at_marks;
    let mut marks: Vec<usize> = (0..idle.len()).collect();
    marks.sort_by_key(|&mark| std::cmp::Reverse(idle[mark]));
    marks.retain(|&mark| idle[mark] > 0);
    marks.truncate(MARKS);
    found.marks_left_out = idle.len() - marks.len();
    for mark in marks {
        let label = format!("empty_cache() at mark:{}", trace.marks[mark]);
        let at_mark = Plan {
            empty_at: Some(mark),
            ..first
        };
        found.predictions.push(prediction(label, None, own, classes, at_mark));
    }
    if found.pools > 1 && !trace.expandable {
        let label = "all requests on one stream".to_owned();
        found.predictions.push(prediction(label, None, own, &[], first));
    }
}

/// Indices of the predictions that save more than the error of the model, best first.
fn recommended(found: &OnDevice) -> Vec<usize> {
    let recorded = &found.predictions[0];
    let own = recorded.peak_reserved_bytes;
    let worth = |of: &Prediction| {
        let is_unsplit = of
            .settings
            .as_ref()
            .is_some_and(|settings| settings.contains("max_split_size_mb"));
        let part = if is_unsplit { WORTH_UNSPLIT } else { WORTH };
        ((own as f64 * part) as u64).max(found.error_bytes)
    };
    let rank = |of: &Prediction| (of.fits_device == Some(false), of.peak_reserved_bytes, of.driver_calls);
    let saves = |of: &Prediction| {
        let helps = of.failed_request == Some(FailedRequest::Fits) || of.fits_device > recorded.fits_device;
        of.settings.is_some() && (helps || of.peak_reserved_bytes.saturating_add(worth(of)) < own)
    };
    let all = &found.predictions;
    let mut best: Vec<usize> = (1..all.len()).filter(|&nth| saves(&all[nth])).collect();
    best.sort_by_key(|&nth| rank(&all[nth]));
    best.truncate(RECOMMENDED);
    best
}

#[cfg(test)]
mod tests;
