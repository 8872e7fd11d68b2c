//! `culeak doctor --job RUNS -- LAUNCHER`: starts a check instead of the program on each rank, as the job would be started.
//!
//! The launcher gets the environment that `culeak run` would give it. Each rank prints one line with what arrived: variables, the
//! loaded library, and whether it can write into the folder and sees a file that this command has put there.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use culeak::job_variables::JOB_VARIABLES;
use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::launcher::Launcher;
use super::processes::{Identity, Process};
use super::{LISTED, Summary, named};
use crate::commands::doctor::{Finding, machine};
use crate::errors::Failure;
use crate::launch::shim;
use crate::probe;
use crate::text::units::when;

/// The hidden command that runs [`answer`] on each rank.
pub const COMMAND: &str = "__probe-rank";
/// A job may wait in a queue.
const LIMIT: Duration = Duration::from_secs(300);
/// Begins each rank's line; a launcher may put its own text before it.
const MARK: &str = "culeak-rank ";

/// The arguments of the check on a rank.
#[derive(Debug, clap::Args)]
pub struct ProbeRankArgs {
    folder: PathBuf,
    /// A file in the folder.
    file: OsString,
}

/// What a rank finds.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    host: String,
    /// The variables that name its rank.
    variables: BTreeMap<String, String>,
    /// What keeps it from being recorded, and the remedy.
    problem: Option<(String, String)>,
}

/// Prints what arrived in this process.
///
/// # Errors
/// The answer cannot be printed.
pub fn answer(args: &ProbeRankArgs) -> Result<ExitCode, Failure> {
    let own = Process::of_self();
    let answer = Answer {
        host: super::host(),
        problem: problem(&own, &args.folder, args.folder.join(&args.file).exists()),
        variables: own.variables.into_iter().filter(|(name, _)| names_rank(name)).collect(),
    };
    let line = serde_json::to_string(&answer).map_err(|error| format!("the answer: {error}"))?;
    // One write: the lines of several ranks do not mix.
    crate::text::print_lines(|out| out.write_all(format!("{MARK}{line}\n").as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the launcher and judges the answers of its ranks.
///
/// # Errors
/// The folder or the launcher cannot be used, or no rank answers.
pub fn check(folder: &Path, launcher: &[OsString], ranks: Option<u32>) -> Result<(Vec<Finding>, Summary), Failure> {
    let shown = folder.display();
    let folder = fs::canonicalize(folder)
        .map_err(|error| format!("{shown}: cannot hold recordings: {error}; create it: mkdir -p {shown}"))?;
    let mut findings = machine::recordings_in(&folder);
    let file = tempfile::Builder::new()
        .prefix(".culeak-probe-")
        .tempfile_in(&folder)
        .map_err(|error| format!("{shown}: cannot hold recordings: {error}; choose another folder"))?;
    let program = env::current_exe()
        .map_err(|error| format!("cannot find the culeak executable: {error}; start it by its full path"))?;
    let library = shim::locate()?;
    let mut preload = library.clone().into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut output = folder.clone().into_os_string();
    output.push("/");
    let mut command = Command::new(&launcher[0]);
    command
        .args(&launcher[1..])
        .arg(program)
        .arg(COMMAND)
        .arg(&folder)
        .arg(file.path().file_name().unwrap_or_default())
        .env("LD_PRELOAD", preload)
        .env("CULEAK_OUTPUT", output)
        .env_remove("CULEAK_DISABLE");
    let name = launcher[0].to_string_lossy().into_owned();
    let ended = probe::ask(&mut command, LIMIT).map_err(|error| {
        format!("{name}: cannot be started, or did not end: {error}; try the launcher with another program")
    })?;
    let answers: Vec<Answer> = ended.stdout.lines().filter_map(parse).collect();
    if answers.is_empty() {
        let last: Vec<&str> = ended.stderr.lines().rev().take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        let last = when(!last.is_empty(), || format!(": {}", last.join(" ")));
        return Err(Failure::new(format!(
            "{name} started no rank ({}){last}; give the launcher with its options, without the program{}",
            ended.status,
            without_python(launcher)
        )));
    }
    if !ended.status.success() {
        let text = format!("{name} ended with {}", ended.status);
        findings.push(Finding::warn(
            "launcher",
            text,
            "its own messages say why; start it without culeak",
        ));
    }
    let (more, summary) = judge(&answers, ranks, shown.to_string());
    findings.extend(more);
    Ok((findings, summary))
}

/// What launchers of Python scripts need to start another program.
fn without_python(launcher: &[OsString]) -> &'static str {
    const PYTHON_LAUNCHERS: &str = "torchrun torch.distributed.run torch.distributed.launch deepspeed accelerate";
    let is_python = |word: &OsString| {
        let word = word.to_string_lossy();
        let name = word.rsplit('/').next().unwrap_or(&word).to_owned();
        PYTHON_LAUNCHERS.split(' ').any(|launcher| launcher == name)
    };
    match launcher.iter().any(is_python) {
        true => ", and with --no_python or --no-python, as it starts Python otherwise",
        false => "",
    }
}

fn parse(line: &str) -> Option<Answer> {
    let at = line.find(MARK)?;
    // A launcher may also put text after it.
    let mut values = serde_json::Deserializer::from_str(&line[at + MARK.len()..]).into_iter();
    values.next()?.ok()
}

fn names_rank(name: &str) -> bool {
    JOB_VARIABLES.iter().any(|row| row.name == name)
}

fn judge(answers: &[Answer], ranks: Option<u32>, shown: String) -> (Vec<Finding>, Summary) {
    let identity = |answer: &Answer| Identity::of(&answer.variables);
    let row = answers.iter().filter_map(identity).map(|identity| identity.row).min();
    let ours = |answer: &Answer| identity(answer).filter(|identity| Some(identity.row) == row);
    let ranks = ranks.or_else(|| answers.iter().filter_map(|answer| ours(answer)?.ranks).max());
    let mut problems: BTreeMap<(String, String), (BTreeSet<u32>, usize)> = BTreeMap::new();
    let (mut able, mut able_without_rank) = (BTreeSet::new(), 0);
    for answer in answers {
        let rank = ours(answer).map(|identity| identity.rank);
        match &answer.problem {
            Some(problem) => {
                let (ranks, count) = problems.entry(problem.clone()).or_default();
                ranks.extend(rank);
                *count += 1;
            }
            None => match rank {
                Some(rank) => _ = able.insert(rank),
                None => able_without_rank += 1,
            },
        }
    }
    let mut findings: Vec<Finding> = problems
        .into_iter()
        .map(|((text, remedy), (ranks, count))| {
            let subject = match ranks.is_empty() {
                true => crate::text::units::plural(count as u64, "process", "processes"),
                false => named(&ranks),
            };
            Finding::fail(subject, text, remedy)
        })
        .collect();
    if row.is_none() {
        let text = "the launcher sets no rank that culeak knows, so reports name processes by pid";
        findings.push(Finding::warn(
            "ranks",
            text,
            "set RANK in the environment of each process before it uses CUDA",
        ));
    }
    let seen: BTreeSet<u32> = answers.iter().filter_map(|answer| Some(ours(answer)?.rank)).collect();
    let silent: BTreeSet<u32> = (0..ranks.unwrap_or(0))
        .filter(|rank| row.is_some() && !seen.contains(rank))
        .collect();
    if !silent.is_empty() {
        let text = "did not answer: the launcher did not start culeak there, or its output does not arrive here";
        let remedy = "install culeak at the same path on all hosts, or in a shared folder";
        findings.push(Finding::fail(named(&silent), text, remedy));
    }
    if findings.is_empty() {
        let hosts: BTreeSet<&str> = answers.iter().map(|answer| answer.host.as_str()).collect();
        let hosts = crate::text::units::plural(hosts.len() as u64, "host", "hosts");
        let text = format!(
            "the library arrives in all {}, on {hosts}, and all write the same folder",
            answers.len()
        );
        findings.push(Finding::ok("processes", text));
    }
    let missing = (0..ranks.unwrap_or(0))
        .filter(|rank| row.is_some() && !able.contains(rank))
        .take(LISTED)
        .collect();
    let summary = Summary {
        ranks,
        recorded: able.len() as u32,
        without_rank: able_without_rank,
        missing,
        inputs: vec![shown],
        before: true,
    };
    (findings, summary)
}

/// What keeps a rank from being recorded, and the remedy. `sees_file`: it sees the file that this command has put into the folder.
fn problem(process: &Process, folder: &Path, sees_file: bool) -> Option<(String, String)> {
    let launcher = Launcher::of(process);
    let said = |cause: Cause| Some((cause.text, cause.remedy));
    match process.preloaded() {
        None => return said(Cause::dropped(launcher, None, folder)),
        Some(path) if !Path::new(path).exists() => return said(Cause::no_file(path, launcher, folder)),
        Some(path) if !process.has_library => return said(Cause::not_loaded(path)),
        Some(_) => {}
    }
    let (host, shown) = (super::host(), folder.display());
    match process.variable("CULEAK_OUTPUT") {
        Some(output) if output == format!("{shown}/") => {}
        Some(other) => return Some((format!("CULEAK_OUTPUT is {other} there"), launcher.remedy(folder))),
        None => {
            let text = "CULEAK_OUTPUT is not in its environment, so it would write into its current folder";
            return Some((text.to_owned(), launcher.remedy(folder)));
        }
    }
    if let Err(error) = machine::reserve(folder) {
        return said(Cause::unwritable(folder, format_args!("{error} (on {host})")));
    }
    let text = format!("on {host}, {shown} is another folder: it is not shared");
    let remedy = "use a folder that all hosts share, or collect the recordings afterwards";
    (!sees_file).then(|| (text, remedy.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    fn answer(rank: u32, problem: Option<&str>) -> Answer {
        let variables = [("RANK", rank.to_string()), ("WORLD_SIZE", "3".to_owned())];
        Answer {
            host: "node".to_owned(),
            variables: variables.map(|(name, value)| (name.to_owned(), value)).into(),
            problem: problem.map(|text| (text.to_owned(), "a remedy".to_owned())),
        }
    }

    fn texts(answers: &[Answer], ranks: Option<u32>) -> (Vec<String>, Summary) {
        let (findings, summary) = judge(answers, ranks, "runs".to_owned());
        let texts = findings
            .iter()
            .map(|finding| format!("{}: {}", finding.subject, finding.text));
        (texts.collect(), summary)
    }

    #[test]
    fn ranks_that_can_be_recorded_are_one_line() {
        let all: Vec<Answer> = (0..3).map(|rank| answer(rank, None)).collect();
        let (texts, summary) = texts(&all, None);
        assert_eq!(
            texts,
            ["processes: the library arrives in all 3, on 1 host, and all write the same folder"]
        );
        assert_eq!((summary.ranks, summary.recorded), (Some(3), 3));
    }

    #[test]
    fn each_problem_is_named_with_its_ranks() {
        let all = [
            answer(0, Some("no library")),
            answer(1, None),
            answer(2, Some("no folder")),
            answer(3, Some("no library")),
        ];
        let (texts, summary) = texts(&all, Some(6));
        let expected = [
            "rank 2: no folder",
            "ranks 0, 3: no library",
            "ranks 4-5: did not answer",
        ];
        for (found, expected) in texts.iter().zip(expected) {
            assert!(found.starts_with(expected), "{expected}: {texts:#?}");
        }
        assert_eq!(texts.len(), 3, "{texts:#?}");
        assert_eq!(
            (summary.recorded, summary.missing.as_slice()),
            (1, &[0, 2, 3, 4, 5][..])
        );
    }

    #[test]
    fn each_reason_that_a_rank_is_not_recorded_has_a_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = folder.path().join("libculeak.so");
        std::fs::write(&library, "").expect("written");
        let output = format!("{}/", folder.path().display());
        let says = |change: &dyn Fn(&mut Process), sees_file: bool| {
            let mut process = Process {
                has_library: true,
                ..Process::default()
            };
            let mut set = |name: &str, value: &str| process.variables.insert(name.to_owned(), value.to_owned());
            set("LD_PRELOAD", &library.display().to_string());
            set("CULEAK_OUTPUT", &output);
            change(&mut process);
            problem(&process, folder.path(), sees_file).unwrap_or_default()
        };
        let set = |name: &'static str, value: &'static str| {
            move |process: &mut Process| drop(process.variables.insert(name.to_owned(), value.to_owned()))
        };
        for (change, sees_file, text) in [
            (
                &set("LD_PRELOAD", "") as &dyn Fn(&mut Process),
                true,
                "LD_PRELOAD is not in its environment",
            ),
            (
                &set("LD_PRELOAD", "/none/libculeak.so"),
                true,
                "LD_PRELOAD names /none/libculeak.so, which the process does not see",
            ),
            (
                &|process| process.has_library = false,
                true,
                "but the loader did not load it",
            ),
            (
                &set("CULEAK_OUTPUT", ""),
                true,
                "CULEAK_OUTPUT is not in its environment",
            ),
            (&set("CULEAK_OUTPUT", "/tmp/x/"), true, "CULEAK_OUTPUT is /tmp/x/ there"),
            (&|_| (), false, "is another folder: it is not shared"),
        ] {
            let (found, remedy) = says(change, sees_file);
            assert!(found.contains(text) && !remedy.is_empty(), "{text}: {found}");
        }
        assert_eq!(says(&|_| (), true), Default::default());
        let gone = folder.path().join("gone");
        let mut process = Process {
            has_library: true,
            ..Process::default()
        };
        process
            .variables
            .insert("LD_PRELOAD".to_owned(), library.display().to_string());
        process
            .variables
            .insert("CULEAK_OUTPUT".to_owned(), format!("{}/", gone.display()));
        let (text, _) = problem(&process, &gone, false).expect("a problem");
        assert!(
            text.contains("cannot hold a recording") && text.contains("(on "),
            "{text}"
        );
    }

    #[test]
    fn only_launchers_of_scripts_are_told_to_start_programs() {
        let of = |words: &[&str]| without_python(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["false"]), "");
        assert_eq!(of(&["env", "-i", "mpirun"]), "");
        assert!(of(&["/opt/bin/torchrun", "--nproc-per-node", "8"]).contains("--no-python"));
        assert!(of(&["python", "-m", "torch.distributed.run"]).contains("--no-python"));
    }

    #[test]
    fn more_ranks_than_expected_are_said_so() {
        let mut page = Document::default();
        let summary = Summary {
            ranks: Some(4),
            recorded: 8,
            ..Summary::default()
        };
        summary.write(1, &mut page);
        let text = page.plain();
        assert!(text.starts_with("\n8 ranks recorded, 4 are expected; "), "{text}");
    }

    #[test]
    fn a_line_is_found_behind_the_launchers_own_text() {
        let line = format!(
            "[1,0]<stdout>:{MARK}{} ",
            serde_json::to_string(&answer(1, None)).expect("JSON")
        );
        assert_eq!(parse(&line).expect("an answer").variables["RANK"], "1");
        assert!(parse("culeak-rank {").is_none() && parse("anything").is_none());
    }
}
