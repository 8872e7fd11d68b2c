//! Rules that suppress, and baselines.

use super::*;

#[test]
fn generated_suppressions_make_the_check_pass_and_bad_ones_are_reported_with_line_and_column() {
    let folder = folder();
    let run = |words: &[&str]| culeak(folder.path(), words).output().expect("culeak starts");
    let generated = run(&["check", "leaky.json", "--gen-suppressions"]);
    assert_eq!(generated.status.code(), Some(0));
    fs::write(folder.path().join("app.supp"), &generated.stdout).expect("written");
    assert_eq!(
        run(&["check", "leaky.json", "--suppressions", "app.supp"])
            .status
            .code(),
        Some(0)
    );
    fs::write(folder.path().join("bad.supp"), "# fine\n  race:x\n").expect("written");
    let bad = run(&[
        "check",
        "leaky.json",
        "--suppressions",
        "app.supp",
        "--suppressions",
        "bad.supp",
    ]);
    assert_eq!(bad.status.code(), Some(2));
    let message = String::from_utf8_lossy(&bad.stderr);
    assert!(
        message.contains("bad.supp:2:3: no such type of suppression"),
        "{message}"
    );
    let built_in = stdout(&["check", "--print-suppressions"]);
    assert!(built_in.contains("\nleak:^cublasCreate_v2$\n"), "{built_in}");
    fs::write(folder.path().join("built-in.supp"), built_in).expect("written");
    assert_eq!(
        run(&["check", "leaky.json", "--suppressions", "built-in.supp"])
            .status
            .code(),
        Some(1)
    );
}

#[test]
fn a_baseline_is_written_and_then_compared_with() {
    let folder = folder();
    let run = |words: &[&str]| culeak(folder.path(), words).output().expect("culeak starts");
    let missing = run(&["check", "leaky.json", "--baseline", "base.json"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("--update-baseline"));
    let update = ["check", "leaky.json", "--baseline", "base.json", "--update-baseline"];
    assert_eq!(run(&update).status.code(), Some(0));
    let first = fs::read(folder.path().join("base.json")).expect("written");
    assert_eq!(
        run(&["check", "leaky.json", "--baseline", "base.json"]).status.code(),
        Some(0)
    );
    assert_eq!(run(&update).status.code(), Some(0));
    assert_eq!(
        fs::read(folder.path().join("base.json")).expect("written"),
        first,
        "the same again"
    );
    // A snapshot serves as a baseline.
    assert_eq!(
        run(&["check", "leaky.json", "--baseline", "leaky.json"]).status.code(),
        Some(0)
    );
    assert_eq!(
        run(&["check", "leaky.json", "--baseline", "clean.json"]).status.code(),
        Some(1)
    );
    let any = ["check", "leaky.json", "--baseline", "base.json", "--fail-on", "any"];
    assert_eq!(run(&any).status.code(), Some(1));
    assert_eq!(
        run(&["check", "leaky.json", "--fail-on", "any"]).status.code(),
        Some(2),
        "needs a baseline"
    );
    fs::write(folder.path().join("base.json"), &first[..first.len() / 2]).expect("written");
    assert_eq!(
        run(&["check", "leaky.json", "--baseline", "base.json"]).status.code(),
        Some(2)
    );
}

#[test]
fn a_report_hides_suppressed_stacks_and_shows_their_total() {
    let folder = folder();
    fs::write(
        folder.path().join("known.supp"),
        "# ours\nleak:^load_weights$\nleak:no_such_function\n",
    )
    .expect("written");
    let run = |words: &[&str]| culeak(folder.path(), words).output().expect("culeak starts");
    let all = String::from_utf8(run(&["report", "leaky.json"]).stdout).expect("text");
    let left = String::from_utf8(run(&["report", "leaky.json", "--suppressions", "known.supp"]).stdout).expect("text");
    assert!(all.contains("load_weights") && !all.contains("suppressed"), "{all}");
    assert!(!left.contains("  load_weights"), "{left}");
    assert!(left.contains(" of host memory; 64 MiB of it suppressed"), "{left}");
    assert!(left.contains("by leak:^load_weights$ (known.supp:2)"), "{left}");
    assert!(
        left.contains("never matched: leak:no_such_function (known.supp:3)"),
        "{left}"
    );
    let json: Value =
        serde_json::from_slice(&run(&["report", "leaky.json", "--suppressions", "known.supp", "--json"]).stdout)
            .expect("JSON");
    assert_eq!(json["suppressed"], json["suppressions"][0]["suppressed"]);
    let rows: u64 = json["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["bytes"].as_u64())
        .sum();
    let whole: Value = serde_json::from_slice(&run(&["report", "leaky.json", "--json"]).stdout).expect("JSON");
    let before: u64 = whole["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["bytes"].as_u64())
        .sum();
    assert_eq!(rows + json["suppressed"]["bytes"].as_u64().expect("bytes"), before);
    assert_eq!(json["totals"], whole["totals"], "totals are of everything");
}

#[test]
fn trees_flame_graphs_and_exports_hide_suppressed_stacks() {
    let folder = folder();
    fs::write(folder.path().join("known.supp"), "leak:^load_weights$\n").expect("written");
    let run = |words: &[&str]| {
        let output = culeak(folder.path(), words).output().expect("culeak starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        assert!(output.status.success(), "{words:?}: {}", text(output.stderr));
        (text(output.stdout), text(output.stderr))
    };
    let rules = ["leaky.json", "--suppressions", "known.supp"];
    let by_rule = "64 MiB in 1 block by leak:^load_weights$ (known.supp:1)";
    let (all, _) = run(&["report", "leaky.json", "--view", "tree"]);
    let (tree, _) = run(&[&["report", "--view", "tree"][..], &rules].concat());
    assert!(
        all.contains("load_weights  ") && !tree.contains("load_weights  "),
        "{tree}"
    );
    assert!(
        tree.contains("suppressed: 64 MiB in 1 block") && tree.contains(by_rule),
        "{tree}"
    );
    run(&[&["report", "-o", "gpu.svg"][..], &rules].concat());
    let graph = fs::read_to_string(folder.path().join("gpu.svg")).expect("a flame graph");
    assert!(!graph.contains("load_weights") && graph.contains("suppressed: 64 MiB in 1 block"));
    for (format, needs_text) in [
        ("folded", true),
        ("speedscope", true),
        ("firefox", true),
        ("csv", true),
        ("pprof", false),
    ] {
        let (text, message) = run(&[&["export", "--format", format, "-o", format][..], &rules].concat());
        assert!(text.is_empty() && message.contains(by_rule), "{format}: {message}");
        let file = fs::read(folder.path().join(format)).expect("a file");
        let shows_it = needs_text && String::from_utf8_lossy(&file).contains("load_weights");
        assert!(!file.is_empty() && !shows_it, "{format}");
    }
    run(&[&["report", "-o", "a.html"][..], &rules].concat());
    let page = fs::read_to_string(folder.path().join("a.html")).expect("a page");
    assert!(page.contains(by_rule));
    let perfetto = [&["export", "--format", "perfetto", "-o", "x"][..], &rules].concat();
    let refused = culeak(folder.path(), &perfetto).output().expect("culeak starts");
    assert!(refused.status.code() == Some(2) && !folder.path().join("x").exists());
}

#[test]
fn a_line_that_is_not_a_rule_is_reported_with_line_and_column() {
    let folder = folder();
    fs::write(folder.path().join("bad.supp"), "leak:fine\n  race:x\n").expect("written");
    fs::write(folder.path().join("all.supp"), "\nleak:*\n").expect("written");
    fs::write(folder.path().join("latin.supp"), b"leak:\xff\n").expect("written");
    for command in [&["check"][..], &["report"], &["export", "--format", "csv", "-o", "-"]] {
        for (file, message) in [
            ("bad.supp", "bad.supp:2:3: no such type of suppression"),
            ("all.supp", "all.supp:2:6: this pattern would match everything"),
            ("latin.supp", "latin.supp: suppressions cannot be read"),
            ("none.supp", "none.supp: suppressions cannot be read"),
        ] {
            let output = culeak(
                folder.path(),
                &[command, &["leaky.json", "--suppressions", file]].concat(),
            )
            .output()
            .expect("culeak starts");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.code() == Some(2) && error.contains(message),
                "{command:?} {file}: {error}"
            );
        }
    }
}
