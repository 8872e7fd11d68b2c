//! Nodes and edges, in a few bytes each: a process has tens of millions.

/// What refers: which field of an object, and its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Edge(u32);

/// What an edge is. The index is a position in an array, a field's offset, or a number of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EdgeKind {
    /// Element of a list, tuple or deque.
    Item = 1,
    /// Value of a dictionary; the index is that of its entry.
    Value,
    /// Key of a dictionary.
    Key,
    /// Element of a set.
    Member,
    /// A field with a name; the index depends on the type.
    Field,
    /// The instance dictionary.
    Dictionary,
    /// An attribute stored in the object; the index is that of its name.
    Attribute,
    /// A local variable of a frame.
    Local,
    /// The value stack of a frame.
    Stack,
    /// The object's class.
    Class,
    /// A word of a C object or of native memory; the index is its offset in words.
    Word,
    /// From a root.
    Root,
}

const INDEX_BITS: u32 = 27;

impl Edge {
    /// Indices beyond 2^27 - 1 are stored as that.
    pub fn new(kind: EdgeKind, index: u64) -> Edge {
        let index = index.min((1 << INDEX_BITS) - 1) as u32;
        Edge((kind as u32) << INDEX_BITS | index)
    }

    pub fn kind(self) -> EdgeKind {
        use EdgeKind::*;
        const KINDS: [EdgeKind; 12] = [
            Item, Value, Key, Member, Field, Dictionary, Attribute, Local, Stack, Class, Word, Root,
        ];
        KINDS[((self.0 >> INDEX_BITS) as usize).saturating_sub(1).min(KINDS.len() - 1)]
    }

    pub fn index(self) -> u64 {
        u64::from(self.0 & ((1 << INDEX_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_keeps_its_kind_and_index() {
        for (kind, index) in [
            (EdgeKind::Item, 0),
            (EdgeKind::Stack, 77),
            (EdgeKind::Root, (1 << 27) - 1),
        ] {
            let edge = Edge::new(kind, index);
            assert_eq!((edge.kind(), edge.index()), (kind, index));
        }
    }
}
