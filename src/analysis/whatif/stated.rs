//! What is recorded of the version of PyTorch and of the settings of its allocator.

use super::settings::{Settings, expandable_text};
use super::version::{self, NEWEST, OLDEST, READS_BOTH_VARIABLES, Version};
use crate::job_variables::{JOB_VARIABLES, States};
use crate::kind::Kind;
use crate::snapshot::Snapshot;

/// The variable that every version of PyTorch reads.
pub const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";
/// The variable that newer ones read too.
const NEW_VARIABLE: &str = "PYTORCH_ALLOC_CONF";

/// The version that a run is modelled as, and that it is another one.
pub fn version_of(snapshot: &Snapshot) -> (Version, Option<String>) {
    let text = version::of_process(snapshot).unwrap_or_default();
    match Version::nearest(text) {
        Some((version, true)) => (version, None),
        Some((version, false)) => {
            let note =
                format!("the model was compared with PyTorch {OLDEST} to {NEWEST}; {text} is treated as {version}");
            (version, Some(note))
        }
        None => (NEWEST, None),
    }
}

/// The variable with the settings of a run, and the settings.
pub fn settings_of(snapshot: &Snapshot) -> (Option<(&'static str, &str)>, Result<Settings, String>) {
    let version = version_of(snapshot).0;
    let is_read = |name| name != NEW_VARIABLE || version >= READS_BOTH_VARIABLES;
    let mut variables = JOB_VARIABLES
        .iter()
        .filter(|row| row.states == States::Allocator && is_read(row.name));
    let variable = variables
        .find_map(|row| Some((row.name, snapshot.process.ranks.get(row.name)?.as_str())).filter(|of| !of.1.is_empty()));
    (
        variable,
        Settings::parse(variable.map_or("", |(_, value)| value), version),
    )
}

fn ever(snapshot: &Snapshot, kind: Kind) -> bool {
    let mut counters = snapshot.counters.iter();
    counters.any(|counter| counter.kind == kind && counter.total_count > 0)
}

/// That PyTorch does not read a variable with settings.
pub fn ignored_variable(snapshot: &Snapshot) -> Option<String> {
    let value = snapshot
        .process
        .ranks
        .get(NEW_VARIABLE)
        .filter(|value| !value.is_empty())?;
    let read = settings_of(snapshot).0;
    let why = match read {
        Some((name, same)) if name == NEW_VARIABLE || same == value => return None,
        Some((name, _)) => format!("{name} is set, too"),
        None => format!(
            "PyTorch {} reads {VARIABLE}",
            version::of_process(snapshot).unwrap_or_default()
        ),
    };
    let is_used = ever(snapshot, Kind::Tensor);
    is_used.then(|| format!("{NEW_VARIABLE}={value} had no effect: {why}"))
}

/// That PyTorch took its memory in whole segments although the settings say otherwise, or did not read the settings.
pub fn ignored_setting(snapshot: &Snapshot) -> Option<String> {
    let (variable, settings) = settings_of(snapshot);
    let is_used = ever(snapshot, Kind::Tensor) && !ever(snapshot, Kind::Physical);
    let is_ignored = settings.is_ok_and(|settings| settings.expandable) && is_used;
    let Some((name, _)) = variable.filter(|_| is_ignored) else {
        return ignored_variable(snapshot);
    };
    let text = expandable_text(true);
    Some(format!(
        "{text} in {name} had no effect: PyTorch took its memory in whole segments"
    ))
}
