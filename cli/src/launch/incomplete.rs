//! What a run did not record, left beside its recordings: a later check of their folder has no verdict then.
//!
//! `TAG.culeak-incomplete` has one line for each sentence; in front of it are the id of the process that it speaks of, if it is of one
//! that still ran, and a tab.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::environment::tag_part;

/// The ending of the file's name.
pub const ENDING: &str = "culeak-incomplete";

/// Something that was not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The process, if it still ran; it may leave its recording later.
    pub pid: Option<u32>,
    pub sentence: String,
}

/// Writes the file; none if nothing is lacking.
///
/// # Errors
/// The folder cannot be written.
pub fn leave(folder: &Path, tag: &str, lacks: &[Lack]) -> io::Result<()> {
    let line = |lack: &Lack| {
        let pid = lack.pid.map(|pid| pid.to_string()).unwrap_or_default();
        format!("{pid}\t{}\n", lack.sentence.replace('\n', " "))
    };
    match lacks {
        [] => Ok(()),
        lacks => fs::write(
            folder.join(format!("{tag}.{ENDING}")),
            lacks.iter().map(line).collect::<String>(),
        ),
    }
}

/// What the file says, unless the process has left its recording meanwhile. `recordings`: those beside it.
pub fn read<'p>(file: &Path, recordings: impl Iterator<Item = &'p PathBuf> + Clone) -> Vec<String> {
    let shown = file.display();
    let text = match fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return vec![format!("{shown}: what its run did not record is unknown: {error}")],
    };
    let tag = tag_part(&file.file_stem().unwrap_or_default().to_string_lossy());
    let has_recording = |pid: &str| {
        let (own, mut recordings) = (format!(".{pid}."), recordings.clone());
        recordings.any(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.split_once(&tag)
                .is_some_and(|(_, rest)| format!(".{rest}").contains(&own))
        })
    };
    let lines = text.lines().map(|line| line.split_once('\t').unwrap_or(("", line)));
    let left = lines.filter(|(pid, _)| pid.is_empty() || !has_recording(pid));
    left.map(|(_, sentence)| format!("{shown}: {sentence}; if that does not matter, remove this file"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_lacks_is_read_until_the_process_has_left_its_recording() {
        let folder = tempfile::tempdir().expect("a folder");
        let lack = |pid, sentence: &str| Lack {
            pid,
            sentence: sentence.to_owned(),
        };
        leave(folder.path(), "k3f9", &[]).expect("nothing is written");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        leave(
            folder.path(),
            "k3f9",
            &[lack(None, "one is\nlost"), lack(Some(7), "app still runs")],
        )
        .expect("written");
        let file = folder.path().join("k3f9.culeak-incomplete");
        let sentences = |names: &[&str]| {
            let recordings: Vec<PathBuf> = names.iter().map(|name| folder.path().join(name)).collect();
            read(&file, recordings.iter())
        };
        let both = sentences(&[
            "app.k3f9.host.8.culeak",
            "app.other.host.7.culeak",
            "7.k3f9.host.77.culeak",
        ]);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(
            both[0].contains(": one is lost; ") && both[1].contains("app still runs"),
            "{both:?}"
        );
        assert_eq!(sentences(&["app.k3f9.host.7.culeak"]).len(), 1);
        assert!(read(Path::new("/nonexistent/a.culeak-incomplete"), [].iter())[0].contains("is unknown"));
    }
}
