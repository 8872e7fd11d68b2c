//! Which Python lines are the user's own.
//!
//! The path of the file decides: packages are under `site-packages` or `dist-packages`, the standard library is under
//! `lib/python3.x`, and generated code has a name in angle brackets. culeak's adapters stand between a framework and the
//! recorder. The user wrote everything else. Deliberately
//! absent: access to the file itself, which may be on another machine.

use super::{Frame, Role, file_name};

/// The role of a Python line.
pub(super) fn role(function: &str, file: &str) -> Role {
    if file.contains("/culeak/adapters/") {
        Role::Runtime
    } else if is_users(file) {
        Role::User
    } else if PASSES_ON.split_whitespace().any(|known| known == function) {
        Role::Framework
    } else {
        Role::Library
    }
}

/// Whether a Python line is of a wrapper that the user wrote.
pub(super) fn is_users_wrapper(frame: &Frame) -> bool {
    frame.is_wrapper() && is_users(frame.file.unwrap_or_default())
}

/// Package code without information for the reader: each `module(x)` calls it before `forward`.
const PASSES_ON: &str = "Module._wrapped_call_impl Module._call_impl _wrapped_call_impl _call_impl";

fn is_users(file: &str) -> bool {
    !(in_package(file) || in_standard_library(file) || generated(file))
}

fn in_package(file: &str) -> bool {
    ["/site-packages/", "/dist-packages/"]
        .iter()
        .any(|part| file.contains(part))
}

/// `…/lib/python3.12/threading.py`, or in an archive `…/lib/python312.zip/…`.
fn in_standard_library(file: &str) -> bool {
    file.match_indices("/lib/python").any(|(at, mark)| {
        let version = file[at + mark.len()..].split('/').next().unwrap_or_default();
        let version = version.strip_suffix(".zip").unwrap_or(version);
        let version = version.trim_end_matches(['t', 'd']);
        version.starts_with('3') && version.chars().all(|c| c.is_ascii_digit() || c == '.')
    })
}

/// Code that a program generated: `<frozen runpy>`, `<eval_with_key>.7`, output of `torch.compile`. Some names in
/// brackets are the user's: a command line, a prompt, a notebook cell; and what the program said about memory (in snapshots of PyTorch).
fn generated(file: &str) -> bool {
    const TYPED: &str = "<string> <stdin> <ipython-input- <python-input- <console> <metadata> <compiled>";
    let is_typed = || TYPED.split_whitespace().any(|start| file.starts_with(start));
    (file.starts_with('<') && !is_typed()) || file.contains("/torchinductor_")
}

/// The package that a file lies in: `torch` of `…/site-packages/torch/lib/libtorch.so`.
pub fn package_of(path: &str) -> Option<&str> {
    let (_, behind) = path.rsplit_once("-packages/")?;
    behind
        .split('/')
        .next()
        .map(|first| first.strip_suffix(".py").unwrap_or(first))
}

/// The name of a file without what differs between machines: starting with the package, or the file name alone.
pub(super) fn name_in_package(file: &str) -> &str {
    let behind = |mark: &str| file.rfind(mark).map(|at| &file[at + mark.len()..]);
    behind("/site-packages/")
        .or_else(|| behind("/dist-packages/"))
        .unwrap_or_else(|| file_name(file))
}

/// The library that a line belongs to: its package, `Python` for the standard library, `generated code`.
pub(super) fn library(file: &str) -> &str {
    if in_package(file) {
        return package_of(file).unwrap_or_default();
    }
    match in_standard_library(file) || file.starts_with("<frozen ") {
        true => "Python",
        false => "generated code",
    }
}

/// Marks the library lines that called the user's outermost line: `threading`, `runpy`, a test runner.
pub(super) fn fold_outer(frames: &mut [Frame]) {
    let users = |frame: &Frame| frame.is_python() && (frame.role == Role::User || is_users_wrapper(frame));
    if let Some(outermost) = frames.iter().rposition(users) {
        for frame in &mut frames[outermost + 1..] {
            if frame.is_python() {
                frame.role = Role::BelowMain;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_outside_packages_and_the_standard_library_are_the_users() {
        for file in [
            "train.py",
            "/home/me/project/train.py",
            "<string>",
            "<stdin>",
            "<ipython-input-3-0a1b>",
            "/tmp/ipykernel_77/123.py",
            "/home/me/lib/pythonic/a.py",
        ] {
            assert_eq!(role("step", file), Role::User, "{file}");
        }
        for file in [
            "/venv/lib/python3.12/site-packages/torch/nn/functional.py",
            "/usr/lib/python3/dist-packages/numpy/core.py",
            "/usr/lib/python3.11/threading.py",
            "/opt/python/lib/python3.13t/runpy.py",
            "/usr/lib/python312.zip/os.py",
            "<frozen importlib._bootstrap>",
            "<eval_with_key>.7",
            "/tmp/torchinductor_root/ab/cab.py",
        ] {
            assert_eq!(role("step", file), Role::Library, "{file}");
        }
    }

    #[test]
    fn adapters_are_culeaks_own_wherever_they_are_installed() {
        for file in [
            "/venv/lib/python3.12/site-packages/culeak/adapters/vllm.py",
            "/home/me/culeak/cli/python/culeak/adapters/vllm.py",
        ] {
            assert_eq!(role("get_new_blocks", file), Role::Runtime, "{file}");
        }
        assert_eq!(role("step", "/home/me/adapters/vllm.py"), Role::User);
    }

    #[test]
    fn a_line_belongs_to_its_package_or_to_python() {
        for (file, expected) in [
            ("/venv/lib/python3.12/site-packages/torch/nn/functional.py", "torch"),
            ("/venv/lib/python3.12/site-packages/six.py", "six"),
            ("/usr/lib/python3.11/threading.py", "Python"),
            ("<frozen importlib._bootstrap>", "Python"),
            ("<eval_with_key>.7", "generated code"),
        ] {
            assert_eq!(library(file), expected, "{file}");
        }
    }

    #[test]
    fn file_names_do_not_depend_on_the_environment() {
        assert_eq!(
            name_in_package("/a/lib/python3.12/site-packages/torch/nn/f.py"),
            "torch/nn/f.py"
        );
        assert_eq!(name_in_package("/home/me/project/train.py"), "train.py");
    }
}
