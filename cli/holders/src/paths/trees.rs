//! The holders of several copies as one tree.
//!
//! A block has the holders of the copy that its path is from: a copy of a running process may lack what another one has.
//! Holders of one name below the same holder are one, whichever copies they are from.

use culeak::snapshot::{Class, HeldBlock, Retainer, RootKind};

use super::retained::Holder;
use crate::Map;

pub(super) const UNCOLLECTED: &str = "uncollected cycles";

/// What holders of different copies must have in common to be one: what is around them, their names, and those of the other
/// references.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Key {
    parent: Option<usize>,
    root: RootKind,
    name: String,
    also: Vec<String>,
    /// Of holders of one copy that are called alike, such as the variables of two calls of a function, this is the nth.
    nth: usize,
}

pub(super) struct Trees {
    /// By copy.
    holders: Vec<Vec<Holder>>,
    /// By the index of the block: the copy, and the innermost holder in it.
    of_blocks: Vec<Option<(u32, u32)>>,
    /// Without sums.
    retainers: Vec<Retainer>,
    known: Map<Key, usize>,
    /// How many holders of a copy have a key, which is the first of these.
    alike: Map<(usize, Key), usize>,
}

impl Trees {
    pub fn new(blocks: usize) -> Trees {
        Trees {
            holders: Vec::new(),
            of_blocks: vec![None; blocks],
            retainers: Vec::new(),
            known: Map::default(),
            alike: Map::default(),
        }
    }

    /// Adds the holders of a copy, which these blocks have from now on.
    pub fn add(&mut self, holders: Vec<Holder>, of_blocks: &[Option<u32>], these: &[usize]) {
        let copy = self.holders.len() as u32;
        self.holders.push(holders);
        for &block in these {
            self.of_blocks[block] = of_blocks[block].map(|holder| (copy, holder));
        }
    }

    /// The retainer of a block, which is added with those around it if it is new.
    pub fn retainer(&mut self, block: usize, class: Class) -> Option<usize> {
        match class {
            Class::Lost => None,
            // No variable holds it.
            Class::Cycle => {
                let key = Key {
                    root: RootKind::None,
                    name: UNCOLLECTED.to_owned(),
                    ..Key::default()
                };
                Some(self.number(key, UNCOLLECTED.to_owned(), 0))
            }
            _ => {
                let (copy, innermost) = self.of_blocks[block]?;
                let copy = copy as usize;
                let mut chain = vec![innermost];
                while let Some(parent) = self.holders[copy][chain[chain.len() - 1] as usize].parent {
                    chain.push(parent as u32);
                }
                let chain = chain.into_iter().rev();
                chain.fold(None, |parent, holder| Some(self.of_holder(copy, holder, parent)))
            }
        }
    }

    fn of_holder(&mut self, copy: usize, place: u32, parent: Option<usize>) -> usize {
        let holder = self.holders[copy][place as usize].clone();
        if let Some(known) = holder.retainer {
            return known;
        }
        let text = match holder.detail.is_empty() {
            true => holder.name.clone(),
            false => format!("{} ({})", holder.name, holder.detail),
        };
        let mut key = Key {
            parent,
            root: holder.root,
            name: holder.name,
            also: holder.also,
            nth: 0,
        };
        // The words of a variable of native code lead to different parts of what it holds.
        if (parent, key.root) != (None, RootKind::Global) {
            let alike = self.alike.entry((copy, key.clone())).or_default();
            key.nth = *alike;
            *alike += 1;
        }
        let number = self.number(key, text, holder.more);
        let known = &mut self.retainers[number].host_bytes;
        *known = holder.host.max(*known);
        self.holders[copy][place as usize].retainer = Some(number);
        number
    }

    /// The number of the retainer with this key, which is added if it is new.
    fn number(&mut self, key: Key, name: String, also_unnamed: u64) -> usize {
        *self.known.entry(key).or_insert_with_key(|key| {
            self.retainers.push(Retainer {
                name,
                also: key.also.clone(),
                also_unnamed,
                root: key.root,
                parent: key.parent,
                ..Retainer::default()
            });
            self.retainers.len() - 1
        })
    }

    /// Asks for the holders of the first copy that keep host memory.
    pub fn ask_for_host(&mut self) {
        let count = self.holders.first().map_or(0, Vec::len);
        for place in 0..count {
            let Holder { parent, host, .. } = self.holders[0][place];
            if parent.is_none() && host > 0 {
                self.of_holder(0, place as u32, None);
            }
        }
    }

    /// No copy was added.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// All that were asked for, parents first, with the sums of these blocks.
    pub fn retainers(self, blocks: &[HeldBlock]) -> Vec<Retainer> {
        let mut retainers = self.retainers;
        for block in blocks {
            if let Some(retainer) = block.retainer.and_then(|nth| retainers.get_mut(nth)) {
                retainer.bytes += block.bytes;
                retainer.count += 1;
            }
        }
        for nth in (0..retainers.len()).rev() {
            let Retainer {
                parent, bytes, count, ..
            } = retainers[nth];
            if let Some(parent) = parent {
                retainers[parent].bytes += bytes;
                retainers[parent].count += count;
            }
        }
        retainers
    }
}
