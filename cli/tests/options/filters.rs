//! Options that select allocations.

use super::*;

/// `words` for a report of leaky.json.
fn filtered(words: &[&str]) -> Value {
    json(folder().path(), &[&["report", "pool.json", "--json"], words].concat())
}

fn held(report: &Value) -> u64 {
    let held = &report["totals"]["held"];
    ["blocks", "device", "managed", "host"]
        .iter()
        .map(|place| held[place]["bytes"].as_u64().expect("bytes"))
        .sum()
}

/// Held by pool.json: 1152 MiB by Trainer::step, 64 MiB pinned, 12 KiB managed; 40 MiB are cached.
const ALL: u64 = (1152 + 64) * MIB + 3 * 4096;

#[test]
fn a_filter_applies_to_rows_and_totals_and_shows_what_it_leaves_out() {
    assert_eq!(held(&filtered(&[])), ALL);
    assert!(filtered(&[])["filter"].is_null());
    for (words, expected) in [
        (&["--kind", "pinned"][..], 64 * MIB),
        (&["--kind", "pinned", "--kind", "managed"], 64 * MIB + 3 * 4096),
        (&["--device", "0"], ALL - 64 * MIB),
        (&["--device", "host"], 64 * MIB),
        (&["--device", "host", "--device", "0"], ALL),
        (&["--focus", "Trainer::step"], 1152 * MIB),
        (&["--focus", "^train.cu$"], 1152 * MIB),
        (&["--focus", "weights.cu", "--focus", "libfancy"], 64 * MIB + 3 * 4096),
        (&["--ignore", "Trainer"], ALL - 1152 * MIB),
        (
            &["--focus", "main", "--ignore", "Trainer", "--kind", "managed"],
            3 * 4096,
        ),
    ] {
        let report = filtered(words);
        assert_eq!(held(&report), expected, "{words:?}");
        let pools = report["totals"]["pool"]["bytes"].as_u64().expect("bytes");
        let left_out = report["filter"]["left_out"]["bytes"].as_u64().expect("bytes");
        assert_eq!(expected + pools + left_out, ALL + 40 * MIB, "{words:?}");
        let rows = report["rows"].as_array().expect("rows").iter();
        let rows: u64 = rows.map(|row| row["bytes"].as_u64().expect("bytes")).sum();
        assert_eq!(rows, expected + pools, "{words:?}");
    }
}

#[test]
fn commands_to_type_next_select_the_same_memory() {
    let folder = folder();
    let shown = |words: &[&str]| text(&output(folder.path(), words).stdout);
    let filter = "--kind device --focus Trainer::step";
    let words: Vec<&str> = filter.split(' ').collect();
    let report = shown(&[&["report", "leaky.json"], &words[..]].concat());
    for line in [
        format!("\nnext: culeak report leaky.json {filter} --by stack\n"),
        format!("\nmore: culeak report leaky.json {filter} --view stacks | --by stack | -o FILE.html\n"),
    ] {
        assert!(report.contains(&line), "{report}");
    }
    let job = shown(&[&["report", "leaky.json", "grown.json"], &words[..]].concat());
    assert!(
        job.contains("next: culeak report ") && job.ends_with(&format!(".json {filter}\n")),
        "{job}"
    );
    fs::write(folder.path().join("own.supp"), "leak:weights.cu\n").expect("written");
    let check = shown(&["check", "leaky.json", "--kind", "device", "--suppressions", "own.supp"]);
    let next = "\nnext: culeak report leaky.json --kind device --suppressions own.supp\n";
    assert!(check.contains(next), "{check}");
}

#[test]
fn a_snapshot_of_a_running_process_does_not_say_that_it_runs() {
    let folder = folder();
    let running = Sample::new().running().finish(0, 9);
    let json = serde_json::to_vec(&running).expect("JSON");
    // Whatever it is called.
    for name in ["then.json", "then", "then.culeak"] {
        fs::write(folder.path().join(name), &json).expect("written");
        let report = text(&output(folder.path(), &["report", name]).stdout);
        assert!(
            report.contains(", snapshot after ") && !report.contains("running"),
            "{report}"
        );
    }
}

#[test]
fn a_filter_applies_to_rows_by_size() {
    let report = filtered(&["--by", "size", "--kind", "pinned"]);
    assert_eq!(report["rows"].as_array().expect("rows").len(), 1);
    assert_eq!((held(&report), report["hidden_rows"].as_u64()), (64 * MIB, Some(0)));
}

#[test]
fn since_leaves_out_what_was_allocated_before_the_mark() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut snapshot = leaky_without_pool();
    // Records are made a second apart from second 10 on.
    snapshot.marks.push(Mark {
        time_ns: 20_000_000_000,
        name: "warm".to_owned(),
        thread: 0,
    });
    let json_text = serde_json::to_vec(&snapshot).expect("JSON");
    fs::write(folder.path().join("marked.json"), json_text).expect("written");
    let expected: u64 = snapshot
        .allocations
        .iter()
        .filter(|allocation| allocation.time_ns >= 20_000_000_000)
        .map(|allocation| allocation.bytes)
        .sum();
    for by in ["site", "size", "kind"] {
        let words = ["report", "marked.json", "--json", "--since", "warm", "--by", by];
        let report = json(folder.path(), &words);
        let rows = report["rows"].as_array().expect("rows").iter();
        let rows: u64 = rows.map(|row| row["bytes"].as_u64().expect("bytes")).sum();
        assert_eq!(rows, expected, "by {by}");
        assert!(report["filter"]["left_out"]["bytes"].as_u64() > Some(0));
    }
    for words in [
        &["report", "marked.json"][..],
        &["report", "marked.json", "-o", "page.html"],
        &["diff", "marked.json", "marked.json"],
        &["export", "marked.json", "-f", "csv", "-o", "blocks.csv"],
    ] {
        let output = culeak(folder.path(), &[words, &["--since", "tepid"]].concat()).output();
        let output = output.expect("culeak starts");
        let (code, message) = (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        let expected = "marked.json: --since: the program set no mark \"tepid\"; it set \"warm\"";
        assert!(code == Some(2) && message.contains(expected), "{words:?}: {message}");
    }
    assert_eq!(
        fs::read_dir(folder.path()).expect("a folder").count(),
        1,
        "nothing is written"
    );
}

#[test]
fn a_check_since_an_unknown_mark_fails_and_names_the_marks() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut snapshot = Sample::new().finish(0, 9);
    let write = |name: &str, snapshot: &Snapshot| {
        fs::write(folder.path().join(name), serde_json::to_vec(snapshot).expect("JSON")).expect("written");
    };
    write("bare.json", &snapshot);
    snapshot.marks = ["warm", "epoch 1", "warm"]
        .into_iter()
        .map(|name| Mark {
            time_ns: 20_000_000_000,
            name: name.to_owned(),
            thread: 0,
        })
        .collect();
    write("marked.json", &snapshot);
    let check = |inputs: &[&str], since: &str| {
        let output = culeak(folder.path(), &[&["check", "--since", since], inputs].concat()).output();
        let output = output.expect("culeak starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (code, message) = check(&["marked.json"], "tepid");
    assert_eq!(code, Some(2), "{message}");
    assert!(
        message.contains("the program set no mark \"tepid\"; it set \"warm\", \"epoch 1\"\n"),
        "{message}"
    );
    let (code, message) = check(&["bare.json", "marked.json"], "warm");
    assert!(
        code == Some(2) && message.contains("no verdict: bare.json") && message.contains("and no others"),
        "{message}"
    );
    assert_eq!(check(&["marked.json"], "warm").0, Some(0));
}

#[test]
fn a_peak_that_rises_by_nothing_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = culeak(folder.path(), &["run", "--snapshot", "peak:0", "--", "true"]).output();
    let output = output.expect("culeak starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("0 takes no snapshot; give the size"), "{message}");
}

#[test]
fn every_form_of_a_report_is_filtered_and_shows_the_filter() {
    let folder = folder();
    let filter_line = "stack does not match Trainer; leaves out 1.1 GiB in 128 blocks";
    let report = |words: &[&str]| {
        stdout(
            folder.path(),
            &[&["report", "leaky.json", "--ignore", "Trainer"], words].concat(),
        )
    };
    let plain = report(&[]);
    assert!(plain.contains(filter_line) && plain.contains("(filtered)"), "{plain}");
    assert!(!plain.contains("Trainer::step"), "{plain}");
    let tree = report(&["--view", "tree"]);
    assert!(tree.contains(filter_line) && !tree.contains("Trainer::step"), "{tree}");
    let graph = report(&["-o", ".svg"]);
    assert!(
        graph.contains(filter_line) && !graph.contains("Trainer::step"),
        "{graph}"
    );
    let page = report(&["-o", ".html"]);
    assert!(
        page.contains(filter_line) && !page.contains("Trainer::step"),
        "an unfiltered page"
    );
    let whole = stdout(folder.path(), &["report", "leaky.json"]);
    assert!(!whole.contains("filter"), "{whole}");
}

#[test]
fn a_filter_without_matches_is_not_reported_as_a_clean_program() {
    let folder = folder();
    let text = stdout(folder.path(), &["report", "leaky.json", "--kind", "array"]);
    assert!(text.contains("no leaked memory passes the filter"), "{text}");
    assert!(text.contains("next: culeak report leaky.json\n"), "{text}");
}

#[test]
fn an_invalid_filter_is_refused() {
    let folder = folder();
    for words in [
        &["--kind", "tape"][..],
        &["--device", "-1"],
        &["--device", "GPU"],
        &["--focus", "*"],
        &["--ignore", ""],
    ] {
        let words = [&["report", "leaky.json"], words].concat();
        assert_eq!(code(folder.path(), &words), 2, "{words:?}");
    }
}
