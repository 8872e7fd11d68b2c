//! What a run did not record, left beside its recordings: a later check of their folder has no verdict then.
//!
//! `TAG.culeak-incomplete` has one sentence in each line. While the run lasts, it says that.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use tempfile::NamedTempFile;

/// The ending of the file's name.
pub const ENDING: &str = "culeak-incomplete";

/// The sentence of a run that has not ended.
pub const RUNNING: &str = "its run has not ended, or was killed, so more processes may follow";

/// The part that the names of a run's recordings have in common.
pub fn tag_part(tag: &str) -> String {
    format!(".{tag}.")
}

/// Writes the file, or removes it if nothing is lacking.
///
/// # Errors
/// The folder cannot be written.
pub fn leave(folder: &Path, tag: &str, sentences: &[String]) -> io::Result<()> {
    let file = folder.join(format!("{tag}.{ENDING}"));
    let lines = sentences.iter().map(|sentence| sentence.replace('\n', " ") + "\n");
    match sentences {
        [] => match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        _ => {
            let whole = NamedTempFile::new_in(folder)?;
            fs::write(whole.path(), lines.collect::<String>())?;
            whole.persist(&file)?;
            Ok(())
        }
    }
}

/// A sentence of [`read`] from the name of the file on; any other sentence is returned whole.
pub fn note_in(sentence: &str) -> &str {
    let name = sentence.rfind(ENDING).and_then(|end| sentence[..end].rfind('/'));
    &sentence[name.map_or(0, |slash| slash + 1)..]
}

/// What the file says.
pub fn read(file: &Path) -> Vec<String> {
    let shown = file.display();
    /// A note has a line for each of a few reasons.
    const LONGEST: u64 = 16 << 10;
    let mut bytes = Vec::new();
    let read = match fs::metadata(file) {
        Ok(of) if of.is_file() => File::open(file).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes)),
        Ok(_) => Err(io::Error::other("it is no regular file")),
        Err(error) => Err(error),
    };
    if let Err(error) = read {
        return vec![format!(
            "{shown}: what its run did not record is unknown ({error}); if that does not matter, remove this file"
        )];
    }
    let text = String::from_utf8_lossy(&bytes);
    let accept = "if that does not matter, remove this file";
    match text.trim() {
        "" => vec![format!(
            "{shown}: it is empty, so what its run did not record is unknown; {accept}"
        )],
        text => text.lines().map(|line| format!("{shown}: {line}; {accept}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_lacks_is_read_until_nothing_is_lacking() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("k3f9.culeak-incomplete");
        let leave = |sentences: &[&str]| {
            let sentences: Vec<String> = sentences.iter().map(|&sentence| sentence.to_owned()).collect();
            super::leave(folder.path(), "k3f9", &sentences).expect("written");
        };
        leave(&[]);
        leave(&["one is\nlost", "app (7) still ran"]);
        let both = read(&file);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(
            both[0].contains(": one is lost; ") && both[1].contains("app (7) still ran"),
            "{both:?}"
        );
        assert_eq!(
            note_in("/a.culeak-incomplete/k3f9.culeak-incomplete: one"),
            "k3f9.culeak-incomplete: one"
        );
        leave(&[]);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        fs::write(&file, "").expect("written");
        assert!(read(&file)[0].contains("is empty"));
        // Nothing is read from a device.
        fs::remove_file(&file).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", &file).expect("a link");
        assert!(read(&file)[0].contains("no regular file"));
        assert!(read(Path::new("/nonexistent/a.culeak-incomplete"))[0].contains("is unknown"));
    }
}
