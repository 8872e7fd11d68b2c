//! What is recorded of the version of PyTorch and of the settings of its allocator.

use super::settings::{COLLECT, Settings, expandable_text, only, set_later};
use super::version::{self, NEWEST, OLDEST, READS_BOTH_VARIABLES, Version};
use crate::job_variables::{JOB_VARIABLES, JobVariable, SET_BY_PROGRAM, SET_MOST, States};
use crate::kind::Kind;
use crate::snapshot::Snapshot;

/// The variable that every version of PyTorch reads.
pub const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";
/// The call by which a program sets others.
pub const CALL: &str = "torch.cuda.memory._set_allocator_settings";
/// The variable that newer ones read too.
const NEW_VARIABLE: &str = "PYTORCH_ALLOC_CONF";

/// The version that a run is modelled as, and that it is another one.
pub fn version_of(snapshot: &Snapshot) -> (Version, Option<String>) {
    let text = version::of_process(snapshot).unwrap_or_default();
    match Version::nearest(text) {
        Some((version, true)) => (version, None),
        Some((version, false)) => {
            let compared = format!("the model was compared with PyTorch {OLDEST} to {NEWEST}");
            (version, Some(format!("{compared}; {text} is treated as {version}")))
        }
        None => (NEWEST, None),
    }
}

/// The settings of a run.
pub struct Stated<'a> {
    /// The variable that had them, or [`CALL`]; `None`: none were recorded.
    pub source: Option<&'static str>,
    pub text: String,
    /// What they mean, or why they are not understood.
    pub settings: Result<Settings, String>,
    /// The program set others before.
    pub is_changed: bool,
    /// The value of the variable.
    pub(super) of_variable: &'a str,
}

impl<'a> Stated<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Stated<'a> {
        let version = version_of(snapshot).0;
        let ranks = &snapshot.process.ranks;
        let is_read = |name| name != NEW_VARIABLE || version >= READS_BOTH_VARIABLES;
        let is_it = |row: &&JobVariable| row.states == States::Allocator && is_read(row.name);
        let value = |row: &JobVariable| Some((row.name, ranks.get(row.name)?.as_str()));
        let mut set = JOB_VARIABLES.iter().filter(is_it).filter_map(value);
        let (name, of_variable) = set.find(|of| !of.1.is_empty()).unzip();
        let of_variable = of_variable.unwrap_or_default();
        let calls = ranks.get(SET_BY_PROGRAM).into_iter().flat_map(|all| all.split("; "));
        let may_lack_some = calls.clone().count() >= SET_MOST;
        // PyTorch reads the variable through the same function.
        let calls = calls.enumerate().filter(|(nth, text)| *nth > 0 || *text != of_variable);
        let calls: Vec<&str> = calls.map(|(_, text)| text).collect();
        let text = calls
            .iter()
            .fold(of_variable.to_owned(), |text, set| set_later(&text, set));
        Stated {
            source: calls.first().map(|_| CALL).or(name),
            settings: match may_lack_some {
                true => Err(format!("the program changed them {SET_MOST} times or more")),
                false => Settings::parse(&text, version),
            },
            text,
            is_changed: calls.len() > 1,
            of_variable,
        }
    }
}

fn ever(snapshot: &Snapshot, kind: Kind) -> bool {
    let mut counters = snapshot.counters.iter();
    counters.any(|counter| counter.kind == kind && counter.total_count > 0)
}

/// That PyTorch does not read a variable with settings.
pub fn ignored_variable(snapshot: &Snapshot) -> Option<String> {
    let (stated, ranks) = (Stated::of(snapshot), &snapshot.process.ranks);
    let value = ranks.get(NEW_VARIABLE).filter(|value| !value.is_empty())?;
    let version = version::of_process(snapshot).unwrap_or_default();
    let why = match stated.source {
        Some(NEW_VARIABLE | CALL) => return None,
        Some(_) if stated.of_variable == value => return None,
        Some(name) => format!("{name} is set, too"),
        None => format!("PyTorch {version} reads {VARIABLE}"),
    };
    let is_used = ever(snapshot, Kind::Tensor);
    is_used.then(|| format!("{NEW_VARIABLE}={value} had no effect: {why}"))
}

/// That a setting needs a limit. Whether the program sets one in its code is not recorded.
pub fn without_limit(snapshot: &Snapshot) -> Option<String> {
    let stated = Stated::of(snapshot);
    let lacks = |settings: &Settings| settings.collect_above > 0.0 && !settings.limits_memory;
    let name = stated.source.filter(|_| stated.settings.as_ref().is_ok_and(lacks))?;
    ever(snapshot, Kind::Tensor).then(|| {
        let limit = "the program sets a limit (torch.cuda.set_per_process_memory_fraction)";
        format!(
            "{} in {name} has no effect unless {limit}",
            only(&stated.text, |key| key == COLLECT)
        )
    })
}

/// That PyTorch took its memory in whole segments although the settings say otherwise.
pub fn ignored_expandable(snapshot: &Snapshot) -> Option<String> {
    let Stated { source, settings, .. } = Stated::of(snapshot);
    let is_used = ever(snapshot, Kind::Tensor) && !ever(snapshot, Kind::Physical);
    let name = source.filter(|_| is_used && settings.is_ok_and(|settings| settings.expandable))?;
    let (text, why) = (expandable_text(true), "PyTorch took its memory in whole segments");
    Some(format!("{text} in {name} had no effect: {why}"))
}

/// Each setting of which it is known, without a replay of the run, that it had no effect.
pub fn ignored_settings(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let all = [ignored_expandable, ignored_variable];
    all.into_iter().filter_map(move |ignored| ignored(snapshot))
}
