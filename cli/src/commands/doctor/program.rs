//! `culeak doctor -- PROGRAM`: whether the library can be preloaded into a program, and what to do if not.

use std::ffi::OsString;
use std::path::Path;

use super::Finding;
use crate::launch::preload;
use crate::load::NameArgs;
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
        .map(|obstacle| Finding::fail(typed.clone(), obstacle, obstacle.remedy(&found.executable)))
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

#[cfg(test)]
mod tests {
    use super::super::tests::text_of;
    use super::*;
    use crate::launch::preload::Obstacle;

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
            assert!(obstacle.to_string().contains(what), "{obstacle}");
            assert!(obstacle.remedy(at).contains(command), "{}", obstacle.remedy(at));
        }
        let sudo = Obstacle::Privileged("is setuid").remedy(Path::new("/usr/bin/sudo"));
        assert_eq!(sudo, "start culeak inside it: sudo culeak run -- PROGRAM");
        // The first word of su is a user.
        let su = Obstacle::Privileged("is setuid").remedy(Path::new("/usr/bin/su"));
        assert_eq!(su, "start culeak inside it: su -c 'culeak run -- PROGRAM'");
    }
}
