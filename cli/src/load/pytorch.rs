//! The version of PyTorch that a process used, from `version.py` in the folder of its libraries.

use std::io::Read;

use culeak::analysis::whatif::version::LIBRARY;
use culeak::reader::open_regular;

use super::Loaded;
use crate::symbolize::locate::candidates;

/// The file is half a kilobyte long.
const MOST: u64 = 4096;

/// Notes the version, if it is not known and the files are there.
pub fn note_version(loaded: &mut Loaded) {
    if loaded.snapshot.process.pytorch.is_some() {
        return;
    }
    let paths = loaded.snapshot.modules.iter().map(|module| module.path.as_str());
    // `torch/lib/libc10_cuda.so` and `torch/version.py`
    let folder = paths
        .filter_map(|path| path.strip_suffix(LIBRARY)?.strip_suffix("/lib"))
        .next();
    let files = folder.map(|folder| candidates(&format!("{folder}/version.py"), loaded.root.as_deref()));
    loaded.snapshot.process.pytorch = files.into_iter().flatten().find_map(|file| {
        let mut text = String::new();
        open_regular(&file).ok()?.take(MOST).read_to_string(&mut text).ok()?;
        stated(&text)
    });
}

/// `__version__ = '2.11.0+cu130'`
fn stated(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    let version = value.trim().strip_prefix('\'')?.strip_suffix('\'')?;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".+-_".contains(letter);
    version.chars().all(is_plain).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_text_between_quotes() {
        let text =
            "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.11.0+cu130'\ndebug = False\n";
        assert_eq!(stated(text).as_deref(), Some("2.11.0+cu130"));
        for other in ["", "__version__ = version()", "__version__ = '2.\u{1b}[31m'"] {
            assert_eq!(stated(other), None, "{other}");
        }
    }
}
