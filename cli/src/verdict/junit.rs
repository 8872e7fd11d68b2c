//! JUnit XML: a suite per process, a test per call site, and one for the limits on the total.

use std::io::{self, Write};
use std::time::Duration;

use culeak::analysis::check::{Judged, Outcome, Verdict};
use culeak::analysis::job::identity;
use quick_junit::{NonSuccessKind, Property, Report, TestCase, TestCaseStatus, TestSuite};

use super::{Kind, apart_from_limits, findings, stack_text, summary, title, title_of_objects};
use crate::escape::Escaped;
use crate::text::parts;

pub fn write(verdicts: &[(&str, Verdict)], out: &mut dyn Write) -> io::Result<()> {
    let mut report = Report::new("culeak check");
    for (source, verdict) in verdicts {
        report.add_test_suite(suite(source, verdict));
    }
    let xml = report.to_string().map_err(io::Error::other)?;
    // The schema of Jenkins allows this attribute only on suites, not on the root. No test is ever skipped.
    out.write_all(xml.replacen(r#" skipped="0""#, "", 1).as_bytes())
}

fn suite(source: &str, verdict: &Verdict) -> TestSuite {
    let mut suite = TestSuite::new(Escaped(source).to_string());
    suite.add_property(Property::new("summary", summary(verdict)));
    if let Some(rank) = identity::rank_of(verdict.process.ranks) {
        suite.add_property(Property::new("rank", rank.to_string()));
    }
    let lasted = Duration::from_nanos(verdict.process.lasted_ns);
    suite.set_time(lasted);
    let whole: Vec<_> = findings(verdict)
        .into_iter()
        .filter(|finding| finding.stack.is_none())
        .collect();
    let mut status = TestCaseStatus::success();
    if let Some(first) = whole.first() {
        status = TestCaseStatus::non_success(match verdict.outcome {
            Outcome::NoVerdict => NonSuccessKind::Error,
            _ => NonSuccessKind::Failure,
        });
        status.set_message(first.title.clone()).set_type(first.kind.id());
        let all: Vec<_> = whole.iter().map(|finding| finding.title.as_str()).collect();
        status.set_description(all.join("\n"));
    }
    let mut limits = TestCase::new("limits", status);
    limits.set_classname("culeak");
    // The time is that of the whole process; call sites have none.
    limits.set_time(lasted);
    suite.add_test_case(limits);
    for judged in verdict.rows.iter().filter(|_| !verdict.judges_only_objects()) {
        let apart = apart_from_limits(judged, verdict);
        let (title, kind) = match apart.first().filter(|_| judged.only_by_class) {
            Some(first) => (first.title.clone(), first.kind),
            None => (title(judged, verdict), Kind::Leak),
        };
        let reasons: String = apart.iter().map(|finding| format!("{}\n", finding.title)).collect();
        suite.add_test_case(of_site("culeak.sites", "", judged, kind, title, &reasons));
    }
    for of in &verdict.objects {
        let by = format!("{} by ", of.row.kind_of_objects().map_or("", culeak::kind::Kind::name));
        suite.add_test_case(of_site(
            "culeak.objects",
            &by,
            of,
            Kind::Objects,
            title_of_objects(of),
            "",
        ));
    }
    suite
}

/// The test of a call site, which fails for this reason if it fails.
fn of_site(class: &str, by: &str, judged: &Judged, kind: Kind, title: String, reasons: &str) -> TestCase {
    let stack = judged.row.stack();
    let mut status = TestCaseStatus::success();
    if judged.to_blame {
        status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_message(title).set_type(kind.id());
        status.set_description(format!("{reasons}{}", stack_text(stack)));
    }
    let place = stack.site().and_then(|site| site.short_place());
    let place: String = place.iter().map(|place| format!(" {}", Escaped(place))).collect();
    let name = format!("{by}{}{place}", parts::name(&judged.row.label));
    let mut case = TestCase::new(name, status);
    case.set_classname(class);
    case.set_time(Duration::ZERO);
    case
}
