//! Golden texts of what holds memory.

use culeak::analysis::why::{Options, Why};
use culeak::snapshot::{Class, Snapshot};

use super::*;
use crate::text::columns::with_available;
use crate::text::sample::held;
use crate::text::why::ROWS_SHOWN;

fn options() -> Options {
    Options {
        source: "4711".to_owned(),
        rows: Some(ROWS_SHOWN),
        ..Options::default()
    }
}

fn text(snapshot: &Snapshot, options: &Options) -> String {
    let why = Why::of(snapshot, options).expect("an answer");
    plain(|out| crate::text::why::write(&why, out))
}

#[test]
fn golden_why() {
    expect_golden("why.txt", &text(&held(), &options()));
}

#[test]
fn golden_why_on_a_terminal() {
    let why = || text(&held(), &options());
    let shown = with_available(80, || {
        let snapshot = held();
        let why = Why::of(&snapshot, &options()).expect("an answer");
        plain(|out| crate::text::wrap::lines(out, |out| crate::text::why::write(&why, out)))
    });
    assert_ne!(shown, why());
    expect_golden("why-80.txt", &shown);
}

#[test]
fn golden_why_of_one_block() {
    let snapshot = held();
    let block = snapshot.holders.as_ref().expect("searched").blocks[30];
    let selector = format!("{:#x}", block.address).parse().expect("an address");
    let options = Options {
        selector: Some(selector),
        ..options()
    };
    expect_golden("why-block.txt", &text(&snapshot, &options));
}

#[test]
fn golden_why_of_one_class() {
    let options = Options {
        class: Some(Class::Cycle),
        top: Some(1),
        ..options()
    };
    expect_golden("why-cycle.txt", &text(&held(), &options));
}

#[test]
fn golden_report_with_holders() {
    expect_golden("report-held.txt", &report_text(&held(), &from_file("4711"), false));
}
