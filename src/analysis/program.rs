//! Which program a process runs, so that snapshots of different programs are not compared by mistake.
//!
//! A program is identified by the file name of its executable and, for an interpreter, the script or module that it
//! runs. Folders and the version in an interpreter's name are ignored, because they differ between machines.
//! Deliberately absent: arguments; users compare runs of one program with different options.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::analysis::site::file_name;
use crate::snapshot::{Process, Snapshot};
use crate::wildcard;

/// A program, as far as it is known. An empty executable is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Program {
    pub executable: String,
    /// What an interpreter runs: `train.py`, or `pytest` after `-m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
}

impl Program {
    pub fn of(snapshot: &Snapshot) -> Program {
        Program::of_process(&snapshot.process)
    }

    pub fn of_process(process: &Process) -> Program {
        let file = match process.executable.as_str() {
            "" => process.command_line.first().map_or("", String::as_str),
            path => path,
        };
        let executable = file_name(file.strip_suffix(" (deleted)").unwrap_or(file));
        match INTERPRETERS.iter().find(|interpreter| interpreter.is(executable)) {
            None => Program {
                executable: executable.to_owned(),
                script: None,
            },
            Some(interpreter) => Program {
                executable: interpreter.name.to_owned(),
                script: interpreter.script(process.command_line.get(1..).unwrap_or_default()),
            },
        }
    }

    /// Whether one of its names matches a pattern with wildcards: `train`, `train.py`, `python train.py`.
    pub fn matches(&self, pattern: &str) -> bool {
        let names = [
            Some(self.executable.clone()),
            self.script.clone(),
            Some(self.to_string()),
        ];
        names
            .iter()
            .flatten()
            .any(|name| wildcard::matches(pattern.as_bytes(), name.as_bytes()))
    }

    /// Whether both may be the same program: whatever is known of both is equal.
    pub fn is_like(&self, other: &Program) -> bool {
        let scripts_differ = matches!((&self.script, &other.script), (Some(a), Some(b)) if a != b);
        let unknown = self.executable.is_empty() || other.executable.is_empty();
        unknown || (self.executable == other.executable && !scripts_differ)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.script {
            Some(script) => write!(out, "{} {script}", self.executable),
            None if self.executable.is_empty() => out.write_str("(unknown program)"),
            None => out.write_str(&self.executable),
        }
    }
}

/// A program that runs scripts.
struct Interpreter {
    name: &'static str,
    /// Options that take a value.
    with_value: &'static [&'static str],
    /// The option that names a module in place of a file.
    module: Option<&'static str>,
    /// Options that contain the program itself, which then has no name.
    inline: &'static [&'static str],
}

const INTERPRETERS: [Interpreter; 3] = [
    Interpreter {
        name: "python",
        with_value: &["-X", "-W", "--check-hash-based-pycs"],
        module: Some("-m"),
        inline: &["-c"],
    },
    Interpreter {
        name: "julia",
        with_value: &["-t", "-p", "-L", "-J", "-O", "-C"],
        module: None,
        inline: &["-e", "-E"],
    },
    Interpreter {
        name: "java",
        with_value: &["-cp", "-classpath", "--class-path", "-p", "--module-path"],
        module: Some("-jar"),
        inline: &[],
    },
];

impl Interpreter {
    /// `python`, `python3`, `python3.12`, `python3.13t`.
    fn is(&self, executable: &str) -> bool {
        let version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 't' | 'd'));
        executable.strip_prefix(self.name).is_some_and(version)
    }

    fn script(&self, arguments: &[String]) -> Option<String> {
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let argument = argument.as_str();
            if self.inline.contains(&argument) {
                return None;
            }
            if self.module == Some(argument) {
                return rest.next().map(|module| file_name(module).to_owned());
            }
            if self.with_value.contains(&argument) {
                rest.next();
            } else if !argument.starts_with('-') {
                return Some(file_name(argument).to_owned());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn program(executable: &str, command_line: &[&str]) -> Program {
        let mut sample = Sample::new();
        sample.0.process.executable = executable.to_owned();
        sample.0.process.command_line = command_line.iter().map(|&word| word.to_owned()).collect();
        Program::of(&sample.finish(0, 0))
    }

    #[test]
    fn a_program_is_its_file_name_in_any_folder() {
        let here = program("/opt/v1/train", &["./train", "--epochs", "3"]);
        assert!(here.is_like(&program("/home/ci/train (deleted)", &["train"])));
        assert!(!here.is_like(&program("/opt/v1/serve", &["./serve"])));
        assert_eq!(here.to_string(), "train");
    }

    #[test]
    fn an_interpreter_is_named_after_its_script() {
        let train = program(
            "/usr/bin/python3.12",
            &["python", "-u", "-X", "dev", "src/train.py", "--lr", "1"],
        );
        assert_eq!(train.to_string(), "python train.py");
        assert!(train.is_like(&program("/opt/venv/bin/python3.10", &["python3", "/srv/train.py"])));
        assert!(!train.is_like(&program("/usr/bin/python3.12", &["python", "serve.py"])));
        let module = program("/usr/bin/python3", &["python3", "-m", "pytest", "tests/gpu.py"]);
        assert_eq!(module.script.as_deref(), Some("pytest"));
        let jar = program("/usr/bin/java", &["java", "-cp", "a:b", "-jar", "/srv/serve.jar"]);
        assert_eq!(jar.to_string(), "java serve.jar");
    }

    #[test]
    fn patterns_match_the_executable_the_script_or_both() {
        let train = program("/usr/bin/python3.12", &["python3", "src/train.py"]);
        for pattern in [
            "python",
            "train.py",
            "python train.py",
            "train*",
            "*.py",
            "tr??n.py",
            "*",
        ] {
            assert!(train.matches(pattern), "{pattern}");
        }
        for pattern in ["", "train", "*.pyc", "python3*", "?", "src/train.py"] {
            assert!(!train.matches(pattern), "{pattern}");
        }
        assert!(program("/opt/aab", &[]).matches("*ab") && !program("/opt/aab", &[]).matches("*abb"));
    }

    #[test]
    fn an_unknown_part_is_like_any_other() {
        let inline = program("/usr/bin/python3", &["python3", "-c", "import torch"]);
        assert_eq!(inline.script, None);
        assert!(inline.is_like(&program("/usr/bin/python3", &["python3", "serve.py"])));
        // A process may change its command line.
        assert!(program("/usr/bin/python3", &["worker 1"]).is_like(&inline));
        assert!(program("", &[]).is_like(&inline));
        assert!(!inline.is_like(&program("/usr/bin/pythonic", &["pythonic"])));
    }
}
