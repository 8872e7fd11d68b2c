//! Options for segments and for objects without an address.

use super::*;

#[test]
fn rules_for_objects_are_generated_used_and_hide_them() {
    let folder = with_objects(project(""));
    let output = |words: &[&str]| output(folder.path(), words);
    let check = ["check", "serving.json", "--allow", "graph-exec=8"];
    let generated = output(&[&check[..], &["--gen-suppressions"]].concat());
    let rules = text(&generated.stdout);
    assert_eq!(
        rules,
        "# 40 graph-exec objects, server.cu:88\nsite:^Server::decode(Request const&)$ in ^server.cu:88$ of objects\n"
    );
    fs::write(folder.path().join("own.supp"), &rules).expect("written");
    let passed = output(&[&check[..], &["--suppressions", "own.supp"]].concat());
    let verdict = text(&passed.stdout);
    assert_eq!(passed.status.code(), Some(0), "{verdict}");
    assert!(
        verdict.starts_with("passed: 0 graph-exec objects left, allowed 8 graph-exec; no limit applies to 64 MiB")
            && verdict.contains("\nsuppressed: 40 objects\n"),
        "{verdict}"
    );
    assert!(!verdict.contains("never matched"), "{verdict}");
    let report = output(&[
        "report",
        "serving.json",
        "--view",
        "objects",
        "--suppressions",
        "own.supp",
    ]);
    let report = text(&report.stdout);
    assert!(report.contains("destroyed  40 suppressed\n"), "{report}");
    assert!(!report.contains("40 graph-exec  Server::decode"), "{report}");
    let exported = output(&[
        "export",
        "serving.json",
        "--objects",
        "--suppressions",
        "own.supp",
        "-o",
        "objects.folded",
    ]);
    let notes = text(&exported.stderr);
    assert!(notes.contains("suppressed: 4") && notes.contains(" objects"), "{notes}");
}

#[test]
fn segments_and_objects_are_refused_with_a_reason_where_they_cannot_be_shown() {
    let folder = with_objects(project(""));
    for (words, part) in [
        (
            &["report", "serving.json", "--kind", "segment"][..],
            "has no record of memory from the kernel driver (segments)",
        ),
        (
            &["report", "serving.json", "--kind", "segment", "--kind", "device"],
            "name them without other kinds",
        ),
        (
            &["report", "serving.json", "--kind", "segment", "--view", "objects"],
            "--kind segment and --view objects exclude each other",
        ),
        (
            &["report", "serving.json", "--kind", "stream", "--view", "tree"],
            "which objects without an address do not have",
        ),
        (
            &[
                "diff",
                "serving.json",
                "serving.json",
                "--kind",
                "stream",
                "--view",
                "tree",
            ],
            "which objects without an address do not have",
        ),
        (
            &["export", "serving.json", "--kind", "stream", "-o", "a.folded"],
            "add --objects to export them",
        ),
        (
            &["trend", "serving.json", "--kind", "host-segment"],
            "--kind host-segment does not apply to culeak trend",
        ),
        (
            &["export", "serving.json", "--kind", "segment", "-o", "a.pftrace"],
            "does not apply to perfetto: it does not show memory from the kernel driver",
        ),
        (
            &["check", "serving.json", "--allow", "graph-exec=8", "--kind", "segment"],
            "--kind segment: no such value; the values are device, ",
        ),
    ] {
        let refused = output(folder.path(), words);
        let reason = text(&refused.stderr).replace("\n       ", " ");
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {reason}");
        assert!(reason.contains(part), "{words:?}: {reason}");
    }
}

#[test]
fn objects_are_limited_on_the_command_line_and_in_the_config_file() {
    let folder = with_objects(project("[check]\nallow = \"graph-exec=40,stream=16\"\n"));
    let code = |words: &[&str]| code(folder.path(), words);
    assert_eq!(code(&["check", "serving.json"]), 0);
    assert_eq!(
        code(&["check", "serving.json", "--no-config"]),
        1,
        "memory fails without a limit"
    );
    assert_eq!(code(&["check", "serving.json", "--allow", "graph-exec=39"]), 1);
    assert_eq!(
        code(&["check", "serving.json", "--allow", "event=12,1GiB,graph-exec=40"]),
        0
    );
    let output = |words: &[&str]| output(folder.path(), words);
    let unknown = output(&["check", "leaky.json"]);
    assert_eq!(unknown.status.code(), Some(2));
    let reason = text(&unknown.stdout);
    assert!(
        reason.starts_with("no verdict: ")
            && reason.contains("cannot be judged by --allow OBJECT=N: it has no record of objects"),
        "{reason}"
    );
    for (option, part) in [
        ("tape=1", "objects: pool, external, multicast, stream, event"),
        ("device=many", "expected a size"),
        ("stream=many", "is not a number"),
        ("stream=1,stream=2", "two limits of one thing"),
    ] {
        let refused = output(&["check", "serving.json", "--allow", option]);
        assert_eq!(refused.status.code(), Some(2), "{option}");
        assert!(
            text(&refused.stderr).contains(part),
            "{option}: {}",
            text(&refused.stderr)
        );
    }
    for format in ["github", "sarif", "junit", "markdown", "json"] {
        let words = ["check", "serving.json", "--allow", "graph-exec=8", "--format", format];
        let failed = output(&words);
        assert_eq!(failed.status.code(), Some(1), "{format}");
        let text = text(&failed.stdout);
        assert!(
            text.contains("Server::decode") || text.contains("Server\\:\\:decode"),
            "{format}: {text}"
        );
        assert!(text.contains("40"), "{format}: {text}");
    }
}

#[test]
fn objects_are_exported_where_a_format_can_hold_a_count() {
    let folder = with_objects(folder());
    let export = |words: &[&str]| {
        output(
            folder.path(),
            &[&["export", "serving.json", "--objects"], words].concat(),
        )
    };
    let folded = export(&["-o", "-", "--format", "folded"]);
    let lines = text(&folded.stdout);
    assert!(
        lines
            .lines()
            .any(|line| line.contains("Server::decode") && line.ends_with(" 40")),
        "{lines}"
    );
    let csv = text(&export(&["-o", "-", "--format", "csv"]).stdout);
    assert_eq!(csv.matches(",graph-exec,").count(), 40, "{csv}");
    let refused = export(&["-o", "x.pftrace"]);
    assert!(
        text(&refused.stderr).contains("use pprof, folded"),
        "{}",
        text(&refused.stderr)
    );
    let unknown = output(folder.path(), &["export", "leaky.json", "--objects", "-o", "x.csv"]);
    assert!(
        text(&unknown.stderr).contains("has no record of objects at this point"),
        "{}",
        text(&unknown.stderr)
    );
}
