//! A page in the two text formats: OpenMetrics, and the older one of Prometheus, which node_exporter's textfiles need.
//!
//! The library writes OpenMetrics. The older format differs in three things, which are changed line by line: comments name
//! counters with their suffix, and there is no unit and no end.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::families::{FAMILIES, Family, Type};
use crate::page::Page;

/// The media type of [`open_metrics`].
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of [`prometheus`].
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug)]
struct Whole(Arc<Page>);

impl Collector for Whole {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for (family, samples) in FAMILIES.iter().zip(&self.0.families) {
            if samples.is_empty() {
                continue;
            }
            let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
            let kind = match family.kind {
                Type::Counter => MetricType::Counter,
                Type::Gauge => MetricType::Gauge,
            };
            let help = format!("{}.", family.help);
            let mut metric = encoder.encode_descriptor(family.stem, &help, unit.as_ref(), kind)?;
            let names = family.all_labels();
            for (values, value) in samples {
                let labels: Vec<(&str, &str)> =
                    names.iter().copied().zip(values.iter().map(|value| &**value)).collect();
                match labels.is_empty() {
                    true => put(&mut metric, family.kind, value)?,
                    false => put(&mut metric.encode_family(&labels)?, family.kind, value)?,
                }
            }
        }
        Ok(())
    }
}

fn put(sample: &mut MetricEncoder, kind: Type, value: &f64) -> Result<(), std::fmt::Error> {
    match kind {
        Type::Gauge => sample.encode_gauge(value),
        Type::Counter => sample.encode_counter::<NoLabelSet, f64, f64>(value, None),
    }
}

/// The page as OpenMetrics text.
pub fn open_metrics(page: Arc<Page>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Whole(page)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

/// OpenMetrics text in Prometheus' own format.
pub fn prometheus(open_metrics: &str) -> String {
    let is_counter = |name: &str| {
        let is_it =
            |family: &Family| family.kind == Type::Counter && family.name().strip_suffix("_total") == Some(name);
        FAMILIES.iter().any(is_it)
    };
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    for line in open_metrics.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "UNIT", ..] | ["#", "EOF"] => continue,
            ["#", keyword, name, rest] if is_counter(name) => {
                text.push_str(&format!("# {keyword} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Name;
    use crate::page::{Sample, Value};

    fn page() -> Arc<Page> {
        let mut page = Page::default();
        page.add(Sample::new(Name::BuildInfo, ["a\\b\"c\nd".to_owned()], Value(1.0)));
        page.add(Sample::new(Name::Updated, [], Value(1.5)));
        page.add(Sample::new(Name::KeepFailures, [], Value(3.0)));
        Arc::new(page)
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        assert_eq!(
            open_metrics(page()),
            "# HELP culeak_last_update_timestamp_seconds When these figures were last brought up to date.\n\
             # TYPE culeak_last_update_timestamp_seconds gauge\n\
             # UNIT culeak_last_update_timestamp_seconds seconds\n\
             culeak_last_update_timestamp_seconds 1.5\n\
             # HELP culeak_keep_failures Snapshots that could not be written or removed.\n\
             # TYPE culeak_keep_failures counter\n\
             culeak_keep_failures_total 3.0\n\
             # HELP culeak_build_info The culeak that exports this; always 1.\n\
             # TYPE culeak_build_info gauge\n\
             culeak_build_info{version=\"a\\\\b\\\"c\\nd\"} 1.0\n\
             # EOF\n"
        );
    }

    #[test]
    fn the_older_format_names_counters_with_their_suffix() {
        let text = prometheus(&open_metrics(page()));
        assert!(
            text.contains("# TYPE culeak_keep_failures_total counter\nculeak_keep_failures_total 3.0\n"),
            "{text}"
        );
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        assert!(text.contains("# TYPE culeak_build_info gauge\n"), "{text}");
    }
}
