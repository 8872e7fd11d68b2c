//! The builder: a program, its arguments and surroundings, then `run()`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::compile::{Lookup, run_folder};
use super::outcome::Outcome;
use super::process::{self, Started};
use super::{fake_driver, library, shim, victim};

/// On which side of culeak another library is preloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preload {
    BeforeCuleak,
    AfterCuleak,
}

#[derive(Debug, Clone)]
enum Executable {
    Victim(String, Lookup),
    Program(PathBuf),
}

/// Which libcuda.so.1 the program finds.
#[derive(Debug, Clone, Copy)]
enum Driver {
    Fake,
    Tiny,
    None,
}

/// Where recordings go.
#[derive(Debug, Clone)]
enum Output {
    /// Into `out` of the temporary folder.
    InFolder,
    Pattern(String),
    Unset,
}

#[derive(Debug, Clone)]
pub struct Profile {
    executable: Executable,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    others: Vec<(Preload, PathBuf)>,
    driver: Driver,
    output: Output,
    wrapper: Vec<OsString>,
    recorded: bool,
    hooks_return: bool,
}

/// A victim, linked with the driver unless another lookup is chosen.
pub fn profile(victim: &str) -> Profile {
    Profile::of(Executable::Victim(victim.to_owned(), Lookup::Linked))
}

/// Any other program.
pub fn program(path: impl Into<PathBuf>) -> Profile {
    Profile::of(Executable::Program(path.into()))
}

impl Profile {
    fn of(executable: Executable) -> Profile {
        Profile {
            executable,
            arguments: Vec::new(),
            environment: Vec::new(),
            others: Vec::new(),
            driver: Driver::Fake,
            output: Output::InFolder,
            wrapper: Vec::new(),
            recorded: true,
            hooks_return: true,
        }
    }

    pub fn lookup(mut self, chosen: Lookup) -> Profile {
        if let Executable::Victim(_, lookup) = &mut self.executable {
            *lookup = chosen;
        }
        self
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Profile {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Words separated by spaces.
    pub fn args(mut self, words: &str) -> Profile {
        self.arguments.extend(words.split_whitespace().map(OsString::from));
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Profile {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// One of the recorder's own variables.
    pub fn setting(self, name: &str, value: impl AsRef<OsStr>) -> Profile {
        assert!(name.starts_with("CULEAK_"), "{name} is not a setting of the recorder");
        self.env(name, value)
    }

    /// Calls that fail, as in `cuMemAlloc_v2:3:2`: the third call returns 2.
    pub fn failing(self, calls: &str) -> Profile {
        self.env("CULEAK_FAKE_FAIL", calls)
    }

    /// A driver without locks, which signals may interrupt anywhere (`tests/victims/tiny_driver.c`).
    pub fn tiny_driver(mut self) -> Profile {
        self.driver = Driver::Tiny;
        self
    }

    pub fn without_driver(mut self) -> Profile {
        self.driver = Driver::None;
        self
    }

    pub fn with_preload(mut self, place: Preload, path: PathBuf) -> Profile {
        self.others.push((place, path));
        self
    }

    /// Pattern for the recording's path; `{}` is replaced by the output folder.
    pub fn output(mut self, pattern: &str) -> Profile {
        self.output = Output::Pattern(pattern.to_owned());
        self
    }

    /// Leaves the path of the recording to the recorder.
    pub fn output_unset(mut self) -> Profile {
        self.output = Output::Unset;
        self
    }

    /// Words before the program: a shell that sets a limit, `setpriv` … They run without the recorder.
    pub fn wrapped_in(mut self, words: &[&str]) -> Profile {
        self.wrapper = words.iter().map(OsString::from).collect();
        self
    }

    /// Hooks are left by jumps or end with their threads, so a record may lack its counter.
    pub fn leaving_hooks_halfway(mut self) -> Profile {
        self.hooks_return = false;
        self
    }

    pub fn hooks_return(&self) -> bool {
        self.hooks_return
    }

    /// Without the recorder, for comparison.
    pub fn bare(mut self) -> Profile {
        self.recorded = false;
        self
    }

    /// Runs it to its end.
    pub fn run(self) -> Outcome {
        self.run_in(folder())
    }

    /// Runs it in a folder that the claim prepared.
    pub fn run_in(self, folder: TempDir) -> Outcome {
        let ended = process::run(&mut self.command(folder.path()));
        Outcome::new(ended, folder, self)
    }

    /// Starts it, for claims about a running process.
    pub fn start_in(&self, folder: &Path) -> Started {
        process::start(&mut self.command(folder))
    }

    /// The command, for claims that start it themselves.
    pub fn command(&self, folder: &Path) -> Command {
        let executable = match &self.executable {
            Executable::Victim(name, lookup) => victim(name, *lookup),
            Executable::Program(path) => path.clone(),
        };
        let out = folder.join("out");
        fs::create_dir_all(&out).expect("the output folder");
        fs::create_dir_all(folder.join("work")).expect("the working folder");
        let mut recorder: Vec<(OsString, OsString)> = Vec::new();
        let mut preload: Vec<PathBuf> = self.preloads(Preload::BeforeCuleak);
        if self.recorded {
            preload.push(shim());
            let pattern = match &self.output {
                Output::InFolder => Some(out.join("%e.%h.%p.culeak").into_os_string()),
                Output::Pattern(pattern) => Some(pattern.replace("{}", &out.to_string_lossy()).into()),
                Output::Unset => None,
            };
            recorder.extend(pattern.map(|pattern| ("CULEAK_OUTPUT".into(), pattern)));
        }
        preload.extend(self.preloads(Preload::AfterCuleak));
        if !preload.is_empty() {
            let list: Vec<&OsStr> = preload.iter().map(|path| path.as_os_str()).collect();
            recorder.push(("LD_PRELOAD".into(), list.join(OsStr::new(":"))));
        }
        recorder.push(("LD_LIBRARY_PATH".into(), self.driver.folder().into_os_string()));
        recorder.extend(self.environment.iter().cloned());

        // The wrapper itself runs without these variables: `env` sets them for the program alone.
        let mut words = self.wrapper.clone();
        if !words.is_empty() {
            words.push("env".into());
            for (name, value) in recorder.drain(..) {
                let mut assignment = name;
                assignment.push("=");
                assignment.push(value);
                words.push(assignment);
            }
        }
        words.push(executable.into_os_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(&self.arguments);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", folder)
            .env("LC_ALL", "C")
            .env("CULEAK_CACHE_DIR", "");
        command.envs(recorder).current_dir(folder.join("work"));
        command
    }

    fn preloads(&self, place: Preload) -> Vec<PathBuf> {
        self.others
            .iter()
            .filter(|other| other.0 == place)
            .map(|other| other.1.clone())
            .collect()
    }
}

/// A temporary folder: recordings go to `out`, the program starts in `work`.
pub fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("claim-")
        .tempdir_in(run_folder())
        .expect("a temporary folder")
}

/// A folder for LD_LIBRARY_PATH whose libcuda.so.1 is the fake driver.
pub fn fake_driver_folder() -> PathBuf {
    Driver::Fake.folder()
}

impl Driver {
    /// A folder for LD_LIBRARY_PATH whose libcuda.so.1 is this driver.
    fn folder(self) -> PathBuf {
        static FAKE: OnceLock<PathBuf> = OnceLock::new();
        static TINY: OnceLock<PathBuf> = OnceLock::new();
        match self {
            Driver::None => PathBuf::new(),
            Driver::Fake => FAKE
                .get_or_init(|| {
                    let folder = run_folder().join("fake-driver");
                    fs::create_dir_all(&folder).expect("a folder for the driver");
                    symlink(fake_driver(), folder.join("libcuda.so.1")).expect("the driver under its usual name");
                    folder
                })
                .clone(),
            Driver::Tiny => TINY
                .get_or_init(|| {
                    let file = library("tiny_driver", "libcuda.so.1", &["-fvisibility=hidden"], &[]);
                    file.parent().expect("a file has a folder").to_owned()
                })
                .clone(),
        }
    }
}
