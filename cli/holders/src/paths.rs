//! Paths in the user's words; dominators and retained bytes.

use culeak::snapshot::{HeldBlock, HolderPath, Holders, Search, Step};

use crate::classes::Searched;
use crate::graph::NodeKind;
use crate::{Block, Options};

/// Collects the paths of all blocks.
pub struct Paths {
    blocks: Vec<Block>,
    paths: Vec<HolderPath>,
}

impl Paths {
    pub fn new(blocks: &[Block], _options: &Options) -> Paths {
        Paths {
            blocks: blocks.to_vec(),
            paths: vec![HolderPath::default(); blocks.len()],
        }
    }

    /// Takes the paths of these blocks (indices) from a copy. They replace those of an earlier copy. Called once per copy.
    pub fn add(&mut self, searched: &mut Searched, these: &[usize]) {
        for block in these {
            let found = searched.found[*block];
            let mut nodes = searched.graph.path(found.last.0);
            nodes.push(found.last);
            let mut path = HolderPath {
                class: found.class,
                origin: format!("{:?} {:?}", found.phase, searched.graph.root(nodes[0].0)),
                possibly: found.possibly,
                interior: found.interior,
                note: found.note.map(|note| note.to_owned()),
                ..HolderPath::default()
            };
            for (node, edge) in &nodes {
                let address = searched.graph.address(*node);
                let holder = match searched.graph.kind(*node) {
                    NodeKind::Python => {
                        let python = searched.python.as_mut().unwrap();
                        let of = python.object(searched.copy, address).unwrap();
                        format!("{}+{}", python.name(searched.copy, address, of), edge.index())
                    }
                    kind => format!("{kind:?} {address:x}+{}", edge.index()),
                };
                path.steps.push(Step {
                    via: String::new(),
                    holder,
                });
            }
            self.paths[*block] = path;
        }
    }

    /// All blocks have been added.
    pub fn finish(self, search: Search) -> Holders {
        let blocks = (self.blocks.iter().enumerate())
            .map(|(path, block)| HeldBlock {
                address: block.address,
                bytes: block.bytes,
                path,
                ..HeldBlock::default()
            })
            .collect();
        Holders {
            search,
            blocks,
            paths: self.paths,
            ..Holders::default()
        }
    }
}
