//! `culeak doctor -- PROGRAM`: whether the library can be preloaded into a program, and what to do if not.

use std::ffi::OsString;
use std::path::Path;

use super::Finding;
use crate::launch::preload::{self, Obstacle};

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
