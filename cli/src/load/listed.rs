//! Inputs that an argument only describes: patterns that the shell did not expand, and lists on standard input.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use culeak::{reader, wildcard};

use crate::pickle;

/// The lines of a list, at most.
const LINES: usize = 1_000_000;
/// The bytes of a line: those of the longest path.
const LINE: usize = nix::libc::PATH_MAX as usize;

/// The files and folders in a folder whose names are wanted, sorted; none if it cannot be read. An empty path is the current folder.
pub fn in_folder(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let here = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let names = std::fs::read_dir(here)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let wanted = names.filter(|name| is_wanted(&name.to_string_lossy()));
    let mut paths: Vec<PathBuf> = wanted.map(|name| folder.join(name)).collect();
    paths.sort();
    paths
}

/// The paths that match a pattern such as `runs/*/*.culeak`, sorted; `None`: the argument is not a pattern, or names a file.
pub fn matching(argument: &OsStr) -> Option<Vec<PathBuf>> {
    let is_pattern = |text: &OsStr| text.as_bytes().iter().any(|byte| b"*?".contains(byte));
    let path = Path::new(argument);
    if !is_pattern(argument) || path.exists() {
        return None;
    }
    let mut found = vec![PathBuf::new()];
    for part in path.components() {
        let part = part.as_os_str();
        if !is_pattern(part) {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        // As in a shell, a name that begins with a dot needs a pattern that does.
        let is_hidden = |name: &str| name.starts_with('.') && !part.as_bytes().starts_with(b".");
        let matches = |name: &str| !is_hidden(name) && wildcard::matches(part.as_bytes(), name.as_bytes());
        let all = found.iter().flat_map(|folder| in_folder(folder, matches));
        found = all.collect();
    }
    found.retain(|path| path.exists());
    found.sort();
    Some(found)
}

/// The inputs that standard input lists, one per line; `None`: it contains a snapshot or a recording.
///
/// # Errors
/// It cannot be read, or is longer than a list of inputs.
pub fn on_standard_input() -> io::Result<Option<Vec<OsString>>> {
    let mut input = io::stdin().lock();
    let start = input.fill_buf()?;
    let first = start.iter().find(|byte| !byte.is_ascii_whitespace());
    let is_snapshot =
        first.is_none_or(|first| *first == b'{') || reader::is_recording(start) || pickle::is_pickle(start);
    // Recordings and other binary files contain zeros, names of files none.
    if is_snapshot || start.contains(&0) {
        return Ok(None);
    }
    lines(&mut input, LINES).map(Some)
}

/// The lines that are not empty.
fn lines(input: &mut impl BufRead, most: usize) -> io::Result<Vec<OsString>> {
    let bad = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut lines = Vec::new();
    for number in 1.. {
        let mut line = Vec::new();
        // Its end may be two bytes.
        input.by_ref().take(LINE as u64 + 2).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        if number > most {
            return Err(bad(format!(
                "a list of more than {most} lines; pass the folders instead"
            )));
        }
        for end in [b'\n', b'\r'] {
            if line.last() == Some(&end) {
                line.pop();
            }
        }
        if line.len() > LINE {
            return Err(bad(format!(
                "line {number} is longer than {LINE} bytes, so it names no input; write one path in each line"
            )));
        }
        if !line.is_empty() {
            lines.push(OsString::from_vec(line));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_input_per_line_and_an_end() {
        let read = |text: &str, most: usize| lines(&mut text.as_bytes(), most).map_err(|error| error.to_string());
        let path = "p".repeat(LINE);
        let text = format!("a b\r\n\n4711\n{path}\nruns/*");
        let expected: Vec<OsString> = ["a b", "4711", &path, "runs/*"].map(OsString::from).to_vec();
        assert_eq!(read(&text, 5), Ok(expected));
        assert_eq!(
            read(&text, 4),
            Err("a list of more than 4 lines; pass the folders instead".to_owned())
        );
        let long = read(&format!("a\n{path}p"), 5).expect_err("too long");
        assert!(long.starts_with("line 2 is longer than 4096 bytes"), "{long}");
    }

    #[test]
    fn a_pattern_stands_for_the_files_that_match_it() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a/1.culeak", "a/2.culeak", "b/1.culeak", "b/.3.culeak", "b/notes"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, "").expect("written");
        }
        let find = |pattern: &str| {
            let found = matching(folder.path().join(pattern).as_os_str())?;
            let below = found
                .iter()
                .map(|path| path.strip_prefix(folder.path()).expect("below").display().to_string());
            Some(below.collect::<Vec<_>>())
        };
        assert_eq!(
            find("*/1.culeak"),
            Some(vec!["a/1.culeak".to_owned(), "b/1.culeak".to_owned()])
        );
        assert_eq!(find("b/*.culeak"), Some(vec!["b/1.culeak".to_owned()]));
        assert_eq!(find("?/n*"), Some(vec!["b/notes".to_owned()]));
        assert_eq!(find("*/nothing"), Some(Vec::new()));
        assert_eq!(find("a/1.culeak"), None);
        std::fs::write(folder.path().join("odd*name"), "").expect("written");
        assert_eq!(find("odd*name"), None);
    }
}
