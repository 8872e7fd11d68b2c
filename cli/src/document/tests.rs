//! Documents on terminals, in files and in Markdown.

use proptest::prelude::*;

use super::columns::{width, with_available};
use super::*;

fn site(name: &str, place: &str, mark: &str) -> Site {
    Site {
        name: name.to_owned(),
        place: place.to_owned(),
        mark: mark.to_owned(),
    }
}

fn lines(sites: &[Site]) -> Vec<String> {
    let mut page = Document::default();
    let rows = Rows::of(sites)
        .bare()
        .tally(|_| Cell::Size(1_300_000_000), |_| things(128, "block"));
    page.table(rows.column("call site", |&site| site.clone()));
    page.plain_lines()
}

#[test]
fn rows_fit_the_terminal_and_are_whole_in_a_file() {
    let long = "a_function_with_a_name_that_is_forty_columns";
    let file = "a_file_with_a_long_name_of_its_own.cu:1234";
    let sites = [site(long, file, "  [cuBLAS]"), site("short", "train.cu:7", "")];
    for columns in [60, 80, 100, 200] {
        for line in with_available(columns, || lines(&sites)) {
            assert!(width(&line) <= columns, "{columns}: {line}");
        }
    }
    let whole = lines(&sites);
    assert!(
        whole[0].contains(long) && whole[0].ends_with("own.cu:1234  [cuBLAS]"),
        "{whole:?}"
    );
    assert!(
        with_available(80, || lines(&sites))[1].ends_with("train.cu:7"),
        "places stay readable"
    );
}

#[test]
fn wide_characters_leave_the_columns_aligned() {
    let rows = lines(&[site("訓練する", "a.py:1", ""), site("step", "b.py:2", "")]);
    let place = |row: &str, name: &str| row.find(name).map(|at| width(&row[..at]));
    assert_eq!(place(&rows[0], "a.py"), place(&rows[1], "b.py"), "{rows:?}");
}

#[test]
fn a_narrow_terminal_loses_the_least_important_columns_and_no_names() {
    let table = || {
        let mut page = Document::default();
        let rows = Rows::of(["a_phase_with_a_long_name"])
            .column("phase", |name| *name)
            .flexible();
        let rows = rows
            .column("allocated", |_| Cell::Size(1 << 30))
            .short("alloc")
            .expendable(1);
        page.table(
            rows.column("left behind", |_| Cell::Count(7))
                .short("left")
                .expendable(2),
        );
        page.plain_lines().join("\n")
    };
    assert_eq!(
        table(),
        "  phase                     allocated  left behind\n  a_phase_with_a_long_name      1 GiB            7"
    );
    assert_eq!(
        with_available(40, table),
        "  phase                     alloc  left\n  a_phase_with_a_long_name  1 GiB     7"
    );
    assert_eq!(
        with_available(36, table),
        "  phase                     alloc\n  a_phase_with_a_long_name  1 GiB"
    );
}

#[test]
fn one_document_has_a_text_and_a_page_of_markdown() {
    let mut page = Document::default();
    page.heading(styled(BAD, "failed:") + " 2 blocks");
    page.item("a_reason");
    page.table(Rows::of([site("step<int>", "a.cu:7", "")]).column("call site", Site::clone));
    page.more(3usize, "call site", "");
    page.warnings(["lost"]);
    page.next("culeak report x");
    assert_eq!(
        page.plain(),
        "failed: 2 blocks\n  a_reason\n  call site\n  step<int>  a.cu:7\n  … and 3 more call sites\nwarning: lost\nnext: culeak report x\n"
    );
    let mut out = Vec::new();
    page.markdown(&mut out).expect("memory is writable");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "### ❌ failed: 2 blocks\n\n- a\\_reason\n\n| call site | place |\n|---|---|\n| step&lt;int&gt; | a.cu:7 |\n\n\
         - … and 3 more call sites\n\n> lost\n\nnext: culeak report x\n\n"
    );
}

proptest! {
    #[test]
    fn whatever_enters_a_document_is_escaped(name in "\\PC*|[\\x00-\\x1f\u{202e}a]{0,20}") {
        let mut page = Document::default();
        page.line(name.as_str());
        page.field("label", bold(&name));
        page.table(Rows::of([&name]).column("name", |name| name.as_str()));
        page.warnings([&name]);
        page.next(&name);
        prop_assert!(page.plain_lines().iter().all(|line| !line.contains(crate::escape::is_active)));
    }
}
