use std::path::{Path, PathBuf};

use culeak::analysis::check::{self, Limit, Limits, Rules, Scope, verdict};
use culeak::kind::Kind as Gpu;
use culeak::snapshot::Snapshot;
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::text::sample::{GIB, Sample, leaky, training};

/// A repository with the sources of the leaky program.
fn sources() -> (TempDir, SourceRoot) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("src")).expect("a folder");
    for name in ["src/train.cu", "src/weights.cu", "train.py"] {
        std::fs::write(folder.path().join(name), b"").expect("written");
    }
    let root = SourceRoot::find(Some(folder.path()));
    (folder, root)
}

fn log(verdicts: &[(&str, Verdict)], root: &SourceRoot) -> Value {
    serde_json::to_value(sarif::log(verdicts, root)).expect("JSON")
}

#[test]
fn an_overlong_path_is_not_searched() {
    let (_folder, root) = sources();
    assert_eq!(
        root.relative("/elsewhere/src/train.cu").as_deref(),
        Some("src/train.cu")
    );
    // Checking each suffix would take minutes.
    assert_eq!(root.relative(&"/a".repeat(400_000)), None);
}

fn written(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).expect("writing to memory succeeds");
    String::from_utf8(out).expect("text")
}

#[test]
fn memory_that_fails_by_its_class_is_a_finding_with_its_path_at_its_call_site() {
    let snapshot = crate::text::sample::held();
    let mut rules = Rules::default();
    rules.limits.classes = [Class::Lost, Class::Cycle].into();
    let verdict = verdict(&snapshot, &rules);
    let found = findings(&verdict);
    let kinds: Vec<&str> = found.iter().map(|finding| finding.kind.id()).collect();
    assert_eq!(kinds, ["gpu-memory-cycle", "gpu-memory-lost"]);
    assert_eq!(
        found[0].title,
        "cycle: 8 MiB in 2 blocks of cycle train.py:29, uncollected cycle Node.o → Node.o (gc is disabled): .t → Tensor → storage"
    );
    assert!(found.iter().all(|finding| finding.stack.is_some()));
    let expected = "failed: 8 MiB in 2 blocks are in a cycle, 1 MiB in 1 block is lost (of 53.9 MiB held)";
    assert_eq!(summary(&verdict), expected);
    let verdicts = [("train.culeak", verdict)];
    let markdown = written(|out| crate::text::check::page_of(&verdicts).markdown(out));
    assert!(
        markdown.contains("\n- lost: 1 MiB in 1 block of fill\\_pool"),
        "{markdown}"
    );
    let xml = written(|out| junit::write(&verdicts, out));
    assert!(
        xml.contains("type=\"gpu-memory-cycle\"") && xml.contains("Node.o → Node.o"),
        "{xml}"
    );
    let (_folder, root) = sources();
    let results = log(&verdicts, &root)["runs"][0]["results"].clone();
    assert_eq!(results[1]["ruleId"], "gpu-memory-lost");
    let github = written(|out| github::write(&verdicts, &root, out));
    assert!(github.contains("::error file=train.py,line=29"), "{github}");
}

#[test]
fn a_finding_names_the_largest_holder_of_its_call_site_in_each_format() {
    let snapshot = crate::text::sample::held();
    let verdicts = [("train.culeak", verdict(&snapshot, &Rules::default()))];
    let (_folder, root) = sources();
    let github = written(|out| github::write(&verdicts, &root, out));
    let xml = written(|out| junit::write(&verdicts, out));
    let sarif = log(&verdicts, &root).to_string();
    for written in [&github, &xml, &sarif] {
        for holder in [
            "held by __main__.keep (list of 60)",
            "; lost: no pointer to it is left in the process",
        ] {
            assert!(written.contains(holder), "{holder}: {written}");
        }
    }
    let without = Snapshot {
        holders: None,
        ..snapshot.clone()
    };
    let verdicts = [("train.culeak", verdict(&without, &Rules::default()))];
    assert!(!written(|out| github::write(&verdicts, &root, out)).contains("__main__"));
}

#[test]
fn objects_over_their_limit_are_findings_with_their_line_and_no_bytes() {
    let snapshot = crate::text::sample::serving();
    let with = |limits: Limits| {
        let mut rules = Rules::from(limits);
        rules.suppressions.add_built_in();
        rules
    };
    let only = with(Limits::from([
        Limit::objects(Gpu::Stream, 64),
        Limit::objects(Gpu::GraphExec, 8),
    ]));
    let verdict = check::verdict(&snapshot, &only);
    assert_eq!(
        summary(&verdict),
        "failed: 12 stream and 40 graph-exec objects left at 2 call sites; no limit applies to 64 MiB in 1 block: device"
    );
    let found = findings(&verdict);
    assert_eq!(
        found[0].title,
        "40 graph-exec objects are 32 over the limit of 8; 40 by Server::decode server.cu:88"
    );
    let (_folder, root) = sources();
    std::fs::write(root.folder.join("src/server.cu"), b"").expect("written");
    let verdicts = [("app.culeak", verdict)];
    let github = written(|out| github::write(&verdicts, &root, out));
    assert!(
        github.contains("::error file=src/server.cu,line=88,title=CUDA objects::40 graph-exec  Server::decode"),
        "{github}"
    );
    let xml = written(|out| junit::write(&verdicts, out));
    let markdown = written(|out| crate::text::check::page_of(&verdicts).markdown(out));
    let sarif = log(&verdicts, &root).to_string();
    assert!(sarif.contains(r#"{"text":"created by"}"#), "{sarif}");
    for written in [&github, &xml, &markdown, &sarif] {
        assert!(
            written.contains("server.cu") && !written.contains(" B in 0 blocks"),
            "{written}"
        );
        let of_memory = written.matches("64 MiB").count();
        assert_eq!(
            of_memory,
            written.matches("no limit applies to 64 MiB").count(),
            "{written}"
        );
        assert_eq!(of_memory, 1, "{written}");
    }
    let too = with(Limits::from([
        Limit::bytes(Scope::All, 1 << 30),
        Limit::objects(Gpu::GraphExec, 8),
    ]));
    let verdict = check::verdict(&snapshot, &too);
    assert_eq!(
        summary(&verdict),
        "failed: 64 MiB in 1 block leaked at 1 call site; 40 graph-exec objects left at 1 call site"
    );
}

/// The published schema, from the sources of a crate that reads SARIF.
fn schema() -> Value {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let sources = home.expect("CARGO_HOME, or HOME").join("registry/src");
    let registries = std::fs::read_dir(&sources).unwrap_or_else(|error| panic!("{}: {error}", sources.display()));
    let schema = registries
        .flatten()
        .map(|registry| registry.path().join("serde-sarif-0.8.0/src/schema.json"))
        .find(|schema| schema.exists())
        .unwrap_or_else(|| panic!("no crate serde-sarif 0.8.0 in {}", sources.display()));
    let schema = std::fs::read(&schema).unwrap_or_else(|error| panic!("{}: {error}", schema.display()));
    let mut schema: Value = serde_json::from_slice(&schema).expect("a schema");
    // Its pattern for languages is no valid regular expression; the logs contain no language.
    for holder in ["run", "toolComponent"] {
        let language = &mut schema["definitions"][holder]["properties"]["language"];
        let pattern = language.as_object_mut().expect("a property").remove("pattern");
        assert!(pattern.is_some(), "{holder}");
    }
    schema
}

fn every_finding() -> (Snapshot, Rules) {
    let mut snapshot = leaky();
    snapshot.losses.lost_allocations = 3;
    let mut rules = Rules::from(Limits::from([
        Limit::bytes(Scope::All, 1),
        Limit::bytes(Scope::Kind(Gpu::Managed), 1),
        Limit::bytes(Scope::Site, 1),
    ]));
    rules.baseline = Some(culeak::analysis::check::baseline_of(
        &Sample::new().finish(0, 0),
        &rules,
    ));
    (snapshot, rules)
}

#[test]
fn sarif_is_valid_by_the_published_schema() {
    let validator = jsonschema::validator_for(&schema()).expect("a schema");
    let (_folder, root) = sources();
    let problems = |snapshot: &Snapshot, rules: &Rules| -> Vec<String> {
        let log = log(&[("app.culeak", verdict(snapshot, rules))], &root);
        validator.iter_errors(&log).map(|error| error.to_string()).collect()
    };
    let (snapshot, rules) = every_finding();
    for (snapshot, rules) in [
        (&snapshot, &rules),
        (&leaky(), &Rules::default()),
        (&training().finish(0, 0), &Rules::default()),
        (&Sample::new().finish(0, 0), &Rules::default()),
    ] {
        assert_eq!(problems(snapshot, rules), Vec::<String>::new());
    }
    // Without a verdict, the absence of results proves nothing.
    let successful = |lost: u64| {
        let mut clean = Sample::new().finish(0, 0);
        clean.losses.lost_allocations = lost;
        log(&[("app.culeak", verdict(&clean, &Rules::default()))], &root)["runs"][0]["invocations"][0]
            ["executionSuccessful"]
            .clone()
    };
    assert_eq!((successful(0), successful(1)), (Value::Bool(true), Value::Bool(false)));
    // The schema rejects invalid logs.
    let mut log = log(&[], &root);
    log["runs"][0]["tool"] = Value::Null;
    assert!(!validator.is_valid(&log));
}

#[test]
fn sarif_points_at_the_source_line_and_has_a_stable_fingerprint() {
    let (_folder, root) = sources();
    let snapshot = leaky();
    let log = log(&[("app.culeak", verdict(&snapshot, &Rules::default()))], &root);
    let results = log["runs"][0]["results"].as_array().expect("results");
    let site = results
        .iter()
        .find(|result| result["ruleId"] == "gpu-memory-leak")
        .expect("a site");
    let place = &site["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "src/train.cu");
    assert_eq!(place["region"]["startLine"], 212);
    assert_eq!(
        site["partialFingerprints"]["culeakSite/v2"].as_str().map(str::len),
        Some(16)
    );
}

#[test]
fn junit_is_read_back_with_a_test_for_each_site() {
    let (snapshot, rules) = every_finding();
    let clean = Sample::new().finish(0, 9);
    let verdicts = [
        ("app.culeak", verdict(&snapshot, &rules)),
        ("clean.culeak", verdict(&clean, &Rules::default())),
    ];
    let xml = written(|out| junit::write(&verdicts, out));
    let report = quick_junit::Report::deserialize_from_str(&xml).expect("JUnit");
    assert_eq!(report.test_suites.len(), 2);
    assert_eq!((report.tests, report.failures), (1 + 3 + 1, 1 + 3));
    let names: Vec<_> = report.test_suites[0]
        .test_cases
        .iter()
        .map(|case| case.name.as_str())
        .collect();
    assert_eq!(names[..2], ["limits", "Trainer::step train.cu:212"]);
    let lasted = std::time::Duration::from_nanos(snapshot.taken.at_ns);
    let suite = &report.test_suites[0];
    assert_eq!((suite.time, suite.test_cases[0].time), (Some(lasted), Some(lasted)));
    assert!(suite.test_cases.iter().all(|case| case.time.is_some()));
}

#[test]
fn github_annotations_are_at_the_first_line_within_the_repository() {
    let (_folder, root) = sources();
    let snapshot = leaky();
    let verdicts = [("app.culeak", verdict(&snapshot, &Rules::default()))];
    let lines = written(|out| github::write(&verdicts, &root, out));
    assert!(
        lines.contains(
            "::error file=src/train.cu,line=212,title=GPU memory::1.1 GiB in 128 blocks leaked by Trainer::step%0A"
        ),
        "{lines}"
    );
    // The wrapper of thrust is shown first, but is not in the repository.
    assert!(lines.contains("::error file=src/weights.cu,line=40,"), "{lines}");
    let annotations: Vec<_> = lines.lines().filter(|line| line.starts_with("::")).collect();
    assert_eq!(
        annotations.len(),
        verdicts[0].1.rows.len() + verdicts[0].1.unseen.len(),
        "one for each call site, and for what was not seen: {lines}"
    );
    assert!(lines.ends_with("\nculeak check: app.culeak: failed: 1.2 GiB in 132 blocks leaked at 3 call sites\n"));
    let python = training().finish(GIB, 0);
    let lines = written(|out| github::write(&[("a", verdict(&python, &Rules::default()))], &root, out));
    assert!(lines.contains("file=train.py,line=212"), "{lines}");
}

#[test]
fn markdown_is_a_verdict_and_a_table() {
    let snapshot = leaky();
    let rules = Rules::default();
    let page = written(|out| crate::text::check::page_of(&[("app.culeak", verdict(&snapshot, &rules))]).markdown(out));
    assert!(
        page.starts_with("### ❌ failed: 1.2 GiB in 132 blocks leaked, allowed none\n"),
        "{page}"
    );
    assert!(
        page.contains("| 1.1 GiB | 128 blocks | Trainer::step | train.cu:212 |\n"),
        "{page}"
    );
}

#[test]
fn a_file_is_found_below_the_root_wherever_it_was_built_and_never_outside() {
    let (folder, root) = sources();
    let inside = folder.path().canonicalize().expect("it exists").join("src/train.cu");
    assert_eq!(
        root.relative(&inside.to_string_lossy()).as_deref(),
        Some("src/train.cu")
    );
    assert_eq!(
        root.relative("/build/agent/7/src/train.cu").as_deref(),
        Some("src/train.cu")
    );
    assert_eq!(root.relative("src/train.cu").as_deref(), Some("src/train.cu"));
    assert_eq!(root.relative("train.py").as_deref(), Some("train.py"));
    for foreign in [
        "/usr/include/thrust/vector.inl",
        "",
        "/",
        "src/../../etc/passwd",
        "<string>",
    ] {
        assert_eq!(root.relative(foreign), None, "{foreign}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_names_are_escaped_in_every_format(name in "[\\x00-\\x1f\u{7f}\u{202e}a<>|`#:%,&\\]\\[\\n]{0,20}|\\PC{0,20}") {
        let mut snapshot = leaky();
        for symbol in snapshot.locations.iter_mut().flat_map(|location| &mut location.symbols) {
            (symbol.function, symbol.file) = (name.clone(), Some(name.clone()));
        }
        let rules = Rules::default();
        let verdicts = [(name.as_str(), verdict(&snapshot, &rules))];
        let (_folder, root) = sources();
        let lines = written(|out| github::write(&verdicts, &root, out));
        prop_assert_eq!(lines.lines().count(), findings(&verdicts[0].1).len() + 1);
        let (log, commands): (Vec<_>, Vec<_>) = lines.lines().partition(|line| line.starts_with("culeak check: "));
        prop_assert_eq!(log.len(), 1);
        prop_assert!(commands.iter().all(|line| line.starts_with("::error ")) && !log[0].contains("##["));
        let xml = written(|out| junit::write(&verdicts, out));
        prop_assert!(quick_junit::Report::deserialize_from_str(&xml).is_ok(), "{}", xml);
        let page = written(|out| crate::text::check::page_of(&verdicts).markdown(out));
        prop_assert!(!page.contains('<'), "{}", page);
        prop_assert_eq!(page.lines().filter(|line| line.starts_with("###")).count(), 1);
    }
}
