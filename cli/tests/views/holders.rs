//! Snapshots with holders.

use super::*;

#[test]
fn a_snapshot_with_holders_answers_why() {
    let text = stdout(&["why", "held.json"]);
    assert!(
        text.starts_with("53.9 MiB at 6 call sites: 44 MiB held by 3 holders, 8 MiB in a cycle, 1 MiB lost, "),
        "{text}"
    );
    let why = json(&["why", "held.json", "--json"]);
    assert_eq!(
        (why["format"].as_str(), why["version"].as_u64()),
        (Some("culeak-why"), Some(2))
    );
    let origins = why["origins"].as_array().expect("origins");
    assert_eq!(origins.len(), 7);
    assert_eq!(origins[0]["origin"], "__main__.keep");
    assert_eq!(origins[0]["bytes"], 40 * MIB);
    assert_eq!(why["retainers"][1]["parent"], 0);
    assert_eq!(
        why["pools"]["PyTorch"]["unused_bytes"].as_u64(),
        Some(64 * MIB - 50 * MIB - 3 * MIB / 8)
    );
    // The same filters as those of a report.
    let filtered = json(&["why", "held.json", "--kind", "tensor", "--json"]);
    assert_eq!(filtered["total"]["bytes"].as_u64(), Some(50 * MIB + 3 * MIB / 8));
    assert_eq!(filtered["filter"]["left_out"]["count"], 3);
}

#[test]
fn why_answers_for_a_line_a_function_a_class_and_an_address() {
    let total = |words: &[&str]| {
        let words = [&["why", "held.json", "--json"], words].concat();
        json(&words)["total"]["bytes"].as_u64().expect("a total")
    };
    assert_eq!(total(&["train.py:8"]), 40 * MIB);
    assert_eq!(total(&["graph_in_list"]), 40 * MIB);
    assert_eq!(total(&["--class", "cycle"]), 8 * MIB);
    assert_eq!(total(&["--class", "lost"]), MIB);
    assert_eq!(total(&["--class", "native_holder"]), MIB / 2);
    assert_eq!(total(&["g_cache"]), 2 * MIB);
    let nothing = stdout(&["why", "held.json", "train.py:8", "--class", "lost"]);
    assert!(nothing.starts_with("nothing of train.py:8 is lost\n"), "{nothing}");
    let block = held().holders.expect("searched").blocks[30].address;
    let one = json(&["why", "held.json", "--json", &format!("{:#x}", block + 5)]);
    assert_eq!(one["block"]["address"].as_u64(), Some(block));
    assert_eq!(one["block"]["held"]["steps"][0]["via"], "[*]");
}

#[test]
fn a_missing_answer_is_an_error_that_says_how_to_get_one() {
    let message = |words: &[&str]| String::from_utf8(output(words).stderr).expect("text");
    let missing = message(&["why", "leaky.json"]);
    assert!(
        missing.contains("leaky.json") && missing.contains("culeak run --why"),
        "{missing}"
    );
    assert!(message(&["report", "leaky.json", "--why"]).contains("culeak run --why"));
    let nowhere = message(&["why", "held.json", "train.py:9"]);
    assert!(
        nowhere.contains("no live memory was allocated at train.py:9; there is memory of train.py:8"),
        "{nowhere}"
    );
    let two = message(&["why", "held.json", "leaky.json"]);
    assert!(two.contains("\"leaky.json\" is a file; name one input"), "{two}");
    assert!(message(&["why", "--core", "held.json"]).contains("held.json"));
}

#[test]
fn a_report_of_a_snapshot_with_holders_shows_them_by_call_site() {
    let report = json(&["report", "held.json", "--json"]);
    let sites = report["held_by"].as_array().expect("call sites");
    assert_eq!(sites.len(), 6);
    assert_eq!(
        sites[0]["site_fingerprint"],
        report["rows"][0]["stacks"][0]["site_fingerprint"]
    );
    assert_eq!(sites[0]["holders"][0]["origin"], "__main__.keep (list of 60)");
    assert!(json(&["report", "leaky.json", "--json"]).get("held_by").is_none());
    let brief = stdout(&["report", "held.json"]);
    let holder = "held by __main__.keep (list of 60)\n        20 MiB keep[*] → Tensor";
    assert!(
        brief.contains(holder) && brief.contains("more: culeak why held.json; "),
        "{brief}"
    );
    let text = stdout(&["report", "held.json", "--view", "stacks", "--top", "1"]);
    let section = text.split("held by\n").nth(1).expect("a section");
    assert!(
        section.starts_with("  40 MiB  graph_in_list  train.py:8\n"),
        "{section}"
    );
    assert!(section.contains("… and 5 more call sites"), "{section}");
}

#[test]
fn memory_by_module_is_in_each_form_and_has_the_same_sums() {
    let why = json(&["why", "modelled.json", "--json"]);
    let tree = why["modules"]["tree"].as_array().expect("modules");
    let of = |path: &str| {
        let row = tree.iter().find(|row| row["path"] == path).expect("a module");
        (row["class"].as_str(), row["bytes"].as_u64(), row["count"].as_u64())
    };
    assert_eq!(of("__main__.model"), (Some("Model"), Some(17 * MIB), Some(17)));
    assert_eq!(of("body.layers.3"), (Some("Layer"), Some(6 * MIB), Some(6)));
    let report = json(&["report", "modelled.json", "--by", "module", "--json"]);
    assert_eq!(report["modules"], why["modules"]);
    let row = |label: &str| {
        let mut rows = report["rows"].as_array().expect("rows").iter();
        rows.find(|row| row["label"] == label).expect("a row")["bytes"].as_u64()
    };
    assert_eq!(row("__main__.model (Model)"), Some(17 * MIB));
    assert_eq!(row("(no module)"), why["modules"]["without"]["bytes"].as_u64());
    let layers = "body.layers.* (5 × Layer)";
    for words in [
        &["report", "modelled.json"][..],
        &["report", "modelled.json", "--by", "module"],
        &["report", "modelled.json", "-o", ".html"],
        &["why", "modelled.json"],
        &["why", "modelled.json", "--by", "module"],
        &["why", "modelled.json", "train.py:8", "--by", "module"],
    ] {
        let text = stdout(words);
        assert!(text.contains(layers), "{words:?}: {text}");
    }
    let others = stdout(&["why", "modelled.json", "train.py:29", "--by", "module"]);
    assert!(others.contains("no module of PyTorch owns any of it"), "{others}");
    let filtered = json(&[
        "report",
        "modelled.json",
        "--by",
        "module",
        "--focus",
        "cycle",
        "--json",
    ]);
    assert!(filtered.get("modules").is_none());
    assert_eq!(filtered["rows"][0]["label"], "(no module)");
}

#[test]
fn a_report_by_module_needs_holders() {
    let output = output(&["report", "leaky.json", "--by", "module"]);
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(error.contains("culeak run --why"), "{error}");
    assert_eq!(output.status.code(), Some(2));
    // Libraries and files need none.
    let files = json(&["report", "leaky.json", "--by", "file", "--json"]);
    assert!(!files["rows"].as_array().expect("rows").is_empty());
}
