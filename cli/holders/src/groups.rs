//! Objects of Python and C++ that only own each other.
//!
//! ```text
//! ctx ─ .saved ─► Tensor ─ .grad_fn ─► PyNode ─► ctx         each count is explained by references from within:
//!                                                            a cycle, although Python's references do not explain that of ctx
//! something ─ ? ─► Tensor ─► …                               a count is not explained: over-counted, with all that it leads to
//! ```
//!
//! Objects whose counts Python's references do not explain are entered last ([`Phase::Counted`]). What they lead to may own them. So
//! the counts of all these objects, those of C++ too, are compared with the references among them. A Python object that C++ keeps for
//! a tensor or a storage is one with it: both refer to each other, and that is no cycle.

use culeak::snapshot::Class;

use crate::copy::Image;
use crate::counted;
use crate::findings::{Findings, Ring};
use crate::garbage::{flood, way};
use crate::graph::{Edge, NodeId, NodeKind, Phase, Root};
use crate::native::counts;
use crate::native::kinds::Kind;
use crate::{Map, Set};

/// References that are looked at.
const BUDGET: u64 = 20_000_000;
/// Objects that are compared.
const MOST: usize = 4_000_000;

/// Finds them, and gives the blocks that they hold their paths.
/// `is_consistent`: the process was stopped while it was copied.
pub(crate) fn find(searched: &mut Findings, is_consistent: bool) -> Map<NodeId, Ring> {
    let is_open = |searched: &Findings, block: &usize| {
        let found = &searched.found[*block];
        matches!(found.class, Class::OverCounted | Class::NativeHolder)
            && !found.last.0.is_none()
            // An object that the collector does not track is on the cycle.
            && found.note.is_none()
            && searched.graph.phase(found.last.0) == Phase::Counted
    };
    let blocks: Vec<usize> = (0..searched.found.len())
        .filter(|block| is_open(searched, block))
        .collect();
    if blocks.is_empty() {
        return Map::default();
    }
    let Some(mut members) = Members::new(searched) else {
        return Map::default();
    };
    members.find_outside(searched);
    let collected = members.collected(searched);
    let mut found: Map<NodeId, Ring> = Map::default();
    let mut root = None;
    let mut placed: Set<u32> = Set::default();
    let mut below_counted: Set<u32> = Set::default();
    let mut rings: Map<u32, Option<Vec<u32>>> = Map::default();
    for block in blocks {
        let Some(&last) = members.places.get(&searched.found[block].last.0) else {
            continue;
        };
        if members.is_outside[last as usize] {
            members.place_below_counted(searched, last, &mut below_counted);
            continue;
        }
        let Some(path) = members.path_from_ring(last, &placed, &mut rings) else {
            continue;
        };
        // Without all of them, nothing is changed: a part of the path could lead back to itself.
        let Some(edges) = members.edges_along(searched, &path) else {
            continue;
        };
        let start = path[0];
        if !placed.contains(&start) {
            let mut ring = rings[&start].clone().unwrap_or_default();
            ring.extend(ring.first().copied());
            let Some(around) = members.edges_along(searched, &ring) else {
                continue;
            };
            let node = |(from, _, edge): (u32, u32, Edge)| (members.nodes[from as usize], edge);
            let nodes: Vec<(NodeId, Edge)> = around.into_iter().map(node).collect();
            let mut objects = nodes.iter().map(|(node, _)| *node).collect::<Vec<NodeId>>();
            objects.retain(|node| searched.graph.kind(*node) == NodeKind::Python);
            let is_collected = !objects.is_empty() && objects.iter().all(|object| collected.contains(object));
            let may_differ = !is_consistent && has_changed(searched, &nodes);
            let root = *root.get_or_insert_with(|| searched.graph.add_root(Root::Garbage, Phase::Counted));
            let node = members.nodes[start as usize];
            searched.graph.set_parent(node, root, Edge::default());
            let ring = Ring {
                nodes,
                is_collected,
                may_differ,
            };
            found.insert(node, ring);
            placed.insert(start);
        }
        members.place(searched, edges, &mut placed);
        let ring = found.get(&members.nodes[start as usize]);
        let of_block = &mut searched.found[block];
        (of_block.class, of_block.pointer, of_block.note) = (Class::Cycle, None, None);
        of_block.possibly |= ring.is_some_and(|ring| ring.may_differ);
    }
    found
}

/// Whether an object has another type, class or count than in the copy.
fn has_changed(searched: &Findings, objects: &[(NodeId, Edge)]) -> bool {
    let copy = searched.copy;
    let Ok(newer) = Image::newer(copy) else { return true };
    let same = |at: u64| newer.word(at) == copy.word(at);
    let head = searched.python.as_ref().map_or(16, |python| python.head());
    !objects.iter().all(|(object, _)| {
        let address = searched.graph.address(*object);
        let bytes = match searched.graph.kind(*object) {
            NodeKind::Python => head,
            _ => 16,
        };
        (0..bytes).step_by(8).all(|place| same(address + place))
    })
}

/// What the counted objects lead to, and garbage, by place.
#[derive(Default)]
struct Members {
    nodes: Vec<NodeId>,
    places: Map<NodeId, u32>,
    targets: Vec<Vec<u32>>,
    sources: Vec<Vec<u32>>,
    /// The tensor or storage of a Python object, and the other way round.
    partners: Map<u32, u32>,
    kinds: Vec<Option<Kind>>,
    counts: Vec<Option<u64>>,
    /// A hook of a tensor.
    is_hook: Vec<bool>,
    /// Its count exceeds the references among the members.
    is_counted: Vec<bool>,
    /// Something that is not among the members holds it.
    is_outside: Vec<bool>,
    budget: u64,
}

impl Members {
    /// `None`: there are too many.
    fn new(searched: &mut Findings) -> Option<Members> {
        let graph = &searched.graph;
        let is_member = |node: &NodeId| {
            graph.kind(*node) != NodeKind::Root && matches!(graph.phase(*node), Phase::Counted | Phase::Garbage)
        };
        let nodes: Vec<NodeId> = graph.nodes().filter(is_member).collect();
        if nodes.len() > MOST {
            return None;
        }
        let places: Map<NodeId, u32> = (nodes.iter().enumerate())
            .map(|(place, node)| (*node, place as u32))
            .collect();
        let mut members = Members {
            targets: vec![Vec::new(); nodes.len()],
            sources: vec![Vec::new(); nodes.len()],
            budget: BUDGET,
            nodes,
            places,
            ..Members::default()
        };
        let all = members
            .nodes
            .iter()
            .flat_map(|from| graph.targets(*from).iter().map(|to| (*from, *to)));
        let edges: Vec<(u32, u32)> = (all.chain(graph.late.iter().copied()))
            .filter(|(from, to)| from != to && !searched.stale.has(*from, *to))
            .filter_map(|(from, to)| Some((*members.places.get(&from)?, *members.places.get(&to)?)))
            .collect();
        for place in 0..members.nodes.len() {
            let (kind, count) = kind_and_count(searched, members.nodes[place]);
            let address = searched.graph.address(members.nodes[place]);
            let class = searched.native.class(searched.copy, address);
            let is_hook = class.is_some_and(|class| class.ends_with("PyFunctionTensorPreHook"));
            members.is_hook.push(is_hook && kind == Some(Kind::Named));
            members.kinds.push(kind);
            members.counts.push(count);
        }
        for (from, to) in edges {
            members.targets[from as usize].push(to);
        }
        members.find_partners(searched);
        for from in 0..members.nodes.len() as u32 {
            let mut targets = std::mem::take(&mut members.targets[from as usize]);
            let address = |place: u32| searched.graph.address(members.nodes[place as usize]);
            // The context of a Python function has a weak pointer to its node, which owns it. If the node is marked as tensors are, the
            // context owns the node, which keeps it only as long as something else owns the node, too.
            let is_weak = |to: u32| {
                members.targets[to as usize].contains(&from)
                    && match (members.kinds[from as usize], members.kinds[to as usize]) {
                        (None, Some(Kind::PythonNode)) => !counts::is_marked(searched.copy, address(to)),
                        (Some(Kind::PythonNode), None) => {
                            counts::is_marked(searched.copy, address(from))
                                && !counts::is_kept(searched.copy, address(from), 0)
                        }
                        _ => false,
                    }
            };
            let is_tensor = |to: u32| matches!(members.kinds[to as usize], Some(Kind::Tensor | Kind::PlainTensor));
            // A Python object that the tensor keeps only borrows it.
            let is_borrowed = |to: u32| {
                members.kinds[from as usize].is_none()
                    && is_tensor(to)
                    && counts::borrows(searched.copy, address(from), address(to))
            };
            targets.retain(|to| !is_weak(*to) && !is_borrowed(*to));
            for to in &targets {
                members.sources[*to as usize].push(from);
            }
            members.targets[from as usize] = targets;
        }
        Some(members)
    }

    /// An object of C++ and the Python object whose first field is a pointer to it.
    fn find_partners(&mut self, searched: &Findings) {
        let (copy, graph) = (searched.copy, &searched.graph);
        for from in 0..self.nodes.len() as u32 {
            let address = |place: u32| graph.address(self.nodes[place as usize]);
            let is_wrapped = match self.kinds[from as usize] {
                Some(Kind::Tensor | Kind::PlainTensor | Kind::Storage) => true,
                Some(Kind::PythonNode) => counts::is_kept(copy, address(from), 0),
                _ => false,
            };
            let is_node = self.kinds[from as usize] == Some(Kind::PythonNode);
            let is_of = |to: &&u32| {
                graph.kind(self.nodes[**to as usize]) == NodeKind::Python
                    && match is_node {
                        true => self.targets[**to as usize].contains(&from),
                        false => counts::refers_back(copy, address(**to), address(from)),
                    }
            };
            let objects = || self.targets[from as usize].iter().find(is_of).copied();
            if let Some(object) = is_wrapped.then(objects).flatten() {
                self.partners.insert(from, object);
                self.partners.insert(object, from);
            }
        }
    }

    /// Finds what is held from outside: what has more references than were found, and all that this leads to.
    fn find_outside(&mut self, searched: &Findings) {
        let graph = &searched.graph;
        self.is_counted = (0..self.nodes.len())
            .map(|place| self.counts[place].is_some_and(|count| count > self.sources[place].len() as u64))
            .collect();
        let counted = (0..self.nodes.len())
            .filter(|place| self.is_counted[*place] && graph.phase(self.nodes[*place]) == Phase::Counted);
        self.is_outside = flood(self.is_counted.clone(), counted.collect(), |place| {
            self.targets[place].iter().map(|to| *to as usize)
        });
    }

    /// Gives what a counted object leads to a path from the nearest one, or from one that has such a path.
    fn place_below_counted(&mut self, searched: &mut Findings, last: u32, placed: &mut Set<u32>) {
        let is_root = |place: u32| {
            let parent = searched.graph.parent(self.nodes[place as usize]);
            placed.contains(&place)
                || self.is_counted[place as usize]
                    && parent.is_some_and(|(parent, _)| searched.graph.root(parent).is_some())
        };
        let mut budget = self.budget;
        let path = self.path_to(last, &mut budget, is_root);
        self.budget = budget;
        let Some(path) = path else { return };
        let Some(edges) = self.edges_along(searched, &path) else {
            return;
        };
        placed.insert(path[0]);
        self.place(searched, edges, placed);
    }

    /// Makes these references the paths of what has none yet.
    fn place(&self, searched: &mut Findings, edges: Vec<(u32, u32, Edge)>, placed: &mut Set<u32>) {
        for (from, to, edge) in edges {
            if placed.insert(to) {
                let (from, to) = (self.nodes[from as usize], self.nodes[to as usize]);
                searched.graph.set_parent(to, from, edge);
            }
        }
    }

    /// The references of a path, each to an object or to the one that is one with it. `None`: one was not found, or too much was looked
    /// at.
    fn edges_along(&mut self, searched: &mut Findings, path: &[u32]) -> Option<Vec<(u32, u32, Edge)>> {
        let edge = |pair: &[u32]| {
            let [from, to] = [pair[0], pair[1]];
            let mut targets = [Some(&to), self.partners.get(&to)].into_iter().flatten();
            // Native memory is looked through word by word.
            self.budget = self.budget.checked_sub(64)?;
            let node = |place: u32| self.nodes[place as usize];
            let found = targets.find_map(|to| counted::edge(searched, node(from), node(*to), &mut self.budget));
            Some((from, to, found?))
        };
        path.windows(2).map(edge).collect()
    }

    /// The shortest path that leads here from one of the wanted.
    fn path_to(&self, last: u32, budget: &mut u64, mut is_wanted: impl FnMut(u32) -> bool) -> Option<Vec<u32>> {
        if is_wanted(last) {
            return Some(vec![last]);
        }
        let sources = |place: u32| self.sources[place as usize].iter().copied();
        let mut path = way(last, budget, sources, |_, _| true, is_wanted)?;
        path.reverse();
        Some(path)
    }

    /// As above, from an object of a cycle, or from one that has its path already.
    fn path_from_ring(
        &mut self,
        last: u32,
        placed: &Set<u32>,
        rings: &mut Map<u32, Option<Vec<u32>>>,
    ) -> Option<Vec<u32>> {
        let (mut steps, mut looks) = (self.budget, self.budget);
        let path = self.path_to(last, &mut steps, |place| {
            let mut has_ring = || {
                rings
                    .entry(place)
                    .or_insert_with(|| self.ring(place, &mut looks))
                    .is_some()
            };
            placed.contains(&place) || has_ring()
        });
        self.budget = steps.min(looks);
        path
    }

    /// The shortest cycle through an object and its partner.
    fn ring(&self, start: u32, budget: &mut u64) -> Option<Vec<u32>> {
        let partner = self.partners.get(&start).copied();
        let is_start = |place: u32| place == start || Some(place) == partner;
        let all = |place: u32| self.targets[place as usize].iter().copied();
        // Both begin the ring.
        let targets = |place: u32| {
            let of_partner = partner.filter(|_| place == start).into_iter().flat_map(all);
            all(place).chain(of_partner)
        };
        let enter = |place: u32, to: u32| match is_start(to) {
            true => place != start,
            false => !self.is_outside[to as usize],
        };
        let mut ring = way(start, budget, targets, enter, is_start)?;
        ring.pop();
        if let Some(partner) = partner.filter(|_| !all(start).any(|to| to == ring[1])) {
            ring[0] = partner;
        }
        Some(ring)
    }

    /// The objects that Python's collector frees. It looks through a tensor that nothing but its Python object owns: at hooks, and at
    /// the context of the function that made it, if nothing else owns the node of that.
    fn collected(&self, searched: &mut Findings) -> Set<NodeId> {
        let is_object: Vec<bool> = (self.nodes.iter())
            .map(|node| matches!(searched.graph.kind(*node), NodeKind::Python | NodeKind::Frame))
            .collect();
        let mut visits: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        let mut visited = vec![0u64; self.nodes.len()];
        for from in 0..self.nodes.len() as u32 {
            if !is_object[from as usize] || !is_tracked(searched, self.nodes[from as usize]) {
                continue;
            }
            let through = &mut visits[from as usize];
            for to in &self.targets[from as usize] {
                if is_object[*to as usize] {
                    through.push(*to);
                } else if self.partners.get(&from) == Some(to) || self.refers_as_wrapper(searched, from, *to) {
                    self.visit_through(*to, &is_object, through);
                }
            }
            through.iter().for_each(|to| visited[*to as usize] += 1);
        }
        let is_held: Vec<bool> = (0..self.nodes.len())
            .map(|place| self.is_outside[place] || self.counts[place].is_some_and(|count| count > visited[place]))
            .collect();
        let held = (0..self.nodes.len()).filter(|place| is_held[*place] && is_object[*place]);
        let held = held.collect();
        let is_held = flood(is_held, held, |place| visits[place].iter().map(|to| *to as usize));
        let freed = (0..self.nodes.len()).filter(|place| is_object[*place] && !is_held[*place]);
        freed.map(|place| self.nodes[place]).collect()
    }

    fn refers_as_wrapper(&self, searched: &Findings, object: u32, to: u32) -> bool {
        let address = |place: u32| searched.graph.address(self.nodes[place as usize]);
        matches!(self.kinds[to as usize], Some(Kind::Tensor | Kind::PlainTensor))
            && counts::refers_back(searched.copy, address(object), address(to))
    }

    /// Adds the objects that the collector sees through a tensor.
    fn visit_through(&self, tensor: u32, is_object: &[bool], through: &mut Vec<u32>) {
        if self.counts[tensor as usize] != Some(1) {
            return;
        }
        let mut seen: Set<u32> = Set::from_iter([tensor]);
        let mut open = vec![tensor];
        while let Some(place) = open.pop() {
            let kind = self.kinds[place as usize];
            let is_hook = self.is_hook[place as usize];
            for to in &self.targets[place as usize] {
                if is_object[*to as usize] {
                    if is_hook || kind == Some(Kind::PythonNode) {
                        through.push(*to);
                    }
                    continue;
                }
                let is_seen = match self.kinds[*to as usize] {
                    Some(Kind::TensorMeta) => place == tensor,
                    Some(Kind::PythonNode) => {
                        // Its own context may own it.
                        let others = 1 + u64::from(self.partners.contains_key(to));
                        kind == Some(Kind::TensorMeta) && self.counts[*to as usize] == Some(others)
                    }
                    // The memory of a vector of hooks.
                    Some(Kind::Unnamed) => kind == Some(Kind::TensorMeta),
                    _ => self.is_hook[*to as usize] && matches!(kind, Some(Kind::TensorMeta | Kind::Unnamed)),
                };
                if is_seen && seen.insert(*to) {
                    open.push(*to);
                }
            }
        }
    }
}

/// Whether the collector knows what a Python object or a frame refers to.
fn is_tracked(searched: &mut Findings, node: NodeId) -> bool {
    if searched.graph.kind(node) == NodeKind::Frame {
        return true;
    }
    let address = searched.graph.address(node);
    let copy = searched.copy;
    let is_tracked = searched.python.as_mut().and_then(|python| {
        let of = python.object(copy, address)?;
        Some(python.is_tracked(copy, address, of))
    });
    is_tracked == Some(true)
}

/// What a native object is, and how many references an object has, if it counts them.
fn kind_and_count(searched: &mut Findings, node: NodeId) -> (Option<Kind>, Option<u64>) {
    let address = searched.graph.address(node);
    let copy = searched.copy;
    match searched.graph.kind(node) {
        NodeKind::Python => {
            let count = searched.python.as_ref().map(|python| python.count(copy, address));
            (None, count)
        }
        NodeKind::Native => {
            let kind = searched.native.kind(copy, address);
            let count = kind.is_counted().then(|| counts::of(copy, address)).flatten();
            (Some(kind), count.map(counts::Count::number))
        }
        NodeKind::Root | NodeKind::Frame => (None, None),
    }
}
