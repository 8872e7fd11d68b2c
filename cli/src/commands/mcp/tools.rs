//! The tools: each is a command of culeak with some of its options, or one of [`Own`].
//!
//! The names, kinds and meanings of arguments come from the command line: schemas, the parsing of a question, refusals and the page in
//! `docs` follow from it. Deliberately absent: options that write files, that run a program, or that read a pipe.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use culeak::analysis::report::shell_word;
use culeak::analysis::site::CallStacks;
use culeak::reader::open_regular;
use serde_json::{Map, Value, json};

use super::Run;
use super::answers::Answers;
use crate::commands::list;
use crate::document::{self, Document, bold};
use crate::errors::{Failure, of_clap};
use crate::load::NameArgs;
use crate::{load, progress, text};

struct Tool {
    name: &'static str,
    /// A command of culeak, or of [`Own`], and the options that it has unless the question has others.
    command: &'static str,
    /// The ids of its arguments. `!`: needed.
    arguments: &'static str,
    about: &'static str,
    /// The call after an error.
    next: &'static str,
}

const LIST: &str = "call list for the recordings and processes there are";
const SITES: &str = "call sites with this input for its call sites, or list for other inputs";

macro_rules! tools {
    ($($name:literal: $command:literal, $arguments:literal, $next:expr, $about:literal;)+) => {
        const TOOLS: &[Tool] = &[$(Tool { name: $name, command: $command, arguments: $arguments, about: $about, next: $next }),+];
    };
}

tools! {
    "list": "list", "folder", "call list with a folder that exists",
        "List the recordings and snapshots of a folder, newest first, and the processes that use CUDA";
    "report": "report --top=8", "inputs! at by view kind device focus ignore since category sort min_bytes top", LIST,
        "Summarize what a process holds or leaked: totals, the largest call sites with their callers, what is missing; of several inputs, which \
         process differs. Inputs are recordings, snapshots, process ids, folders or patterns";
    "sites": "report --view=stacks --top=4", "inputs! focus at kind ignore since full_stacks top", LIST,
        "Show call sites with their whole stacks, sizes, kinds, threads and ages; focus chooses one, such as train.py:88";
    "why": "why --top=8", "input! selector class by kind since top", SITES,
        "Show what holds memory: the path from a variable, frame or cycle to the blocks of a call site, and what dropping it frees. Of a recording of \
         `culeak run --why`, or of a snapshot taken with why; of a running process with consent";
    "diff": "diff --top=8", "before! after at by view kind device focus ignore since all top", LIST,
        "Compare two recordings, snapshots or processes by call site, or two points of one: before alone, with at twice";
    "trend": "trend --top=8", "inputs! only against by kind focus ignore all per_process top",
        "call list for the snapshots there are; culeak run --snapshot every:30s takes them",
        "Tell call sites that grow from caches, over eight or more snapshots of a process";
    "check": "check", "inputs! allow at since kind fail_on baseline tolerance suppressions allow_losses", LIST,
        "Judge whether more leaked than allowed: passed, failed or no verdict, and the call sites to blame";
    "source": "source", "input! site! lines", SITES,
        "Show the source lines around a call site, or around any line of a stack, below the folder of the server";
    "snapshot": "snapshot", "pid! why", "call list for the processes there are",
        "Take a snapshot of a running process without stopping it, for diff, trend and why. Needs consent: culeak mcp --allow-snapshots";
    "more": "more", "handle!", "ask the question again, or for fewer rows with top",
        "Show the rest of an answer that was cut";
}

impl Tool {
    /// The names of its arguments, and whether each is needed.
    fn names(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let words = self.arguments.split(' ');
        words.map(|word| (word.trim_end_matches('!'), word.ends_with('!')))
    }

    fn listed(&self) -> String {
        self.names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Parser)]
#[command(name = "culeak", disable_help_flag = true, disable_help_subcommand = true)]
struct OwnTools {
    #[command(subcommand)]
    own: Own,
}

/// Tools that are no commands.
#[derive(Subcommand)]
enum Own {
    List {
        /// The folder [default: the server's]
        folder: Option<PathBuf>,
    },
    Source {
        /// A recording, a snapshot or a process id
        input: OsString,
        /// File and line, as answers name them, such as train.py:88
        site: String,
        /// Lines shown before and after it [default: 8]
        #[arg(long, value_name = "N", default_value_t = 8)]
        lines: usize,
    },
    Snapshot {
        /// The id of a recorded process
        #[arg(value_name = "N")]
        pid: u32,
        /// Also search for what holds the memory
        #[arg(long)]
        why: bool,
    },
    More {
        /// As the last line of the answer names it
        handle: String,
    },
}

pub struct Tools<'r> {
    /// The commands and [`Own`], from which the tools are made.
    commands: Vec<clap::Command>,
    run: Run<'r>,
    /// Where snapshots are written, with consent.
    snapshots: Option<PathBuf>,
    answers: Answers,
}

impl<'r> Tools<'r> {
    pub fn new(whole: clap::Command, run: Run<'r>, snapshots: Option<PathBuf>) -> Tools<'r> {
        // Own tools come first: one has the name of a command.
        let own = OwnTools::command();
        let all = own.get_subcommands().chain(whole.get_subcommands());
        Tools {
            commands: all.cloned().collect(),
            run,
            snapshots,
            answers: Answers::default(),
        }
    }

    /// The arguments of a tool.
    fn arguments(&self, tool: &Tool) -> Vec<&clap::Arg> {
        let name = tool.command.split(' ').next().unwrap_or_default();
        let command = self.commands.iter().find(|command| command.get_name() == name);
        let of_id = |(id, _)| command?.get_arguments().find(|argument| argument.get_id() == id);
        tool.names().filter_map(of_id).collect()
    }

    /// The tools, as the protocol lists them.
    pub fn listed(&self) -> Vec<Value> {
        let tool = |tool: &Tool| {
            let arguments = self.arguments(tool).into_iter();
            let properties: Map<String, Value> = arguments.map(|of| (of.get_id().to_string(), schema(of))).collect();
            let needed: Vec<&str> = tool
                .names()
                .filter(|(_, needed)| *needed)
                .map(|(name, _)| name)
                .collect();
            json!({
                "name": tool.name,
                "description": tool.about,
                "inputSchema": {"type": "object", "properties": properties, "required": needed, "additionalProperties": false},
                "annotations": {"readOnlyHint": tool.name != "snapshot", "destructiveHint": false, "openWorldHint": false},
            })
        };
        TOOLS.iter().map(tool).collect()
    }

    /// Answers a question.
    ///
    /// # Errors
    /// There is no such tool.
    pub fn call(&mut self, parameters: &Value) -> Result<Value, String> {
        let name = parameters["name"].as_str().unwrap_or_default();
        let Some(tool) = TOOLS.iter().find(|tool| tool.name == name) else {
            let names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
            return Err(format!(
                "no tool is called {}; there are {}",
                short(name),
                names.join(", ")
            ));
        };
        let answer = self.answer(tool, &parameters["arguments"]);
        let failed = answer.is_err();
        let text = answer.unwrap_or_else(|why| format!("error: {why}\nnext: {}", tool.next));
        Ok(json!({"content": [{"type": "text", "text": self.answers.cut(&text)}], "isError": failed}))
    }

    fn answer(&self, tool: &Tool, given: &Value) -> Result<String, String> {
        let words = self.words(tool, given)?;
        load::names::forget_notes();
        load::unrecorded::forget_notes();
        let run = || catch_unwind(AssertUnwindSafe(|| self.run(&words)));
        let ((result, mut printed), said) = progress::heard(|| text::taken(run));
        let result = result.unwrap_or_else(|_| Err(Failure::new("culeak failed; its standard error says where")));
        for message in said {
            printed += &format!("{message}\n");
        }
        match (result, printed.strip_prefix("error: ")) {
            (Err(failure), _) => Err(format!("{failure}\n{printed}").trim_end().to_owned()),
            // No input could be read.
            (Ok(code), Some(why)) if code != ExitCode::SUCCESS => Err(why.trim_end().to_owned()),
            _ => Ok(printed),
        }
    }

    /// The command line of a question.
    fn words(&self, tool: &Tool, given: &Value) -> Result<Vec<OsString>, String> {
        let empty = Map::new();
        let given = match given {
            Value::Null => &empty,
            given => given
                .as_object()
                .ok_or("the arguments are no object; give each a name")?,
        };
        let has = |what: String| format!("{} has {what}; its arguments are {}", tool.name, tool.listed());
        if let Some(name) = given
            .keys()
            .find(|given| !tool.names().any(|(name, _)| name == **given))
        {
            return Err(has(format!("no argument {}", short(name))));
        }
        if let Some((name, _)) = tool
            .names()
            .find(|(name, needed)| *needed && !given.contains_key(*name))
        {
            return Err(has(format!("no answer without {name}")));
        }
        let (command, usual) = tool.command.split_once(' ').unwrap_or((tool.command, ""));
        let mut words: Vec<String> = vec!["culeak".to_owned(), command.to_owned()];
        for argument in self.arguments(tool) {
            let name = argument.get_id().as_str();
            for text in given
                .get(name)
                .map_or(Ok(Vec::new()), texts)
                .map_err(|why| format!("{name}: {why}"))?
            {
                match argument.get_long() {
                    Some("suppressions" | "baseline") if !is_of_project(Path::new(&text)) => {
                        return Err(format!(
                            "{name}: {} is no file below the folder of this server (culeak mcp FOLDER); name one",
                            short(&text)
                        ));
                    }
                    _ if is_endless(Path::new(&text)) => {
                        return Err(format!("{name}: {} is a pipe or a device; name a file", short(&text)));
                    }
                    Some(long) if argument.get_action().takes_values() => words.push(format!("--{long}={text}")),
                    Some(long) if text == "true" => words.push(format!("--{long}")),
                    Some(_) => {}
                    None if text.is_empty() || text.starts_with('-') => {
                        return Err(format!(
                            "{name}: {} is neither a name nor a number; give one of these",
                            short(&text)
                        ));
                    }
                    None => words.push(text),
                }
            }
        }
        let is_free = |option: &&str| !given.keys().any(|name| option.starts_with(&format!("--{name}=")));
        words.extend(usual.split_whitespace().filter(is_free).map(str::to_owned));
        Ok(words.into_iter().map(OsString::from).collect())
    }

    fn run(&self, words: &[OsString]) -> Result<ExitCode, Failure> {
        let own = OwnTools::command();
        if words.get(1).and_then(|word| own.find_subcommand(word)).is_none() {
            return (self.run)(words);
        }
        let page = match OwnTools::try_parse_from(words).map_err(|error| of_clap(&error))?.own {
            Own::List { folder } => list::of_folder(folder.as_deref().unwrap_or(Path::new(".")))?,
            Own::Source { input, site, lines } => source(&input, &site, lines)?,
            Own::Snapshot { pid, why } => self.snapshot(pid, why)?,
            Own::More { handle } => {
                let unknown = || {
                    Failure::new(format!(
                        "no answer has the rest {}, or it is too old; call the tool again",
                        short(&handle)
                    ))
                };
                let rest = self.answers.rest(&handle).ok_or_else(unknown)?;
                text::print(|out| out.write_all(rest.as_bytes()))?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        document::print(|| page)?;
        Ok(ExitCode::SUCCESS)
    }

    fn snapshot(&self, pid: u32, why: bool) -> Result<Document, Failure> {
        let folder = self.snapshots.as_ref().ok_or_else(|| format!(
                "this server has no consent to take snapshots; start it as culeak mcp --allow-snapshots FOLDER, or run culeak snapshot \
                 {pid} -o FILE.json, and name the file"
            ))?;
        let mut names = (1..).map(|number: u32| folder.join(format!("{pid}.{number}.json")));
        let path = names.find(|path| !path.exists()).unwrap_or_default();
        let mut words: Vec<OsString> = ["culeak", "snapshot"].map(OsString::from).to_vec();
        words.extend([pid.to_string().into(), "-o".into(), path.clone().into()]);
        words.extend(why.then(|| "--why".into()));
        (self.run)(&words)?;
        let file = shell_word(&path.display().to_string());
        let mut page = Document::default();
        page.line(format!("{file}: a snapshot of process {pid}"));
        page.next(format!("culeak {} {file}", if why { "why" } else { "report" }));
        Ok(page)
    }
}

/// A word of a client, for a message.
fn short(word: &str) -> String {
    format!("{:?}", word.chars().take(60).collect::<String>())
}

/// Whether reading may never end.
fn is_endless(path: &Path) -> bool {
    path.metadata().is_ok_and(|of| !of.is_file() && !of.is_dir())
}

/// Whether a file is a regular one below the current folder, and none that the kernel makes: messages on mistakes in it quote it.
fn is_of_project(path: &Path) -> bool {
    let is_one = |path: PathBuf| {
        let folder = env::current_dir()?.canonicalize()?;
        let of_kernel = ["/proc", "/sys"].iter().any(|folder| path.starts_with(folder));
        Ok(path.starts_with(folder) && path.metadata()?.is_file() && !of_kernel)
    };
    path.canonicalize().and_then(is_one).unwrap_or_default()
}

/// The kind of an argument and its meaning, as JSON Schema.
fn schema(argument: &clap::Arg) -> Value {
    let values = argument.get_possible_values();
    let values: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
    let is_listed = !values.is_empty() && !argument.is_hide_possible_values_set();
    // Of --view, phases:NAME is one more.
    let is_open = argument.get_id() == "view";
    let is_number = argument.get_value_names() == Some(&["N".into()]);
    let mut schema = json!({"type": if is_number { "integer" } else { "string" }});
    if is_listed && !is_open {
        schema["enum"] = json!(values);
    }
    match argument.get_action() {
        action if !action.takes_values() => schema = json!({"type": "boolean"}),
        ArgAction::Append => schema = json!({"type": "array", "items": schema}),
        _ => {}
    }
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let ends = [" [default", "; ", ". "].iter().filter_map(|end| help.find(end));
    let meaning = &help[..ends.min().unwrap_or(help.len())];
    schema["description"] = json!(match is_open {
        true => format!("{meaning}: {}", values.join(", ")),
        false => meaning.to_owned(),
    });
    schema
}

/// The values of an argument, which clients also write as text, as a number, or alone instead of in a list.
fn texts(value: &Value) -> Result<Vec<String>, &'static str> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Bool(_) | Value::Number(_) => Ok(vec![value.to_string()]),
        Value::Array(all) if !all.iter().any(Value::is_array) => {
            let texts: Result<Vec<_>, _> = all.iter().map(texts).collect();
            Ok(texts?.concat())
        }
        _ => Err("expected a text, a number, or a list of them"),
    }
}

/// The lines around a line that occurs in a stack of the input. Paths in recordings were written by another program, which may name any
/// file: only those below the current folder are read.
fn source(input: &OsStr, site: &str, around: usize) -> Result<Document, Failure> {
    let mut item = load::one(input)?;
    NameArgs::default().name_frames(&mut item);
    let stacks = CallStacks::of(&item.snapshot);
    let is_it = |place: Option<String>| place.is_some_and(|place| place == site);
    let frames = stacks.all().flat_map(|stack| &stack.frames);
    let frames = frames.filter(|frame| is_it(frame.short_place()) || is_it(frame.place()));
    let places: BTreeMap<_, _> = frames
        .filter_map(|frame| Some((frame.file?, (frame, frame.line?))))
        .collect();
    let mut all = places.iter();
    let (file, frame, line) = match (all.next(), all.next()) {
        (Some((&file, &(frame, line))), None) => (file, frame, line),
        (None, _) => {
            let source = &item.source;
            return Err(Failure::new(format!(
                "{source}: no stack has the line {site}; name FILE:LINE as answers do"
            )));
        }
        _ => {
            let paths: Vec<String> = places
                .iter()
                .map(|(file, (_, line))| format!("{file}:{line}"))
                .collect();
            let paths = paths.join(", ");
            return Err(Failure::new(format!(
                "{site} is a line of several files; name one: {paths}"
            )));
        }
    };
    let failure = |why: &str| Failure::new(format!("{file}: {why}; read line {line} of it with another tool"));
    if Path::new(file).is_relative() {
        return Err(failure(
            "is relative to the folder of the recorded process, which is not known",
        ));
    }
    let path = Path::new(file)
        .canonicalize()
        .map_err(|_| failure("is not on this machine"))?;
    let folder = env::current_dir().and_then(|folder| folder.canonicalize());
    if !folder.is_ok_and(|folder| path.starts_with(folder)) {
        return Err(failure("is not below the folder of this server (culeak mcp FOLDER)"));
    }
    let unreadable = |error: io::Error| failure(&format!("cannot be read ({error})"));
    let opened = open_regular(&path).map_err(unreadable)?;
    let changed_s = opened.metadata().map_err(unreadable)?.mtime();
    let line = line as usize;
    let first = line.saturating_sub(around.saturating_add(1));
    let lines = BufReader::new(opened).split(b'\n').skip(first);
    let lines = lines
        .take(line + around.min(1000) - first)
        .collect::<io::Result<Vec<_>>>();
    let lines = lines.map_err(unreadable)?;
    if first + lines.len() < line {
        return Err(Failure::new(format!(
            "{file}: ends before line {line}, so it is not the file that the process ran; look at the version of it that was recorded"
        )));
    }
    let mut page = Document::default();
    page.line(bold(format!("{}  {file}:{line}", frame.name())));
    for (number, text) in (first + 1..).zip(lines) {
        let text = String::from_utf8_lossy(&text).replace('\t', "    ");
        let sign = if number == line { '>' } else { ' ' };
        page.line(format!("{sign} {number:5}  {}", text.trim_end()));
    }
    if changed_s > (item.snapshot.process.started_unix_ns / 1_000_000_000) as i64 {
        page.warnings(["the file was changed after the process had started: its lines may be others"]);
    }
    page.next(format!("culeak why {} {site}", shell_word(&item.source)));
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools<'static> {
        Tools::new(crate::args::public(), &|_| Ok(ExitCode::SUCCESS), None)
    }

    fn words(name: &str, given: Value) -> Result<String, String> {
        let tool = TOOLS.iter().find(|tool| tool.name == name).expect("a tool");
        let words = tools().words(tool, &given)?;
        Ok(words.join(OsStr::new(" ")).into_string().expect("text"))
    }

    #[test]
    fn a_question_is_a_command_line() {
        for (name, given, expected) in [
            (
                "report",
                json!({"inputs": "a.culeak"}),
                "culeak report a.culeak --top=8",
            ),
            (
                "report",
                json!({"inputs": ["a", "b"], "top": 0, "kind": ["device"]}),
                "culeak report a b --kind=device --top=0",
            ),
            (
                "diff",
                json!({"before": "a", "at": ["mark:m", "end"], "all": true}),
                "culeak diff a --at=mark:m --at=end --all --top=8",
            ),
            (
                "why",
                json!({"selector": "a.py:3", "input": 4711, "by": null}),
                "culeak why 4711 a.py:3 --top=8",
            ),
            (
                "sites",
                json!({"inputs": "a", "focus": "--why", "full_stacks": false}),
                "culeak report a --focus=--why --view=stacks --top=4",
            ),
        ] {
            assert_eq!(words(name, given).as_deref(), Ok(expected));
        }
    }

    /// What follows `--` of a check is run, and `-` is the client's own pipe.
    #[test]
    fn a_question_runs_no_program_and_names_no_option_or_pipe() {
        for input in ["--", "-", "-o", "--update-baseline", "", "/dev/zero"] {
            let refused = words("check", json!({"inputs": [input, "a"]})).expect_err(input);
            assert!(refused.starts_with("inputs: "), "{refused}");
        }
        words("check", json!({"inputs": "a", "suppressions": "/dev/zero"})).expect_err("it never ends");
        for given in [
            json!({"inputs": {"a": 1}}),
            json!({"inputs": [["a"]]}),
            json!({"inputs": "a", "command": "rm"}),
            json!({}),
        ] {
            words("check", given.clone()).expect_err(&given.to_string());
        }
    }

    #[test]
    fn each_argument_exists_and_has_a_meaning() {
        let tools = tools();
        for (tool, listed) in TOOLS.iter().zip(tools.listed()) {
            assert_eq!(tools.arguments(tool).len(), tool.names().count(), "{}", tool.name);
            for (name, schema) in listed["inputSchema"]["properties"].as_object().expect("an object") {
                assert!(
                    schema["description"].as_str().is_some_and(|text| text.len() > 9),
                    "{name}: {schema}"
                );
            }
        }
        let all = Value::from(tools.listed()).to_string();
        assert!(all.len() < 14_000, "a client reads all of it: {} bytes", all.len());
    }

    /// `CULEAK_BLESS=1` rewrites the page.
    #[test]
    fn the_page_lists_every_tool() {
        let mut table = "| tool | command | arguments (in bold: needed) | |\n|---|---|---|---|\n".to_owned();
        for tool in TOOLS {
            let names = tool.names().map(|(name, needed)| match needed {
                true => format!("**`{name}`**"),
                false => format!("`{name}`"),
            });
            let is_own = OwnTools::command().find_subcommand(tool.command).is_some();
            let command = match is_own {
                true => String::new(),
                false => format!("`culeak {}`", tool.command),
            };
            let names: Vec<String> = names.collect();
            table += &format!(
                "| `{}` | {command} | {} | {} |\n",
                tool.name,
                names.join(", "),
                tool.about
            );
        }
        crate::commands::help::tests::expect_table("agents.md", "tools", &table);
    }
}
