//! The class of each block, over all copies.

use culeak::snapshot::{Class, Holders};

use crate::copy::Copy;
use crate::garbage::Garbage;
use crate::graph::{Edge, Graph, NodeId, Phase};
use crate::modules::Modules;
use crate::native::Native;
use crate::python::Python;
use crate::source::Source;
use crate::{Block, Error, Options};

/// What one copy says about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub class: Class,
    /// The node that refers to the block, and by which field; the node is [`NodeId::NONE`] if the block is lost and nothing
    /// points to it. [`Graph::path`] leads to it from the root.
    pub last: (NodeId, Edge),
    /// It points into the block, not to its start.
    pub interior: bool,
    pub phase: Phase,
    /// A part of the path may be stale.
    pub possibly: bool,
    pub note: Option<&'static str>,
}

/// One copy, and all that was found in it.
pub struct Searched<'c, 's> {
    pub copy: &'c Copy<'s>,
    pub modules: Modules,
    pub native: Native,
    pub python: Option<Python>,
    pub graph: Graph,
    pub garbage: Garbage,
    /// By the index of the block.
    pub found: Vec<Found>,
}

/// # Errors
/// See [`crate::search`].
pub fn search(source: &dyn Source, blocks: &[Block], options: &Options) -> Result<Holders, Error> {
    let _ = (source, blocks, options);
    Ok(Holders::default())
}
