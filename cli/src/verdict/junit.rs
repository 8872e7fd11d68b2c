//! JUnit XML: a suite per process, a test per call site, and one for the limits on the total.

use std::io::{self, Write};

use culeak::analysis::check::{Judged, Outcome, Verdict};
use culeak::analysis::job::identity;

use super::{Kind, apart_from_limits, findings, stack_text, summary, title, title_of_objects};
use crate::document::html;
use crate::escape::Escaped;
use crate::text::parts;

/// A test.
struct Case {
    class: &'static str,
    name: String,
    /// The time is that of the whole process; call sites have none.
    time_ns: u64,
    /// The element that says why it did not pass, the reason in one line and its kind, and all that is known.
    bad: Option<(&'static str, String, Kind, String)>,
}

pub fn write(verdicts: &[(&str, Verdict)], out: &mut dyn Write) -> io::Result<()> {
    let suites: Vec<Vec<Case>> = verdicts.iter().map(|(_, verdict)| cases(verdict)).collect();
    let all: Vec<&Case> = suites.iter().flatten().collect();
    writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
    writeln!(out, r#"<testsuites name="culeak check" {}>"#, counts(&all))?;
    for ((source, verdict), cases) in verdicts.iter().zip(&suites) {
        let (name, time) = (xml(&Escaped(source).to_string()), seconds(verdict.process.lasted_ns));
        let counts = counts(&cases.iter().collect::<Vec<_>>());
        writeln!(out, r#"<testsuite name="{name}" {counts} skipped="0" time="{time}">"#)?;
        writeln!(out, "<properties>")?;
        writeln!(out, r#"<property name="summary" value="{}"/>"#, xml(&summary(verdict)))?;
        if let Some(rank) = identity::rank_of(verdict.process.ranks) {
            writeln!(out, r#"<property name="rank" value="{rank}"/>"#)?;
        }
        writeln!(out, "</properties>")?;
        cases.iter().try_for_each(|case| case.write(out))?;
        writeln!(out, "</testsuite>")?;
    }
    writeln!(out, "</testsuites>")
}

fn counts(cases: &[&Case]) -> String {
    let count = |element| {
        let is_one = |case: &&&Case| case.bad.as_ref().is_some_and(|bad| bad.0 == element);
        cases.iter().filter(is_one).count()
    };
    let (failures, errors) = (count("failure"), count("error"));
    format!(r#"tests="{}" failures="{failures}" errors="{errors}""#, cases.len())
}

fn seconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e9)
}

/// Text for an attribute or between tags; some characters cannot be in XML at all, and not every reader knows numbers of characters.
fn xml(text: &str) -> String {
    let text = html::escape(text).replace("&#39;", "&apos;");
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

impl Case {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (name, class, time) = (xml(&self.name), self.class, seconds(self.time_ns));
        write!(out, r#"<testcase name="{name}" classname="{class}" time="{time}">"#)?;
        if let Some((element, message, kind, text)) = &self.bad {
            let (message, kind, text) = (xml(message), kind.id(), xml(text));
            write!(
                out,
                r#"<{element} message="{message}" type="{kind}">{text}</{element}>"#
            )?;
        }
        writeln!(out, "</testcase>")
    }
}

fn cases(verdict: &Verdict) -> Vec<Case> {
    let whole: Vec<_> = findings(verdict)
        .into_iter()
        .filter(|finding| finding.stack.is_none())
        .collect();
    let element = match verdict.outcome {
        Outcome::NoVerdict => "error",
        _ => "failure",
    };
    let all: Vec<_> = whole.iter().map(|finding| finding.title.as_str()).collect();
    let mut cases = vec![Case {
        class: "culeak",
        name: "limits".to_owned(),
        time_ns: verdict.process.lasted_ns,
        bad: (whole.first()).map(|first| (element, first.title.clone(), first.kind, all.join("\n"))),
    }];
    for judged in verdict.rows.iter().filter(|_| !verdict.judges_only_objects()) {
        let apart = apart_from_limits(judged, verdict);
        let (title, kind) = match apart.first().filter(|_| judged.only_by_class) {
            Some(first) => (first.title.clone(), first.kind),
            None => (title(judged, verdict), Kind::Leak),
        };
        let reasons: String = apart.iter().map(|finding| format!("{}\n", finding.title)).collect();
        cases.push(of_site("culeak.sites", "", judged, kind, title, &reasons));
    }
    for of in &verdict.objects {
        let by = format!("{} by ", of.row.kind_of_objects().map_or("", culeak::kind::Kind::name));
        let title = title_of_objects(of);
        cases.push(of_site("culeak.objects", &by, of, Kind::Objects, title, ""));
    }
    cases
}

/// The test of a call site, which fails for this reason if it fails.
fn of_site(class: &'static str, by: &str, judged: &Judged, kind: Kind, title: String, reasons: &str) -> Case {
    let stack = judged.row.stack();
    let place = stack.site().and_then(|site| site.short_place());
    let place: String = place.iter().map(|place| format!(" {}", Escaped(place))).collect();
    let text = || format!("{reasons}{}", stack_text(stack));
    Case {
        class,
        name: format!("{by}{}{place}", parts::name(&judged.row.label)),
        time_ns: 0,
        bad: judged.to_blame.then(|| ("failure", title, kind, text())),
    }
}
