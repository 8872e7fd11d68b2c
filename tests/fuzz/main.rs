//! A fuzzer of everything that culeak reads: recordings, snapshots, pickles and the module files used for symbols.
//!
//!     cargo build --release -p culeak-cli
//!     CULEAK_BIN=$PWD/target/release/culeak cargo test -p culeak-cli --test fuzz -- --seconds 3600 [--seed N] [--out FOLDER] [SEED…]
//!
//! Valid files of each type are changed at random, and a new `culeak` process reads each result, by a command that changes
//! too. A finding is an input below 1 MiB on which it panics, crashes, takes more than [`CPU_SECONDS`] of processor time or
//! [`MEMORY`] of memory, or does not end at all. Findings are stored in the folder, each with the command that reproduces it,
//! and make the exit code 1. Files named on the command line are seeds beside those that are made here.
//!
//! Deliberately absent: coverage feedback, which would need a nightly compiler. Instead, changes follow the formats (`mutate`).

#[path = "../support/random.rs"]
mod random;
#[path = "../support/sample.rs"]
mod sample;

mod mutate;
mod seeds;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::resource::{Resource, setrlimit};

use random::Random;
use seeds::{Seed, Type};

/// The program under test: `CULEAK_BIN`, else the one that was built beside this test.
fn culeak() -> PathBuf {
    let named = std::env::var_os("CULEAK_BIN").map(PathBuf::from);
    let path = named.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_culeak")));
    path.canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const INPUT: usize = 1 << 20;
const CPU_SECONDS: u64 = 2;
const MEMORY: u64 = 256 << 20;
/// Addresses are not memory, so more of them are allowed. Requesting more at once is a finding too.
const ADDRESSES: u64 = 1 << 30;
/// A reader that waits without working is ended after this time. Long, since the machine may be busy.
const WAIT_SECONDS: u32 = 120;

/// How an input is read; `@` is replaced by its path, `%` by that of a valid snapshot.
const COMMANDS: &[&str] = &[
    "report @",
    "report @ --by stack --full-stacks",
    "report @ --view tree",
    "report @ --json",
    "report @ -o .html",
    "report @ -o .svg",
    "check @",
    "check @ --format sarif",
    "check @ --format junit",
    "check @ --baseline %",
    "snapshot @ -o -",
    "diff % @ --force",
    "diff @ % --force -o .svg",
    "trend @ --all",
    "trend % @ --force --all -o .html",
    "export @ -o - --format pprof",
    "export @ -o - --format speedscope",
    "export @ -o - --format folded",
    "export @ -o - --format perfetto",
    "export @ -o - --format firefox",
    "export @ -o - --format csv",
    "export @ -o - --format parquet",
    "export @ -o - --format memory_viz",
];
/// How a snapshot is read that refers to a changed module.
const MODULE_COMMANDS: &[&str] = &["report % --full-stacks", "report % --by stack --json"];

struct Options {
    lasting: Duration,
    random: Random,
    out: PathBuf,
    seeds: Vec<PathBuf>,
}

fn options() -> Options {
    let mut options = Options {
        lasting: Duration::from_secs(60),
        random: Random::new(1),
        out: Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz"),
        seeds: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--seconds" => options.lasting = Duration::from_secs(value().parse().expect("a number of seconds")),
            "--seed" => options.random = Random::new(value().parse().expect("a number")),
            "--out" => options.out = PathBuf::from(value()),
            flag if flag.starts_with("--") => panic!("unknown option {flag}; known are --seconds, --seed and --out"),
            file => options.seeds.push(PathBuf::from(file)),
        }
    }
    options
}

/// The result of one input.
struct Outcome {
    /// Why it is a finding; equal reasons are one finding.
    finding: Option<String>,
    output: String,
}

struct Fuzzer {
    random: Random,
    culeak: PathBuf,
    folder: tempfile::TempDir,
    output: File,
    tried: BTreeMap<Type, u64>,
    findings: BTreeMap<String, u64>,
    out: PathBuf,
}

fn main() -> ExitCode {
    let options = options();
    let folder = tempfile::tempdir().expect("a folder");
    let seeds = seeds::all(folder.path(), &options.seeds);
    let mut fuzzer = Fuzzer {
        random: options.random,
        culeak: culeak(),
        output: tempfile::tempfile().expect("a file"),
        folder,
        tried: BTreeMap::new(),
        findings: BTreeMap::new(),
        out: options.out,
    };
    for seed in &seeds {
        let outcome = fuzzer.read(seed, &seed.bytes, 0);
        assert!(
            outcome.finding.is_none(),
            "{}, unchanged: {:?}\n{}",
            seed.name,
            outcome.finding,
            outcome.output
        );
        assert!(
            !outcome.output.contains("damaged"),
            "{}, unchanged: {}",
            seed.name,
            outcome.output
        );
    }
    let (began, mut reported) = (Instant::now(), Instant::now());
    while began.elapsed() < options.lasting {
        let of = Type::ALL[fuzzer.random.below(Type::ALL.len())];
        let seeds: Vec<&Seed> = seeds.iter().filter(|seed| seed.of == of).collect();
        fuzzer.once(&seeds);
        if reported.elapsed() > Duration::from_secs(60) {
            reported = Instant::now();
            fuzzer.report();
        }
    }
    fuzzer.report();
    ExitCode::from(u8::from(!fuzzer.findings.is_empty()))
}

impl Fuzzer {
    /// Tries one input made from these seeds, which have one type.
    fn once(&mut self, seeds: &[&Seed]) {
        let [seed, other] = [(); 2].map(|()| seeds[self.random.below(seeds.len())]);
        let mut bytes = mutate::changed(seed, other, &mut self.random);
        bytes.truncate(INPUT - 1);
        *self.tried.entry(seed.of).or_default() += 1;
        let command = self.random.below(COMMANDS.len() * MODULE_COMMANDS.len());
        let Outcome { finding, output } = self.read(seed, &bytes, command);
        let Some(finding) = finding else { return };
        let count = self.findings.entry(finding.clone()).or_default();
        *count += 1;
        if *count == 1 {
            let number = self.findings.len();
            self.keep(seed, &bytes, command, &format!("{finding}\n{output}"), number);
        }
    }

    fn report(&self) {
        println!("tried: {:?}; findings: {:#?}", self.tried, self.findings);
    }

    /// The words of a command, and the path of its input.
    fn words(&self, seed: &Seed, command: usize, folder: &Path) -> (Vec<String>, PathBuf) {
        let (commands, input, snapshot) = match seed.of {
            Type::Module => (MODULE_COMMANDS, seeds::MODULE, seed.name.as_str()),
            _ => (COMMANDS, "input", seeds::VALID),
        };
        let word = |word: &str| match word {
            "@" => folder.join(input).display().to_string(),
            "%" => folder.join(snapshot).display().to_string(),
            word => word.to_owned(),
        };
        let words = commands[command % commands.len()].split(' ').map(word);
        (words.collect(), folder.join(input))
    }

    fn read(&mut self, seed: &Seed, bytes: &[u8], command: usize) -> Outcome {
        let (words, input) = self.words(seed, command, self.folder.path());
        fs::write(&input, bytes).expect("room for the input");
        self.output.set_len(0).expect("an empty file");
        self.output.rewind().expect("its beginning");
        let mut child = Command::new(&self.culeak);
        child
            .args(&words)
            .env("CULEAK_CACHE_DIR", "")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.output.try_clone().expect("another descriptor"));
        // SAFETY: only system calls between fork and exec.
        unsafe { child.pre_exec(limited) };
        #[expect(clippy::zombie_processes, reason = "`wait` below waits, and gets its resource usage")]
        let child = child.spawn().expect("culeak starts");
        let (status, used) = wait(child.id());
        let mut output = Vec::new();
        self.output.rewind().expect("its beginning");
        let mut start = (&self.output).take(1 << 16);
        start.read_to_end(&mut output).expect("its output");
        let output = String::from_utf8_lossy(&output).into_owned();
        // Includes the usage of its own children.
        let memory = u64::try_from(used.ru_maxrss).unwrap_or(0) << 10;
        let seconds = used.ru_utime.tv_sec + used.ru_stime.tv_sec;
        let name = words[0].as_str();
        let finding = if libc::WIFSIGNALED(status) {
            let words = output.lines().last().unwrap_or_default();
            Some(format!(
                "{:?}, {name}: signal {}: {words}",
                seed.of,
                libc::WTERMSIG(status)
            ))
        } else if let Some(panic) = output.lines().find(|line| line.contains("panicked at")) {
            Some(
                panic
                    .split_once("panicked at")
                    .map_or(panic, |(_, place)| place)
                    .to_owned(),
            )
        } else if memory > MEMORY {
            Some(format!(
                "{:?}, {name}: more than {} MiB of memory",
                seed.of,
                MEMORY >> 20
            ))
        } else if seconds >= CPU_SECONDS.cast_signed() {
            Some(format!("{:?}, {name}: more than {CPU_SECONDS} s of time", seed.of))
        } else if !matches!(libc::WEXITSTATUS(status), 0..=2) {
            Some(format!(
                "{:?}, {name}: exit code {}",
                seed.of,
                libc::WEXITSTATUS(status)
            ))
        } else {
            None
        };
        Outcome { finding, output }
    }

    /// Stores a finding, so that its command can be run again.
    fn keep(&self, seed: &Seed, bytes: &[u8], command: usize, why: &str, number: usize) {
        let folder = self.out.join(number.to_string());
        fs::create_dir_all(&folder).expect("a folder");
        let (words, input) = self.words(seed, command, &folder);
        fs::write(input, bytes).expect("written");
        for (name, snapshot) in seeds::snapshots_beside(self.folder.path(), &folder) {
            fs::write(folder.join(name), snapshot).expect("written");
        }
        let text = format!("{} {}\n\n{why}\n", self.culeak.display(), words.join(" "));
        fs::write(folder.join("finding"), &text).expect("written");
        println!("{}: {text}", folder.display());
    }
}

fn limited() -> std::io::Result<()> {
    setrlimit(Resource::RLIMIT_CPU, CPU_SECONDS, CPU_SECONDS + 1)?;
    setrlimit(Resource::RLIMIT_AS, ADDRESSES, ADDRESSES)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // SAFETY: a system call. The alarm survives the exec, and by default ends the process.
    unsafe { libc::alarm(WAIT_SECONDS) };
    Ok(())
}

/// Waits for a child and returns how it ended and what it used.
fn wait(pid: u32) -> (i32, libc::rusage) {
    let mut status = 0;
    // SAFETY: plain numbers, for which all zeros is a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the child is ours and nothing else waits for it; both pointers can be written.
    let ended = unsafe { libc::wait4(pid.cast_signed(), &mut status, 0, &mut used) };
    assert_eq!(ended, pid.cast_signed(), "{}", std::io::Error::last_os_error());
    (status, used)
}
