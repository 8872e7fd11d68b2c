//! Paths in the user's words; dominators and retained bytes.

use culeak::snapshot::{Holders, Search};

use crate::classes::Searched;
use crate::{Block, Options};

/// Collects the paths of all blocks.
pub struct Paths {}

impl Paths {
    pub fn new(blocks: &[Block], options: &Options) -> Paths {
        let _ = (blocks, options);
        Paths {}
    }

    /// Takes the paths of these blocks (indices) from a copy. They replace those of an earlier copy. Called once per copy.
    pub fn add(&mut self, searched: &mut Searched, these: &[usize]) {
        let _ = (searched, these);
    }

    /// All blocks have been added.
    pub fn finish(self, search: Search) -> Holders {
        Holders {
            search,
            ..Holders::default()
        }
    }
}
