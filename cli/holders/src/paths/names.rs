//! What the nodes of a path are, and what to call them and the references between them.

use culeak::snapshot::RootKind;

use super::torch;
use crate::Map;
use crate::findings::Findings;
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind, PythonRoot, Root, ThreadPart};
use crate::native::RootSort;
use crate::native::vectors::bytes_of_vector;
use crate::python::{Label, TypeId, signal_name};

/// References that are looked at for the paths of one copy. The paths after that have their end only.
pub(super) const BUDGET: usize = 50_000_000;

/// What a node is, as far as the words of a path depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Root,
    Module,
    Class,
    Function,
    /// `staticmethod` and the like: only the function in it has a name.
    Wrapper,
    Cell,
    Dict,
    /// Another container of Python, which needs no name between `.history` and `[3]`.
    Container,
    Frame,
    Generator,
    Traceback,
    /// A part of the tree that contains context variables.
    Context,
    /// A part of `threading.local`.
    ThreadLocal,
    /// An entry of the list in an `lru_cache`.
    CacheLink,
    Object,
    /// `c10::TensorImpl`.
    Tensor,
    /// `c10::StorageImpl`.
    Storage,
    AutogradMeta,
    /// A node of autograd's graph.
    GradNode,
    /// The node of a function that is written in Python.
    PyNode,
    /// Native memory with a class.
    Native,
    /// Native memory without a class.
    Unnamed,
    /// Steps that are left out.
    Gap,
}

/// How the node was entered, if that decides how its references are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Place {
    #[default]
    Plain,
    /// The dictionary of all modules.
    Modules,
    /// The dictionary of an object: its keys are attributes.
    Attributes,
    /// The cells, defaults or keyword defaults of a function: their indices are no data of the user.
    Closure,
    Defaults,
    /// A dictionary that has a dictionary for each thread or for each `threading.local`.
    Threads,
}

/// What a path begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Beginning {
    Modules,
    /// A dictionary whose keys are variables: `sys`, `builtins`.
    Namespace(String),
    /// A frame; `thread 4711 (loader), ` unless it is of the main thread.
    Frame(String),
    ThreadLocal(String),
    Context(String),
    /// Something else, which has a name.
    Other(String, RootKind),
    /// A word of native memory: its name, and whether a `std::vector` begins there.
    Word(String, RootKind, bool),
    /// The first object gives the name.
    Object,
}

/// A node of a path and its reference to the next one.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub kind: Kind,
    pub place: Place,
    /// Only of the root.
    pub beginning: Option<Beginning>,
    /// `Tensor`, `function f`, `frame of gen, train.py:62`; without sizes.
    pub name: String,
    /// With sizes: `list of 60`.
    pub detail: String,
    pub label: Label,
    pub edge: Edge,
    /// Periods of a run that are left out after this part, and their length in parts.
    pub omitted: (u64, usize),
}

/// Names the nodes of one copy.
pub(super) struct Names<'a, 'c, 's> {
    pub searched: &'a mut Findings<'c, 's>,
    kinds: Map<TypeId, Kind>,
    threads: Map<u64, String>,
}

impl<'a, 'c, 's> Names<'a, 'c, 's> {
    pub fn new(searched: &'a mut Findings<'c, 's>) -> Names<'a, 'c, 's> {
        let threads = searched.copy.source().threads().into_iter();
        let mut threads: Map<u64, String> = threads.map(|thread| (u64::from(thread.id), thread.name)).collect();
        // The names that a Python program gives are better: those of the system are the program's until 3.13.
        if let Some(python) = &mut searched.python {
            threads.extend(python.thread_names(searched.copy));
        }
        Names {
            threads,
            searched,
            kinds: Map::default(),
        }
    }

    pub fn type_of(&mut self, node: NodeId) -> Option<TypeId> {
        let address = self.searched.graph.address(node);
        self.searched.python.as_mut()?.object(self.searched.copy, address)
    }

    pub fn kind(&mut self, node: NodeId) -> Kind {
        match self.searched.graph.kind(node) {
            NodeKind::Root => Kind::Root,
            NodeKind::Frame => Kind::Frame,
            NodeKind::Native => {
                let address = self.searched.graph.address(node);
                torch::kind_of(self.searched.native.kind(self.searched.copy, address))
            }
            NodeKind::Python => self.type_of(node).map_or(Kind::Object, |of| self.kind_of_type(of)),
        }
    }

    fn kind_of_type(&mut self, of: TypeId) -> Kind {
        if let Some(kind) = self.kinds.get(&of) {
            return *kind;
        }
        let Some(python) = &self.searched.python else {
            return Kind::Object;
        };
        let kind = match python.type_name(of) {
            _ if python.is_class(of) => Kind::Class,
            "module" => Kind::Module,
            "function" => Kind::Function,
            "staticmethod" | "classmethod" | "property" => Kind::Wrapper,
            "cell" => Kind::Cell,
            "dict" => Kind::Dict,
            "list" | "tuple" | "set" | "frozenset" | "deque" | "OrderedDict" | "defaultdict" | "mappingproxy" => {
                Kind::Container
            }
            "frame" => Kind::Frame,
            "generator" | "coroutine" | "async_generator" => Kind::Generator,
            "traceback" => Kind::Traceback,
            "Context" | "hamt" | "hamt_bitmap_node" | "hamt_array_node" | "hamt_collision_node" => Kind::Context,
            "_local" | "_localdummy" => Kind::ThreadLocal,
            "_lru_list_elem" => Kind::CacheLink,
            _ => Kind::Object,
        };
        self.kinds.insert(of, kind);
        kind
    }

    /// What to call the node without sizes.
    pub fn name(&mut self, node: NodeId, kind: Kind) -> String {
        let address = self.searched.graph.address(node);
        let copy = self.searched.copy;
        match self.searched.graph.kind(node) {
            NodeKind::Root => String::new(),
            NodeKind::Frame => {
                let python = self.searched.python.as_mut();
                python.map_or_else(String::new, |python| python.frame_name(copy, address))
            }
            NodeKind::Native => match self.searched.native.class(copy, address) {
                Some(class) => torch::short_class(class),
                None if copy.region(address).is_some_and(|region| region.shared) => "shared memory".to_owned(),
                None => "native memory".to_owned(),
            },
            NodeKind::Python => match kind {
                Kind::Function | Kind::Class | Kind::Frame => self.detail(node),
                // Whatever the generator itself is called.
                Kind::Generator => match self.detail(node) {
                    name if name.starts_with("frame of") => name,
                    name => format!("frame of {name}"),
                },
                _ => self.type_name(node),
            },
        }
    }

    fn type_name(&mut self, node: NodeId) -> String {
        let address = self.searched.graph.address(node);
        let (Some(of), Some(python)) = (self.type_of(node), &mut self.searched.python) else {
            return String::new();
        };
        let called = python.called(self.searched.copy, address, of);
        let name = python.type_name(of);
        let name = renamed(name).unwrap_or(name);
        called.map_or_else(|| name.to_owned(), |called| format!("{name} of {called}"))
    }

    /// What to call the node, with sizes: `list of 60`.
    pub fn detail(&mut self, node: NodeId) -> String {
        let address = self.searched.graph.address(node);
        let copy = self.searched.copy;
        if self.searched.graph.kind(node) != NodeKind::Python {
            let kind = self.kind(node);
            return self.name(node, kind);
        }
        match (self.type_of(node), &mut self.searched.python) {
            (Some(of), Some(python)) => match python.type_name(of) {
                "_lru_cache_wrapper" | "partial" | "_local" => self.type_name(node),
                _ => python.name(copy, address, of),
            },
            _ => String::new(),
        }
    }

    pub fn label(&mut self, node: NodeId, kind: Kind, edge: Edge) -> Label {
        if kind == Kind::Context {
            return Label::same(self.context_variable(node, edge).unwrap_or_default());
        }
        let address = self.searched.graph.address(node);
        let is_frame = self.searched.graph.kind(node) == NodeKind::Frame;
        match (self.searched.graph.kind(node), &mut self.searched.python) {
            (NodeKind::Python | NodeKind::Frame, Some(python)) if edge.kind() != EdgeKind::Word => {
                python.label(self.searched.copy, address, is_frame, edge)
            }
            _ => Label::default(),
        }
    }

    /// How the references of a node are called that is entered in this way.
    pub fn place(&mut self, from: NodeId, kind: Kind, place: Place, edge: Edge, to: Kind) -> Place {
        if kind == Kind::Root {
            return match self.searched.graph.root(from) {
                Some(Root::Python(PythonRoot::Interpreter("sys.modules"))) => Place::Modules,
                Some(Root::Python(PythonRoot::Interpreter("sys" | "builtins"))) => Place::Attributes,
                Some(Root::Python(PythonRoot::Thread { part, .. })) if *part == ThreadPart::Locals => Place::Threads,
                _ => Place::Plain,
            };
        }
        if edge.kind() == EdgeKind::Dictionary {
            return Place::Attributes;
        }
        match (kind, edge.kind(), to) {
            (Kind::ThreadLocal, _, Kind::Dict | Kind::Container) => Place::Threads,
            (Kind::Dict, _, Kind::Dict) if place == Place::Threads => Place::Attributes,
            (Kind::Function, EdgeKind::Field, _) => match self.label(from, kind, edge) {
                label if label.hidden => Place::Attributes,
                label if label.shape == ".__closure__" => Place::Closure,
                label if label.shape.ends_with("defaults__") => Place::Defaults,
                _ => Place::Plain,
            },
            (_, EdgeKind::Field, Kind::Dict) if self.label(from, kind, edge).hidden => Place::Attributes,
            _ => Place::Plain,
        }
    }

    /// The shortest path to a node: each node with the field of it that refers to the next one, from a root on; the node itself is left
    /// out. Not longer than what is left of the budget: the end if it is too long.
    pub fn path(&self, node: NodeId, budget: &mut usize) -> Vec<(NodeId, Edge)> {
        let mut path = Vec::new();
        let mut at = node;
        while let Some((parent, edge)) = self.searched.graph.parent(at) {
            path.push((parent, edge));
            at = parent;
            if path.len() > *budget {
                break;
            }
        }
        *budget = budget.saturating_sub(path.len());
        path.reverse();
        path
    }

    /// What contains an address: `g_cache in libext.so`, `foo::Cache`, `native memory`.
    pub fn memory(&mut self, address: u64) -> String {
        let Findings {
            copy, modules, native, ..
        } = &mut *self.searched;
        if let Some((variable, _)) = modules.variable_at(address) {
            let file = modules.with_global(address).map_or("", |module| module.file_name());
            return format!("{variable} in {file}");
        }
        let chunk = native.chunk(copy, address);
        let class = chunk.and_then(|chunk| native.class(copy, chunk.start));
        class.map_or_else(|| "native memory".to_owned(), torch::short_class)
    }

    /// The parts of a path: nodes with their references to the next one, from a root on.
    pub fn parts(&mut self, path: &[(NodeId, Edge)], omitted: &[(u64, usize)]) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::with_capacity(path.len());
        for (nth, &(node, edge)) in path.iter().enumerate() {
            let mut kind = self.kind(node);
            let mut place = Place::Plain;
            if let (Some(last), Some(&(before, by))) = (parts.last(), nth.checked_sub(1).and_then(|nth| path.get(nth)))
            {
                place = self.place(before, last.kind, last.place, by, kind);
                if last.place == Place::Modules {
                    kind = Kind::Module;
                }
            }
            let mut label = self.label(node, kind, edge);
            if place == Place::Closure
                && let Some(&(function, _)) = nth.checked_sub(1).and_then(|nth| path.get(nth))
                && let Some(name) = self.free_variable(function, edge.index())
            {
                label = Label::same(format!("closure {name}"));
            }
            if kind == Kind::Unnamed && self.is_vector_word(node, edge) {
                label = Label::same("[*]".to_owned());
            }
            let beginning = (kind == Kind::Root).then(|| self.beginning(node, edge));
            parts.push(Part {
                kind,
                place,
                beginning,
                name: self.name(node, kind),
                detail: self.detail(node),
                label,
                edge,
                omitted: omitted.get(nth).copied().unwrap_or_default(),
            });
        }
        parts
    }

    /// The name of a function's free variable.
    fn free_variable(&mut self, function: NodeId, index: u64) -> Option<String> {
        let address = self.searched.graph.address(function);
        let python = self.searched.python.as_mut()?;
        python.free_variable(self.searched.copy, address, index)
    }

    /// The name of the context variable whose value this is: keys and values take turns.
    fn context_variable(&mut self, node: NodeId, edge: Edge) -> Option<String> {
        let copy = self.searched.copy;
        let value = self.searched.graph.address(node) + edge.index() * 8;
        let python = self.searched.python.as_mut()?;
        python.context_variable(copy, copy.word(value.checked_sub(8)?))
    }

    /// Whether the word at this place of an unnamed chunk is the beginning of a `std::vector`.
    fn is_vector_word(&self, node: NodeId, edge: Edge) -> bool {
        edge.kind() == EdgeKind::Word && self.is_vector(self.searched.graph.address(node) + edge.index() * 8)
    }

    /// Whether the words at this address are the beginning, end and capacity of a buffer that is a chunk.
    pub fn is_vector(&self, address: u64) -> bool {
        let copy = self.searched.copy;
        let chunk = self.searched.native.chunk(copy, copy.word(address));
        let used = chunk.and_then(|chunk| bytes_of_vector(copy, address, &chunk));
        used.is_some_and(|used| used > 0 && used % 8 == 0)
    }

    pub fn beginning(&mut self, root: NodeId, edge: Edge) -> Beginning {
        let mut root = match self.searched.graph.root(root) {
            Some(Root::Python(root)) => return self.python_beginning(root),
            Some(Root::Native(root)) => root.clone(),
            Some(Root::Heap) => return Beginning::Other("heap memory".to_owned(), RootKind::Heap),
            Some(Root::Garbage | Root::Counted) | None => return Beginning::Object,
        };
        // The name of a thread in the program's words.
        if let Some(known) = self.threads.get(&u64::from(root.thread)).filter(|_| root.thread != 0) {
            root.name.clone_from(known);
        }
        let address = match root.sort {
            RootSort::Registers => 0,
            _ => root.range.start + edge.index() * 8,
        };
        let Findings { modules, native, .. } = &mut *self.searched;
        let name = native.describe(modules, &root, address);
        let kind = match root.sort {
            RootSort::Globals | RootSort::Library => RootKind::Global,
            RootSort::ThreadLocals | RootSort::Descriptor | RootSort::Stored => RootKind::ThreadLocal,
            RootSort::Stack | RootSort::WholeStack | RootSort::Registers => RootKind::Stack,
        };
        let is_vector = kind == RootKind::Global && self.is_vector(address);
        Beginning::Word(name, kind, is_vector)
    }

    /// What to call a root that is one variable of native code, and what it is: `g_cache in libext.so`, `std::vector`.
    pub fn variable(&mut self, node: NodeId) -> Option<(String, String, RootKind)> {
        match self.beginning(node, Edge::word(0)) {
            Beginning::Word(name, root, is_vector) => {
                let detail = if is_vector { "std::vector" } else { "" };
                Some((name, detail.to_owned(), root))
            }
            _ => None,
        }
    }

    fn python_beginning(&self, root: &PythonRoot) -> Beginning {
        match *root {
            PythonRoot::Interpreter("sys.modules") => Beginning::Modules,
            PythonRoot::Interpreter(name @ ("sys" | "builtins")) => Beginning::Namespace(name.to_owned()),
            PythonRoot::Interpreter(name) => Beginning::Other(name.to_owned(), RootKind::Interpreter),
            PythonRoot::Signal(signal) => {
                Beginning::Other(format!("signal handler {}", signal_name(signal)), RootKind::Interpreter)
            }
            PythonRoot::Thread { thread, main, part } => {
                let name = || self.thread(thread);
                let of = if main { String::new() } else { format!("{}, ", name()) };
                match part {
                    ThreadPart::Frame => Beginning::Frame(of),
                    ThreadPart::Locals => Beginning::ThreadLocal(of),
                    ThreadPart::Context => Beginning::Context(of),
                    ThreadPart::Exception => {
                        Beginning::Other(format!("{of}exception being handled"), RootKind::Exception)
                    }
                    ThreadPart::State if main => {
                        Beginning::Other("state of the main thread".to_owned(), RootKind::Interpreter)
                    }
                    ThreadPart::State => Beginning::Other(format!("state of {}", name()), RootKind::Interpreter),
                    ThreadPart::Hook(hook) => Beginning::Other(format!("{of}{hook}"), RootKind::Interpreter),
                }
            }
        }
    }

    fn thread(&self, id: u64) -> String {
        match self.threads.get(&id) {
            Some(name) if !name.is_empty() => format!("thread {id} ({name})"),
            _ if id > u64::from(u32::MAX) => format!("thread {id:#x}"),
            _ => format!("thread {id}"),
        }
    }
}

/// Types that programs know by another name.
fn renamed(name: &str) -> Option<&'static str> {
    match name {
        "_lru_cache_wrapper" => Some("lru_cache"),
        "_local" => Some("threading.local"),
        "ReferenceType" => Some("weakref"),
        _ => None,
    }
}
