//! Every metric, declared once: the text formats, the documentation and the checks of rules and dashboards follow from it.
//!
//! Names end with their unit, counters with `_total`, as Prometheus' conventions have it.

/// What a metric's value means over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Gauge,
    /// Only rises while the process runs.
    Counter,
}

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Without unit and suffix.
    pub stem: &'static str,
    pub unit: Option<&'static str>,
    pub kind: Type,
    /// Whether samples have the labels of a process ([`PROCESS_LABELS`]) before their own.
    pub of_process: bool,
    pub labels: &'static [&'static str],
    /// A sentence without its full stop.
    pub help: &'static str,
}

/// The labels that identify a process.
pub const PROCESS_LABELS: [&str; 4] = ["job_id", "host", "rank", "pid"];

impl Family {
    /// The name of its samples.
    pub fn name(&self) -> String {
        let mut name = self.stem.to_owned();
        if let Some(unit) = self.unit {
            name = format!("{name}_{unit}");
        }
        match self.kind {
            Type::Counter => name + "_total",
            Type::Gauge => name,
        }
    }

    /// All labels, in order.
    pub fn all_labels(&self) -> Vec<&'static str> {
        let of_process: &[&str] = if self.of_process { &PROCESS_LABELS } else { &[] };
        of_process.iter().chain(self.labels).copied().collect()
    }
}

macro_rules! families {
    ($( $name:ident: $kind:ident $stem:literal [$($unit:literal)?] $of:ident ($($label:literal)*) $help:literal; )*) => {
        /// The number of a metric in [`FAMILIES`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Name { $( $name, )* }

        pub const FAMILIES: &[Family] = &[ $( Family {
            stem: $stem,
            unit: families!(@unit $($unit)?),
            kind: Type::$kind,
            of_process: families!(@of $of),
            labels: &[$($label),*],
            help: $help,
        }, )* ];
    };
    (@unit) => { None };
    (@unit $unit:literal) => { Some($unit) };
    (@of process) => { true };
    (@of node) => { false };
}

impl Name {
    pub fn family(self) -> &'static Family {
        &FAMILIES[self as usize]
    }
}

families! {
    ProcessInfo: Gauge "culeak_process_info" [] process ("program" "state") "The recorded process; always 1";
    ProcessUp: Gauge "culeak_process_running" [] process () "1 while the process runs, 0 after its end";
    ProcessStart: Gauge "culeak_process_start_time" ["seconds"] process () "When the recording began, since 1970";
    DeviceInfo: Gauge "culeak_device_info" [] process ("device" "uuid" "name") "A device of the process, by CUDA's ordinal there; always 1";
    Held: Gauge "culeak_held" ["bytes"] process ("place") "Memory in use, each byte once; place blocks: blocks of frameworks, without their caches";
    HeldCount: Gauge "culeak_held_allocations" [] process ("place") "Allocations in use";
    Cached: Gauge "culeak_cached" ["bytes"] process () "Memory that caching allocators hold from the driver";
    Leaked: Gauge "culeak_leaked" ["bytes"] process () "Memory in use when the process ended; 0 while it runs";
    Allocated: Gauge "culeak_device_allocated" ["bytes"] process ("device") "Memory on a device that the driver has given to the process, caches included";
    Peak: Gauge "culeak_device_peak" ["bytes"] process ("device") "The highest value of culeak_device_allocated_bytes";
    Owned: Gauge "culeak_owned" ["bytes"] process ("device" "what" "owner") "Memory of the process on a device, by line of the ledger in the report";
    Unexplained: Gauge "culeak_unexplained" ["bytes"] process ("device") "What the driver reports as used on the device minus all lines of the ledger";
    Objects: Gauge "culeak_objects" [] process ("kind") "Objects without an address that exist: streams, events, modules, graphs and others";
    Allocations: Counter "culeak_allocations" [] process () "Allocations since the recording began";
    Frees: Counter "culeak_frees" [] process () "Frees of these allocations";
    Failed: Counter "culeak_failed_requests" [] process () "Allocation requests that CUDA refused";
    Losses: Counter "culeak_losses" [] process ("loss") "Losses of the recording, by their names in the report's JSON";
    RecorderTime: Counter "culeak_recorder" ["seconds"] process () "Time spent in the recorder, estimated from sampled calls";
    SiteHeld: Gauge "culeak_call_site_held" ["bytes"] process ("site") "Memory in use of the call sites with the most of it; other: all further call sites";
    SiteCount: Gauge "culeak_call_site_held_allocations" [] process ("site") "Allocations in use of these call sites";
    SiteGrowth: Gauge "culeak_call_site_growth" ["bytes_per_second"] process ("site") "Growth of each call site that grows by the judgement of culeak trend; only while the process runs";
    Growth: Gauge "culeak_growth" ["bytes_per_second"] process ("device") "Growth of all these call sites on a device; 0 if none grows; only while the process runs";
    UntilFull: Gauge "culeak_time_until_full" ["seconds"] process ("device") "Free memory of the device divided by culeak_growth_bytes_per_second; absent if nothing grows or the driver was not asked";
    GrowingSites: Gauge "culeak_growing_call_sites" [] process () "Call sites that grow by the judgement of culeak trend; only while the process runs";
    GrowthPoints: Gauge "culeak_growth_points" [] process () "Points in time that the judgement of growth is based on; fewer than 8 are not judged";
    GpuUsed: Gauge "culeak_gpu_used" ["bytes"] node ("host" "uuid") "Memory of a device in use by all processes, as the driver reported it last";
    GpuTotal: Gauge "culeak_gpu_memory" ["bytes"] node ("host" "uuid") "Memory of the device";
    Recordings: Gauge "culeak_recordings" [] node ("state") "Recordings that are exported, duplicate, left_out (ended, or too many) or unreadable (their last figures stay)";
    LeftOut: Gauge "culeak_series_left_out" [] node () "Series that were left out because a process has too many";
    Updated: Gauge "culeak_last_update_timestamp" ["seconds"] node () "When these figures were last brought up to date";
    UpdateTime: Gauge "culeak_last_update_duration" ["seconds"] node () "Duration of this update";
    BuildInfo: Gauge "culeak_build_info" [] node ("version") "The culeak that exports this; always 1";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        let mut seen = BTreeSet::new();
        for family in FAMILIES {
            let name = family.name();
            assert!(name.starts_with("culeak_"), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert!(seen.insert(name.clone()), "{name} twice");
            assert!(
                !family.help.ends_with('.') && !family.help.contains('\n'),
                "{name}: {}",
                family.help
            );
            let labels = family.all_labels();
            // Prometheus sets `job` and `instance` itself, and renames those of a target.
            assert!(!labels.contains(&"job") && !labels.contains(&"instance"), "{name}");
            assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), labels.len(), "{name}");
            let of_counters = ["_total", "_count", "_sum", "_bucket"];
            assert!(
                !of_counters.iter().any(|suffix| family.stem.ends_with(suffix)),
                "{name}"
            );
        }
    }

    /// The metrics that a text names.
    fn named(text: &str) -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text
            .split(|c: char| !is_part(c))
            .filter(|word| word.starts_with("culeak_"));
        words.map(str::to_owned).collect()
    }

    fn file(path: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn every_metric_is_documented_with_its_help() {
        let page = file("docs/fleet.md");
        let rows = page.lines().filter(|line| line.starts_with("| `culeak_"));
        let rows: Vec<&str> = rows.collect();
        assert_eq!(rows.len(), FAMILIES.len());
        for (family, row) in FAMILIES.iter().zip(rows) {
            let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let of_node = if family.of_process { "" } else { "(no process)" };
            let labels = format!("{} {of_node}", labels.join(", ")).trim().to_owned();
            let kind = format!("{:?}", family.kind).to_lowercase();
            assert_eq!(
                row,
                format!("| `{}` | {kind} | {labels} | {} |", family.name(), family.help)
            );
        }
    }

    #[test]
    fn rules_and_dashboard_query_metrics_that_exist() {
        let known: BTreeSet<String> = FAMILIES.iter().map(Family::name).collect();
        for path in [
            "packaging/prometheus/alerts.yml",
            "packaging/grafana/culeak.json",
            "tests/metrics/alerts_test.yml",
        ] {
            let used = named(&file(path));
            assert!(used.len() > 5, "{path}: {used:?}");
            assert_eq!(
                used.difference(&known).collect::<Vec<_>>(),
                Vec::<&String>::new(),
                "{path}"
            );
        }
    }
}
