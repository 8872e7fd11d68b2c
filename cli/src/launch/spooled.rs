//! What is done with recordings of processes that ran no exit handlers: those in a local folder (`culeak::file::spool`) are copied to where
//! the user wants them, and each states that its process has ended.
//!
//! A process that ends by `exit` copies its recording itself. Processes that still run do so later.

use std::path::Path;

use culeak::reader;

use super::environment;
use crate::escape::Escaped;

/// Copies the recordings of a run whose processes have ended. What cannot be copied stays where it is, and readers on this host
/// find it there.
pub fn deliver(folder: &Path, tag: &str) {
    for name in environment::recordings(folder, tag) {
        let path = folder.join(name);
        let Some(spooled) = reader::spooled(&path) else {
            // Without it, copies of the file have no verdict.
            let _ = reader::note_end(&path);
            continue;
        };
        if let Err(error) = spooled.deliver(&path) {
            let (path, spool) = (path.display(), spooled.spool.display());
            let state = match spooled.is_readable() {
                true => format!("it is complete in {spool}"),
                false => format!("{spool} could not be read here"),
            };
            let failure = format!("{path}: the recording could not be copied: {error}; {state}");
            eprintln!("culeak: {}", Escaped(&failure));
        }
    }
}
