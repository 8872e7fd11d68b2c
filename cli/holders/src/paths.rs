//! Paths in the user's words; dominators and retained bytes.
//!
//! ```text
//! blocks ─► shapes: equal paths, by number ─► one example of each, read again ─► words ─► HolderPath
//!       └─► dominator tree of each copy ─► holders ─► retainers
//! ```
//!
//! * `names`: what nodes are, and what to call them and their references
//! * `shapes`: paths that are called alike, found without making words
//! * `text`, `runs`, `torch`: the words of a path
//! * `cycle`: the text of a cycle
//! * `verify`: reads paths again
//! * `holding`: the graph that the dominator tree is made of
//! * `retained`: what each holder alone keeps alive
//! * `ways`: the names of what several refer to
//! * `trees`: the holders of several copies as one tree
//! * `owners`: the modules of PyTorch that own blocks

use culeak::snapshot::{Class, HeldBlock, HeldTensor, HolderPath, Holders, RootKind, Search};

use crate::copy::Image;
use crate::findings::{CIRCLE, Findings};
use crate::{Block, Map, Options, Set};

mod cycle;
mod holding;
mod names;
mod owners;
mod retained;
mod runs;
mod shapes;
mod tensors;
mod text;
#[cfg(test)]
mod text_tests;
mod torch;
mod trees;
mod verify;
mod ways;

use cycle::{Cycle, Cycles};
use names::{BUDGET, Names};
use owners::{Modules, Owners};
use shapes::{Shapes, Shortened};
use tensors::Tensors;
use text::Style;
use trees::Trees;
use verify::Check;

/// Collects the paths of all blocks.
pub struct Paths<'b> {
    blocks: &'b [Block],
    /// Indices of blocks.
    concrete: Set<usize>,
    /// The path of each block, by its index; `None`: when the path was read again, it was not there any more.
    answers: Vec<Option<usize>>,
    paths: Vec<HolderPath>,
    known: Map<HolderPath, usize>,
    /// The process was stopped while it was copied.
    pub was_stopped: bool,
    /// Whether host memory is summed up, and then the blocks that are host memory.
    host: Option<&'b [usize]>,
    trees: Trees,
    modules: Modules,
    /// By the index of the block.
    tensors: Map<usize, HeldTensor>,
}

/// What decides whether two paths are called alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sort {
    shape: u32,
    last: u32,
    class: Class,
    interior: bool,
    by_range: bool,
    possibly: bool,
    note: Option<&'static str>,
    /// The path of this block is put into words by itself.
    concrete: Option<u32>,
    /// The text of the cycle, or of the native pointer to an object.
    text: u32,
}

/// Blocks whose paths are called alike.
#[derive(Default)]
struct Group {
    blocks: Vec<u32>,
    shortest: u32,
    longest: u32,
}

impl<'b> Paths<'b> {
    pub fn new(blocks: &'b [Block], options: &'b Options) -> Paths<'b> {
        Paths {
            blocks,
            concrete: options.concrete.iter().copied().collect(),
            was_stopped: false,
            host: options.host.then_some(&options.host_blocks),
            answers: vec![None; blocks.len()],
            paths: Vec::new(),
            known: Map::default(),
            trees: Trees::new(blocks.len()),
            modules: Modules::new(blocks.len()),
            tensors: Map::default(),
        }
    }

    /// Takes the paths of these blocks (indices) from a copy. They replace those of an earlier copy. Called once per copy.
    /// Returns the blocks whose paths were not there any more when they were read again.
    pub fn add(&mut self, searched: &mut Findings, these: &[usize]) -> Vec<usize> {
        let names = &mut Names::new(searched);
        let has_path = |block: &&usize| names.searched.found[**block].class != Class::Lost;
        let host = self.host.filter(|_| self.trees.is_empty());
        if host.is_some() || these.iter().any(|block| has_path(&block)) {
            let (holders, of_blocks) = retained::holders(names, self.blocks, host);
            self.trees.add(holders, &of_blocks, these);
        }
        let mut shapes = Shapes::new(names.searched.graph.len());
        let mut cycles = Cycles::new(&names.searched.garbage);
        let mut owners = Owners::find(names);
        self.modules.add(names, &mut owners, &mut cycles, these);
        let mut texts: Map<String, u32> = Map::default();
        let mut budget = BUDGET;
        let mut groups: Map<Sort, Group> = Map::default();
        let mut tensors = Tensors::default();
        for &block in these {
            let found = names.searched.found[block];
            tensors.add(names, block, found, self.blocks[block].bytes);
            let text = match found.class {
                Class::Cycle => Some(cycles.of(names, cycle::holder(names, found)).key()),
                Class::NativeHolder => found.pointer.map(|pointer| names.memory(pointer)),
                _ => None,
            };
            let text = text.map_or(0, |text| {
                let next = texts.len() as u32 + 1;
                *texts.entry(text).or_insert(next)
            });
            let (shape, last, length) = match found.last.0.is_none() {
                true => (0, 0, 0),
                false => shapes.end(names, found.last.0, found.last.1),
            };
            let sort = Sort {
                shape,
                last,
                class: found.class,
                interior: found.interior,
                by_range: found.by_range,
                possibly: found.possibly,
                note: found.note,
                concrete: self.concrete.contains(&block).then_some(block as u32),
                text,
            };
            let group = groups.entry(sort).or_insert_with(|| Group {
                shortest: length,
                ..Group::default()
            });
            group.shortest = group.shortest.min(length);
            group.blocks.push(block as u32);
            // The longest path is the example.
            if length > group.longest {
                group.longest = length;
                let last = group.blocks.len() - 1;
                group.blocks.swap(0, last);
            }
        }
        self.tensors.extend(tensors.finish(names.searched.copy));
        let changed = self.changed(names, &groups);
        for (sort, group) in groups {
            let mut path = None;
            for &block in &group.blocks {
                let block = block as usize;
                self.answers[block] = Some(match changed.contains(&block) {
                    true => self.intern(HolderPath::unknown()),
                    false => *path.get_or_insert_with(|| {
                        let style = Style {
                            concrete: sort.concrete.is_some(),
                            varies: group.shortest < group.longest,
                            to_object: false,
                        };
                        let path = describe(names, &mut shapes, &mut cycles, block, style, &mut budget);
                        self.intern(path)
                    }),
                });
            }
        }
        let mut changed: Vec<usize> = changed.into_iter().collect();
        changed.sort_unstable();
        changed
    }

    fn intern(&mut self, path: HolderPath) -> usize {
        let next = self.paths.len();
        *self.known.entry(path).or_insert_with_key(|path| {
            self.paths.push(path.clone());
            next
        })
    }

    /// The blocks whose paths are not there any more. Examples are read again first, the others as far as there is room.
    fn changed(&self, names: &mut Names, groups: &Map<Sort, Group>) -> Set<usize> {
        let mut changed = Set::default();
        // What was copied while the process was stopped existed as a whole.
        if self.was_stopped || !names.searched.copy.source().is_running() {
            return changed;
        }
        let examples = groups.values().flat_map(|group| group.blocks.iter().take(EXAMPLES));
        let others = groups.values().flat_map(|group| group.blocks.iter().skip(EXAMPLES));
        let mut checked: Vec<u32> = examples.chain(others).copied().collect();
        checked.retain(|&block| !names.searched.found[block as usize].last.0.is_none());
        for _ in 0..LOOKS {
            let Ok(newer) = Image::newer(names.searched.copy) else {
                return changed;
            };
            let mut check = Check::new(&newer);
            checked.retain(|&block| {
                let last = names.searched.found[block as usize].last;
                check.has_room() && !check.holds(names, last, self.blocks[block as usize].address)
            });
            if checked.is_empty() {
                break;
            }
        }
        changed.extend(checked.into_iter().map(|block| block as usize));
        changed
    }

    /// All blocks have been added.
    pub fn finish(mut self, mut search: Search) -> Holders {
        let mut numbers = vec![usize::MAX; self.paths.len()];
        let mut paths = Vec::new();
        let mut blocks = Vec::new();
        let mut tensors: Map<HeldTensor, usize> = Map::default();
        for (index, block) in self.blocks.iter().enumerate() {
            let Some(path) = self.answers[index] else { continue };
            if numbers[path] == usize::MAX {
                numbers[path] = paths.len();
                paths.push(self.paths[path].clone());
            }
            let path = numbers[path];
            search.changed += u64::from(paths[path].changed);
            let tensor = self.tensors.remove(&index).filter(|_| !paths[path].changed);
            let next = tensors.len();
            blocks.push(HeldBlock {
                address: block.address,
                time_ns: block.time_ns,
                bytes: block.bytes,
                path,
                retainer: match paths[path].changed {
                    true => None,
                    false if paths[path].note.as_deref() == Some(CIRCLE) => None,
                    false => self.trees.retainer(index, paths[path].class),
                },
                module: self.modules.of_block(index).filter(|_| !paths[path].changed),
                tensor: tensor.map(|tensor| *tensors.entry(tensor).or_insert(next)),
            });
        }
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_unstable_by_key(|(_, number)| *number);
        self.trees.ask_for_host();
        Holders {
            search,
            paths,
            retainers: self.trees.retainers(&blocks),
            modules: self.modules.all,
            tensors: tensors.into_iter().map(|(tensor, _)| tensor).collect(),
            blocks,
            objects: Vec::new(),
        }
    }
}

/// Paths of each shape that are read again before those of the next shape.
const EXAMPLES: usize = 4;

/// How often a path is read again before it counts as gone: a dictionary that a program changes all the time, such as that of a
/// module, has another table each time.
const LOOKS: u32 = 4;

impl Cycle {
    fn key(&self) -> String {
        format!("{} {} {}", self.text, self.path.len(), self.is_kept)
    }
}

fn describe(
    names: &mut Names,
    shapes: &mut Shapes,
    cycles: &mut Cycles,
    block: usize,
    style: Style,
    budget: &mut usize,
) -> HolderPath {
    let found = names.searched.found[block];
    let mut path = HolderPath {
        class: found.class,
        root: RootKind::None,
        possibly: found.possibly,
        interior: found.interior,
        note: found.note.map(str::to_owned),
        ..HolderPath::default()
    };
    if found.class == Class::Lost {
        return path;
    }
    let mut nodes = names.path(found.last.0, budget);
    nodes.push(found.last);
    let mut cycle = None;
    if found.class == Class::Cycle {
        let of = cycles.of(names, cycle::holder(names, found));
        nodes.splice(1..1, of.path.iter().copied());
        cycle = Some(of);
    }
    if found.class == Class::NativeHolder
        && path.note.is_none()
        && let Some(pointer) = found.pointer
    {
        path.note = Some(format!("{} points to it", names.memory(pointer)));
    }
    let mut shortened = if nodes.len() > 64 {
        let keys: Vec<u64> = nodes.iter().map(|(node, _)| shapes.key(names, *node)).collect();
        shapes::without_runs(&nodes, &keys)
    } else {
        Shortened::bounded(nodes)
    };
    if shortened.nodes.len() > Shortened::LONGEST {
        shortened = Shortened::bounded(shortened.nodes);
    }
    let parts = names.parts(&shortened.nodes, &shortened.omitted);
    let words = text::words(&parts, style);
    path.root = words.root;
    path.steps = words.steps;
    if found.by_range {
        text::end_with(&mut path.steps, "reservation");
    }
    path.origin = words.origin;
    path.origin_type = words.origin_type;
    path.possibly |= words.root == RootKind::Stack;
    if let Some(cycle) = cycle {
        path.origin = cycle.text;
        path.origin_type = String::new();
        let copy = names.searched.copy;
        let python = names.searched.python.as_ref();
        let is_enabled = python.and_then(|python| python.is_collector_enabled(copy));
        let note = match (cycle.is_kept, is_enabled) {
            (true, _) => Some("gc.collect() does not free it".to_owned()),
            (false, Some(false)) => Some("gc is disabled".to_owned()),
            (false, _) => None,
        };
        let sentences: Vec<String> = [note, cycle.cut.map(str::to_owned)].into_iter().flatten().collect();
        if path.note.is_none() && !sentences.is_empty() {
            path.note = Some(sentences.join("; "));
        }
    }
    path
}
