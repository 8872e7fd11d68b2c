//! A page as text, in the format of Prometheus, which every scraper and node_exporter's textfiles read.

use std::fmt::Write;

use crate::families::{FAMILIES, Type};
use crate::page::Page;

pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page as text.
pub fn encode(page: &Page) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, page);
    out
}

fn write(out: &mut String, page: &Page) -> std::fmt::Result {
    for (family, samples) in FAMILIES.iter().zip(&page.families) {
        if samples.is_empty() {
            continue;
        }
        let (name, names) = (family.name(), family.all_labels());
        let kind = match family.kind {
            Type::Gauge => "gauge",
            Type::Counter => "counter",
        };
        writeln!(out, "# HELP {name} {}.\n# TYPE {name} {kind}", family.help)?;
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Name;
    use crate::page::{Sample, Value};

    #[test]
    fn values_are_escaped_and_counters_have_their_suffix() {
        let mut page = Page::default();
        page.add(Sample::new(Name::BuildInfo, ["a\\b\"c\nd".to_owned()], Value(1.0)));
        page.add(Sample::new(Name::Updated, [], Value(1.5)));
        let process = ["job", "n1", "", "7"].map(str::to_owned);
        page.add(Sample::new(Name::Frees, process, Value(3.0)));
        assert_eq!(
            encode(&page),
            "# HELP culeak_frees_total Frees of these allocations.\n\
             # TYPE culeak_frees_total counter\n\
             culeak_frees_total{job_id=\"job\",host=\"n1\",rank=\"\",pid=\"7\"} 3.0\n\
             # HELP culeak_last_update_timestamp_seconds When these figures were last brought up to date.\n\
             # TYPE culeak_last_update_timestamp_seconds gauge\n\
             culeak_last_update_timestamp_seconds 1.5\n\
             # HELP culeak_build_info The culeak that exports this; always 1.\n\
             # TYPE culeak_build_info gauge\n\
             culeak_build_info{version=\"a\\\\b\\\"c\\nd\"} 1.0\n"
        );
    }
}
