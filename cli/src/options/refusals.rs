//! What an input, a format or a command cannot answer: one table, which is read before anything is loaded.
//!
//! What the user typed becomes a set of words: `--at`, `--at peak`, `-o FILE.svg`, `culeak diff`. A row of the table says which
//! words exclude each other, and why. Commands hide the options that they never have.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use clap::ArgMatches;
use clap::parser::ValueSource;
use culeak::analysis::filter::only_objects;
use culeak::kind::{Kind, Place};

use crate::errors::Failure;

/// Several processes or snapshots, as one job.
pub const JOB: &str = "several processes";
/// Where one process is shown.
pub const SEVERAL: &str = "more than one input";
const OBJECTS: &str = "--kind of objects alone";
const KERNEL: &str = "--kind of the kernel driver";
const LEDGER_DIFF: &str = "--view ledger of a diff";
/// Not a flame graph.
const NO_GRAPH: &str = "rows";
/// A report that is not of events.
const HELD: &str = "memory that is held";
const OTHER_ROWS: &str = "--by other than site and stack";
const OTHER_LINES: &str = "--by other than site, stack and forward";
const OTHER_POINTS: &str = "--at other than end";
const AT_AGAIN: &str = "a second --at";
/// One of [`SELECTING`].
const SELECTION: &str = "a selection";
/// The options that choose a part of the memory of each process, or how it is shown.
const SELECTING: [&str; 10] = [
    "between",
    "since",
    "kind",
    "device",
    "focus",
    "ignore",
    "category",
    "objects",
    "suppressions",
    "full-stacks",
];

/// What is asked for, what it excludes, and why.
pub type Row = (&'static str, &'static [&'static str], &'static str);

macro_rules! table {
    ($( $asked:expr => $($excluded:expr),+; $why:expr; )*) => { &[$( ($asked, &[$($excluded),+], $why) ),*] };
}

pub const TABLE: &[Row] = table! {
    "--at peak" => "--since", "--by size", "--by stream", "--by thread", "--sort age";
        "the memory at a peak is recorded by stack, without sizes, streams, threads and times of single blocks";
    "--between" => "--at", "--why"; "a window names its end itself, and holders are known of the end of a process only";
    "--why" => OTHER_POINTS; "holders are known of the end of a process, or of a running one";
    "--trace" => "--at", "--between", "--view phases", "--view churn", "--view segments", SEVERAL;
        "PyTorch's history tells of the live blocks of one running process";
    OBJECTS => "--view tree", "-o FILE.svg";
        "trees and flame graphs show bytes, which objects without an address do not have; use --view objects, or \
         culeak export --objects";
    KERNEL => "--between", "--view objects", "--view phases", "--view churn", "--view segments", "--by object-kind",
        "--why",
        "--category", "--objects", "culeak trend", "culeak why", JOB;
        "memory from the kernel driver is known at points in time only; culeak report --kind segment shows it, and \
         culeak diff of two processes";
    "--view tree" => "--by", "--sort", "--why", "-o FILE.html", "-o FILE.json", "-o FILE.svg";
        "a tree has a branch for each frame, and is text; a page (-o FILE.html) and a flame graph (-o FILE.svg) show \
         the same";
    "-o FILE.svg" => "--by", "--sort", "--top", "--min-bytes", "--why", "--view", "--all", "--host", JOB, SEVERAL;
        "a flame graph shows all stacks of one process";
    NO_GRAPH => "--lines"; "only flame graphs have one frame for each function or each line; add -o FILE.svg";
    "--view phases" => "--by", "--sort", "--min-bytes", "--full-stacks", "--suppressions", "--at", "--between",
        "--since", "--why";
        "phases have times of their own, and rows for each of them";
    "--view churn" => "--at", "--suppressions", "--why", "--min-bytes", OTHER_ROWS, "--sort age", SEVERAL;
        "it counts events by call site or stack, of all of a recording or between two moments (--between A B)";
    "--view segments" => "--between", "--since", "--suppressions", "--why", "--min-bytes", "--by", "--sort", "--kind", "--device",
        "--focus", "--ignore", "--category", "--full-stacks", SEVERAL;
        "segments are shown whole, of one process at one point in time (--at)";
    "--view losses" => "-o FILE.html", "-o FILE.json"; "these formats have all counts of losses anyway";
    HELD => "--sort temporary", "--sort lifetime"; "only events have such an order; add --view churn";
    LEDGER_DIFF => "--by", "--sort", "--top", "--min-bytes", "--kind", "--device", "--focus", "--ignore",
        "--category", "--since", "--all", "--full-stacks", "--host", JOB;
        "a ledger has a line for everything that holds device memory, of one process";
    "--host" => "--at", JOB; "host memory is known of the moment of the search, of one process";
    JOB => "--view tree", "--view stacks", "--full-stacks", "--all", "--sort count", OBJECTS;
        "stacks and counts are compared of two processes; name one process on each side";
    "--view tree" => "--view stacks", "--view ledger", "--view objects", "--view losses", "--view phases",
        "--view churn", "--view segments";
        "each is a view of its own; only stacks, ledger, objects and losses are shown together";
    "--view phases" => "--view stacks", "--view ledger", "--view objects", "--view losses", "--view churn",
        "--view segments";
        "each is a view of its own; only stacks, ledger, objects and losses are shown together";
    "--view churn" => "--view stacks", "--view ledger", "--view objects", "--view losses", "--view segments";
        "each is a view of its own; only stacks, ledger, objects and losses are shown together";
    "--view segments" => "--view stacks", "--view ledger", "--view objects", "--view losses";
        "each is a view of its own; only stacks, ledger, objects and losses are shown together";
    "culeak diff" => "--between", "--view phases", "--view churn", "--view segments", "--view objects", "--view losses",
        "--sort age", "--sort temporary", "--sort lifetime", OTHER_LINES, "--category";
        "it compares two points in time (--at A --at B) by call site, stack or forward line, objects included";
    "culeak trend" => "-o FILE.svg"; "a trend is text, a page (-o FILE.html) or JSON (-o FILE.json)";
    "culeak trend" => "--at", "--between", "--since", "--category", "--sort", "--view", "--full-stacks", "--lines",
        OTHER_LINES;
        "it judges call sites, stacks or forward lines over all snapshots, growing ones first";
    "culeak why" => "--at", "--between", "-o FILE.svg"; "it searches what is held now, or at the end of a process";
    "culeak export" => "--min-bytes"; "a file contains all stacks";
    AT_AGAIN => "culeak report", "culeak export"; "these show one point; culeak diff compares two";
    "--to" => "--at", SELECTION, "--categories", "--cost", "--no-blocks";
        "a server gets all of what each process holds";
    "--format openmetrics" => "--at", SELECTION, "--categories", "--lines", "--cost", "--no-blocks";
        "the figures are of all of what each process holds, as reports show it";
    "--format dataset" => "--at peak", SELECTION, "--lines", "--cost", "--top";
        "a dataset has all rows of each process, those at its peak included; select with SQL";
    "--since" => "--cost made-bytes", "--cost made-count";
        "these add up a window: --between MARK exit";
    "--objects" => "--between", "--cost made-bytes", "--cost made-count";
        "objects are known at points in time, and destroyed ones are not recorded by stack";
};

/// What the command was asked for.
static ASKED: Mutex<Asked> = Mutex::new(Asked(BTreeMap::new()));

/// What was typed, by the words of the table.
#[derive(Debug, Default)]
pub struct Asked(BTreeMap<String, String>);

impl Asked {
    /// `matches`: of the command `command`.
    pub fn of(command: &clap::Command, matches: &ArgMatches) -> Asked {
        let mut asked = Asked::default();
        let name = format!("culeak {}", command.get_name());
        asked.add(name.clone(), name);
        for argument in command.get_arguments() {
            let id = argument.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let Some(long) = argument.get_long() else { continue };
            let option = format!("--{long}");
            let values = matches.get_raw(id).into_iter().flatten();
            let values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
            for value in &values {
                let kept = value.split(':').next().unwrap_or_default();
                asked.add(format!("{option} {kept}"), format!("{option} {value}"));
                match long {
                    "output" => {
                        let ending = value.rsplit_once('.').map_or("", |(_, ending)| ending);
                        asked.add(format!("-o FILE.{ending}"), format!("-o {value}"));
                    }
                    "by" if !matches!(value.as_str(), "site" | "stack") => {
                        asked.add(OTHER_ROWS.to_owned(), format!("--by {value}"));
                        if value != "forward" {
                            asked.add(OTHER_LINES.to_owned(), format!("--by {value}"));
                        }
                    }
                    _ => {}
                }
            }
            if long == "json" {
                asked.add("-o FILE.json".to_owned(), option.clone());
            }
            if long == "at" && values.iter().any(|value| value != "end") {
                asked.add(OTHER_POINTS.to_owned(), option.clone());
            }
            if long == "at" && values.len() > 1 {
                asked.add(AT_AGAIN.to_owned(), AT_AGAIN.to_owned());
            }
            if long == "kind" {
                let kinds: Vec<Kind> = values.iter().filter_map(|name| Kind::from_name(name)).collect();
                let typed = format!("--kind {}", values.join(" --kind "));
                if only_objects(&kinds) {
                    asked.add(OBJECTS.to_owned(), typed.clone());
                }
                if kinds.iter().any(|kind| kind.place() == Place::Segment) {
                    asked.add(KERNEL.to_owned(), typed);
                }
            }
            if SELECTING.contains(&long) {
                asked.add(SELECTION.to_owned(), option.clone());
            }
            asked.add(option.clone(), option);
        }
        if command.get_name() == "diff" && asked.get("--view ledger").is_some() {
            asked.add(LEDGER_DIFF.to_owned(), "--view ledger".to_owned());
        }
        let has_view = command
            .get_arguments()
            .any(|argument| argument.get_long() == Some("view"));
        if has_view && asked.get("-o FILE.svg").is_none() {
            asked.add(NO_GRAPH.to_owned(), NO_GRAPH.to_owned());
        }
        if asked.get("--view churn").is_none() {
            asked.add(HELD.to_owned(), HELD.to_owned());
        }
        asked
    }

    fn add(&mut self, word: String, typed: String) {
        self.0.entry(word).or_insert(typed);
    }

    fn get(&self, word: &str) -> Option<&str> {
        self.0.get(word).map(String::as_str)
    }

    /// The sentence that refuses it. `input`: what is known of the input.
    pub fn refusal(&self, input: Option<&str>) -> Option<String> {
        let known = |word: &'static str| match input {
            Some(input) if input == word => Some(word),
            _ => self.0.get(word).map(String::as_str),
        };
        TABLE.iter().find_map(|(asked, excluded, why)| {
            let asked = known(asked)?;
            let excluded = excluded.iter().find_map(|word| known(word))?;
            let (of, option) = match excluded.starts_with('-') {
                true => (asked, excluded),
                false => (excluded, asked),
            };
            Some(match of.starts_with('-') || of == AT_AGAIN {
                true => format!("{of} and {option} exclude each other: {why}"),
                false => format!("{option} does not apply to {of}: {why}"),
            })
        })
    }
}

/// Refuses what excludes itself, and remembers the rest.
///
/// # Errors
/// The sentence says what and why.
pub fn check(asked: Asked) -> Result<(), Failure> {
    let refusal = asked.refusal(None);
    *ASKED.lock().unwrap_or_else(PoisonError::into_inner) = asked;
    refusal.map_or(Ok(()), |sentence| Err(Failure::new(sentence)))
}

/// Refuses what an input cannot answer, once it is known: [`JOB`].
///
/// # Errors
/// The sentence says what and why.
pub fn check_input(input: &str) -> Result<(), Failure> {
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let refusal = asked.refusal(Some(input));
    refusal.map_or(Ok(()), |sentence| Err(Failure::new(sentence)))
}

/// The options that a command never has.
pub fn absent(command: &str) -> impl Iterator<Item = &'static str> {
    let name = format!("culeak {command}");
    let rows = TABLE.iter().filter(move |(asked, ..)| *asked == name);
    let options = rows.flat_map(|(_, excluded, _)| excluded.iter().copied());
    options
        .filter_map(|word| word.strip_prefix("--"))
        .filter(|word| !word.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Asked {
        let whole = crate::args::command();
        let matches = whole.clone().try_get_matches_from(words.split(' ')).expect(words);
        let (name, matches) = matches.subcommand().expect("a command");
        Asked::of(whole.find_subcommand(name).expect("a command"), matches)
    }

    #[test]
    fn each_option_of_the_table_exists() {
        let whole = crate::args::command();
        let has = |option: &str| {
            let arguments = || whole.get_subcommands().flat_map(clap::Command::get_arguments);
            arguments().any(|argument| argument.get_long() == Some(option))
        };
        let words = TABLE
            .iter()
            .flat_map(|(asked, excluded, _)| excluded.iter().chain([asked]));
        for word in words {
            if let Some(option) = word.strip_prefix("--") {
                let option = option.split(' ').next().unwrap_or_default();
                assert!(has(option), "{word}");
            } else if let Some(command) = word.strip_prefix("culeak ") {
                assert!(whole.find_subcommand(command).is_some(), "{word}");
            }
        }
    }

    #[test]
    fn what_excludes_itself_is_refused_with_the_reason() {
        for (words, expected) in [
            (
                "culeak report 1 --at peak --sort age",
                "--at peak and --sort age exclude each other: the memory at a peak",
            ),
            (
                "culeak report 1 --view tree --by kind",
                "--view tree and --by exclude each other: a tree has",
            ),
            (
                "culeak report 1 --kind stream -o a.svg",
                "--kind stream and -o a.svg exclude each other",
            ),
            (
                "culeak report 1 --sort lifetime",
                "--sort lifetime does not apply to memory that is held: only events",
            ),
            (
                "culeak report 1 --lines",
                "--lines does not apply to rows: only flame graphs",
            ),
            (
                "culeak report 1 --at exit --at peak",
                "a second --at does not apply to culeak report",
            ),
            (
                "culeak diff a b --by kind",
                "--by kind does not apply to culeak diff: it compares",
            ),
            (
                "culeak trend a --kind segment",
                "--kind segment does not apply to culeak trend",
            ),
            (
                "culeak trend a -o a.svg",
                "-o a.svg does not apply to culeak trend: a trend is text, a page (-o FILE.html)",
            ),
            (
                "culeak trend a --at exit",
                "--at does not apply to culeak trend: it judges",
            ),
            (
                "culeak export 1 --to http://a --kind device",
                "--to and --kind exclude each other: a server",
            ),
        ] {
            let refusal = asked(words).refusal(None).unwrap_or_else(|| panic!("{words}"));
            assert!(refusal.starts_with(expected), "{words}: {refusal}");
        }
        for words in [
            "culeak report 1 --at peak --by kind",
            "culeak report 1 --view churn --between 1s 2s --sort lifetime --by stack",
            "culeak report 1 -o a.svg --lines --kind device --full-stacks",
            "culeak diff a b --at exit --at peak --focus x --device 0 --view tree",
            "culeak diff a b --by forward",
            "culeak trend a b --by forward",
            "culeak why 1 --device 0 -o a.html",
            "culeak export 1 --between 1s 2s --kind device -o a.csv",
        ] {
            assert_eq!(asked(words).refusal(None), None, "{words}");
        }
    }

    #[test]
    fn several_processes_refuse_what_two_are_compared_by() {
        let refusal = asked("culeak diff a b --view tree").refusal(Some(JOB));
        assert!(refusal.is_some_and(|text| text.starts_with("--view tree does not apply to several processes: ")));
        assert_eq!(asked("culeak diff a b --kind device").refusal(Some(JOB)), None);
    }
}
