//! The modules of PyTorch that own blocks, as `named_modules()` spells them.
//!
//! ```text
//! model ─ _modules['layers'] ─► ModuleList ─ ['3'] ─► Linear ─ _parameters['weight'] ─► Parameter ─► TensorImpl ─► StorageImpl
//!                                                                                          │             └─► .grad ─► TensorImpl ─► …
//! optimizer.state ──────────────────────────────────────────────────────────────── [key] ──┘
//! ```
//!
//! A module owns its parameters and buffers, their gradients, and tensors that are its attributes, whichever path leads to them. Of
//! other blocks the path decides: it goes through a module, or through the entry of a dictionary whose key is a parameter, as in the
//! state of an optimizer. What a hook holds through a parameter belongs to no module.
//!
//! Nodes of autograd's graph do not know their modules, but they lead to parameters. A tensor that a node saves belongs to the module
//! of the nearest parameter, and so does a tensor that a node made:
//!
//! ```text
//! SavedVariable in GeluBackward ─► AddmmBackward ─► AccumulateGrad ─ variable ─► linear1.bias
//! ```

use culeak::snapshot::{Class, OwnerModule};

use super::cycle::{self, Cycles};
use super::names::{BUDGET, Kind, Names};
use super::retained;
use super::torch::GRADIENT;
use crate::graph::{EdgeKind, NodeId, NodeKind, Phase};
use crate::native::kinds::Kind as ClassKind;
use crate::{Map, Set};

/// Steps to the parameter of a module, two from a node to the next one: most from the node that saves a tensor, through reshaping and
/// attention; and few from the one that made it, so that a loss does not belong to the last layer.
const FROM_SAVER: usize = 24;
const FROM_MAKER: usize = 5;
/// The most nodes in which a parameter is looked for.
const NODES: usize = 256;
/// Unnamed memory with more targets than this is no vector of edges.
const WIDEST: usize = 256;
/// Targets that are looked at for the nearest parameters of one copy.
const TARGETS: u64 = 20_000_000;

/// The modules of one copy.
#[derive(Default)]
pub(super) struct Owners {
    /// In the order of `named_modules()`, those around them first.
    all: Vec<Owner>,
    /// The module that each of these is, or belongs to.
    of_nodes: Map<NodeId, u32>,
    /// The answers for nodes on paths, and whether only tensors follow them.
    known: Map<(NodeId, bool), Option<u32>>,
    /// The answers for nodes of autograd's graph, by the most steps.
    nearest: Map<(NodeId, usize), Option<u32>>,
    /// Of [`TARGETS`], what is left.
    budget: u64,
}

struct Owner {
    node: NodeId,
    name: String,
    parent: Option<u32>,
    /// The number of other modules that have it, or a tensor of it.
    also: u64,
}

/// The tables of a module.
#[derive(Default)]
struct Tables {
    modules: Vec<(String, NodeId)>,
    tensors: Vec<NodeId>,
}

impl Owners {
    pub fn find(names: &mut Names) -> Owners {
        let mut owners = Owners {
            budget: TARGETS,
            ..Owners::default()
        };
        let (graph, copy) = (&names.searched.graph, names.searched.copy);
        let Some(python) = &names.searched.python else {
            return owners;
        };
        let classes = python.types_below(copy, "Module");
        let is_module = |node: &NodeId| {
            graph.kind(*node) == NodeKind::Python
                && classes.contains(&copy.word(graph.address(*node) + python.head() - 8))
        };
        let nodes: Vec<NodeId> = match classes.is_empty() {
            true => return owners,
            false => graph.nodes().filter(is_module).collect(),
        };
        let mut tables: Map<NodeId, Tables> = Map::default();
        for &node in &nodes {
            if let Some(of) = Tables::of(names, node) {
                tables.insert(node, of);
            }
        }
        let inner = tables.values().flat_map(|of| &of.modules).map(|(_, node)| *node);
        let inner: Set<NodeId> = inner.collect();
        // Modules that are all in each other have no root.
        let roots = nodes.iter().filter(|node| !inner.contains(node)).chain(&nodes);
        for &root in roots {
            if !owners.of_nodes.contains_key(&root) {
                owners.add(names, &mut tables, root);
            }
        }
        owners
    }

    /// Adds a module and those in it.
    fn add(&mut self, names: &mut Names, tables: &mut Map<NodeId, Tables>, root: NodeId) {
        let mut open = vec![(root, None, String::new())];
        while let Some((node, parent, name)) = open.pop() {
            if let Some(&known) = self.of_nodes.get(&node) {
                self.all[known as usize].also += 1;
                continue;
            }
            let Some(of) = tables.remove(&node) else { continue };
            let this = self.all.len() as u32;
            self.of_nodes.insert(node, this);
            self.all.push(Owner {
                node,
                name,
                parent,
                also: 0,
            });
            for tensor in of.tensors {
                self.claim(names, tensor, this);
            }
            open.extend((of.modules.into_iter().rev()).map(|(name, node)| (node, Some(this), name)));
        }
    }

    /// A tensor, its storage, and its gradient belong to a module.
    fn claim(&mut self, names: &mut Names, tensor: NodeId, module: u32) {
        if let Some(&first) = self.of_nodes.get(&tensor) {
            self.all[first as usize].also += u64::from(first != module);
            return;
        }
        let mut open = vec![tensor];
        while let Some(node) = open.pop() {
            if *self.of_nodes.entry(node).or_insert(module) != module {
                continue;
            }
            let kind = names.kind(node);
            let graph = &names.searched.graph;
            if kind == Kind::AutogradMeta {
                let copy = names.searched.copy;
                let word = |word: u64| graph.find(copy, copy.word(graph.address(node) + word * 8));
                let gradients: Vec<NodeId> = GRADIENT.into_iter().filter_map(word).collect();
                let is_one = |node: &NodeId| !self.of_nodes.contains_key(node) && names.kind(*node) == Kind::Tensor;
                open.extend(gradients.into_iter().filter(is_one));
                continue;
            }
            for target in targets(names, node) {
                let is_part = match names.kind(target) {
                    Kind::Tensor => kind != Kind::Tensor,
                    Kind::Storage | Kind::AutogradMeta => kind == Kind::Tensor,
                    _ => false,
                };
                if is_part && !self.of_nodes.contains_key(&target) {
                    open.push(target);
                }
            }
        }
    }

    /// The module that owns the block to which this node refers.
    fn of(&mut self, names: &mut Names, last: NodeId) -> Option<u32> {
        let mut at = last;
        // So far there were only tensors and what tensors consist of.
        let mut is_tensor = true;
        let mut passed = Vec::new();
        let found = loop {
            if let Some(&known) = self.known.get(&(at, is_tensor)) {
                break known;
            }
            passed.push((at, is_tensor));
            if let Some(&owner) = self.of_nodes.get(&at) {
                let is_module = self.all[owner as usize].node == at;
                break (is_module || is_tensor).then_some(owner);
            }
            let kind = names.kind(at);
            if is_tensor
                && matches!(kind, Kind::GradNode | Kind::PyNode)
                && let Some(owner) = self.nearest(names, at, FROM_SAVER)
            {
                break Some(owner);
            }
            is_tensor &= matches!(
                kind,
                Kind::Tensor
                    | Kind::Storage
                    | Kind::AutogradMeta
                    | Kind::Unnamed
                    | Kind::Dict
                    | Kind::Container
                    | Kind::Object
            );
            let Some((parent, edge)) = names.searched.graph.parent(at) else {
                break None;
            };
            if edge.kind() == EdgeKind::Value && names.searched.graph.kind(parent) == NodeKind::Python {
                let (graph, copy) = (&names.searched.graph, names.searched.copy);
                let python = names.searched.python.as_ref();
                let key = python.and_then(|python| python.key_of(copy, graph.address(parent), edge.index()));
                let key = key.and_then(|key| graph.find(copy, key));
                if let Some(&owner) = key.and_then(|key| self.of_nodes.get(&key)) {
                    break Some(owner);
                }
            }
            at = parent;
        };
        self.known.extend(passed.into_iter().map(|node| (node, found)));
        found
    }

    /// The module in which the tensor of a block was made, if autograd's graph still says it.
    fn maker(&mut self, names: &mut Names, last: NodeId) -> Option<u32> {
        let ancestors = std::iter::successors(Some(last), |node| Some(names.searched.graph.parent(*node)?.0));
        let ancestors: Vec<NodeId> = ancestors.take(3).collect();
        let tensor = ancestors.into_iter().find(|node| names.kind(*node) == Kind::Tensor)?;
        let meta = targets(names, tensor).find(|node| names.kind(*node) == Kind::AutogradMeta)?;
        let maker = targets(names, meta).find(|node| matches!(names.kind(*node), Kind::GradNode | Kind::PyNode))?;
        self.nearest(names, maker, FROM_MAKER)
    }

    /// The module of the parameter nearest to a node of autograd's graph, in the direction of backward.
    fn nearest(&mut self, names: &mut Names, node: NodeId, most: usize) -> Option<u32> {
        if let Some(&known) = self.nearest.get(&(node, most)) {
            return known;
        }
        let found = self.search_nearest(names, node, most);
        self.nearest.insert((node, most), found);
        found
    }

    /// `None`: there is none, or the budget is spent.
    fn search_nearest(&mut self, names: &mut Names, node: NodeId, most: usize) -> Option<u32> {
        let mut seen: Set<NodeId> = Set::default();
        seen.insert(node);
        let mut level = vec![node];
        for _ in 0..=most {
            let mut next = Vec::new();
            for at in level {
                let is_unnamed = names.kind(at) == Kind::Unnamed;
                let (graph, copy) = (&names.searched.graph, names.searched.copy);
                let is_native = graph.kind(at) == NodeKind::Native;
                let is_leaf = is_native && names.searched.native.kind(copy, graph.address(at)) == ClassKind::LeafNode;
                if is_unnamed && graph.targets(at).len() > WIDEST {
                    continue;
                }
                for target in targets(names, at) {
                    self.budget = self.budget.checked_sub(1)?;
                    match names.kind(target) {
                        Kind::Tensor if is_leaf => {
                            if let Some(&owner) = self.of_nodes.get(&target) {
                                return Some(owner);
                            }
                        }
                        // The edges of a node are in a vector.
                        Kind::GradNode | Kind::PyNode | Kind::Unnamed if seen.len() < NODES && seen.insert(target) => {
                            next.push(target);
                        }
                        _ => {}
                    }
                }
            }
            level = next;
        }
        None
    }
}

/// What a node refers to.
fn targets(names: &Names, node: NodeId) -> std::vec::IntoIter<NodeId> {
    names.searched.graph.targets(node).to_vec().into_iter()
}

impl Tables {
    /// `None`: it is no module of PyTorch, or not one yet.
    fn of(names: &mut Names, node: NodeId) -> Option<Tables> {
        let (copy, address) = (names.searched.copy, names.searched.graph.address(node));
        let python = names.searched.python.as_mut()?;
        let mut tables = Tables::default();
        let mut is_module = false;
        for (name, value) in python.values_by_name(copy, address) {
            let graph = &names.searched.graph;
            let inner = |(name, value)| Some((name, graph.find(copy, value)?));
            match name.as_str() {
                "_modules" => {
                    is_module = true;
                    let modules = python.values_by_name(copy, value).into_iter();
                    tables.modules = modules.filter_map(inner).collect();
                }
                "_parameters" | "_buffers" => {
                    let mut tensors = python.values_by_name(copy, value);
                    tensors.retain(|(_, tensor)| {
                        let of = python.object(copy, *tensor);
                        of.is_some_and(|of| python.type_name(of) != "NoneType")
                    });
                    let tensors = tensors.into_iter().filter_map(inner);
                    tables.tensors.extend(tensors.map(|(_, tensor)| tensor));
                }
                _ => {
                    let Some(value) = graph.find(copy, value) else { continue };
                    let is_native = |node: &NodeId| graph.kind(*node) == NodeKind::Native;
                    let mut targets = graph.targets(value).iter().copied().filter(is_native);
                    let is_impl = |node: NodeId| {
                        let class = names.searched.native.kind(copy, graph.address(node));
                        super::torch::kind_of(class) == Kind::Tensor
                    };
                    if targets.any(is_impl) {
                        tables.tensors.push(value);
                    }
                }
            }
        }
        is_module.then_some(tables)
    }
}

/// The modules of all copies.
pub(super) struct Modules {
    pub all: Vec<OwnerModule>,
    numbers: Map<(Option<usize>, String, String), usize>,
    /// By the index of the block.
    of_blocks: Vec<Option<usize>>,
}

impl Modules {
    pub fn new(blocks: usize) -> Modules {
        Modules {
            all: Vec::new(),
            numbers: Map::default(),
            of_blocks: vec![None; blocks],
        }
    }

    pub fn of_block(&self, block: usize) -> Option<usize> {
        self.of_blocks[block]
    }

    /// These blocks have the modules of this copy from now on.
    pub fn add(&mut self, names: &mut Names, owners: &mut Owners, cycles: &mut Cycles, these: &[usize]) {
        let mut numbers = vec![None; owners.all.len()];
        for &block in these {
            let found = names.searched.found[block];
            if found.last.0.is_none() || owners.all.is_empty() {
                continue;
            }
            let mut owner = owners.of(names, found.last.0);
            if owner.is_none() && found.class == Class::Cycle {
                let cycle = cycles.of(names, cycle::holder(names, found));
                let mut nodes = cycle.path.iter().rev();
                owner = nodes.find_map(|(node, _)| owners.of_nodes.get(node).copied());
            }
            let owner = owner.or_else(|| owners.maker(names, found.last.0));
            self.of_blocks[block] = owner.map(|owner| self.number(names, &owners.all, owner, &mut numbers));
        }
    }

    /// The number of a module, which is added with those around it if it is new.
    fn number(&mut self, names: &mut Names, all: &[Owner], owner: u32, numbers: &mut [Option<usize>]) -> usize {
        let around = std::iter::successors(Some(owner), |module| all[*module as usize].parent);
        let is_new = |module: &u32| numbers[*module as usize].is_none();
        let chain: Vec<u32> = around.take_while(is_new).collect();
        let outermost = chain.last().map_or(Some(owner), |module| all[*module as usize].parent);
        let mut number = outermost.and_then(|module| numbers[module as usize]);
        for module in chain.into_iter().rev() {
            let owner = &all[module as usize];
            let name = match owner.parent {
                Some(_) => Some(owner.name.clone()),
                None if names.searched.graph.phase(owner.node) == Phase::Garbage => None,
                None => retained::name(names, owner.node, &mut { BUDGET }).map(|holder| holder.name),
            };
            let new = OwnerModule {
                name: name.unwrap_or_else(|| "(no variable)".to_owned()),
                class: names.detail(owner.node),
                parent: number,
                also: owner.also,
            };
            let key = (number, new.name.clone(), new.class.clone());
            number = Some(*self.numbers.entry(key).or_insert_with(|| {
                self.all.push(new);
                self.all.len() - 1
            }));
            numbers[module as usize] = number;
        }
        number.unwrap_or_default()
    }
}
