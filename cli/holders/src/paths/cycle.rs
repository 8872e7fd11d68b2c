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
        let nodes = |(place, edge): &(u32, Edge)| Some((node(names, *place)?, *edge));
        let nodes: Vec<(NodeId, Edge)> = ring.iter().filter_map(nodes).collect();
        let cut = advice(&links(names, &nodes));
        let text = match ring.is_empty() {
            true => format!("cycle of {} objects", self.sizes[&self.components[start as usize]]),
            false => text_of_nodes(names, nodes),
        };
        let nodes = |(place, edge): (u32, Edge)| Some((node(names, place)?, edge));
        Cycle {
            text,
            path: path.into_iter().map_while(nodes).collect(),
            cut,
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

/// An object of a cycle, with its reference to the next one.
struct Link {
    kind: Kind,
    name: String,
    edge: Edge,
    /// `._forward_hooks`.
    label: String,
}

type Fits = fn(&Link, &Link) -> bool;

/// How to break a cycle, by a reference in it: the object that refers, and the next one. The first row that fits is said.
const ADVICE: [(Fits, &str); 4] = [
    (is_gradient, "set .grad to None"),
    (is_context, "keep tensors with ctx.save_for_backward"),
    (is_hook, "remove the hook: handle.remove()"),
    (is_view, "keep view.clone() instead of the view"),
];

fn advice(links: &[Link]) -> Option<&'static str> {
    let pairs = || links.iter().zip(links.iter().cycle().skip(1));
    let row = ADVICE
        .iter()
        .find(|(fits, _)| pairs().any(|(link, next)| fits(link, next)));
    row.map(|(_, words)| *words)
}

fn is_gradient(link: &Link, next: &Link) -> bool {
    link.kind == Kind::AutogradMeta && next.kind == Kind::Tensor && torch::GRADIENT.contains(&link.edge.index())
}

fn is_context(link: &Link, next: &Link) -> bool {
    link.kind == Kind::PyNode && next.kind == Kind::Object
}

/// Of a tensor or node, which keeps its hooks in objects of these classes; or of a module. A tensor's Python object may have a pointer to
/// the dictionary of its hooks, too.
fn is_hook(link: &Link, next: &Link) -> bool {
    let is_native = link.kind == Kind::Native && link.name.starts_with("PyFunction") && link.name.contains("Hook");
    let is_tensor = link.kind == Kind::Object && ["Tensor", "Parameter"].contains(&link.name.as_str());
    let attribute = link.label.trim_matches(['.', '[', ']', '\'']);
    let is_python = is_tensor && link.edge.kind() == EdgeKind::Word || torch::HOOKS.contains(&attribute);
    is_native || is_python && next.name == "OrderedDict"
}

/// The base of a view, which is behind the fields that all tensors have. It may be one with its Python object.
fn is_view(link: &Link, next: &Link) -> bool {
    const COMMON: u64 = 8;
    let is_there = link.name == "DifferentiableViewMeta" && link.edge.index() > COMMON;
    link.kind == Kind::AutogradMeta && is_there && matches!(next.kind, Kind::Tensor | Kind::Object)
}

fn links(names: &mut Names, nodes: &[(NodeId, Edge)]) -> Vec<Link> {
    let link = |&(node, edge): &(NodeId, Edge)| {
        let kind = names.kind(node);
        Link {
            kind,
            name: names.name(node, kind),
            edge,
            label: names.label(node, kind, edge).concrete,
        }
    };
    nodes.iter().map(link).collect()
}

/// A cycle through Python and C++.
fn of_ring(names: &mut Names, ring: Ring) -> Cycle {
    let links = links(names, &ring.nodes);
    let is_at = |fits: Fits, nth: usize| fits(&links[nth], &links[(nth + 1) % links.len()]);
    // The text begins with the object that a user knows best, so cycles of the same objects have the same text.
    let mut nodes = ring.nodes.clone();
    let begins = |nth: usize| {
        let order = match links[nth].kind {
            _ if is_at(is_gradient, (nth + 1) % links.len()) => 0,
            Kind::Object if is_at(is_context, (nth + links.len() - 1) % links.len()) => 1,
            Kind::Object => 2,
            Kind::Tensor => 4,
            _ if names.searched.graph.kind(nodes[nth].0) == NodeKind::Python => 3,
            _ => 5,
        };
        (order, &links[nth].name)
    };
    let first = (0..links.len()).min_by_key(|nth| begins(*nth)).unwrap_or(0);
    let path = match first {
        0 => Vec::new(),
        first => nodes[first..].to_vec(),
    };
    nodes.rotate_left(first);
    Cycle {
        is_kept: !ring.is_collected,
        cut: advice(&links),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::EdgeKind;

    fn link(kind: Kind, name: &str, word: u64, label: &str) -> Link {
        Link {
            kind,
            name: name.to_owned(),
            edge: Edge::new(EdgeKind::Word, word),
            label: label.to_owned(),
        }
    }

    #[test]
    fn each_cycle_has_the_advice_that_breaks_it() {
        let tensor = || link(Kind::Tensor, "TensorImpl", 3, "");
        let named = |name, label| link(Kind::Object, name, 0, label);
        let object = |label| named("Tensor", label);
        let dict = |name| link(Kind::Container, name, 0, "[0]");
        let function = || link(Kind::Function, "function hook", 1, ".__closure__");
        let meta = |word| link(Kind::AutogradMeta, "AutogradMeta", word, "");
        let view = |word| link(Kind::AutogradMeta, "DifferentiableViewMeta", word, "");
        let native = |name| link(Kind::Native, name, 1, "");
        let copy = Some("keep view.clone() instead of the view");
        let hook = Some("remove the hook: handle.remove()");
        let cycles = [
            (vec![tensor(), meta(2), tensor()], Some("set .grad to None")),
            (
                vec![link(Kind::PyNode, "PyNode", 40, ""), object(".saved")],
                Some("keep tensors with ctx.save_for_backward"),
            ),
            // Of a leaf, of a result or node, and after accumulation.
            (vec![tensor(), native("PyFunctionTensorPreHook"), function()], hook),
            (vec![tensor(), native("PyFunctionPostHook"), function()], hook),
            (vec![tensor(), native("PyFunctionTensorPostAccGradHooks")], hook),
            (
                vec![named("dict", "['_forward_hooks']"), dict("OrderedDict"), function()],
                hook,
            ),
            (
                vec![named("Linear", "._backward_pre_hooks"), dict("OrderedDict"), function()],
                hook,
            ),
            (vec![object(""), dict("OrderedDict"), function()], hook),
            (vec![object(".last"), tensor(), view(17), tensor()], copy),
            (vec![object(".last"), tensor(), view(17)], copy),
            (vec![view(5), tensor()], Some("set .grad to None")),
            // Its function may have a Python object.
            (vec![view(3), object("")], None),
            // Other fields of a tensor, and other names and types.
            (vec![meta(17), tensor()], None),
            (vec![named("Pair", "._hooks"), dict("OrderedDict"), function()], None),
            (vec![named("Linear", "._forward_hooks"), dict("list"), function()], None),
            (vec![native("HookList"), function()], None),
            (vec![], None),
        ];
        for (nth, (links, expected)) in cycles.iter().enumerate() {
            assert_eq!(advice(links), *expected, "{nth}");
        }
    }
}
