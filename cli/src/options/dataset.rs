//! What becomes of recordings in a dataset.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::errors::Failure;

#[derive(Debug, Clone, Args)]
pub struct DatasetArgs {
    /// Name of the job in the dataset [default: the id that its scheduler or launcher gave it, or unnamed]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Leave out the table of single blocks, by far the largest
    #[arg(long)]
    pub no_blocks: bool,
}

/// The names of `--partition`, which clap has split.
///
/// # Errors
/// A name is unknown, or the order is another.
pub fn partition(names: &[String]) -> Result<Vec<String>, Failure> {
    culeak_dataset::marker::partition(names).map_err(|reason| Failure::new(format!("--partition: {reason}")))
}

/// The absolute path of a folder, for engines that run elsewhere.
pub fn absolute(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf())
}
