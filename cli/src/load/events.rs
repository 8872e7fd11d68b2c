//! Inputs with their event logs.

use std::path::PathBuf;

use culeak::reader;
use culeak::timeline::Timeline;

use super::{Loaded, Place, process};
use crate::errors::Failure;
use crate::output;

impl Place {
    /// Reads the snapshot, and the event log if the source is a recording that has one.
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_with_events(&self) -> Result<(Loaded, Option<Timeline>), Failure> {
        let (path, source, root) = match self {
            Place::Process(pid) => {
                let (path, root) = process::recording_of(*pid)?;
                (path, pid.to_string(), Some(root))
            }
            Place::File(path) => (path.clone(), path.display().to_string(), None::<PathBuf>),
            Place::StandardInput => return Ok((self.load()?, None)),
        };
        // A pipe can be read only once.
        let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file || reader::identity(&path).is_err() {
            return Ok((self.load()?, None));
        }
        if let Ok(metadata) = path.metadata() {
            output::protect(&metadata);
        }
        let (snapshot, timeline) = reader::read_timeline(&path).map_err(|error| Failure::new(error.to_string()))?;
        Ok((Loaded { snapshot, source, root }, timeline))
    }
}
