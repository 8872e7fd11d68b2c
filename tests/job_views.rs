//! Commands over the processes of a job: diff, check, trend, live, the page and exports name the rank that leaks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::profile::folder;
use crate::support::{culeak, profile, sources};

const RANKS: u32 = 8;

/// Runs all ranks, of which one may leak, and returns the folder of recordings.
fn record(folder: &Path, name: &str, leaking: Option<u32>) -> PathBuf {
    let own = folder.join(name);
    fs::create_dir(&own).expect("a folder");
    for rank in 0..RANKS {
        let behaviour = if leaking == Some(rank) { "leaking" } else { "usual" };
        let process = profile("ranks").arg(behaviour).env("RANK", rank.to_string());
        let ended = process.start_in(&own).finish();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    own.join("out")
}

fn run(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(culeak());
    command.args(words).current_dir(folder).env("CULEAK_CACHE_DIR", "");
    command.output().expect("culeak starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `ranks.c:18`, the line of the leak.
fn place() -> String {
    let source = fs::read_to_string(sources().join("victims/ranks.c")).expect("readable");
    let line = source
        .lines()
        .position(|line| line.contains("// the leak"))
        .expect("the line");
    format!("ranks.c:{}", line + 1)
}

#[test]
fn a_diff_of_two_runs_names_what_grew_on_which_rank_in_the_first_ten_lines() {
    let folder = folder();
    record(folder.path(), "before", None);
    record(folder.path(), "after", Some(5));
    let output = run(&["diff", "before/out", "after/out"], folder.path());
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text.starts_with("8 processes of ranks on 1 host: +30 MiB between two runs, from 256 MiB to 286 MiB\n"),
        "{text}"
    );
    let expected = format!(
        "keeps_a_batch  {}  only rank 5: +30 MiB, no change in the 7 others",
        place()
    );
    assert!(
        text.lines().take(10).any(|line| line.ends_with(&expected)),
        "{expected}\n{text}"
    );
    let json = run(&["diff", "before/out", "after/out", "--json"], folder.path());
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["format"], "culeak-job-diff");
    assert_eq!(json["pairs"].as_array().map(Vec::len), Some(8));
    assert_eq!(json["sites"][0]["sum"], 30 << 20);
    assert_eq!(json["sites"][0]["stands_out"]["processes"][0]["rank"], 5);
    assert_eq!(
        (&json["sites"][1], &json["unchanged_sites"]),
        (&Value::Null, &Value::from(1))
    );
    // The other way round it is gone.
    let back = run(&["diff", "after/out", "before/out"], folder.path());
    assert!(
        self::text(&back).contains("only rank 5: -30 MiB, no change in the 7 others"),
        "{back:?}"
    );
    let same = run(&["diff", "after/out", "after/out"], folder.path());
    assert!(
        self::text(&same).contains("on 1 host: no change, from 286 MiB to 286 MiB\n"),
        "{same:?}"
    );
    assert!(self::text(&same).lines().count() <= 3, "{same:?}");
}

#[test]
fn a_diff_lists_ranks_of_one_side_and_refuses_what_applies_to_two_processes() {
    let folder = folder();
    let before = record(folder.path(), "before", None);
    let after = record(folder.path(), "after", Some(5));
    let recordings = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder)
            .expect("readable")
            .flatten()
            .map(|entry| entry.path());
        let mut all: Vec<PathBuf> = entries
            .filter(|path| path.extension().is_some_and(|end| end == "culeak"))
            .collect();
        all.sort();
        all
    };
    fs::remove_file(&recordings(&after)[0]).expect("removed");
    fs::write(before.join("zero.culeak"), "").expect("written");
    let output = run(&["diff", "before/out", "after/out"], folder.path());
    let text = text(&output);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        text.starts_with("7 processes") && text.contains("only before: 1 process with 32 MiB, not compared: rank "),
        "{text}"
    );
    assert!(text.contains("not read before: 1 input"), "{text}");
    for option in ["--view=tree", "--view=stacks", "--all"] {
        let refused = run(&["diff", "before/out", "after/out", option], folder.path());
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            message.contains(&format!(
                "{} does not apply to several processes",
                option.replace('=', " ")
            )),
            "{message}"
        );
    }
}

#[test]
fn a_rank_that_holds_more_than_the_others_fails_the_check() {
    let folder = folder();
    record(folder.path(), "usual", None);
    record(folder.path(), "leaking", Some(5));
    let check = |job: &str, format: &str| {
        run(
            &["check", job, "--fail-on", "outlier", "--format", format],
            folder.path(),
        )
    };
    let passed = check("usual/out", "text");
    assert_eq!(passed.status.code(), Some(0), "{passed:?}");
    assert!(
        text(&passed).starts_with("passed: all of 8 processes, with 256 MiB"),
        "{passed:?}"
    );
    let failed = check("leaking/out", "text");
    let shown = text(&failed);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(shown.starts_with("failed: 1 of 8 processes, with 286 MiB"), "{shown}");
    assert!(shown.contains("\n  failed: rank 5\n"), "{shown}");
    let reason = format!(
        "30 MiB leaked by keeps_a_batch {}, more than in the other 7 processes: they have none",
        place()
    );
    assert!(shown.contains(&reason), "{reason}\n{shown}");
    let junit = text(&check("leaking/out", "junit"));
    assert_eq!(junit.matches("<failure").count(), 1, "{junit}");
    assert!(
        junit.contains(r#"<property name="rank" value="5"/>"#) && junit.contains("gpu-memory-outlier"),
        "{junit}"
    );
    let sarif: Value = serde_json::from_slice(&check("leaking/out", "sarif").stdout).expect("JSON");
    let results = sarif["runs"][0]["results"].as_array().expect("results");
    assert_eq!(results.len(), 1, "{sarif:#}");
    assert_eq!(
        (&results[0]["ruleId"], &results[0]["properties"]["rank"]),
        (&"gpu-memory-outlier".into(), &5.into())
    );
    assert!(
        text(&check("leaking/out", "github")).contains("::rank 5: "),
        "the annotation names the rank"
    );
    assert!(text(&check("leaking/out", "markdown")).contains("failed: rank 5"));
    // A limit still judges each process.
    let both = ["check", "leaking/out", "--fail-on", "outlier", "--allow", "1MiB"];
    assert!(text(&run(&both, folder.path())).starts_with("failed: 8 of 8 processes"));
    let one = fs::read_dir(folder.path().join("usual/out"))
        .expect("readable")
        .flatten()
        .map(|entry| entry.path());
    let one = one
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "culeak"))
        .expect("a recording");
    let alone = run(
        &["check", one.to_str().expect("text"), "--fail-on", "outlier"],
        folder.path(),
    );
    assert_eq!(alone.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&alone.stdout).contains("there is one process only"),
        "{alone:?}"
    );
}

#[test]
fn trends_of_many_ranks_are_few_lines() {
    let folder = folder();
    record(folder.path(), "job", Some(5));
    let output = run(&["trend", "job/out"], folder.path());
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text.starts_with("8 processes of ranks on 1 host: 1 snapshot each, from 286 MiB to 286 MiB\n"),
        "{text}"
    );
    assert!(text.contains("too few snapshots to judge: "), "{text}");
    assert!(text.lines().count() < 6, "{text}");
    let each = run(&["trend", "job/out", "--per-process", "--json"], folder.path());
    let each: Value = serde_json::from_slice(&each.stdout).expect("JSON");
    assert_eq!(each.as_array().map(Vec::len), Some(8));
    let job = run(&["trend", "job/out", "--json"], folder.path());
    let job: Value = serde_json::from_slice(&job.stdout).expect("JSON");
    assert_eq!(
        (&job["format"], &job["judged"]),
        (&"culeak-job-trend".into(), &0.into())
    );
    let refused = run(&["trend", "job/out", "--fail-on", "growing"], folder.path());
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--fail-on needs "),
        "{refused:?}"
    );
}

#[test]
fn several_processes_are_exported_as_one_file() {
    let folder = folder();
    record(folder.path(), "job", Some(5));
    let export = |format: &str| {
        let output = run(&["export", "job/out", "--format", format, "-o", "-"], folder.path());
        assert_eq!(output.status.code(), Some(0), "{format}: {output:?}");
        output.stdout
    };
    let table = String::from_utf8(export("csv")).expect("text");
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name: &str| header.iter().position(|column| *column == name).expect("a column");
    let (bytes, rank) = (column("bytes"), column("rank"));
    let mut sums = vec![0_u64; RANKS as usize];
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        // No field of these recordings has a comma.
        let rank: usize = fields[rank].parse().expect("a rank");
        sums[rank] += fields[bytes].parse::<u64>().expect("bytes");
    }
    let expected: Vec<u64> = (0..RANKS)
        .map(|rank| if rank == 5 { 62 << 20 } else { 32 << 20 })
        .collect();
    assert_eq!(sums, expected);
    let folded = String::from_utf8(export("folded")).expect("text");
    let of_rank = |rank: u32| -> u64 {
        let own = folded.lines().filter(|line| line.starts_with(&format!("rank {rank};")));
        own.map(|line| {
            line.rsplit(' ')
                .next()
                .expect("a number")
                .parse::<u64>()
                .expect("bytes")
        })
        .sum()
    };
    assert_eq!((0..RANKS).map(of_rank).collect::<Vec<_>>(), expected, "{folded}");
    let speedscope: Value = serde_json::from_slice(&export("speedscope")).expect("JSON");
    let profiles = speedscope["profiles"].as_array().expect("profiles");
    let live = profiles.iter().find(|profile| {
        let name = profile["name"].as_str().unwrap_or_default();
        name.starts_with("rank 5, ") && name.ends_with("live bytes")
    });
    assert_eq!(live.expect("rank 5")["endValue"], 62 << 20);
    let firefox: Value = serde_json::from_slice(&export("firefox")).expect("JSON");
    assert_eq!(firefox["threads"].as_array().map(Vec::len), Some(RANKS as usize));
    assert!(!export("pprof").is_empty() && !export("perfetto").is_empty());
    let twice = run(
        &["export", "job/out", "job/out", "--format", "csv", "-o", "-"],
        folder.path(),
    );
    assert_eq!(twice.status.code(), Some(0));
    assert!(
        String::from_utf8_lossy(&twice.stderr).contains("named again; it is read once"),
        "{twice:?}"
    );
    let refused = run(
        &["export", "job/out", "--format", "memory_viz", "-o", "-"],
        folder.path(),
    );
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("this format holds one"),
        "{refused:?}"
    );
}

#[test]
fn the_page_and_the_live_view_of_a_folder_list_its_processes() {
    let folder = folder();
    record(folder.path(), "job", Some(5));
    let page = run(&["report", "job/out", "-o", ".html"], folder.path());
    let page = text(&page);
    assert!(
        page.contains("<title>culeak: 8 processes</title>"),
        "{}",
        &page[..page.len().min(500)]
    );
    assert!(page.contains("only rank 5: 30 MiB, none in the 7 others"));
    let each = run(&["report", "job/out", "--per-process", "-o", ".html"], folder.path());
    assert!(text(&each).contains("data-name=\"job/out/ranks."), "pages of processes");
    let live = run(&["live", "job/out", "--once"], folder.path());
    let live = text(&live);
    let mut lines = live.lines();
    assert_eq!(
        lines.next(),
        Some("culeak: 8 processes, 0 running, have 286 MiB on devices"),
        "{live}"
    );
    let ranks = lines
        .skip(1)
        .take(8)
        .map(|line| line.split_whitespace().next().expect("a rank"));
    assert_eq!(
        ranks.collect::<Vec<_>>(),
        ["0", "1", "2", "3", "4", "5", "6", "7"],
        "{live}"
    );
}

#[test]
fn why_of_a_folder_says_which_recordings_have_no_answer() {
    let folder = folder();
    record(folder.path(), "job", Some(5));
    let output = run(&["why", "job/out"], folder.path());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        message.contains("no input has an answer (see above); record with culeak run --why"),
        "{message}"
    );
    // The reason is the same for all, so it is given once.
    assert_eq!(message.matches("was not searched for").count(), 1, "{message}");
    assert!(
        message.contains("culeak: error: 8 inputs, such as job/out/ranks."),
        "{message}"
    );
}
