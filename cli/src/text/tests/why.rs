//! Golden texts of what holds memory.

use culeak::analysis::why::{Options, Why};
use culeak::snapshot::{Class, Snapshot};

use super::*;
use crate::document::columns::with_available;
use crate::text::sample::{held, modelled};
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
    plain(|out| crate::text::why::page(&why, None).text(out))
}

#[test]
fn golden_why() {
    expect_golden("why.txt", &text(&held(), &options()));
}

#[test]
fn memory_that_is_possibly_lost_is_not_called_lost_for_certain() {
    let mut snapshot = held();
    let paths = &mut snapshot.holders.as_mut().expect("searched").paths;
    for path in paths.iter_mut().filter(|path| path.class == Class::Lost) {
        path.possibly = true;
    }
    let text = text(&snapshot, &options());
    for words in ["1 MiB lost, only possibly", "possibly lost: no pointer to it is left"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn golden_why_by_module() {
    let snapshot = modelled();
    let why = Why::of(&snapshot, &options()).expect("an answer");
    let by_module = plain(|out| crate::text::why::page(&why, Some(20)).text(out));
    expect_golden("why-by-module.txt", &by_module);
    let both = text(&snapshot, &options());
    assert!(
        both.contains("by module\n") && both.contains("__main__.keep (list of 60)"),
        "{both}"
    );
    let none = held();
    let why = Why::of(&none, &options()).expect("an answer");
    let none = plain(|out| crate::text::why::page(&why, Some(20)).text(out));
    assert!(none.contains("no module of PyTorch owns any of it"), "{none}");
}

#[test]
fn golden_report_by_module_and_below_a_call_site() {
    let options = |by| culeak::analysis::report::Options {
        by,
        ..from_file("4711")
    };
    let snapshot = modelled();
    expect_golden(
        "report-by-module.txt",
        &report_text(&snapshot, &options(By::Module), false),
    );
    expect_golden(
        "report-with-modules.txt",
        &report_text(&snapshot, &options(By::Site), false),
    );
}

#[test]
fn golden_why_on_a_terminal() {
    let why = || text(&held(), &options());
    let shown = with_available(80, || {
        let snapshot = held();
        let why = Why::of(&snapshot, &options()).expect("an answer");
        plain(|out| crate::document::wrap::lines(out, |out| crate::text::why::page(&why, None).text(out)))
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

/// The number after `in`, before `block`.
fn blocks_of(line: &str) -> u64 {
    let before = line.split(" block").next().unwrap_or_default();
    let number = before.rsplit(' ').next().unwrap_or_default();
    number
        .replace(',', "")
        .parse()
        .unwrap_or_else(|_| panic!("no blocks in {line}"))
}

#[test]
fn the_sums_below_the_holders_are_all_blocks() {
    let mut snapshot = held();
    let mut nth = 0;
    snapshot.holders.as_mut().expect("searched").change(|_| {
        nth += 1;
        nth % 5 == 0
    });
    let why = Why::of(&snapshot, &options()).expect("an answer");
    let text = text(&snapshot, &options());
    let rows = [
        "held ",
        "cycles",
        "native code",
        "over-counted ",
        "lost ",
        "changed",
        "not searched",
    ];
    let lines = text.lines().filter(|line| rows.iter().any(|row| line.starts_with(row)));
    let counts: Vec<u64> = lines.map(blocks_of).collect();
    assert_eq!(counts.len(), rows.len(), "{text}");
    assert_eq!(counts.iter().sum::<u64>(), why.total.count, "{text}");
}

#[test]
fn shared_memory_names_all_of_its_holders() {
    let mut snapshot = held();
    let holders = snapshot.holders.as_mut().expect("searched");
    holders.retainers[0].also = vec!["__main__.other".to_owned()];
    let text = text(&snapshot, &options());
    for part in [
        "__main__.keep (list of 60); dropping it alone frees nothing",
        "      also held by __main__.other",
        "held by 2, only with all of them: __main__.keep (list of 60), __main__.other",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn memory_that_an_unnamed_holder_has_too_is_not_said_to_be_freed_with_one() {
    let mut snapshot = held();
    snapshot.holders.as_mut().expect("searched").retainers[0].also_unnamed = 1;
    let text = text(&snapshot, &options());
    for part in [
        "__main__.keep (list of 60); dropping it alone frees nothing",
        "held by 2, only with all of them: __main__.keep (list of 60) and 1 more",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn names_with_commas_are_separated_by_semicolons() {
    let mut snapshot = held();
    let holders = snapshot.holders.as_mut().expect("searched");
    holders.retainers[0].also = vec!["frame of run, runners.py:44, local main".to_owned()];
    let text = text(&snapshot, &options());
    let part = "only with all of them: __main__.keep (list of 60); frame of run, runners.py:44, local main";
    assert!(text.contains(part), "{text}");
}
