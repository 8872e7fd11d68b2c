//! The file that makes a folder a dataset: its version, and the columns that folders are named after.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::schema::PARTITIONS;
use crate::{FORMAT, VERSION};

pub const MARKER: &str = "culeak-dataset.json";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub format: String,
    pub version: u32,
    pub partition: Vec<String>,
}

/// Why a dataset cannot be used or written: path and reason.
#[derive(Debug)]
pub struct Problem {
    pub path: PathBuf,
    pub reason: String,
}

impl Problem {
    pub(crate) fn new(path: &Path, reason: impl ToString) -> Problem {
        Problem {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }
}

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Problem {
    move |error| Problem::new(path, error)
}

/// Checks the names of partition columns.
///
/// # Errors
/// A name is unknown, or the order is not that of [`PARTITIONS`].
pub fn partition(names: &[String]) -> Result<Vec<String>, String> {
    let places: Option<Vec<usize>> = names
        .iter()
        .map(|name| PARTITIONS.iter().position(|known| known == name))
        .collect();
    match places {
        Some(places) if !places.is_empty() && places.windows(2).all(|pair| pair[0] < pair[1]) => Ok(names.to_vec()),
        _ => Err(format!(
            "expected some of {}, in this order, separated by commas",
            PARTITIONS.join(", ")
        )),
    }
}

/// The partition columns of the dataset in a folder.
///
/// # Errors
/// There is no dataset, or one of another version.
pub fn partition_of(folder: &Path) -> Result<Vec<String>, Problem> {
    let marker = folder.join(MARKER);
    let text = fs::read(&marker).map_err(at(&marker))?;
    marker_of(&marker, &text).map(|marker| marker.partition)
}

pub(crate) fn marker_of(path: &Path, text: &[u8]) -> Result<Marker, Problem> {
    let known: Marker = serde_json::from_slice(text).map_err(|error| Problem::new(path, error))?;
    if known.format != FORMAT || known.version != VERSION {
        return Err(Problem::new(
            path,
            format!(
                "a dataset of version {}, this build reads and writes version {VERSION}; choose another folder, or use another release",
                known.version
            ),
        ));
    }
    partition(&known.partition).map_err(|reason| Problem::new(path, reason))?;
    Ok(known)
}
