//! Options for categories.

use super::*;

#[test]
fn categories_are_grouped_filtered_and_overridden() {
    let folder = folder();
    fs::write(
        folder.path().join("mine.txt"),
        "# ours\nkv-cache: load_weights in weights.cu\n",
    )
    .expect("written");
    let report = json(folder.path(), &["report", "leaky.json", "--by", "category", "--json"]);
    let labels = |report: &Value| -> Vec<String> {
        let rows = report["rows"].as_array().expect("rows");
        rows.iter()
            .map(|row| row["label"].as_str().expect("a label").to_owned())
            .collect()
    };
    assert_eq!(labels(&report), ["other"]);
    let own = [
        "report",
        "leaky.json",
        "--by",
        "category",
        "--categories",
        "mine.txt",
        "--json",
    ];
    let report = json(folder.path(), &own);
    assert_eq!(labels(&report), ["other", "kv-cache"]);
    let kept = &report["categories"][0];
    assert_eq!(
        (kept["category"].as_str(), kept["memory"]["bytes"].as_u64()),
        (Some("kv-cache"), Some(64 * MIB))
    );
    assert_eq!(
        (kept["rules"][0]["source"].as_str(), kept["rules"][0]["line"].as_u64()),
        (Some("mine.txt"), Some(2))
    );
    let filtered = json(folder.path(), &[&own[..], &["--category", "kv-cache"]].concat());
    assert_eq!(labels(&filtered), ["kv-cache"]);
    assert_eq!(filtered["filter"]["categories"][0], "kv-cache");
    let words = [
        "report",
        "leaky.json",
        "--category",
        "kv-cache",
        "--categories",
        "mine.txt",
    ];
    assert!(
        stdout(folder.path(), &words).contains("category kv-cache"),
        "the text names the filter"
    );
    let table = [
        "export",
        "leaky.json",
        "-f",
        "csv",
        "-o",
        "-",
        "--categories",
        "mine.txt",
    ];
    assert_eq!(stdout(folder.path(), &table).matches(",kv-cache,").count(), 1);
    // The printed rules are a file of rules.
    fs::write(
        folder.path().join("all.txt"),
        stdout(folder.path(), &["help", "categories"]),
    )
    .expect("written");
    let printed = [
        "report",
        "leaky.json",
        "--categories",
        "all.txt",
        "--no-builtin-categories",
        "--by",
        "category",
        "--json",
    ];
    let printed = json(folder.path(), &printed);
    assert_eq!(labels(&printed), ["other"]);
}

#[test]
fn wrong_rules_for_categories_are_reported_with_line_and_column() {
    let folder = folder();
    fs::write(folder.path().join("bad.txt"), "# fine\n  weights: x\n").expect("written");
    for (words, expected) in [
        (
            ["--categories", "bad.txt"],
            "bad.txt:2:3: no such category: \"weights\"",
        ),
        (
            ["--categories", "absent.txt"],
            "absent.txt: the rules for categories cannot be read",
        ),
        (
            ["--category", "weights"],
            "--category weights: no such value; the values are parameters, ",
        ),
        (["--no-builtin-categories", "--view=losses"], "--categories <FILE>"),
    ] {
        let words = [&["report", "leaky.json"][..], &words].concat();
        assert_eq!(code(folder.path(), &words), 2, "{words:?}");
        let message = stderr(folder.path(), &words);
        assert!(message.contains(expected), "{message}");
    }
}
