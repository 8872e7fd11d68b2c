//! `culeak doctor -- PROGRAM`: whether the library can be preloaded into a program, and what to do if not.

use std::ffi::OsString;
use std::path::Path;

use super::Finding;
use crate::launch::preload::{self, Obstacle};
use crate::options::NameArgs;
use crate::symbolize::has_lines;

/// Examines the program, which is the first word, as `culeak run` does.
pub fn program(words: &[OsString]) -> Vec<Finding> {
    let Some((command, arguments)) = words.split_first() else {
        return Vec::new();
    };
    let typed = Path::new(command).display().to_string();
    let found = match preload::examine(command, arguments) {
        Ok(found) => found,
        Err(failure) => return vec![Finding::fail(typed, failure, "culeak run needs a program that exists")],
    };
    if found.obstacles.is_empty() {
        let text = match found.address_sanitizer {
            true => "can be recorded; its AddressSanitizer stays first in LD_PRELOAD",
            false => "can be recorded",
        };
        let executed = found.executable.display();
        return vec![Finding::ok(typed, format_args!("{text} ({executed})"))];
    }
    let findings = found.obstacles.iter();
    findings
        .map(|obstacle| Finding::fail(typed.clone(), obstacle.what(), remedy(obstacle, &found.executable)))
        .collect()
}

/// Whether call sites in the program will have lines; `None` if no program is named, or it is an interpreter or the system's own.
pub fn symbols(words: &[OsString]) -> Option<Finding> {
    let (command, arguments) = words.split_first()?;
    let executable = preload::examine(command, arguments).ok()?.executable;
    let name = executable.file_name()?.to_string_lossy().into_owned();
    let is_of_system = ["/usr/bin", "/usr/sbin", "/usr/lib", "/bin", "/sbin"]
        .iter()
        .any(|folder| executable.starts_with(folder));
    if is_of_system || name.starts_with("python") {
        return None;
    }
    Some(
        match has_lines(&executable, &NameArgs::default().places(None).debug_dirs)? {
            true => Finding::ok(
                "symbols",
                format_args!("{name} has debug information: call sites have lines"),
            ),
            false => Finding::warn(
                "symbols",
                format_args!("{name} has no debug information: call sites have no lines"),
                "build it with -g, or point --debug-dir of culeak report at its debug files",
            ),
        },
    )
}

/// Programs whose only purpose is to start another one with other privileges.
const STARTERS: [&str; 4] = ["sudo", "su", "doas", "pkexec"];

fn remedy(obstacle: &Obstacle, executable: &Path) -> String {
    let path = executable.display();
    let name = executable
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    match obstacle {
        Obstacle::Static => {
            "link it again without -static; a static CUDA runtime, nvcc's default, is no obstacle".to_owned()
        }
        Obstacle::Privileged(_) if STARTERS.contains(&name.as_str()) => {
            format!("start culeak inside it: {}", preload::inside(&name))
        }
        Obstacle::Privileged(_) => {
            format!("record a copy, which has no privileges: cp {path} /tmp/{name} && culeak run -- /tmp/{name}")
        }
        Obstacle::OtherArchitecture(theirs) => {
            format!("run a culeak that is built for {theirs} in the same place: culeak help install")
        }
        Obstacle::OtherLibc(_) => {
            "run it in an image with glibc, which CUDA needs too: docker run --gpus all debian:12 …".to_owned()
        }
        Obstacle::DropsPreload { inside, .. } => format!("start culeak inside it: {inside}"),
        Obstacle::StartsElsewhere(_) => {
            let page = match name.as_str() {
                "kubectl" => "kubernetes",
                "systemd-run" => "systemd",
                "ssh" => return "ssh HOST culeak run -o DIR -- PROGRAM, with culeak installed there".to_owned(),
                _ => "containers",
            };
            format!("{name} … culeak run -o DIR -- PROGRAM, with culeak installed there; see culeak help {page}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::text_of;
    use super::*;

    #[test]
    fn a_program_without_debug_information_is_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("main.c"), "int main(void) { return 0; }\n").expect("written");
        let looked_at = |name: &str, flags: &[&str]| {
            let mut compiler = std::process::Command::new("cc");
            compiler.args(flags).arg("-o").arg(path(name)).arg(path("main.c"));
            assert!(compiler.status().is_ok_and(|status| status.success()), "{flags:?}");
            text_of(symbols(&[path(name).into()]).as_slice())
        };
        let without = "has no debug information: call sites have no lines → build it with -g, or point --debug-dir";
        assert_eq!(
            looked_at("train", &["-g"]),
            "Ok symbols: train has debug information: call sites have lines → \n"
        );
        assert!(looked_at("bare", &[]).starts_with(&format!("Warn symbols: bare {without}")));
        assert!(looked_at("stripped", &["-s"]).starts_with(&format!("Warn symbols: stripped {without}")));
        assert!(symbols(&["sh".into()]).is_none(), "the system's own");
    }

    #[test]
    fn each_obstacle_has_a_command_and_an_ordinary_program_none() {
        assert!(text_of(&program(&["sh".into()])).starts_with("Ok sh: can be recorded (/"));
        let missing = text_of(&program(&["no-such-program".into()]));
        assert!(
            missing.starts_with("Fail no-such-program: ") && missing.contains("not found in PATH"),
            "{missing}"
        );
        let at = Path::new("/opt/app/train");
        for (obstacle, what, command) in [
            (Obstacle::Static, "statically linked", "without -static"),
            (
                Obstacle::Privileged("is setuid"),
                "is setuid",
                "cp /opt/app/train /tmp/train && culeak run -- /tmp/train",
            ),
            (
                Obstacle::OtherArchitecture("aarch64".to_owned()),
                "built for aarch64",
                "a culeak that is built for aarch64",
            ),
            (
                Obstacle::OtherLibc("/lib/ld-musl-x86_64.so.1".to_owned()),
                "ld-musl",
                "debian:12",
            ),
            (
                Obstacle::StartsElsewhere("in a container".to_owned()),
                "in a container",
                "culeak run -o DIR -- PROGRAM",
            ),
        ] {
            assert!(obstacle.what().contains(what), "{}", obstacle.what());
            assert!(remedy(&obstacle, at).contains(command), "{}", remedy(&obstacle, at));
        }
        let sudo = remedy(&Obstacle::Privileged("is setuid"), Path::new("/usr/bin/sudo"));
        assert_eq!(sudo, "start culeak inside it: sudo culeak run -- PROGRAM");
        // The first word of su is a user.
        let su = remedy(&Obstacle::Privileged("is setuid"), Path::new("/usr/bin/su"));
        assert_eq!(su, "start culeak inside it: su -c 'culeak run -- PROGRAM'");
    }
}
