//! The class of each block, over all copies.

use culeak::snapshot::Holders;

use crate::source::Source;
use crate::{Block, Error, Options};

/// # Errors
/// See [`crate::search`].
pub fn search(source: &dyn Source, blocks: &[Block], options: &Options) -> Result<Holders, Error> {
    let _ = (source, blocks, options);
    Ok(Holders::default())
}
