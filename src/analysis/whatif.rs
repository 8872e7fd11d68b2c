//! What PyTorch's caching allocator would have reserved under other settings: the log of a run, replayed against a model of it.
//!
//! | module | contents |
//! |---|---|
//! | [`settings`] | `PYTORCH_CUDA_ALLOC_CONF` |
//! | [`model`] | the allocator |
//! | [`trace`] | the requests of a run, from its log |
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
use crate::job_variables::{JOB_VARIABLES, States};
use crate::kind::Kind;
use crate::snapshot::{Allocations, Failed, Snapshot};
use crate::timeline::Timeline;

pub mod model;
pub mod settings;
pub mod trace;

use model::Model;
use settings::Settings;
use trace::{Conflicts, Step, Trace};

/// The value of [`WhatIf::format`].
pub const FORMAT: &str = "culeak-whatif";
pub const VERSION: u32 = 1;

/// The largest part of the recorded peak by which the model may be off.
pub const MOST_ERROR: f64 = 0.02;
/// What a recommended setting saves at least: by so much predictions were off (docs/fragmentation.md).
const WORTH: f64 = 0.1;
const RECOMMENDED: usize = 3;
/// Marks with a row.
const MARKS: usize = 3;
/// The variable that every version of PyTorch reads.
pub const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";
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
    pub devices: Vec<OnDevice>,
}

/// PyTorch's allocator on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// The largest difference between the model and the recording after any request.
    pub error_bytes: u64,
    /// The same as a part of the recorded peak.
    pub error: f64,
    /// Streams and private pools that the model tells apart.
    pub pools: usize,
    /// Why there is no advice; then there are no rows.
    pub refusal: Option<String>,
    /// No allocator reserves less: the most bytes in live blocks.
    pub peak_live_bytes: u64,
    /// The same in whole pages of 2 MiB of each pool.
    pub peak_pages_bytes: u64,
    /// What PyTorch may have at most on a device of the size asked for: without what the process has besides.
    pub limit_bytes: Option<u64>,
    pub besides_bytes: u64,
    /// The request that failed, if it was asked for.
    pub failed_bytes: Option<u64>,
    /// The run's own settings first.
    pub rows: Vec<Row>,
    /// Indices into `rows`, the best first.
    pub recommended: Vec<usize>,
}

/// What the allocator would have done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Row {
    pub label: String,
    /// The value for the environment variable, with those of the run's settings that do not matter here; `None`: it is no setting.
    pub settings: Option<String>,
    pub peak_reserved_bytes: u64,
    pub end_reserved_bytes: u64,
    /// Calls that take memory from the driver or give it back.
    pub driver_calls: u64,
    /// Whether all requests fit under the limit.
    pub fits: Option<bool>,
    /// Whether the request that failed would have fitted.
    pub failed_request_fits: Option<Fit>,
}

/// Whether a request would have fitted into what the driver had given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    Yes,
    /// It needs less than the request did, but more than was reserved; what the driver had left is not recorded.
    Perhaps,
    No,
}

/// How to replay.
#[derive(Clone, Copy, Default)]
struct Plan {
    limit: Option<u64>,
    /// Gives the cache back where the run did because the driver had no more.
    forced: bool,
    /// Gives the cache back at this mark too.
    empty_at: Option<usize>,
}

struct Replayed {
    model: Model,
    /// The largest difference after any request.
    error: u64,
    fit: Option<Fit>,
}

fn replay(trace: &Trace, settings: &Settings, classes: &[u32], plan: Plan) -> Replayed {
    let mut model = Model::new(settings.clone(), plan.limit, trace.addresses.clone());
    let mut blocks: HashMap<u32, u32> = HashMap::default();
    let (mut error, mut fit) = (0, None);
    for &(step, recorded) in &trace.steps {
        match step {
            Step::Allocate { block, bytes, segment } => {
                let class = classes.get(segment as usize).copied().unwrap_or(0);
                blocks.insert(block, model.allocate(bytes, class));
            }
            Step::Free { block } => {
                if let Some(id) = blocks.remove(&block) {
                    model.free(id);
                }
            }
            Step::Release { by_force } if !by_force || plan.forced => model.release_cached(),
            Step::Mark(mark) if plan.empty_at == Some(mark) => model.release_cached(),
            Step::Release { .. } | Step::Mark(_) => continue,
            Step::Failed { bytes } => {
                fit = Some(fits(&model, bytes, recorded));
                continue;
            }
        }
        error = error.max(model.reserved.abs_diff(recorded));
    }
    Replayed { model, error, fit }
}

/// Whether a request fits if the driver gives no more than was reserved when it failed.
fn fits(model: &Model, bytes: u64, recorded: u64) -> Fit {
    let mut model = model.clone();
    model.limit = None;
    model.release_cached();
    model.allocate(bytes, 0);
    match model.reserved {
        needed if needed <= recorded => Fit::Yes,
        needed if needed < recorded.saturating_add(Model::segment_for(bytes)) => Fit::Perhaps,
        _ => Fit::No,
    }
}

impl<'a> WhatIf<'a> {
    /// `last`: the final state, which the timeline was read with.
    ///
    /// # Errors
    /// The log does not have all requests, there are none, or a setting that was asked for is wrong.
    pub fn of(
        snapshot: &'a Snapshot,
        last: &Allocations,
        timeline: &Timeline,
        stacks: &CallStacks,
        question: &Question,
    ) -> Result<WhatIf<'a>, String> {
        let sites = timeline.memory.sites.iter().filter(|site| site.kind == Kind::Tensor);
        let mut devices: Vec<usize> = sites.filter_map(|site| site.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let devices = devices.into_iter().map(|device| {
            let failed = question
                .failed_request
                .then(|| failed_request(snapshot, device))
                .flatten();
            let own = settings_of(snapshot).1.unwrap_or_default();
            let trace = Trace::of(snapshot, last, timeline, stacks, device, &own, failed)?;
            on_device(snapshot, device, &trace, failed, question)
        });
        let mut devices: Vec<OnDevice> = devices.collect::<Result<_, String>>()?;
        devices.retain(|device| device.allocations > 0);
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
            devices,
        })
    }
}

/// The variable with the settings of a run, and the settings.
pub fn settings_of(snapshot: &Snapshot) -> (Option<(&'static str, &str)>, Result<Settings, String>) {
    let mut variables = JOB_VARIABLES.iter().filter(|row| row.states == States::Allocator);
    let variable = variables
        .find_map(|row| Some((row.name, snapshot.process.ranks.get(row.name)?.as_str())).filter(|of| !of.1.is_empty()));
    (variable, Settings::parse(variable.map_or("", |(_, value)| value)))
}

/// The last request to PyTorch's allocator that failed for lack of memory.
fn failed_request(snapshot: &Snapshot, device: usize) -> Option<&Failed> {
    let failed = snapshot
        .failed
        .iter()
        .filter(|failed| failed.kind == Kind::Tensor && failed.error == 2);
    failed
        .filter(|failed| failed.device == Some(device))
        .max_by_key(|failed| failed.last_ns)
}

fn on_device(
    snapshot: &Snapshot,
    device: usize,
    trace: &Trace,
    failed: Option<&Failed>,
    question: &Question,
) -> Result<OnDevice, String> {
    let (variable, read) = settings_of(snapshot);
    let stated = variable.map_or("", |(_, value)| value);
    let mut own = read.clone().unwrap_or_default();
    let shown = |is_on| {
        if is_on {
            "expandable_segments:True"
        } else {
            "expandable_segments:False"
        }
    };
    let ignored = (read.is_ok() && own.expandable && !trace.expandable).then(|| shown(true).to_owned());
    let settings = match own.expandable == trace.expandable {
        true => stated.to_owned(),
        false => [stated, shown(trace.expandable)]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(","),
    };
    own.expandable = trace.expandable;
    // The sizes of the log are rounded already.
    own.divisions = Settings::default().divisions;
    let (classes, plan, own_run) = best(trace, &own);
    let error = own_run.error as f64 / trace.peak_reserved.max(1) as f64;
    let besides_bytes = besides(snapshot, device, trace);
    let mut found = OnDevice {
        ordinal: snapshot.devices[device].ordinal,
        settings,
        variable: variable.map(|(name, _)| name.to_owned()),
        ignored,
        allocations: trace.allocations,
        recorded_peak_bytes: trace.peak_reserved,
        recorded_end_bytes: trace.end_reserved,
        error_bytes: own_run.error,
        error,
        pools: classes.iter().max().map_or(1, |most| *most as usize + 1),
        refusal: None,
        peak_live_bytes: trace.peak_live,
        peak_pages_bytes: trace.peak_pages,
        limit_bytes: question.device_memory.map(|bytes| bytes.saturating_sub(besides_bytes)),
        besides_bytes,
        failed_bytes: failed.map(|failed| failed.bytes),
        rows: Vec::new(),
        recommended: Vec::new(),
    };
    found.refusal = match read {
        Err(why) => Some(format!("the run's own settings, {stated}, are not understood: {why}")),
        Ok(_) if trace.peak_reserved == 0 => Some("the memory that the blocks lie in was not recorded".to_owned()),
        Ok(_) if error > MOST_ERROR => Some(format!(
            "the model does not reproduce this run: it is off by up to {:.1} % of the peak, and {:.0} % is the most with which its \
             figures for other settings mean anything. Streams that use each other's blocks (record_stream), CUDA graphs and \
             allocators that the program installs are known causes",
            error * 100.0,
            MOST_ERROR * 100.0
        )),
        Ok(_) => None,
    };
    if found.refusal.is_none() {
        found.rows = rows(snapshot, trace, &own, &classes, plan, &found, question)?;
        found.recommended = recommended(&found);
    }
    Ok(found)
}

/// The classes and the plan with which the run's own settings reproduce it best.
fn best(trace: &Trace, own: &Settings) -> (Vec<u32>, Plan, Replayed) {
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
    let mut best: Option<(Vec<u32>, Plan, Replayed)> = None;
    for by in [Conflicts::All, Conflicts::NewSegments, Conflicts::None] {
        let classes = trace.classes(by);
        for &plan in plans {
            let run = replay(trace, own, &classes, plan);
            if best.as_ref().is_none_or(|(.., best)| run.error < best.error) {
                best = Some((classes.clone(), plan, run));
            }
        }
        if best.as_ref().is_some_and(|(.., best)| best.error == 0) {
            break;
        }
    }
    best.expect("there are plans")
}

/// What the process has on the device besides PyTorch's segments: the context, libraries, its own memory.
fn besides(snapshot: &Snapshot, device: usize, trace: &Trace) -> u64 {
    let given = snapshot
        .object_counters
        .iter()
        .find(|of| (of.device, of.kind) == (Some(device), Kind::Segment));
    let recorded = snapshot.device_peaks.iter().find(|peak| peak.device == device);
    let peak = given.map(|of| of.peak_bytes).max(recorded.map(|peak| peak.peak_bytes));
    peak.unwrap_or(0).saturating_sub(trace.peak_reserved)
}

fn rows(
    snapshot: &Snapshot,
    trace: &Trace,
    own: &Settings,
    classes: &[u32],
    own_plan: Plan,
    found: &OnDevice,
    question: &Question,
) -> Result<Vec<Row>, String> {
    // What the driver refused in the run it refuses in all.
    let refused = trace.was_forced.then_some(trace.peak_reserved);
    let plan = Plan {
        limit: found.limit_bytes.or(refused),
        ..Plan::default()
    };
    let row = |label: &str, text: Option<&str>, settings: &Settings, classes: &[u32], plan: Plan| {
        let run = replay(trace, settings, classes, plan);
        Row {
            label: label.to_owned(),
            settings: text.map(str::to_owned),
            peak_reserved_bytes: run.model.peak,
            end_reserved_bytes: run.model.reserved,
            driver_calls: run.model.driver_calls,
            fits: found.limit_bytes.map(|_| run.model.failed == 0),
            failed_request_fits: run.fit,
        }
    };
    let first = if found.limit_bytes.is_some() { plan } else { own_plan };
    let mut rows = vec![row("as recorded", None, own, classes, first)];
    let kept = settings::without_effect(settings_of(snapshot).0.map_or("", |(_, value)| value));
    let with_limit = plan.limit.is_some().then_some(COLLECTING);
    let asked = question.settings.iter().map(String::as_str);
    for text in CANDIDATES.into_iter().chain(with_limit).chain(asked) {
        let settings = Settings::parse(text)?;
        if settings == *own || settings_of(snapshot).1.as_ref() == Ok(&settings) {
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
        rows.push(row(&label, whole.as_deref(), &settings, classes, plan));
    }
    for (nth, mark) in trace.marks.iter().enumerate().take(MARKS) {
        let at_mark = Plan {
            empty_at: Some(nth),
            ..first
        };
        rows.push(row(
            &format!("empty_cache() at mark:{mark}"),
            None,
            own,
            classes,
            at_mark,
        ));
    }
    if found.pools > 1 && !trace.expandable {
        rows.push(row("all requests on one stream", None, own, &[], first));
    }
    Ok(rows)
}

/// The settings that save more than the error of the model, best first.
fn recommended(found: &OnDevice) -> Vec<usize> {
    let own = found.rows[0].peak_reserved_bytes;
    let worth = ((own as f64 * WORTH) as u64).max(found.error_bytes);
    let rank = |row: &Row| (row.fits == Some(false), row.peak_reserved_bytes, row.driver_calls);
    let saves = |row: &Row| {
        let helps = row.failed_request_fits == Some(Fit::Yes) || row.fits > found.rows[0].fits;
        row.settings.is_some() && (helps || row.peak_reserved_bytes.saturating_add(worth) < own)
    };
    let mut best: Vec<usize> = (1..found.rows.len()).filter(|&nth| saves(&found.rows[nth])).collect();
    best.sort_by_key(|&nth| rank(&found.rows[nth]));
    best.truncate(RECOMMENDED);
    best
}

#[cfg(test)]
mod tests;
