//! A page as text: OpenMetrics, and the older format of Prometheus, which node_exporter's textfiles need.
//!
//! The older one differs in three things: comments name counters with their suffix, and there is no unit and no end.

use std::fmt::Write;

use crate::families::{FAMILIES, Type};
use crate::page::Page;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    pub fn media_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The page as text.
pub fn encode(page: &Page, format: Format) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, page, format);
    out
}

fn write(out: &mut String, page: &Page, format: Format) -> std::fmt::Result {
    for (family, samples) in FAMILIES.iter().zip(&page.families) {
        if samples.is_empty() {
            continue;
        }
        let name = family.name();
        let (title, kind) = match (family.kind, format) {
            (Type::Gauge, _) => (name.as_str(), "gauge"),
            (Type::Counter, Format::Prometheus) => (name.as_str(), "counter"),
            (Type::Counter, Format::OpenMetrics) => (name.trim_end_matches("_total"), "counter"),
        };
        writeln!(out, "# HELP {title} {}.\n# TYPE {title} {kind}", family.help)?;
        if let (Some(unit), Format::OpenMetrics) = (family.unit, format) {
            writeln!(out, "# UNIT {title} {unit}")?;
        }
        let names = family.all_labels();
        for (values, value) in samples {
            out.push_str(&name);
            for (nth, (name, value)) in names.iter().zip(values).enumerate() {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                write!(out, "{}{name}=\"{value}\"", if nth == 0 { '{' } else { ',' })?;
            }
            let end = if names.is_empty() { "" } else { "}" };
            writeln!(out, "{end} {value:?}")?;
        }
    }
    match format {
        Format::OpenMetrics => writeln!(out, "# EOF"),
        Format::Prometheus => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Name;
    use crate::page::{Sample, Value};

    fn page() -> Page {
        let mut page = Page::default();
        page.add(Sample::new(Name::BuildInfo, ["a\\b\"c\nd".to_owned()], Value(1.0)));
        page.add(Sample::new(Name::Updated, [], Value(1.5)));
        page.add(Sample::new(Name::KeepFailures, [], Value(3.0)));
        page
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        assert_eq!(
            encode(&page(), Format::OpenMetrics),
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
        let text = encode(&page(), Format::Prometheus);
        assert!(
            text.contains("# TYPE culeak_keep_failures_total counter\nculeak_keep_failures_total 3.0\n"),
            "{text}"
        );
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        assert!(text.contains("# TYPE culeak_build_info gauge\n"), "{text}");
    }
}
