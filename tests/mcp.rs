//! `culeak mcp`, driven by its protocol: five planted leaks by the procedure of skills/gpu-memory-leak/SKILL.md, and clients that make
//! mistakes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

use crate::interpreters::interpreters;
use crate::support::holders::start;
use crate::support::profile::{fake_driver_folder, folder};
use crate::support::{Lookup, culeak, profile, program, sources, victim};

/// The most bytes of a line of the server.
const MOST: usize = 3 * 1024;

struct Server {
    child: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
    asked: u64,
}

impl Server {
    fn start(options: &[&Path]) -> Server {
        Server::start_in(Path::new("."), options)
    }

    fn start_in(folder: &Path, options: &[&Path]) -> Server {
        let mut child = Command::new(culeak())
            .arg("mcp")
            .args(options)
            .current_dir(folder)
            .env_remove("LD_PRELOAD")
            .env("CULEAK_CACHE_DIR", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("its output"));
        let lines = BufReader::new(output);
        let mut server = Server {
            child,
            input,
            lines,
            asked: 0,
        };
        let told = server.ask(
            "initialize",
            json!({"protocolVersion": "2025-06-18", "capabilities": {}}),
        );
        assert_eq!(told["result"]["protocolVersion"], "2025-06-18");
        server.send(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        server
    }

    fn send(&mut self, line: &[u8]) {
        let input = self.input.as_mut().expect("its input is open");
        input
            .write_all(line)
            .and_then(|()| input.write_all(b"\n"))
            .expect("the server reads");
    }

    /// The next line; none at the end.
    fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("text");
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": parameters});
        self.send(request.to_string().as_bytes());
        let reply = self.line().expect("a reply");
        assert_eq!(reply["id"], self.asked, "{reply}");
        reply
    }

    /// The text of an answer, and whether it is an error.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> (String, bool) {
        let reply = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(reply.to_string().len() <= MOST, "{}", reply.to_string().len());
        let text = reply["result"]["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("{tool} {arguments}: {reply}"));
        (text.to_owned(), reply["result"]["isError"] == true)
    }

    #[track_caller]
    fn answer(&mut self, tool: &str, arguments: Value) -> String {
        let (text, failed) = self.call(tool, arguments.clone());
        assert!(!failed, "{tool} {arguments}: {text}");
        text
    }

    #[track_caller]
    fn refusal(&mut self, tool: &str, arguments: Value) -> String {
        let (text, failed) = self.call(tool, arguments.clone());
        assert!(failed, "{tool} {arguments}: {text}");
        text
    }

    fn end(mut self) -> ExitStatus {
        self.input = None;
        assert_eq!(self.line(), None, "nothing is left to say");
        self.child.wait().expect("it ends")
    }
}

/// A file with five leaks, and how it is run.
struct Planted {
    case: &'static str,
    program: Vec<PathBuf>,
    source: &'static str,
    /// Words of the answer of `why` beside the line that is marked `holder: CASE`.
    holders: &'static [&'static str],
}

fn planted() -> Vec<Planted> {
    let python = vec![interpreters()[0].command.clone(), "-B".into(), "planted.py".into()];
    let native = vec![victim("planted", Lookup::Linked)];
    let of = |case, program: &Vec<PathBuf>, source, holders| Planted {
        case,
        program: program.clone(),
        source,
        holders,
    };
    vec![
        of("cache", &python, "planted.py", &["held", "responses"][..]),
        of("cycle", &python, "planted.py", &["cycle", "Session"]),
        of("attribute", &python, "planted.py", &["held", "metrics", "losses"]),
        of("early", &native, "planted.c", &["lost"]),
        of("list", &native, "planted.c", &["held", "connections"]),
    ]
}

/// Records a run into a folder of this name.
fn record(planted: &Planted, project: &Path, name: &str, words: &[&str]) -> String {
    let out = project.join(name);
    let done = Command::new(culeak())
        .args(["run", "--why", "--no-report", "-o"])
        .arg(&out)
        .arg("--")
        .args(&planted.program)
        .arg(planted.case)
        .args(words)
        .current_dir(project)
        .env_remove("LD_PRELOAD")
        .env("CULEAK_CACHE_DIR", "")
        .env("LD_LIBRARY_PATH", fake_driver_folder())
        .stdin(Stdio::null())
        .output()
        .expect("culeak runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    name.to_owned()
}

/// The first call site that grew, as the first row of a diff names it.
fn grown(diff: &str, source: &str) -> Option<String> {
    let is_more = |line: &&str| {
        ["grown ", "new "]
            .iter()
            .any(|word| line.trim_start().starts_with(word))
    };
    let row = diff.lines().find(is_more)?;
    let place = row
        .split_whitespace()
        .find(|word| word.starts_with(&format!("{source}:")))?;
    Some(place.trim_end_matches(':').to_owned())
}

#[test]
fn five_planted_leaks_are_found_and_their_fixes_shown_by_the_procedure() {
    for planted in planted() {
        let case = planted.case;
        let folder = folder();
        let project = folder.path();
        // Victims in C know their sources by the path in which they were compiled.
        let is_python = planted.source.ends_with(".py");
        let root = match is_python {
            true => project.to_path_buf(),
            false => sources().canonicalize().expect("the sources"),
        };
        let text = fs::read_to_string(sources().join("victims").join(planted.source)).expect("the victim");
        fs::write(project.join(planted.source), &text).expect("written");
        let marked = text.lines().position(|line| line.contains(&format!("leak: {case}")));
        let line = format!("{}:{}", planted.source, marked.expect("a marked line") + 1);

        let mut server = Server::start(&[&root]);
        let [short, long] = [("short", "2"), ("long", "10")].map(|(name, requests)| {
            let name = record(&planted, project, name, &[requests]);
            project.join(name).display().to_string()
        });
        let listed = server.answer("list", json!({"folder": long}));
        assert!(listed.contains(".culeak"), "{listed}");
        let report = server.answer("report", json!({"inputs": [long]}));
        assert!(report.contains("64 MiB"), "the model is held too:\n{report}");
        let diff = server.answer("diff", json!({"before": short, "after": long}));
        let site = grown(&diff, planted.source);
        assert_eq!(site.as_deref(), Some(&*line), "{case}:\n{diff}");

        let shown = server.answer("source", json!({"input": long, "site": line}));
        let pointed = shown.lines().find(|line| line.starts_with('>')).unwrap_or_default();
        assert!(pointed.contains(&format!("leak: {case}")), "{shown}");
        let stacks = server.answer("sites", json!({"inputs": long, "focus": line}));
        assert!(stacks.contains("main") || stacks.contains("<module>"), "{stacks}");
        let why = server.answer("why", json!({"input": long, "selector": line}));
        for word in planted.holders {
            assert!(why.contains(word), "{case}: {word} is not in\n{why}");
        }
        assert!(why.contains("10 MiB"), "{case}: all of it has a holder\n{why}");
        assert!(!why.contains("possibly"), "{case}:\n{why}");

        let failed = server.answer("check", json!({"inputs": [long], "allow": ["66MiB"]}));
        assert!(
            failed.starts_with("failed:") && failed.contains(&line),
            "{case}:\n{failed}"
        );
        record(&planted, project, "fixed", &["10", "fixed"]);
        let fixed = project.join("fixed").display().to_string();
        let diff = server.answer("diff", json!({"before": short, "after": fixed}));
        assert_eq!(grown(&diff, planted.source), None, "{case}:\n{diff}");
        let passed = server.answer("check", json!({"inputs": fixed, "allow": "66MiB"}));
        assert!(passed.starts_with("passed:"), "{case}:\n{passed}");
        assert!(server.end().success());
    }
}

#[test]
fn a_client_that_makes_mistakes_is_told_what_to_do_and_the_server_goes_on() {
    let folder = folder();
    let mut server = Server::start(&[folder.path()]);
    for (line, code) in [
        (&b"{\"jsonrpc\": "[..], -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (br#"{"jsonrpc":"2.0","id":"a","method":"resources/list"}"#, -32601),
        (
            br#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"rm"}}"#,
            -32602,
        ),
        (br#"{"jsonrpc":"2.0","id":"a","method":"tools/call"}"#, -32602),
        (&vec![b'x'; 3 << 20], -32600),
        (&"[".repeat(100_000).into_bytes(), -32700),
    ] {
        server.send(line);
        let reply = server.line().expect("a reply");
        assert_eq!(reply["error"]["code"], code, "{reply}");
        let message = reply["error"]["message"].as_str().expect("a message");
        assert!(
            message.contains("; ") || message.contains("not a request"),
            "what to do: {message}"
        );
    }
    for (line, id) in [
        (r#"{"id":6}"#, json!(6)),
        (r#"{"id":"b"}"#, json!("b")),
        (r#"{"id":[]}"#, Value::Null),
    ] {
        server.send(line.as_bytes());
        let reply = server.line().expect("a reply");
        assert_eq!(
            (&reply["id"], &reply["error"]["code"]),
            (&id, &json!(-32600)),
            "{reply}"
        );
    }
    // Neither of these has a reply.
    server.send(br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    server.send(br#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    server.send(b"");
    assert_eq!(server.ask("ping", json!({}))["result"], json!({}));
    let batch = json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "method": "a"}]);
    server.send(batch.to_string().as_bytes());
    assert_eq!(server.line(), Some(json!([{"jsonrpc": "2.0", "id": 1, "result": {}}])));

    for (tool, arguments, expected) in [
        ("report", json!({"inputs": "no.culeak"}), "no.culeak: "),
        ("report", json!({"inputs": []}), "missing"),
        (
            "report",
            json!({"inputs": "a", "output": "b"}),
            "no argument \"output\"; its arguments are inputs, ",
        ),
        ("report", json!({"inputs": "a", "by": "colour"}), "site"),
        ("report", json!(["a"]), "no object"),
        ("check", json!({"inputs": ["--", "touch", "here"]}), "inputs: \"--\""),
        ("diff", json!({"before": "-"}), "before: \"-\""),
        ("why", json!({}), "no answer without input"),
        ("more", json!({"handle": "m9"}), "\"m9\""),
        ("source", json!({"input": "no.culeak", "site": "a.c:1"}), "no.culeak"),
        ("snapshot", json!({"pid": 1}), "--allow-snapshots"),
        ("snapshot", json!({"pid": "one"}), "one"),
        ("list", json!({"folder": "nowhere"}), "nowhere: is no folder"),
    ] {
        let refusal = server.refusal(tool, arguments.clone());
        assert!(refusal.contains(expected), "{tool} {arguments}: {refusal}");
        let next = refusal.lines().last().unwrap_or_default();
        assert!(next.starts_with("next: "), "{tool} {arguments}: {refusal}");
    }
    fs::write(
        folder.path().join("app.culeak-incomplete"),
        "a process was not recorded\n",
    )
    .expect("written");
    let listed = server.answer("list", json!({}));
    assert!(listed.contains("a folder without recordings"), "{listed}");
    assert!(listed.contains("a process was not recorded"), "{listed}");
    assert!(server.end().success());
}

#[test]
fn a_request_without_a_line_end_is_answered_at_the_end_of_the_input() {
    let folder = folder();
    let mut server = Server::start(&[folder.path()]);
    let input = server.input.as_mut().expect("its input");
    input
        .write_all(br#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#)
        .expect("written");
    server.input = None;
    assert_eq!(server.line(), Some(json!({"jsonrpc": "2.0", "id": 8, "result": {}})));
    assert!(server.end().success());
}

/// Some hundred stacks of Python; a part of their lines is long.
#[test]
fn a_long_answer_comes_in_parts_none_above_3_kb() {
    let script = sources().join("victims/train.py");
    let run = program(&interpreters()[0].command).arg("-B").arg(script).run();
    let mut server = Server::start(&[run.work().as_path()]);
    let recordings = run.out().display().to_string();
    let mut part = server.answer(
        "report",
        json!({"inputs": recordings, "by": "stack", "view": "stacks", "top": 0}),
    );
    let (mut whole, mut parts) = (String::new(), 1);
    while let Some((text, last)) = part.rsplit_once("\n… and ") {
        whole += text;
        whole.push('\n');
        let handle = last.split('"').nth(3).expect("a handle").to_owned();
        part = server.answer("more", json!({"handle": handle}));
        parts += 1;
    }
    whole += &part;
    assert!(parts > 5, "{parts}");
    let printed = Command::new(culeak())
        .args(["report", &recordings, "--by", "stack", "--view", "stacks", "--top", "0"])
        .env("CULEAK_CACHE_DIR", "")
        .stdin(Stdio::null())
        .output()
        .expect("culeak runs");
    let printed = String::from_utf8(printed.stdout).expect("text");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&whole), words(&printed), "the answer is what the command prints");
    assert!(server.end().success());
}

#[test]
fn the_memory_of_a_process_is_read_with_consent_alone() {
    let mut victim = start(&profile("planted_waits"));
    let pid = victim.pid;
    let folder = folder();
    let mut without = Server::start(&[folder.path()]);
    assert!(
        without
            .answer("report", json!({"inputs": pid}))
            .contains("planted_waits.c"),
        "a recording is a file"
    );
    for (tool, arguments) in [
        ("why", json!({"input": pid})),
        ("report", json!({"inputs": pid, "by": "module"})),
        ("report", json!({"inputs": std::process::id()})),
        ("snapshot", json!({"pid": pid})),
    ] {
        let refusal = without.refusal(tool, arguments.clone());
        assert!(
            refusal.contains("--allow-snapshots FOLDER"),
            "{tool} {arguments}: {refusal}"
        );
    }
    assert!(without.end().success());

    let snapshots = folder.path().join("snapshots");
    let mut with = Server::start(&[folder.path(), Path::new("--allow-snapshots"), &snapshots]);
    let why = with.answer("why", json!({"input": pid}));
    assert!(why.contains("kept in planted_waits"), "{why}");
    let before = with.answer("snapshot", json!({"pid": pid, "why": true}));
    let file = before.split(": ").next().unwrap_or_default().to_owned();
    assert!(
        with.answer("why", json!({"input": file}))
            .contains("kept in planted_waits"),
        "{before}"
    );
    victim.send("");
    assert_eq!(victim.line(), "grown");
    let diff = with.answer("diff", json!({"before": file, "after": pid}));
    assert!(grown(&diff, "planted_waits.c").is_some(), "{diff}");
    let second = with.answer("snapshot", json!({"pid": pid}));
    assert_eq!(fs::read_dir(&snapshots).expect("the folder").count(), 2, "{second}");
    assert!(with.end().success());
    victim.quit();
}

/// A recording may name any file of this machine as a source.
#[test]
fn sources_are_read_below_the_folder_of_the_server_alone() {
    let run = profile("planted").args("early 1").run();
    let recording = run.out().display().to_string();
    let shown = |folder: &Path| {
        let mut server = Server::start(&[folder]);
        let shown = server.call("source", json!({"input": recording, "site": "planted.c:7", "lines": 1}));
        assert!(server.end().success());
        shown
    };
    let (text, failed) = shown(&sources());
    assert!(
        !failed && text.contains(">     7      OK(cuMemAlloc_v2(&model"),
        "{text}"
    );
    assert_eq!(
        text.lines().filter(|line| line.contains("load_model")).count(),
        2,
        "{text}"
    );
    let (text, failed) = shown(&run.work());
    assert!(
        failed && text.contains("not below the folder") && !text.contains("cuMemAlloc"),
        "{text}"
    );
}

/// A message on a mistake in a file quotes it, so other files are not rules, nor is what links to them.
#[test]
fn rules_are_files_below_the_folder_of_the_server_alone() {
    let run = profile("planted").args("early 1").run();
    let recording = run.out().display().to_string();
    let (project, elsewhere) = (folder(), folder());
    let secret = elsewhere.path().join("secret");
    fs::write(&secret, "password=1234\n").expect("written");
    symlink(&secret, project.path().join("link")).expect("a link");
    fs::create_dir(project.path().join("below")).expect("a folder");
    fs::write(project.path().join("below/rules"), "leak:planted.c\n").expect("written");
    let mut server = Server::start(&[project.path()]);
    for argument in ["suppressions", "baseline"] {
        for file in [
            &*secret.display().to_string(),
            "link",
            "below",
            "no",
            "",
            "/proc/self/environ",
            "/proc/kmsg",
        ] {
            let refusal = server.refusal("check", json!({"inputs": recording, argument: file}));
            assert!(
                refusal.contains("is no file below the folder"),
                "{argument} {file}: {refusal}"
            );
            assert!(!refusal.contains("password"), "{refusal}");
        }
    }
    let passed = server.answer("check", json!({"inputs": recording, "suppressions": "below/rules"}));
    assert!(passed.starts_with("passed:"), "{passed}");
    assert!(server.end().success());
    // Below its root all files are, those of the kernel too.
    let mut server = Server::start(&[Path::new("/")]);
    let refusal = server.refusal(
        "check",
        json!({"inputs": recording, "suppressions": "/proc/self/environ"}),
    );
    assert!(refusal.contains("is no file below the folder"), "{refusal}");
    assert!(server.end().success());
}

/// The snapshot of a recording, with what this changes.
fn changed_snapshot(recordings: &Path, into: &Path, change: impl FnOnce(&mut Value)) -> String {
    let recording = fs::read_dir(recordings).expect("recordings").next().expect("one");
    let taken = Command::new(culeak())
        .arg("snapshot")
        .arg(recording.expect("readable").path())
        .args(["-o", "-"])
        .env("CULEAK_CACHE_DIR", "")
        .output()
        .expect("culeak runs");
    let mut snapshot: Value = serde_json::from_slice(&taken.stdout).expect("a snapshot");
    change(&mut snapshot);
    fs::write(into, snapshot.to_string()).expect("written");
    into.display().to_string()
}

#[test]
fn the_source_of_a_line_is_that_of_one_file_which_has_the_line() {
    let run = profile("planted").args("early 1").run();
    let mut server = Server::start(&[&sources()]);
    let mut shown = |name: &str, site: &str, file: &str, line: u32, all: bool| {
        let snapshot = changed_snapshot(&run.out(), &run.work().join(name), |snapshot| {
            let locations = snapshot["locations"].as_array_mut().expect("locations");
            let symbols = locations
                .iter_mut()
                .flat_map(|one| one["symbols"].as_array_mut().into_iter().flatten());
            for symbol in symbols.filter(|one| one["file"].as_str().is_some_and(|file| file.ends_with("/planted.c"))) {
                if all || symbol["line"] != 7 {
                    symbol["file"] = file.into();
                    symbol["line"] = line.into();
                }
            }
        });
        server.call("source", json!({"input": snapshot, "site": site, "lines": 1}))
    };
    let own = sources().join("victims/planted.c").display().to_string();
    let (text, failed) = shown("two.json", "planted.c:7", "/elsewhere/planted.c", 7, false);
    let mut both = [format!("{own}:7"), "/elsewhere/planted.c:7".to_owned()];
    both.sort();
    let both = format!("name one: {}\n", both.join(", "));
    assert!(failed && text.contains(&both), "{text}");
    let (text, failed) = shown("two.json", &format!("{own}:7"), "/elsewhere/planted.c", 7, false);
    assert!(
        !failed && text.contains(">     7      OK(cuMemAlloc_v2(&model"),
        "{text}"
    );
    let (text, failed) = shown("relative.json", "planted.c:7", "victims/planted.c", 7, true);
    assert!(
        failed && text.contains("is relative to the folder of the recorded process"),
        "{text}"
    );
    let (text, failed) = shown("behind.json", "planted.c:70000", &own, 70000, true);
    assert!(failed && text.contains("ends before line 70000"), "{text}");
    assert!(server.end().success());
}

/// A recording stays in memory only if nothing had to be said about it.
#[test]
fn each_answer_has_the_notes_on_its_recording_until_they_are_untrue() {
    let run = profile("planted").args("early 1").run();
    let moved = run.work().join("planted");
    let snapshot = changed_snapshot(&run.out(), &run.work().join("a.json"), |snapshot| {
        let modules = snapshot["modules"].as_array_mut().expect("modules");
        let own = modules
            .iter()
            .position(|one| one["path"].as_str().is_some_and(|path| path.contains("planted")));
        let own = own.expect("the victim");
        modules[own]["path"] = moved.display().to_string().into();
        for location in snapshot["locations"].as_array_mut().expect("locations") {
            if location["module"] == own {
                location["symbols"] = json!([]);
            }
        }
    });
    let mut server = Server::start(&[&run.work()]);
    let ask = |server: &mut Server| server.answer("report", json!({"inputs": snapshot}));
    for _ in 0..2 {
        let report = ask(&mut server);
        assert!(report.contains("not on this machine"), "{report}");
    }
    fs::copy(victim("planted", Lookup::Linked), &moved).expect("it is back");
    let report = ask(&mut server);
    assert!(
        !report.contains("not on this machine") && report.contains("planted.c:7"),
        "{report}"
    );

    let recording = fs::read_dir(run.out()).expect("recordings").next().expect("one");
    let recording = recording.expect("readable").path();
    fs::write(recording.with_extension("culeak-why"), "damaged").expect("written");
    for _ in 0..2 {
        let report = server.answer("report", json!({"inputs": recording.display().to_string()}));
        assert!(report.contains("what holds the memory is not shown"), "{report}");
    }
    assert!(server.end().success());
}

#[test]
fn questions_have_the_config_file_of_the_project_and_the_global_options_of_the_server() {
    let run = profile("planted").args("early 1").run();
    let recording = run.out().display().to_string();
    fs::write(run.work().join("culeak.toml"), "[check]\nallow = \"70MiB\"\n").expect("written");
    let verdict = |options: &[&Path]| {
        let mut server = Server::start(options);
        let verdict = server.answer("check", json!({"inputs": recording}));
        assert!(server.end().success());
        verdict
    };
    assert!(verdict(&[&run.work()]).starts_with("passed:"));
    assert!(verdict(&[&run.work(), Path::new("--no-config")]).starts_with("failed:"));
    // A name is relative to the folder in which the server was started, not to that of the questions.
    let named = folder();
    fs::write(named.path().join("other.toml"), "[check]\nallow = \"70MiB\"\n").expect("written");
    fs::write(run.work().join("other.toml"), "[check]\nallow = \"1MiB\"\n").expect("written");
    let work = run.work();
    let options = [&work, Path::new("--config"), Path::new("other.toml")];
    let mut server = Server::start_in(named.path(), &options);
    let verdict = server.answer("check", json!({"inputs": recording}));
    assert!(verdict.starts_with("passed:"), "{verdict}");
    assert!(server.end().success());
}
