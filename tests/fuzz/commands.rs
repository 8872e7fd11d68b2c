//! Files and messages that commands read. The commands run in this process, as they do for `culeak mcp`.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{env, fs};

use culeak::snapshot::Snapshot;
use culeak_metrics::server::{self, Limits};

use super::mutate::{Form, LONGEST, pack, unpack};
use super::recording::recording;
use super::{Read, Target};
use crate::options::config::ConfigArgs;
use crate::text::sample::{held, leaky, modelled, training};
use crate::{args, commands::mcp, load, progress, text};

/// How a recording, a snapshot or a pickle is read: `@`. `%` is a valid snapshot. The first byte of an input chooses one.
const COMMANDS: &[&str] = &[
    "report @",
    "report @ --by stack --full-stacks",
    "report @ --by thread",
    "report @ --view stacks",
    "report @ --view tree",
    "report @ --view churn",
    "report @ --view phases",
    "report @ --view segments",
    "report @ --view objects",
    "report @ --view ledger",
    "report @ --at peak",
    "report @ --at epoch",
    "report @ --between start end",
    "report @ % --per-process",
    "report @ --json",
    "report @ -o to.html",
    "report @ -o to.svg",
    "why @",
    "whatif @",
    "check @",
    "check @ --format sarif",
    "check @ --format junit",
    "check @ --baseline %",
    "snapshot @ -o to.json",
    "diff % @ --force",
    "diff @ % --force -o to.svg",
    "diff @ --at epoch --at exit",
    "trend @ % --force --all",
    "trend % @ --force --all -o to.html",
    "export @ -o to --format pprof",
    "export @ -o to --format speedscope",
    "export @ -o to --format folded",
    "export @ -o to --format perfetto",
    "export @ -o to --format firefox",
    "export @ -o to --format csv",
    "export @ -o to --format memory_viz",
];

pub const RECORDING: Target = Target {
    name: "recording",
    form: Form::Words,
    begin: |folder| by_any_command(folder, unpack),
    seeds: |folder| for_each_command([true, false].map(|logged| pack(&recording(folder, logged))).to_vec()),
};

pub const SNAPSHOT: Target = Target {
    name: "snapshot",
    form: Form::Json,
    begin: |folder| by_any_command(folder, <[u8]>::to_vec),
    seeds: |_| for_each_command(snapshots().iter().map(json).collect()),
};

pub const PICKLE: Target = Target {
    name: "pickle",
    form: Form::Pickle,
    begin: |folder| by_any_command(folder, <[u8]>::to_vec),
    seeds: |folder| for_each_command(snapshots().iter().map(|snapshot| pickle(folder, snapshot)).collect()),
};

pub const CONFIG: Target = Target {
    name: "config",
    form: Form::Text,
    begin: |folder| {
        let valid = valid(folder);
        fs::write(folder.join("gpu.supp"), "leak:grow\n").expect("written");
        let folder = folder.to_path_buf();
        Box::new(move |input| {
            let of_python = input.starts_with(b"[tool");
            let path = folder.join(if of_python { "pyproject.toml" } else { "culeak.toml" });
            fs::write(&path, input).expect("written");
            let config = ConfigArgs {
                config: Some(path),
                no_config: false,
            };
            run(&words("check %", &folder, Path::new(""), &valid), &config)
        })
    },
    seeds: |_| {
        let whole = "[run]\noutput = \"runs\"\nsample = \"64MiB\"\nstack-rate = 100\n\n[check]\nallow = [\"64MiB\", \"count=100\", \"leak:cache.py=2GiB\"]\n\
            suppressions = [\"gpu.supp\"]\nbaseline = \"valid.json\"\ntolerance = \"1MiB\"\nfail-on = \"grown\"\n\n\
            [display]\ncolor = \"never\"\npager = false\n\n[symbols]\ndebug-dirs = [\"debug\"]\nwrappers = [\"my::alloc*\"]\n";
        let of_python = "[tool.culeak.check]\nallow = [\"0\"]\n";
        [whole, of_python].map(|text| text.as_bytes().to_vec()).to_vec()
    },
};

pub const SUPPRESSIONS: Target = Target {
    name: "suppressions",
    form: Form::Text,
    begin: |folder| by(folder, "check % --suppressions @", "gpu.supp"),
    seeds: |_| {
        let own = "# ours\nleak:RingBuffer::grow\nkeep:^vendorAlloc$\nsite:^Cache::fill(float\\*)$ in ^cache.cu$ by libx.so of memory\n";
        [culeak::analysis::suppressions::BUILT_IN, own]
            .map(|text| text.as_bytes().to_vec())
            .to_vec()
    },
};

pub const BASELINE: Target = Target {
    name: "baseline",
    form: Form::Json,
    begin: |folder| by(folder, "check % --baseline @", "baseline.json"),
    seeds: |folder| {
        let (valid, path) = (valid(folder), folder.join("made.json"));
        assert!(run(
            &words("check % --baseline @ --update-baseline", folder, &path, &valid),
            &no_config()
        ));
        vec![fs::read(path).expect("a baseline")]
    },
};

/// Lines that a client sends to `culeak mcp`.
pub const MESSAGES: Target = Target {
    name: "mcp",
    form: Form::Json,
    begin: |folder| {
        load::forbid_searches();
        env::set_current_dir(folder).expect("a folder");
        valid(folder);
        fs::write("app.culeak", recording(folder, true)).expect("written");
        Box::new(|input| {
            let (mut said, config) = (Vec::new(), no_config());
            let answer = |words: &[OsString]| crate::answer(words, &config);
            mcp::serve(input, &mut said, args::public(), &answer, None).expect("memory");
            let said = String::from_utf8(said).expect("text");
            assert!(!said.contains("culeak failed"), "{said}");
            !said.contains("\"error\"")
        })
    },
    seeds: |_| {
        let calls = [
            r#"{"name":"list","arguments":{}}"#,
            r#"{"name":"report","arguments":{"inputs":["valid.json"],"by":"stack","top":2}}"#,
            r#"{"name":"sites","arguments":{"inputs":["app.culeak"],"full_stacks":true}}"#,
            r#"{"name":"why","arguments":{"input":"valid.json","selector":"train.py:88"}}"#,
            r#"{"name":"diff","arguments":{"before":"valid.json","after":"valid.json"}}"#,
            r#"{"name":"trend","arguments":{"inputs":["valid.json","valid.json"]}}"#,
            r#"{"name":"check","arguments":{"inputs":["valid.json"],"allow":["1MiB"]}}"#,
            r#"{"name":"source","arguments":{"input":"valid.json","site":"train.py:88"}}"#,
            r#"{"name":"snapshot","arguments":{"pid":1}}"#,
            r#"{"name":"more","arguments":{"handle":"1"}}"#,
        ];
        let call = |call: &&str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{call}}}"#);
        let begin = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#;
        let lists = [begin, r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#].map(str::to_owned);
        let all: Vec<String> = lists.into_iter().chain(calls.iter().map(call)).collect();
        all.iter().map(|line| format!("{line}\n").into_bytes()).collect()
    },
};

/// What a peer of `culeak watch --listen` sends.
pub const REQUESTS: Target = Target {
    name: "requests",
    form: Form::Text,
    begin: |_| {
        let page = Arc::new(Mutex::new(Some(Arc::from("page\n"))));
        Box::new(move |input| {
            // As much as the socket takes before anything is read.
            let input = &input[..input.len().min(64 << 10)];
            let (mut peer, own) = UnixStream::pair().expect("two sockets");
            peer.write_all(input).expect("sent");
            peer.shutdown(Shutdown::Write).expect("connected");
            let _ = server::converse(&TcpStream::from(OwnedFd::from(own)), Limits::default(), &page);
            let mut answer = String::new();
            // The rest of a request that was not read is an error.
            let _ = peer.read_to_string(&mut answer);
            let is_answer = answer.starts_with("HTTP/1.1 ") && answer.contains("\r\n\r\n");
            assert!(is_answer || answer.is_empty(), "{answer}");
            is_answer
        })
    },
    seeds: |_| {
        let requests = [
            "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
            "HEAD /healthz?x=1 HTTP/1.0\r\n\r\n",
            "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n123456789",
        ];
        requests.map(|text| text.as_bytes().to_vec()).to_vec()
    },
};

fn no_config() -> ConfigArgs {
    ConfigArgs {
        config: None,
        no_config: true,
    }
}

/// Runs a command; false if it calls something damaged or cannot read it.
fn run(words: &[OsString], config: &ConfigArgs) -> bool {
    load::names::forget_notes();
    load::unrecorded::forget_notes();
    let ((result, printed), said) = progress::heard(|| text::taken(|| crate::answer(words, config)));
    let failed = result.err().inspect(|failure| assert!(failure.exit <= 2, "{failure}"));
    let said = [
        failed.map(|failure| failure.message),
        Some(said.join("\n")),
        Some(printed),
    ];
    !said
        .iter()
        .flatten()
        .any(|text| text.contains("damaged") || text.contains("cannot be read"))
}

/// The words of a command; files that it writes lead to `/dev/null`.
fn words(command: &str, folder: &Path, input: &Path, valid: &Path) -> Vec<OsString> {
    let word = |word: &str| match word {
        "@" => input.into(),
        "%" => valid.into(),
        _ if word == "to" || word.starts_with("to.") => {
            let path = folder.join(word);
            let _ = symlink("/dev/null", &path);
            path.into()
        }
        word => OsString::from(word),
    };
    ["culeak"].into_iter().chain(command.split(' ')).map(word).collect()
}

fn valid(folder: &Path) -> PathBuf {
    let path = folder.join("valid.json");
    fs::write(&path, json(&leaky())).expect("written");
    path
}

/// By one command, of a file of this name.
fn by(folder: &Path, command: &str, name: &str) -> Read {
    let path = folder.join(name);
    let words = words(command, folder, &path, &valid(folder));
    Box::new(move |input| {
        fs::write(&path, input).expect("written");
        run(&words, &no_config())
    })
}

fn by_any_command(folder: &Path, content: fn(&[u8]) -> Vec<u8>) -> Read {
    let (path, valid) = (folder.join("input"), valid(folder));
    let commands: Vec<_> = COMMANDS
        .iter()
        .map(|command| words(command, folder, &path, &valid))
        .collect();
    Box::new(move |input| {
        let (command, input) = input.split_first().unwrap_or((&0, &[]));
        fs::write(&path, content(&input[..input.len().min(LONGEST)])).expect("written");
        run(&commands[usize::from(*command) % commands.len()], &no_config())
    })
}

/// Inputs of [`by_any_command`].
fn for_each_command(contents: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let input = |nth: usize, content: &Vec<u8>| [&[nth as u8], content.as_slice()].concat();
    let each = COMMANDS.iter().enumerate();
    let each = each.map(|(nth, _)| input(nth, &contents[nth % contents.len()]));
    each.chain(contents.iter().skip(1).map(|content| input(0, content)))
        .collect()
}

fn snapshots() -> [Snapshot; 4] {
    [leaky(), training().finish(1 << 30, 3), held(), modelled()]
}

fn json(snapshot: &Snapshot) -> Vec<u8> {
    serde_json::to_vec(snapshot).expect("JSON")
}

fn pickle(folder: &Path, snapshot: &Snapshot) -> Vec<u8> {
    let (from, to) = (folder.join("for-pytorch.json"), folder.join("p.pickle"));
    fs::write(&from, json(snapshot)).expect("written");
    let command = "export % --force -o @ --format memory_viz --full-stacks";
    assert!(run(&words(command, folder, &to, &from), &no_config()));
    fs::read(to).expect("written")
}
