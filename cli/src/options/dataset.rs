//! What becomes of recordings in a dataset.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct DatasetArgs {
    /// Name of the job in the dataset [default: the id that its scheduler or launcher gave it, or unnamed]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// Leave out the table of single blocks, by far the largest
    #[arg(long)]
    pub no_blocks: bool,
}
