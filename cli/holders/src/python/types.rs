//! What is known about each type: where its instances keep references.
//!
//! A type is looked at once, when its first instance is met. Its layout is that of the nearest base type in the interpreter
//! with a known structure; the words behind that structure have names where the type describes its members (slots are
//! members), and are unnamed otherwise.

use std::ops::Index;

use crate::Map;
use crate::copy::Image;
use crate::graph::{Edge, EdgeKind};
use culeak::cpython::{ABSENT, Offsets};

/// Index of a type in [`Types`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// A counted reference to a Python object.
    Named,
    /// As above, but no one thinks of it as holding: `__globals__`, classes, bases, `f_back`.
    Context,
    /// A slot that may be stale: the value stack of an executing frame.
    Possible,
    /// A word in the body of an object of a C extension: it may point to a Python object, to native memory, to a block, or
    /// be a number.
    Word,
}

/// How the references of an object are found, besides its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All of them are in fields.
    Object,
    Leaf,
    Dict,
    OrderedDict,
    List,
    Tuple,
    Set,
    Deque,
    Frame,
    Generator,
    Module,
    Type,
    /// The names say what their objects are called.
    Function,
    Method,
    Code,
    Text,
}

/// A word of an object that may be a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub offset: u64,
    pub edge: Edge,
    pub sort: Sort,
    pub name: Box<str>,
}

#[derive(Debug, Clone)]
pub struct TypeInfo {
    pub address: u64,
    pub kind: Kind,
    /// Without its module.
    pub name: Box<str>,
    pub basic: u64,
    pub item: u64,
    pub flags: u64,
    /// Where the instance dictionary is; negative: from the end of the object.
    pub dict_offset: i64,
    pub fields: Vec<Field>,
    /// Behind the fields are words whose meaning and number are those of the object.
    pub has_words: bool,
    /// Instances count as references to the type.
    pub is_heap: bool,
    /// Instances have a header for the collector.
    pub is_tracked: bool,
    pub is_leaf: bool,
    pub number: Option<Number>,
}

/// Where the value of an object is that may be an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    Integer,
    Float,
    /// The bytes begin at this offset.
    Bytes(u64),
    /// The address of the bytes is at this offset.
    Buffer(u64),
}

/// Bits of `tp_flags`.
const INLINE_VALUES: u64 = 1 << 2;
const MANAGED_WEAKREF: u64 = 1 << 3;
const MANAGED_DICT: u64 = 1 << 4;
const HEAP: u64 = 1 << 9;
pub(super) const READY: u64 = 1 << 12;
pub(super) const TRACKED: u64 = 1 << 14;
const LONG: u32 = 24;
const TEXT: u32 = 28;
const TYPE: u32 = 31;

/// More bases than any class has.
const MOST_BASES: usize = 128;
/// Bytes; larger ones are not types.
const LARGEST_OBJECT: u64 = 1 << 24;

impl TypeInfo {
    /// The dictionary, or the attributes in its place, are in front of the object (3.11 and later).
    pub fn has_managed_dict(&self) -> bool {
        self.flags & MANAGED_DICT != 0
    }

    /// The attributes are behind the object (3.13 and later).
    pub fn has_inline_values(&self) -> bool {
        self.flags & INLINE_VALUES != 0
    }

    /// Bytes in front of the object that belong to it.
    pub fn header_bytes(&self, offsets: &Offsets) -> u64 {
        let managed = match offsets.minor() {
            ..=10 => 0,
            11 => self.flags & MANAGED_DICT,
            _ => self.flags & (MANAGED_DICT | MANAGED_WEAKREF),
        };
        let has_links = self.is_tracked && !offsets.is_free_threaded();
        (if has_links { 16 } else { 0 }) + (if managed != 0 { 16 } else { 0 })
    }
}

/// All types that were met.
pub struct Types {
    minor: u32,
    all: Vec<TypeInfo>,
    /// By address; `None`: it is not a type.
    by_address: Map<u64, Option<TypeId>>,
    /// Those that were asked for last, each at a place that its address decides.
    recent: Box<[(u64, Option<TypeId>); 256]>,
    /// The interpreter's own types, by address.
    known: Map<u64, Structure>,
    object_type: u64,
    type_type: u64,
}

/// What is known of the structure of a type of the interpreter: its kind and its fields, without the instance dictionary.
type Structure = (Kind, Vec<(u64, &'static str, Sort)>);

impl Index<TypeId> for Types {
    type Output = TypeInfo;

    fn index(&self, of: TypeId) -> &TypeInfo {
        &self.all[usize::from(of.0)]
    }
}

/// Addresses that are not types are remembered up to this number.
const MOST_ADDRESSES: usize = 1 << 20;

impl Types {
    /// `find` returns the address of an exported name.
    pub fn new(minor: u32, offsets: &Offsets, find: &dyn Fn(&str) -> Option<u64>) -> Option<Types> {
        let known = known(offsets).into_iter();
        Some(Types {
            minor,
            all: Vec::new(),
            by_address: Map::default(),
            recent: Box::new([(0, None); 256]),
            known: (known.filter_map(|(kind, name, fields)| Some((find(name)?, (kind, fields))))).collect(),
            object_type: find("PyBaseObject_Type")?,
            type_type: find("PyType_Type")?,
        })
    }

    #[inline]
    pub fn get(&mut self, copy: &Image, offsets: &Offsets, address: u64) -> Option<TypeId> {
        let place = (address >> 4 ^ address >> 12) as usize % self.recent.len();
        if self.recent[place].0 == address {
            return self.recent[place].1;
        }
        let found = match self.by_address.get(&address) {
            Some(&found) => found,
            None => self.add(copy, offsets, address),
        };
        self.recent[place] = (address, found);
        found
    }

    /// Whether the object is a class.
    pub fn is_class(&self, copy: &Image, offsets: &Offsets, object: u64) -> bool {
        let class = copy.word(object.wrapping_add(offsets.head() - 8));
        copy.word(class.wrapping_add(offsets.type_flags)) >> TYPE & 1 == 1
    }

    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.all.iter().map(|info| info.address)
    }

    #[cold]
    fn add(&mut self, copy: &Image, offsets: &Offsets, address: u64) -> Option<TypeId> {
        let found = (|| {
            let bases = self.bases(copy, offsets, address)?;
            let id = TypeId(u16::try_from(self.all.len()).ok()?);
            self.all.push(self.examine(copy, offsets, &bases));
            Some(id)
        })();
        if found.is_some() || self.by_address.len() < MOST_ADDRESSES {
            self.by_address.insert(address, found);
        }
        found
    }

    /// The type and its bases up to `object`; `None` if it is not a type.
    fn bases(&self, copy: &Image, offsets: &Offsets, address: u64) -> Option<Vec<u64>> {
        let mut bases = vec![address];
        let mut at = address;
        let type_of = |object: u64| copy.word(object + offsets.head() - 8);
        loop {
            let is_type = |of: u64| {
                let meta = if copy.has(of) { type_of(of) } else { 0 };
                copy.has(meta) && copy.word(meta + offsets.type_flags) >> TYPE & 1 == 1
            };
            if at & 7 != 0 || !is_type(at) || !is_type(type_of(at)) {
                return None;
            }
            let basic = copy.word(at + offsets.type_basic_bytes);
            let item = copy.word(at + offsets.type_item_bytes);
            let base = copy.word(at + offsets.type_base);
            // C code may use a type that it never completed.
            let is_incomplete = at == address && base == 0 && type_of(at) == self.type_type;
            if copy.word(at + offsets.type_flags) & READY == 0 && !is_incomplete
                || !(offsets.head()..LARGEST_OBJECT).contains(&basic)
                || item >= LARGEST_OBJECT
            {
                return None;
            }
            if at == self.object_type || is_incomplete {
                return Some(bases);
            }
            at = base;
            if bases.len() == MOST_BASES {
                return None;
            }
            bases.push(at);
        }
    }

    fn examine(&self, copy: &Image, offsets: &Offsets, bases: &[u64]) -> TypeInfo {
        let address = bases[0];
        let word = |offset: u64| copy.word(address + offset);
        let flags = word(offsets.type_flags);
        let full_name = copy.text(word(offsets.type_name), 200);
        let (known, known_bytes) = self.known_part(copy, offsets, bases);
        let (kind, mut fields) = known.clone().unwrap_or((Kind::Object, Vec::new()));
        let (basic, item) = (word(offsets.type_basic_bytes), word(offsets.type_item_bytes));
        let weak_offset = word(offsets.type_weak_list) as i64;
        let dict_offset = match kind {
            // A class has its dictionary among its fields.
            Kind::Type => 0,
            _ => word(offsets.type_dict_offset) as i64,
        };
        if dict_offset > 0 && flags & MANAGED_DICT == 0 && (dict_offset as u64) < basic {
            let edge = Edge::new(EdgeKind::Dictionary, 0);
            fields.push(field(edge, dict_offset as u64, "__dict__", Sort::Named));
        }
        let members = members(copy, offsets, bases);
        for offset in (known_bytes..basic.saturating_sub(7)).step_by(8) {
            if offset as i64 == weak_offset || offset as i64 == dict_offset {
                continue;
            }
            fields.push(match members.get(&offset) {
                Some(name) => named_field(fields.len(), offset, name, Sort::Named),
                None => named_field(0, offset, "", Sort::Word),
            });
        }
        let is_heap = flags & HEAP != 0;
        let has_values = flags & (MANAGED_DICT | INLINE_VALUES) != 0 && self.minor >= 11 || dict_offset < 0;
        // Smaller items are no pointers.
        let has_words = known.is_none() && item > 0 && item.is_multiple_of(8);
        let is_plain = matches!(kind, Kind::Leaf | Kind::Text) || kind == Kind::Object && !has_words;
        TypeInfo {
            address,
            kind,
            name: full_name.rsplit('.').next().unwrap_or_default().into(),
            basic,
            item,
            flags,
            dict_offset,
            is_leaf: is_plain && fields.is_empty() && !is_heap && !has_values,
            fields,
            has_words,
            is_heap,
            is_tracked: flags & TRACKED != 0,
            number: number(copy, offsets, bases),
        }
    }

    /// The nearest base with a known structure: its kind, its fields, and where unknown words begin.
    fn known_part(&self, copy: &Image, offsets: &Offsets, bases: &[u64]) -> (Option<(Kind, Vec<Field>)>, u64) {
        let basic = |of: u64| copy.word(of + offsets.type_basic_bytes);
        let item = |of: u64| copy.word(of + offsets.type_item_bytes);
        for &base in bases {
            if base == self.object_type {
                break;
            }
            let known = self.known.get(&base).cloned();
            let known = known.or_else(|| {
                let name = copy.text(copy.word(base + offsets.type_name), 200);
                let is_heap = copy.word(base + offsets.type_flags) & HEAP != 0;
                // Only C code gives a name with a module to a type.
                let is_native = !is_heap || name.contains('.');
                is_native.then(|| known_by_name(&name, basic(base), offsets))?
            });
            if let Some((kind, fields)) = known {
                let rest = match kind {
                    // Behind the digits of a number there is nothing but its dictionary.
                    Kind::Leaf if item(base) > 0 => u64::MAX,
                    Kind::Tuple | Kind::Frame | Kind::Generator | Kind::Code => u64::MAX,
                    _ => basic(base).next_multiple_of(8),
                };
                let number = |(number, &(offset, name, sort)): (usize, &(u64, &str, Sort))| {
                    named_field(number, offset, name, sort)
                };
                let fields = fields.iter().filter(|field| field.0 != ABSENT);
                return (Some((kind, fields.enumerate().map(number).collect())), rest);
            }
        }
        let first = offsets.head() + if item(bases[0]) > 0 { 8 } else { 0 };
        (None, first)
    }
}

/// Of the type or its nearest base in the interpreter that has one.
fn number(copy: &Image, offsets: &Offsets, bases: &[u64]) -> Option<Number> {
    let is_heap = |base: u64| copy.word(base + offsets.type_flags) & HEAP != 0;
    let of = bases.iter().find(|base| !is_heap(**base))?;
    match copy.text(copy.word(of + offsets.type_name), 16).as_str() {
        "int" => Some(Number::Integer),
        "float" => Some(Number::Float),
        "bytes" => Some(Number::Bytes(offsets.head() + 16)),
        "bytearray" => Some(Number::Buffer(offsets.head() + 24)),
        _ => None,
    }
}

/// A field with this number; a word without a name has none.
fn named_field(number: usize, offset: u64, name: &str, sort: Sort) -> Field {
    let edge = match name {
        "" => Edge::word(offset / 8),
        _ => Edge::new(EdgeKind::Field, number as u64),
    };
    field(edge, offset, name, sort)
}

fn field(edge: Edge, offset: u64, name: &str, sort: Sort) -> Field {
    let name = name.into();
    Field {
        offset,
        edge,
        sort,
        name,
    }
}

/// The members of a type and its bases that are references, by offset.
fn members(copy: &Image, offsets: &Offsets, bases: &[u64]) -> Map<u64, String> {
    /// `T_OBJECT` and `T_OBJECT_EX`.
    const REFERENCES: [u32; 2] = [6, 16];
    const ROW: u64 = 40;
    const MOST: u64 = 1000;
    let mut found = Map::default();
    for base in bases {
        let table = copy.word(base + offsets.type_members);
        for row in (0..MOST).map(|number| table.wrapping_add(number * ROW)) {
            // Name, type, offset.
            let name = if table == 0 { 0 } else { copy.word(row) };
            if name == 0 {
                break;
            }
            let offset = copy.word(row + 16);
            if REFERENCES.contains(&copy.half(row + 8)) && offset & 7 == 0 {
                found.entry(offset).or_insert_with(|| copy.text(name, 200));
            }
        }
    }
    found
}

/// Fields of a structure: how they hold, where they are, and their names.
macro_rules! fields {
    ($($sort:ident $offset:expr => $name:literal),* $(,)?) => { vec![$(($offset, $name, Sort::$sort)),*] };
}

/// How a type of the interpreter is read, its exported name, and its fields.
type InterpreterType = (Kind, &'static str, Vec<(u64, &'static str, Sort)>);

/// The types of the interpreter with a known structure.
fn known(o: &Offsets) -> Vec<InterpreterType> {
    // Before 3.11 an exception has three words: type, value, traceback.
    let older = |more: u64| {
        if o.version < 0x30b {
            o.generator_exception + more
        } else {
            ABSENT
        }
    };
    let generator = fields![
        Named o.generator_frame_object => "gi_frame", Context o.generator_code => "gi_code",
        Named o.generator_exception => "exception", Named older(8) => "exception", Named older(16) => "exception",
    ];
    let coroutine = fields![Named o.generator_origin => "cr_origin"];
    let async_generator = fields![Named o.generator_origin => "finalizer"];
    let builtin = fields![Named o.builtin_self => "__self__", Context o.builtin_module => "__module__"];
    let method_of_class = fields![Context o.builtin_class => "__class__"];
    let class = fields![
        Named o.type_dict => "__dict__", Context o.type_mro => "__mro__", Context o.type_bases => "__bases__",
        Context o.type_base => "__base__", Context o.type_cache => "cache", Context o.type_subclasses => "__subclasses__",
        Context o.type_slots => "__slots__", Context o.type_module => "module",
    ];
    let function = fields![
        Named o.function_closure => "__closure__", Named o.function_defaults => "__defaults__",
        Named o.function_keyword_defaults => "__kwdefaults__", Named o.function_annotations => "__annotations__",
        Named o.function_annotate => "__annotate__", Named o.function_type_parameters => "__type_params__",
        Named o.function_doc => "__doc__", Context o.function_module => "__module__", Context o.function_code => "__code__",
        Context o.function_globals => "__globals__", Context o.function_builtins => "__builtins__",
    ];
    let frame = fields![
        Context o.frame_object_back => "f_back", Context o.frame_object_code => "f_code",
        Context o.frame_object_builtins => "f_builtins", Context o.frame_object_globals => "f_globals",
        Context o.frame_object_names => "f_locals", Named o.frame_object_trace => "f_trace",
        Named o.frame_object_extra_locals => "f_locals", Context o.frame_object_locals_cache => "f_locals",
        Named o.frame_object_overwritten => "f_locals",
    ];
    // The words of extensions hold what a tracer or compiler keeps for the code.
    let code = fields![Context o.code_constants => "co_consts", Word o.code_extra => ""];
    let method = fields![Named o.method_self => "__self__", Named o.method_function => "__func__"];
    let traceback = fields![Named o.traceback_next => "tb_next", Named o.traceback_frame => "tb_frame"];
    let weak = fields![Named o.weakref_callback => "__callback__"];
    // The buffer that it describes again belongs to the managed buffer.
    let view = fields![Named o.memoryview_buffer => "obj"];
    // The value that it remembers belongs to the context.
    let head = o.head();
    let variable = fields![Named head + 8 => "default"];
    let range = fields![Named head => "start", Named head + 8 => "stop", Named head + 16 => "step", Named head + 24 => "length"];
    let descriptor = fields![Context head => "__objclass__"];
    vec![
        (Kind::Type, "PyType_Type", class),
        (Kind::Dict, "PyDict_Type", vec![]),
        (Kind::Dict, "PyFrozenDict_Type", vec![]),
        (Kind::OrderedDict, "PyODict_Type", vec![]),
        (Kind::List, "PyList_Type", vec![]),
        (Kind::Tuple, "PyTuple_Type", vec![]),
        (Kind::Set, "PySet_Type", vec![]),
        (Kind::Set, "PyFrozenSet_Type", vec![]),
        (
            Kind::Object,
            "PyCell_Type",
            fields![Named o.cell_contents => "cell_contents"],
        ),
        (Kind::Function, "PyFunction_Type", function),
        (Kind::Method, "PyMethod_Type", method),
        (Kind::Object, "PyCFunction_Type", builtin.clone()),
        (Kind::Object, "PyCMethod_Type", [builtin, method_of_class].concat()),
        (Kind::Module, "PyModule_Type", vec![]),
        (Kind::Frame, "PyFrame_Type", frame),
        (Kind::Generator, "PyGen_Type", generator.clone()),
        (Kind::Generator, "PyCoro_Type", [generator.clone(), coroutine].concat()),
        (
            Kind::Generator,
            "PyAsyncGen_Type",
            [generator, async_generator].concat(),
        ),
        (Kind::Code, "PyCode_Type", code),
        (Kind::Object, "PyTraceBack_Type", traceback),
        (Kind::Object, "_PyWeakref_RefType", weak.clone()),
        (Kind::Object, "_PyWeakref_ProxyType", weak.clone()),
        (Kind::Object, "_PyWeakref_CallableProxyType", weak),
        (Kind::Object, "PyMemoryView_Type", view),
        (Kind::Object, "PyContextVar_Type", variable),
        (Kind::Object, "PyGetSetDescr_Type", descriptor.clone()),
        (Kind::Object, "PyMemberDescr_Type", descriptor.clone()),
        (Kind::Object, "PyMethodDescr_Type", descriptor.clone()),
        (Kind::Object, "PyWrapperDescr_Type", descriptor.clone()),
        (Kind::Object, "PyClassMethodDescr_Type", descriptor),
        (Kind::Text, "PyUnicode_Type", vec![]),
        (Kind::Leaf, "PyLong_Type", vec![]),
        (Kind::Leaf, "PyBytes_Type", vec![]),
        (Kind::Leaf, "PyByteArray_Type", vec![]),
        (Kind::Leaf, "PyFloat_Type", vec![]),
        (Kind::Leaf, "PyComplex_Type", vec![]),
        (Kind::Object, "PyRange_Type", range),
    ]
}

/// Types whose address is not exported, by name.
fn known_by_name(name: &str, basic: u64, o: &Offsets) -> Option<Structure> {
    let head = o.head();
    Some(match name {
        "BaseException" => (
            Kind::Object,
            fields![
                Named o.exception_args => "args", Named o.exception_notes => "__notes__",
                Named o.exception_traceback => "__traceback__", Named o.exception_context => "__context__",
                Named o.exception_cause => "__cause__",
            ],
        ),
        "collections.deque" => (Kind::Deque, vec![]),
        // A lock's memory is not cleared, and an unlocked one holds nothing.
        "_thread.lock" | "_thread.RLock" => (Kind::Leaf, vec![]),
        // The dictionary belongs to the `_thread._local`.
        "_thread._localdummy" => (Kind::Leaf, vec![]),
        // Behind its header it is the head of the list of its elements, which belong to the dictionary.
        "functools._lru_cache_wrapper" => {
            let names = |offset| match offset - head {
                56 => ("cache", Sort::Named),
                72 => ("__wrapped__", Sort::Named),
                _ => ("", Sort::Word),
            };
            // Ends before the dictionary and the list of weak references.
            let words = (head + 56..basic.saturating_sub(16)).step_by(8);
            let fields = words.map(|offset| (offset, names(offset).0, names(offset).1));
            (Kind::Object, fields.collect())
        }
        "functools._lru_list_elem" => (
            Kind::Object,
            fields![Named head + 24 => "key", Named head + 32 => "result"],
        ),
        // Behind it is the buffer for bytes, whose contents are no pointers.
        "_io.BufferedReader" | "_io.BufferedWriter" | "_io.BufferedRandom" => {
            (Kind::Object, fields![Named head => "raw"])
        }
        _ => return None,
    })
}

impl TypeInfo {
    /// Whether this type itself, not its instances, is made at run time: others lack the last part of the structure.
    pub fn is_heap_type(flags: u64) -> bool {
        flags & HEAP != 0
    }

    pub fn is_text(&self) -> bool {
        self.flags >> TEXT & 1 == 1
    }

    pub fn is_number(&self) -> bool {
        self.flags >> LONG & 1 == 1
    }
}
