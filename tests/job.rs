//! Several recorded processes are one job: `victims/ranks.c` is started once for each rank.

use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::profile::{fake_driver_folder, folder};
use crate::support::{Lookup, culeak, profile, sources, victim};

const RANKS: u32 = 8;
const LEAKING: u32 = 5;

fn record(folder: &Path, environment: impl Fn(u32) -> Vec<(&'static str, String)>) -> std::path::PathBuf {
    record_as(folder, ["usual", "leaking"], environment)
}

/// Runs all ranks, each with the variables that `environment` gives it, and returns the folder of recordings. The second behaviour is that
/// of one rank.
fn record_as(
    folder: &Path,
    behaviours: [&str; 2],
    environment: impl Fn(u32) -> Vec<(&'static str, String)>,
) -> std::path::PathBuf {
    for rank in 0..RANKS {
        let mut process = profile("ranks").arg(behaviours[usize::from(rank == LEAKING)]);
        for (name, value) in environment(rank) {
            process = process.env(name, value);
        }
        let ended = process.start_in(folder).finish();
        assert!(
            ended.status.success(),
            "rank {rank}: {}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }
    folder.join("out")
}

fn report(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(culeak());
    command
        .arg("report")
        .args(words)
        .current_dir(folder)
        .env("CULEAK_CACHE_DIR", "");
    command.output().expect("culeak starts")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The line of the leak in the victim's source.
fn line() -> usize {
    let source = fs::read_to_string(sources().join("victims/ranks.c")).expect("readable");
    1 + source
        .lines()
        .position(|line| line.contains("// the leak"))
        .expect("the line")
}

#[test]
fn a_run_of_several_ranks_ends_with_one_report_of_the_job() {
    let folder = folder();
    let program = victim("ranks", Lookup::Linked).display().to_string();
    let ended = |script: &str| {
        let mut command = Command::new(culeak());
        command.args(["run", "-o"]).arg(folder.path().join("out"));
        command.args(["--", "sh", "-c", &script.replace("PROGRAM", &program)]);
        command.env_remove("LD_PRELOAD").env("CULEAK_CACHE_DIR", "");
        let output = command.env("LD_LIBRARY_PATH", fake_driver_folder()).output();
        String::from_utf8(output.expect("culeak starts").stderr).expect("text")
    };
    let job = ended("RANK=0 WORLD_SIZE=2 PROGRAM usual; RANK=1 WORLD_SIZE=2 PROGRAM leaking");
    assert!(
        job.contains("2 processes of ") && job.contains("--per-process"),
        "{job}"
    );
    assert_eq!(job.matches("loads_the_model").count(), 1, "{job}");
    // Without ranks, they are different steps of a script.
    let each = ended("PROGRAM usual; PROGRAM leaking");
    assert_eq!(each.matches("loads_the_model").count(), 2, "{each}");
}

#[test]
fn the_leaking_rank_is_named_with_its_line_in_the_first_ten_lines() {
    let folder = folder();
    let out = record(folder.path(), |rank| {
        vec![("RANK", rank.to_string()), ("WORLD_SIZE", RANKS.to_string())]
    });
    let output = report(&["."], &out);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = format!(
        "keeps_a_batch  ranks.c:{}  only rank {LEAKING}: 30 MiB, none in the 7 others",
        line()
    );
    assert!(
        text.lines().take(10).any(|line| line.contains(&expected)),
        "{expected}\n{text}"
    );
    assert!(
        text.starts_with("8 processes of ranks on 1 host leak 286 MiB in 33 blocks\n"),
        "{text}"
    );
    // Ranks are in order, and the sums are those of the reports of the processes.
    let table = text
        .lines()
        .skip_while(|line| !line.starts_with("  rank  host"))
        .skip(1);
    let ranks: Vec<&str> = table
        .take(8)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(ranks, ["0", "1", "2", "3", "4", "5", "6", "7"], "{text}");
    let job: Value = serde_json::from_slice(&report(&[".", "--json"], &out).stdout).expect("JSON");
    let each: Value = serde_json::from_slice(&report(&[".", "--json", "--per-process"], &out).stdout).expect("JSON");
    let held = each
        .as_array()
        .expect("reports")
        .iter()
        .map(|report| report["totals"]["held"]["device"]["bytes"].as_u64());
    assert_eq!(job["held"]["bytes"].as_u64(), held.sum::<Option<u64>>());
    assert_eq!(job["sites"][0]["site"]["line"].as_u64(), Some(line() as u64));
    assert_eq!(job["sites"][1]["sum"].as_u64(), Some(256 << 20));
}

#[test]
fn processes_without_ranks_are_named_by_pid_and_a_damaged_file_does_not_spoil_the_rest() {
    let folder = folder();
    let out = record(folder.path(), |_| Vec::new());
    fs::write(out.join("zero.culeak"), "").expect("written");
    fs::write(out.join("other.culeak"), "nonsense").expect("written");
    let output = report(&["."], &out);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        text.contains("only process ") && text.contains(": 30 MiB, none in the 7 others"),
        "{text}"
    );
    assert!(
        text.contains("not read: 2 inputs\n  ./other.culeak: not a culeak recording"),
        "{text}"
    );
}

#[test]
fn lists_patterns_and_nested_folders_name_the_same_job() {
    let folder = folder();
    let out = record(folder.path(), |rank| vec![("OMPI_COMM_WORLD_RANK", rank.to_string())]);
    let (first, second) = (out.join("jobs/first"), out.join("jobs/second"));
    fs::create_dir_all(&first).expect("a folder");
    fs::create_dir_all(&second).expect("a folder");
    let files: Vec<_> = fs::read_dir(&out)
        .expect("readable")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    let recordings: Vec<_> = files
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "culeak"))
        .collect();
    assert_eq!(recordings.len(), RANKS as usize);
    let mut list = String::new();
    for (nth, path) in recordings.into_iter().enumerate() {
        let to = [&first, &second][nth % 2].join(path.file_name().expect("a name"));
        fs::rename(path, &to).expect("renamed");
        list += &format!("{}\n", to.display());
    }
    fs::write(out.join("list"), list).expect("written");
    let from_list = Command::new(culeak())
        .args(["report", "-"])
        .stdin(fs::File::open(out.join("list")).expect("the list"))
        .env("CULEAK_CACHE_DIR", "")
        .output()
        .expect("culeak starts");
    // The next command names a file as the input did.
    let body = |output: &Output| {
        text(output)
            .lines()
            .filter(|line| !line.starts_with("next: "))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let expected = body(&report(&["jobs"], &out));
    assert!(expected.contains(&format!("only rank {LEAKING}: 30 MiB")), "{expected}");
    assert_eq!(body(&report(&["jobs/*/*.culeak"], &out)), expected);
    assert_eq!(body(&report(&["jobs/first", "jobs/second"], &out)), expected);
    assert_eq!(body(&from_list), expected);
    let none = report(&["jobs/*/*.none"], &out);
    assert!(
        String::from_utf8_lossy(&none.stderr).contains("no file matches this pattern"),
        "{none:?}"
    );
    let empty = report(&["jobs"], folder.path());
    assert_eq!(empty.status.code(), Some(2));
}

#[test]
fn a_rank_that_the_process_sets_before_its_first_context_is_recorded() {
    let folder = folder();
    let ended = profile("ranks")
        .arg("sets_its_rank_late")
        .env("SLURM_JOB_ID", "4711")
        .start_in(folder.path())
        .finish();
    assert!(ended.status.success(), "{:?}", ended.status);
    let out = folder.path().join("out");
    let reports: Value = serde_json::from_slice(&report(&["--per-process", "--json", "."], &out).stdout).expect("JSON");
    let process = reports.get("process").or_else(|| reports[0].get("process"));
    let expected = serde_json::json!({ "PP_RANK": "1", "RANK": "6", "SLURM_JOB_ID": "4711", "WORLD_SIZE": "8" });
    assert_eq!(process.expect("a process")["ranks"], expected, "{reports}");
}

#[test]
fn an_environment_that_another_thread_changes_is_read_without_a_crash() {
    for _ in 0..10 {
        let folder = folder();
        let ended = profile("ranks").arg("is_disturbed").start_in(folder.path()).finish();
        assert!(ended.status.success(), "{:?}", ended.status);
    }
}

fn by_rank(rank: u32) -> Vec<(&'static str, String)> {
    vec![("RANK", rank.to_string())]
}

#[test]
fn a_rank_behind_a_common_helper_is_named_with_its_caller() {
    let folder = folder();
    let out = record_as(folder.path(), ["helped", "helped_leaking"], by_rank);
    let text = text(&report(&["."], &out));
    let line = text
        .lines()
        .take(10)
        .find(|line| line.contains(&format!("only rank {LEAKING} through keeps_with_help")));
    assert!(
        line.is_some_and(|line| line.ends_with(": 30 MiB, none in the 7 others")),
        "{text}"
    );
}

#[test]
fn a_job_states_its_filter_and_what_was_refused() {
    let folder = folder();
    let out = record_as(folder.path(), ["usual", "refused"], by_rank);
    let text = text(&report(&[".", "--since", "warm"], &out));
    let expected = [
        "\nfilter: allocated since warm; leaves out 0 B".to_owned(),
        "\nnone of 8 processes set the mark \"warm\", so --since has no effect".to_owned(),
        format!("\n1 failed request for 1 PiB in rank {LEAKING}; "),
    ];
    for expected in expected {
        assert!(text.contains(&expected), "{expected}\n{text}");
    }
}

#[test]
fn ranks_of_a_pipeline_stage_are_compared_with_each_other() {
    let folder = folder();
    let out = record(folder.path(), |rank| {
        let mut variables = by_rank(rank);
        variables.push(("PP_RANK", (rank / 4).to_string()));
        variables
    });
    let text = text(&report(&["."], &out));
    assert!(
        text.contains(&format!(
            "only rank {LEAKING}: 30 MiB, none in the 3 others of pipeline stage 1"
        )),
        "{text}"
    );
}

#[test]
fn memory_that_is_shared_over_ipc_is_one_memory_with_its_owner_and_its_users() {
    let folder = folder();
    let ended = profile("sharing").arg("owner").start_in(folder.path()).finish();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let out = folder.path().join("out");
    let report_of = |words: &[&str]| {
        let output = report(words, &out);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        text(&output)
    };
    let job: Value = serde_json::from_str(&report_of(&[".", "--json"])).expect("JSON");
    let [row] = &job["shared"].as_array().expect("rows")[..] else {
        panic!("{:#}", job["shared"]);
    };
    assert_eq!(
        (row["bytes"].as_u64(), row["blocks"].as_u64()),
        (Some(4096), Some(1)),
        "{row:#}"
    );
    assert_eq!(
        (row["of_users"].as_u64(), &row["users"][1]),
        (Some(1), &Value::Null),
        "{row:#}"
    );
    let (owner, user) = (&row["owner"]["pid"], &row["users"][0]["pid"]);
    assert!(owner.is_u64() && user.is_u64() && owner != user, "{row:#}");
    assert_eq!(row["opened_at"]["label"], "opener", "{row:#}");
    // It counts once.
    assert_eq!(job["held"]["bytes"].as_u64(), Some(4096));
    let expected = format!("  4 KiB in 1 block of process {owner}, ");
    let shown = report_of(&["."]);
    let line = shown
        .lines()
        .find(|line| line.starts_with(&expected))
        .unwrap_or_else(|| panic!("{shown}"));
    assert!(
        line.contains(&format!("; open in process {user}, opener  sharing.c:")),
        "{line}"
    );
    // The owner's recording is not among the inputs.
    let recordings = fs::read_dir(&out)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path());
    let of_user = recordings
        .into_iter()
        .find(|path| path.to_string_lossy().contains(&format!(".{user}.")));
    let of_user = of_user.expect("the user's recording").display().to_string();
    // A second input makes a job; the same process would be read once.
    let copy = of_user.replace(".culeak", ".copy.culeak");
    fs::copy(&of_user, &copy).expect("copied");
    let opened = fs::File::options().write(true).open(&copy).expect("opened");
    let pid = offset_of!(culeak::format::Header, pid) as u64;
    opened.write_all_at(&1u32.to_le_bytes(), pid).expect("written");
    let job: Value = serde_json::from_str(&report_of(&[&of_user, &copy, "--json"])).expect("JSON");
    let row = &job["shared"][0];
    assert_eq!(
        (&row["owner"], row["bytes"].as_u64()),
        (&Value::Null, Some(4096)),
        "{row:#}"
    );
}
