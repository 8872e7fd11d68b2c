//! JUnit XML: a suite per process, a test per call site, and one for the limits on the total.

use std::io::{self, Write};
use std::time::Duration;

use culeak::analysis::check::{Outcome, Verdict};
use culeak::analysis::job::identity;
use quick_junit::{NonSuccessKind, Property, Report, TestCase, TestCaseStatus, TestSuite};

use super::{Kind, by_class, findings, stack_text, summary, title, title_of_objects};
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
    let judges_memory = !verdict.judges_only_objects();
    for judged in verdict.rows.iter().filter(|_| judges_memory) {
        let mut status = TestCaseStatus::success();
        let stack = judged.row.stacks.first().map(|stack| &stack.stack);
        if judged.to_blame {
            status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            let of_classes = by_class(judged, verdict);
            match of_classes.first().filter(|_| judged.only_by_class) {
                Some(first) => status.set_message(first.title.clone()).set_type(first.kind.id()),
                None => status.set_message(title(judged, verdict)).set_type(Kind::Leak.id()),
            };
            let reasons: String = of_classes
                .iter()
                .map(|finding| format!("{}\n", finding.title))
                .collect();
            status.set_description(format!("{reasons}{}", stack.map(stack_text).unwrap_or_default()));
        }
        let place = judged.row.site().and_then(|site| site.short_place());
        let place = place.map(|place| format!(" {}", Escaped(&place))).unwrap_or_default();
        let name = format!("{}{place}", parts::name(&judged.row.label));
        let mut case = TestCase::new(name, status);
        case.set_classname("culeak.sites");
        case.set_time(Duration::ZERO);
        suite.add_test_case(case);
    }
    for of in &verdict.objects {
        let mut status = TestCaseStatus::success();
        let title = title_of_objects(of);
        if of.to_blame {
            status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(title).set_type(Kind::Objects.id());
            status.set_description(stack_text(&of.row.stack));
        }
        let place = of.row.stack.site().and_then(|site| site.short_place());
        let place = place.map(|place| format!(" {}", Escaped(&place))).unwrap_or_default();
        let name = format!("{} by {}{place}", of.row.kind, parts::name(&of.row.label));
        let mut case = TestCase::new(name, status);
        case.set_classname("culeak.objects");
        case.set_time(Duration::ZERO);
        suite.add_test_case(case);
    }
    suite
}
