//! The shape of a path, without making its words: paths of equal shape are put into words once.
//!
//! The shape of a node is a number: that of its parent's shape, the reference and what the node is, interned. It is found from
//! the root on and remembered, so that millions of blocks cost a look-up per node. In a run of equal references, the third
//! period and all later ones have the shape of the second: a list of a million linked objects has a few shapes.

use std::rc::Rc;

use super::names::{Beginning, Kind, Names, Place};
use crate::Map;
use crate::graph::{Edge, EdgeKind, NodeId, Root};

/// The longest period of a run, in references. A loop over the layers of a recurrent network has about 20.
const PERIOD: usize = 32;

/// The shape of a longer path consists of its beginning and its end.
const LONG: usize = 64;
const BEGINNING: usize = 24;
const END: usize = 16;

/// References that stand for a text.
const TEXT: u32 = 31 << 27;
const GAP: u64 = u64::MAX;

/// What paths have in common that are called alike.
struct Shape {
    /// Of its nodes, each with the reference to it, from the root on.
    keys: Rc<[u64]>,
    /// What the last node is, and how it was entered.
    kind: Kind,
    place: Place,
}

/// The shapes of the paths of one copy.
pub(super) struct Shapes {
    /// The first is that before a root.
    all: Vec<Shape>,
    known: Map<Rc<[u64]>, u32>,
    /// By a shape, and the key of what follows.
    children: Map<(u32, u64), u32>,
    texts: Map<String, u32>,
    /// By node: its shape, and the number of references from the root to it.
    of_nodes: Vec<(u32, u32)>,
}

impl Shapes {
    pub fn new(nodes: usize) -> Shapes {
        Shapes {
            all: vec![Shape {
                keys: Rc::from([]),
                kind: Kind::Root,
                place: Place::Plain,
            }],
            known: Map::default(),
            children: Map::default(),
            texts: Map::default(),
            of_nodes: vec![(0, 0); nodes],
        }
    }

    /// The shape of the path to a node, and the number of references on it.
    pub fn of(&mut self, names: &mut Names, node: NodeId) -> (u32, u32) {
        let mut open = Vec::new();
        let mut at = node;
        while self.of_nodes[at.0 as usize].0 == 0 && open.len() <= self.of_nodes.len() {
            open.push(at);
            match names.searched.graph.parent(at) {
                Some((parent, _)) => at = parent,
                None => break,
            }
        }
        while let Some(node) = open.pop() {
            self.of_nodes[node.0 as usize] = match names.searched.graph.parent(node) {
                None => (self.root(node), 0),
                Some((parent, edge)) => {
                    let (shape, length) = self.of_nodes[parent.0 as usize];
                    (self.child(names, parent, shape, edge, node), length + 1)
                }
            };
        }
        self.of_nodes[node.0 as usize]
    }

    fn root(&mut self, node: NodeId) -> u32 {
        self.intern(0, u64::from(node.0) | 1 << 63, Kind::Root, Place::Plain)
    }

    fn child(&mut self, names: &mut Names, parent: NodeId, shape: u32, edge: Edge, node: NodeId) -> u32 {
        let (from, place) = self.end_of(shape);
        let kind = if place == Place::Modules {
            Kind::Module
        } else {
            names.kind(node)
        };
        let reference = self.reference(names, parent, from, place, edge);
        let key = u64::from(reference) << 32 | u64::from(self.node_key(names, node, kind));
        if let Some(&id) = self.children.get(&(shape, key)) {
            return id;
        }
        let inner = names.place(parent, from, place, edge, kind);
        self.intern(shape, key, kind, inner)
    }

    fn intern(&mut self, parent: u32, key: u64, kind: Kind, place: Place) -> u32 {
        let before = self.all[parent as usize].keys.iter().copied();
        let keys: Rc<[u64]> = shortened(before.chain([key]).collect()).into();
        let next = self.all.len() as u32;
        let id = *self.known.entry(keys).or_insert_with_key(|keys| {
            let keys = Rc::clone(keys);
            self.all.push(Shape { keys, kind, place });
            next
        });
        self.children.insert((parent, key), id);
        id
    }

    /// What the last node of a shape is, and how it was entered.
    fn end_of(&self, shape: u32) -> (Kind, Place) {
        let shape = &self.all[shape as usize];
        (shape.kind, shape.place)
    }

    /// A number for a reference: equal for references that are called alike.
    pub fn reference(&mut self, names: &mut Names, parent: NodeId, from: Kind, place: Place, edge: Edge) -> u32 {
        let plain = |index: u64| (edge.kind() as u32) << 27 | (index.min((1 << 27) - 1)) as u32;
        match (edge.kind(), from) {
            (EdgeKind::Word, Kind::Root) if matches!(names.searched.graph.root(parent), Some(Root::Native(_))) => {
                match names.beginning(parent, edge) {
                    Beginning::Word(name, ..) => self.text(&name),
                    _ => plain(0),
                }
            }
            (EdgeKind::Word, Kind::AutogradMeta) => plain(edge.index()),
            (EdgeKind::Word | EdgeKind::Root | EdgeKind::Stack, _) if from != Kind::Context => plain(0),
            (EdgeKind::Item | EdgeKind::Value | EdgeKind::Key | EdgeKind::Member, _) => match (place, from) {
                (Place::Plain, Kind::Context) | (Place::Modules | Place::Attributes, _) => {
                    let label = names.label(parent, from, edge);
                    self.text(&label.concrete)
                }
                (Place::Plain, _) => plain(0),
                _ => plain(1 + edge.index()),
            },
            (_, Kind::Context) => {
                let label = names.label(parent, from, edge);
                self.text(&label.concrete)
            }
            _ => plain(edge.index()),
        }
    }

    fn text(&mut self, text: &str) -> u32 {
        TEXT | self.text_number(text)
    }

    fn text_number(&mut self, text: &str) -> u32 {
        let next = self.texts.len() as u32;
        match self.texts.get(text) {
            Some(&number) => number,
            None => {
                self.texts.insert(text.to_owned(), next);
                next
            }
        }
    }

    /// A number for a node: equal for nodes that are called alike.
    fn node_key(&mut self, names: &mut Names, node: NodeId, kind: Kind) -> u32 {
        match kind {
            Kind::Function | Kind::Class | Kind::Frame | Kind::Generator => {
                let name = names.name(node, kind);
                1 << 31 | self.text_number(&name)
            }
            Kind::Unnamed => 1 << 30,
            Kind::Root | Kind::Gap => 0,
            _ => match names.type_of(node) {
                Some(of) => u32::from(of.0) + 1,
                None => {
                    let name = names.name(node, kind);
                    1 << 31 | self.text_number(&name)
                }
            },
        }
    }

    /// The reference to a node and what it is.
    pub fn key(&mut self, names: &mut Names, node: NodeId) -> u64 {
        let (shape, _) = self.of(names, node);
        self.all[shape as usize].keys.last().copied().unwrap_or_default()
    }

    /// What the reference to the block is called like.
    pub fn end(&mut self, names: &mut Names, node: NodeId, edge: Edge) -> (u32, u32, u32) {
        let (shape, length) = self.of(names, node);
        let (kind, place) = self.end_of(shape);
        (shape, self.reference(names, node, kind, place, edge), length)
    }
}

/// Leaves out the third period of a run that ends here, and the middle of a long path.
fn shortened(mut keys: Vec<u64>) -> Vec<u64> {
    let count = keys.len();
    let repeats = |period: &usize| {
        let end = &keys[count - 3 * period..];
        end[..2 * period] == end[*period..]
    };
    if let Some(period) = (1..=PERIOD.min(count / 3)).find(repeats) {
        keys.truncate(count - period);
    }
    if keys.len() > LONG {
        keys.splice(BEGINNING..keys.len() - END, [GAP]);
    }
    keys
}

/// A path without the parts that its words do not need.
#[derive(Default)]
pub(super) struct Shortened {
    pub nodes: Vec<(NodeId, Edge)>,
    /// For each node, how many periods are left out behind it, and their length in references; may be empty.
    pub omitted: Vec<(u64, usize)>,
}

impl Shortened {
    /// References of a path that are looked at by name.
    pub const LONGEST: usize = 4096;

    /// Leaves the middle of a very long path out.
    pub fn bounded(mut nodes: Vec<(NodeId, Edge)>) -> Shortened {
        let mut omitted = Vec::new();
        if nodes.len() > Self::LONGEST {
            let count = nodes.len() - Self::LONGEST;
            nodes.drain(Self::LONGEST / 2..Self::LONGEST / 2 + count);
            omitted = vec![(0, 0); Self::LONGEST];
            omitted[Self::LONGEST / 2 - 1] = (count as u64, 1);
        }
        Shortened { nodes, omitted }
    }

    fn keep(&mut self, nodes: &[(NodeId, Edge)]) {
        self.nodes.extend(nodes);
        self.omitted.resize(self.nodes.len(), (0, 0));
    }
}

/// Leaves the middle of long runs out. `keys`: equal for nodes that are called alike.
pub(super) fn without_runs(path: &[(NodeId, Edge)], keys: &[u64]) -> Shortened {
    /// Periods that are kept at each end of a run.
    const KEPT: usize = 3;
    let mut shortened = Shortened::default();
    let mut at = 0;
    while at < path.len() {
        let run = (1..=PERIOD.min((path.len() - at) / (2 * KEPT + 1))).find_map(|period| {
            let pairs = keys[at + period..].iter().zip(&keys[at..]);
            let equal = pairs.take_while(|(a, b)| a == b).count();
            let times = equal / period + 1;
            (times > 2 * KEPT).then_some((period, times))
        });
        let Some((period, times)) = run else {
            shortened.keep(&path[at..=at]);
            at += 1;
            continue;
        };
        let end = at + period * times;
        shortened.keep(&path[at..at + KEPT * period]);
        if let Some(last) = shortened.omitted.last_mut() {
            *last = ((times - 2 * KEPT) as u64, period);
        }
        shortened.keep(&path[end - KEPT * period..end]);
        at = end;
    }
    shortened
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_run_is_left_out() {
        let keys: Vec<u64> = [7]
            .into_iter()
            .chain((0..100).map(|nth| nth % 2))
            .chain([8, 9])
            .collect();
        let path: Vec<(NodeId, Edge)> = (0..keys.len() as u32)
            .map(|nth| (NodeId(nth), Edge::default()))
            .collect();
        let shortened = without_runs(&path, &keys);
        let kept: Vec<u32> = shortened.nodes.iter().map(|(node, _)| node.0).collect();
        assert_eq!(kept, [0, 1, 2, 3, 4, 5, 6, 95, 96, 97, 98, 99, 100, 101, 102]);
        assert_eq!(shortened.omitted.len(), kept.len());
        let omitted: Vec<_> = shortened.omitted.iter().filter(|omitted| omitted.0 > 0).collect();
        assert_eq!(omitted, [&(44, 2)]);
    }

    fn add(before: Vec<u64>, key: u64) -> Vec<u64> {
        super::shortened([before, vec![key]].concat())
    }

    #[test]
    fn the_third_period_of_a_run_has_the_shape_of_the_second() {
        let once: Vec<u64> = [5, 1, 2].into_iter().fold(Vec::new(), add);
        let twice = [1, 2].into_iter().fold(once.clone(), add);
        let often = [1, 2].repeat(50).into_iter().fold(twice.clone(), add);
        assert_ne!(once, twice);
        assert_eq!(twice, often);
        assert_ne!(add(often, 3), add(once, 3));
    }

    #[test]
    fn long_paths_with_the_same_ends_have_one_shape() {
        let long = |middle: u64| {
            let keys = (0..40).chain((0..1000).map(|nth| 100 + nth * middle)).chain(50..90);
            keys.fold(Vec::new(), add)
        };
        let (one, other) = (long(3), long(5));
        assert_eq!(one, other);
        assert!(one.len() <= LONG);
    }
}
