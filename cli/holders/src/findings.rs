//! What the search of one copy found, and what it says about each block.

use culeak::snapshot::{Class, Stop};

use crate::budget::{Budget, LeftOut};
use crate::copy::Image;
use crate::garbage::Garbage;
use crate::graph::{Edge, Graph, NodeId, Pairs, Phase};
use crate::modules::Modules;
use crate::native::Native;
use crate::python::Python;
use crate::{Map, Set};

/// What one copy says about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    pub class: Class,
    /// The node that refers to the block, and by which field; the node is [`NodeId::NONE`] if the block is lost and nothing
    /// points to it. [`Graph::parent`] leads from it to the root.
    pub last: (NodeId, Edge),
    /// It points into the block, not to its start.
    pub interior: bool,
    /// It points to the reserved range of addresses in which the block is mapped.
    pub by_range: bool,
    pub phase: Phase,
    /// A part of the path may be stale.
    pub possibly: bool,
    /// The address of a word that no node contains: the native pointer to the first Python object on the path of a native
    /// holder, or the pointer to the block in memory of an unknown allocator.
    pub pointer: Option<u64>,
    pub note: Option<&'static str>,
}

/// One copy, and all that was found in it.
pub struct Findings<'c, 's> {
    pub copy: &'c Image<'s>,
    pub modules: Modules,
    pub native: Native,
    pub python: Option<Python>,
    pub graph: Graph,
    pub garbage: Garbage,
    /// By the index of the block.
    pub found: Vec<Explanation>,
    /// References that hold nothing.
    pub(crate) stale: Pairs,
    /// Objects of C++ that own each other, and all that these own: no reference from outside frees them.
    pub(crate) circles: Set<NodeId>,
    /// The cycles through Python and C++ that hold blocks, by the object that the paths to blocks begin with.
    pub(crate) rings: Map<NodeId, Ring>,
    /// References that may hold something, but free nothing for certain.
    pub(crate) unusual: Vec<(NodeId, NodeId)>,
    /// References that led to no live object.
    pub torn: u64,
    /// Bytes of shared memory that were not searched.
    pub left_out: u64,
    /// Why the search stopped before it was done.
    pub stopped: Option<Stop>,
    /// What it did not search then.
    pub left_out_by_stop: LeftOut,
    /// What may be read for the sums of host memory.
    pub(crate) budget: Budget,
}

/// A cycle.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring {
    /// Each object with its reference to the next one; the last one refers to the first, or to the object that is one with it.
    pub nodes: Vec<(NodeId, Edge)>,
    /// Python's collector frees it.
    pub is_collected: bool,
    /// It was not the same when it was read again.
    pub may_differ: bool,
}

pub(crate) const CIRCLE: &str = "objects of C++ that own each other hold it, so no reference from outside frees it";
