//! The cycle that keeps a block alive: `cycle Node.o → Node.o`.
//!
//! ```text
//!   ┌────────────┐
//!   ▼            │            the nearest object on a cycle that leads to the block begins the text
//! Node ─.o─► Node ─.t─► Tensor ─► block
//! ```

use super::names::{Kind, Names};
use super::text::{self, Style};
use super::torch;
use crate::Map;
use crate::findings::{Explanation, Ring};
use crate::garbage::{Garbage, way};
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind};

/// Objects that are looked at for the cycles of one copy. Beyond that, a cycle is described by its number of objects.
const BUDGET: u64 = 20_000_000;

/// The longest cycle whose members are named.
const NAMED: usize = 100_000;

/// A cycle, and how it leads to the object that holds the block.
#[derive(Debug, Clone, Default)]
pub(super) struct Cycle {
    /// `cycle Node.o → Node.o`.
    pub text: String,
    /// From an object of the cycle to before the holder.
    pub path: Vec<(NodeId, Edge)>,
    /// The collector does not free it.
    pub is_kept: bool,
    /// How the program can break it.
    pub cut: Option<&'static str>,
}

impl Cycle {
    fn unnamed() -> Cycle {
        Cycle {
            text: "cycle".to_owned(),
            ..Cycle::default()
        }
    }
}

/// The first object of the garbage on the path to a block.
pub(super) fn holder(names: &Names, found: Explanation) -> NodeId {
    let graph = &names.searched.graph;
    let way = graph.way_up(found.last.0);
    let below_root = way.take_while(|node| graph.parent(*node).is_some());
    below_root.last().unwrap_or(found.last.0)
}

/// The cycles among the garbage of a copy.
pub(super) struct Cycles {
    /// By place of a member: the number of its strongly connected component.
    components: Vec<u32>,
    is_cyclic: Vec<bool>,
    sizes: Map<u32, u32>,
    rings: Map<u32, Vec<(u32, Edge)>>,
    known: Map<u32, Cycle>,
    budget: u64,
}

impl Cycles {
    pub fn new(garbage: &Garbage) -> Cycles {
        let components = components(garbage);
        let mut sizes: Map<u32, u32> = Map::default();
        for component in &components {
            *sizes.entry(*component).or_default() += 1;
        }
        let refers_to_itself = |place: usize| {
            let mut referrers = garbage.referrers(place).iter();
            referrers.any(|(referrer, _)| *referrer as usize == place)
        };
        let is_cyclic = |place: usize| sizes[&components[place]] > 1 || refers_to_itself(place);
        let is_cyclic = (0..components.len()).map(is_cyclic).collect();
        Cycles {
            components,
            is_cyclic,
            sizes,
            rings: Map::default(),
            known: Map::default(),
            budget: BUDGET,
        }
    }

    /// The cycle that leads to this object of the garbage.
    pub fn of(&mut self, names: &mut Names, holder: NodeId) -> Cycle {
        if let Some(ring) = names.searched.rings.get(&holder).cloned() {
            return of_ring(names, ring);
        }
        let address = names.searched.graph.address(holder);
        let Some(place) = names.searched.garbage.place(address) else {
            return Cycle::unnamed();
        };
        let place = place as u32;
        if let Some(known) = self.known.get(&place) {
            return known.clone();
        }
        let cycle = self.find(names, place);
        self.known.insert(place, cycle.clone());
        cycle
    }

    fn find(&mut self, names: &mut Names, holder: u32) -> Cycle {
        let is_cyclic = &self.is_cyclic;
        let back = match is_cyclic[holder as usize] {
            true => Some((holder, Vec::new())),
            false => {
                let wanted = |place: u32| is_cyclic[place as usize];
                search(&names.searched.garbage, holder, &mut self.budget, |_| true, wanted)
            }
        };
        let Some((start, mut path)) = back else {
            return Cycle::unnamed();
        };
        let mut ring = self.ring(&names.searched.garbage, start);
        // The owner of an instance dictionary begins the text.
        if ring.len() > 1
            && let Some(&(owner, edge)) = ring.last()
            && is_detail(names, owner, edge)
        {
            ring.rotate_right(1);
            path.insert(0, (owner, edge));
        }
        let text = match ring.is_empty() {
            true => format!("cycle of {} objects", self.sizes[&self.components[start as usize]]),
            false => {
                let nodes = |(place, edge): &(u32, Edge)| Some((node(names, *place)?, *edge));
                let nodes = ring.iter().filter_map(nodes).collect();
                text_of_nodes(names, nodes)
            }
        };
        let nodes = |(place, edge): (u32, Edge)| Some((node(names, place)?, edge));
        Cycle {
            text,
            path: path.into_iter().map_while(nodes).collect(),
            ..Cycle::default()
        }
    }

    /// The shortest cycle through an object: the objects from it on, each with its reference to the next. Empty if it is too
    /// long to be named.
    fn ring(&mut self, garbage: &Garbage, start: u32) -> Vec<(u32, Edge)> {
        if let Some(ring) = self.rings.get(&start) {
            return ring.clone();
        }
        let components = &self.components;
        let component = components[start as usize];
        let ring = search(
            garbage,
            start,
            &mut self.budget,
            |place| components[place as usize] == component,
            |place| place == start,
        )
        .map_or_else(Vec::new, |(_, path)| path);
        let ring = if ring.len() > NAMED { Vec::new() } else { ring };
        self.rings.insert(start, ring.clone());
        ring
    }
}

/// Searches from an object along its referrers until one is wanted, which may be the object itself again. Returns that one,
/// and the path from it to before the object.
fn search(
    garbage: &Garbage,
    from: u32,
    budget: &mut u64,
    enter: impl Fn(u32) -> bool,
    wanted: impl Fn(u32) -> bool,
) -> Option<(u32, Vec<(u32, Edge)>)> {
    let referrers = |place: u32| garbage.referrers(place as usize).iter().copied();
    let sources = |place: u32| referrers(place).map(|(referrer, _)| referrer);
    let way = way(from, budget, sources, |_, place| enter(place), wanted)?;
    let reference = |pair: &[u32]| referrers(pair[0]).find(|(referrer, _)| *referrer == pair[1]);
    let path = way.windows(2).rev().filter_map(reference).collect();
    Some((*way.last()?, path))
}

fn node(names: &Names, place: u32) -> Option<NodeId> {
    let address = names.searched.garbage.members[place as usize];
    names.searched.graph.find(names.searched.copy, address)
}

fn is_detail(names: &mut Names, owner: u32, edge: Edge) -> bool {
    edge.kind() == EdgeKind::Dictionary
        || node(names, owner).is_some_and(|node| names.label(node, Kind::Object, edge).hidden)
}

/// A cycle through Python and C++.
fn of_ring(names: &mut Names, ring: Ring) -> Cycle {
    let kinds: Vec<Kind> = ring.nodes.iter().map(|(node, _)| names.kind(*node)).collect();
    let next = |nth: usize| kinds[(nth + 1) % kinds.len()];
    let is_gradient = |nth: usize| {
        let is_there = torch::GRADIENT.contains(&ring.nodes[nth].1.index());
        kinds[nth] == Kind::AutogradMeta && next(nth) == Kind::Tensor && is_there
    };
    let is_context = |nth: usize| kinds[nth] == Kind::PyNode && next(nth) == Kind::Object;
    let cut = match () {
        () if (0..kinds.len()).any(is_gradient) => Some("set .grad to None"),
        () if (0..kinds.len()).any(is_context) => Some("keep tensors with ctx.save_for_backward"),
        () => None,
    };
    // The text begins with the object that a user knows best, so cycles of the same objects have the same text.
    let mut nodes = ring.nodes.clone();
    let begins = |nth: usize, names: &mut Names| {
        let node = nodes[nth].0;
        let order = match kinds[nth] {
            _ if is_gradient((nth + 1) % kinds.len()) => 0,
            Kind::Object if is_context((nth + kinds.len() - 1) % kinds.len()) => 1,
            Kind::Object => 2,
            Kind::Tensor => 4,
            _ if names.searched.graph.kind(node) == NodeKind::Python => 3,
            _ => 5,
        };
        (order, names.name(node, kinds[nth]))
    };
    let first = (0..kinds.len()).min_by_key(|nth| begins(*nth, names)).unwrap_or(0);
    let path = match first {
        0 => Vec::new(),
        first => nodes[first..].to_vec(),
    };
    nodes.rotate_left(first);
    Cycle {
        is_kept: !ring.is_collected,
        cut,
        text: text_of_nodes(names, nodes),
        path,
    }
}

fn text_of_nodes(names: &mut Names, mut path: Vec<(NodeId, Edge)>) -> String {
    let Some(&(first, _)) = path.first() else {
        return "cycle".to_owned();
    };
    path.push((first, Edge::default()));
    let parts = names.parts(&path, &[]);
    let style = Style {
        to_object: true,
        ..Style::default()
    };
    let mut steps = text::steps_of(&parts, style);
    let kind = names.kind(first);
    let name = match kind {
        Kind::Tensor => "Tensor".to_owned(),
        _ => names.name(first, kind),
    };
    let mut words = format!("cycle {name}");
    let is_single = steps.len() == 1;
    if let Some(last) = steps.last_mut() {
        last.holder = if is_single { "itself".to_owned() } else { String::new() };
    }
    if kind == Kind::Unnamed {
        return words;
    }
    text::append(&mut words, &steps);
    words
}

/// Strongly connected components, by Tarjan's algorithm without recursion.
fn components(garbage: &Garbage) -> Vec<u32> {
    const NONE: u32 = u32::MAX;
    let count = garbage.members.len();
    let mut components = vec![NONE; count];
    let mut numbers = vec![NONE; count];
    let mut lows = vec![0u32; count];
    let mut stack = Vec::new();
    let mut open: Vec<(u32, usize)> = Vec::new();
    let mut number = 0;
    for start in 0..count as u32 {
        if numbers[start as usize] != NONE {
            continue;
        }
        open.push((start, 0));
        while let Some(&mut (place, ref mut next)) = open.last_mut() {
            let at = place as usize;
            if *next == 0 {
                numbers[at] = number;
                lows[at] = number;
                number += 1;
                stack.push(place);
            }
            if let Some(&(referrer, _)) = garbage.referrers(at).get(*next) {
                *next += 1;
                let to = referrer as usize;
                if numbers[to] == NONE {
                    // `next` is 0 only at the first visit.
                    open.push((referrer, 0));
                } else if components[to] == NONE {
                    lows[at] = lows[at].min(numbers[to]);
                }
                continue;
            }
            if lows[at] == numbers[at] {
                while let Some(member) = stack.pop() {
                    components[member as usize] = place;
                    if member == place {
                        break;
                    }
                }
            }
            open.pop();
            if let Some(&(parent, _)) = open.last() {
                lows[parent as usize] = lows[parent as usize].min(lows[at]);
            }
        }
    }
    components
}
