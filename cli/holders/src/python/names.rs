//! What to call objects and references, in the words of a Python program.

use crate::Set;
use crate::copy::Image;
use crate::graph::{Edge, EdgeKind};
use crate::python::frames::{FRAME_FIELD, FRAME_FIELDS};
use crate::python::references::{STATE_WORDS, is_address};
use crate::python::text::{MOST_CHARACTERS, plain, quoted};
use crate::python::types::{Kind, TypeId};
use crate::python::{Label, Python, Reference};

impl Python {
    /// What to call an object: `list of 60`, `Cache`, `function f`, `generator gen, train.py:62`.
    pub fn name(&mut self, copy: &Image, address: u64, of: TypeId) -> String {
        let (kind, name) = (self.types[of].kind, plain(&self.types[of].name));
        let o = self.offsets;
        let named = |text: String| format!("{name} {text}");
        match kind {
            Kind::List | Kind::Tuple | Kind::Dict | Kind::OrderedDict | Kind::Deque => {
                named(format!("of {}", copy.word(address + self.head())))
            }
            // Its first word is the number of slots in use or marked as removed; the next one is that in use.
            Kind::Set => named(format!("of {}", copy.word(address + self.head() + 8))),
            Kind::Function => named(self.short_text(copy, copy.word(address + o.function_name))),
            Kind::Method => {
                let function = copy.word(address + o.method_function);
                match self.object(copy, function).map(|of| self.types[of].kind) {
                    Some(Kind::Function) => named(self.short_text(copy, copy.word(function + o.function_name))),
                    _ => name,
                }
            }
            Kind::Type => format!("class {}", plain(&self.class_name(copy, address))),
            Kind::Module => {
                let dict = copy.word(address + o.module_dict);
                let module = self.value_of(copy, dict, "__name__");
                let module = module.and_then(|name| self.text(copy, name, MOST_CHARACTERS));
                module.map_or(name.clone(), |module| named(plain(&module)))
            }
            Kind::Frame => match self.place(copy, address, Some(kind)) {
                Some(place) => format!("frame of {place}"),
                None => name,
            },
            Kind::Generator => match self.place(copy, address, Some(kind)) {
                Some(place) => named(place),
                None => name,
            },
            Kind::Code => named(self.short_text(copy, copy.word(address + o.code_name))),
            Kind::Object | Kind::Leaf | Kind::Text => name,
        }
    }

    /// What an object of `functools` calls: `encode` of `lru_cache(encode)` and of `partial(encode, 1)`.
    pub fn called(&mut self, copy: &Image, address: u64, of: TypeId) -> Option<String> {
        let field = match self.type_name(of) {
            "_lru_cache_wrapper" => "__wrapped__",
            "partial" => "func",
            _ => return None,
        };
        let field = self.types[of].fields.iter().find(|known| &*known.name == field)?;
        let called = copy.word(address + field.offset);
        let of = self.object(copy, called)?;
        let is_named = matches!(self.types[of].kind, Kind::Function | Kind::Method | Kind::Type);
        let name = is_named.then(|| self.name(copy, called, of))?;
        name.split_once(' ').map(|(_, name)| name.to_owned())
    }

    /// The name of a class, without its module.
    fn class_name(&mut self, copy: &Image, class: u64) -> String {
        let name = copy.text(copy.word(class + self.offsets.type_name), 200);
        name.rsplit('.').next().unwrap_or_default().to_owned()
    }

    /// A text for a name: bounded, on one line. `?` means that the object is not a text.
    pub(super) fn short_text(&mut self, copy: &Image, address: u64) -> String {
        let text = self.text(copy, address, MOST_CHARACTERS);
        text.map_or_else(|| "?".to_owned(), |text| plain(&text))
    }

    /// `frame of gen, train.py:62`.
    pub fn frame_name(&mut self, copy: &Image, frame: u64) -> String {
        let place = self.place(copy, frame, None);
        place.map_or_else(|| "frame".to_owned(), |place| format!("frame of {place}"))
    }

    /// What to call a reference of the object: `[3]`, `['a']`, `.store`, `local t`, `.__closure__`; and its shape: `[*]`.
    pub fn label(&mut self, copy: &Image, address: u64, is_frame: bool, edge: Edge) -> Label {
        let index = edge.index();
        let of = if is_frame { None } else { self.object(copy, address) };
        let kind = of.map(|of| self.types[of].kind);
        match edge.kind() {
            EdgeKind::Item => starred(format!("[{index}]")),
            EdgeKind::Value => {
                let entries = self.entries(copy, copy.word(address + self.offsets.dict_keys));
                let key = entries.map_or(0, |entries| entries.key(copy, index));
                starred(format!("[{}]", self.key(copy, key)))
            }
            EdgeKind::Key => Label::same("key".to_owned()),
            EdgeKind::Member => Label::same("element".to_owned()),
            EdgeKind::Field => {
                let field = of.and_then(|of| self.types[of].fields.get(index as usize));
                match index.checked_sub(FRAME_FIELD) {
                    Some(frame_field) if field.is_none() => {
                        let name = FRAME_FIELDS.get(frame_field as usize).unwrap_or(&"?");
                        Label::same(format!(".{name}"))
                    }
                    _ => {
                        let name = field.map_or("?", |field| &field.name);
                        Label {
                            hidden: name == "__dict__",
                            ..Label::same(format!(".{}", plain(name)))
                        }
                    }
                }
            }
            EdgeKind::Dictionary => Label {
                hidden: true,
                ..Label::same(".__dict__".to_owned())
            },
            EdgeKind::Attribute => {
                let keys = of.map(|of| copy.word(self.types[of].address + self.offsets.type_cached_keys));
                let entries = keys.and_then(|keys| self.entries(copy, keys));
                let key = entries.map_or(0, |entries| entries.key(copy, index));
                let name = self.text(copy, key, MOST_CHARACTERS);
                Label::same(name.map_or_else(|| ".?".to_owned(), |name| attribute(&name)))
            }
            EdgeKind::Local => {
                let name = self.variable(copy, address, kind, index);
                Label::same(format!("local {}", name.as_deref().unwrap_or("?")))
            }
            EdgeKind::Stack => Label::same("value stack".to_owned()),
            EdgeKind::Class => Label::same(".__class__".to_owned()),
            EdgeKind::Word => Label {
                concrete: match index.checked_sub(STATE_WORDS) {
                    Some(index) => format!("state +{}", index * 8),
                    None => format!("+{}", index * 8),
                },
                ..Label::default()
            },
            EdgeKind::Root => Label::default(),
        }
    }

    /// The attributes of an object, or the values of a dictionary, whose names are texts.
    pub fn values_by_name(&mut self, copy: &Image, address: u64) -> Vec<(String, u64)> {
        let Some(of) = self.object(copy, address) else {
            return Vec::new();
        };
        let found = self.references_of(copy, address, false);
        let keys = match self.is_dict(of) {
            true => copy.word(address + self.offsets.dict_keys),
            false => copy.word(self.types[of].address + self.offsets.type_cached_keys),
        };
        let entries = self.entries(copy, keys);
        let mut values = Vec::new();
        for Reference { edge, target, .. } in found {
            match edge.kind() {
                EdgeKind::Value | EdgeKind::Attribute if is_address(target) => {
                    let key = entries.map_or(0, |entries| entries.key(copy, edge.index()));
                    let name = self.text(copy, key, MOST_CHARACTERS);
                    values.extend(name.map(|name| (plain(&name), target)));
                }
                // A dictionary that is its own `__dict__` would lead in a circle.
                EdgeKind::Dictionary
                    if !self.is_dict(of) && self.object(copy, target).is_some_and(|of| self.is_dict(of)) =>
                {
                    values.extend(self.values_by_name(copy, target));
                }
                _ => {}
            }
        }
        values
    }

    /// The key of the entry of a dictionary.
    pub fn key_of(&self, copy: &Image, dict: u64, index: u64) -> Option<u64> {
        let entries = self.entries(copy, copy.word(dict + self.offsets.dict_keys))?;
        Some(entries.key(copy, index))
    }

    /// The addresses of all types that were met and have a base of this name.
    pub fn types_below(&self, copy: &Image, base: &str) -> Set<u64> {
        let o = &self.offsets;
        let is_base = |class: u64| copy.text(copy.word(class + o.type_name), 200).rsplit('.').next() == Some(base);
        let is_below = |class: u64| {
            let bases = copy.word(class + o.type_mro);
            let bases = self.elements(copy, bases.wrapping_add(o.tuple_items), bases);
            bases.unwrap_or_default().step_by(8).any(|at| is_base(copy.word(at)))
        };
        let types = self.types.addresses();
        types.filter(|class| is_below(*class)).collect()
    }

    /// A key as it is written in Python; of other objects than texts and small numbers, the type.
    fn key(&mut self, copy: &Image, key: u64) -> String {
        if let Some(text) = self.text(copy, key, MOST_CHARACTERS) {
            return quoted(&text);
        }
        let Some(of) = self.object(copy, key) else {
            return "?".to_owned();
        };
        let info = &self.types[of];
        if info.is_number()
            && let Some(number) = self.small_number(copy, key)
        {
            return number.to_string();
        }
        match &*info.name {
            "NoneType" => "None".to_owned(),
            name => format!("<{}>", plain(name)),
        }
    }

    /// As [`Python::small_number`], if it is not negative.
    pub(crate) fn natural_number(&self, copy: &Image, number: u64) -> Option<u64> {
        u64::try_from(self.small_number(copy, number)?).ok()
    }

    /// The value of an `int` of at most 60 bits.
    fn small_number(&self, copy: &Image, number: u64) -> Option<i64> {
        const DIGIT_BITS: u32 = 30;
        let size = copy.word(number + self.head());
        let (digits, is_negative) = match self.minor() {
            // The low bits are the sign: 0 positive, 1 zero, 2 negative.
            12.. => (size >> 3, size & 3 == 2),
            _ => ((size as i64).unsigned_abs(), (size as i64) < 0),
        };
        let digit = |index: u64| i64::from(copy.half(number + self.head() + 8 + index * 4));
        let value = match digits {
            0 => 0,
            1 => digit(0),
            2 => digit(0) | digit(1) << DIGIT_BITS,
            _ => return None,
        };
        Some(if is_negative { -value } else { value })
    }
}

/// `.store`; of a name that is no identifier, `.'a b'`.
fn attribute(name: &str) -> String {
    match !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_') {
        true => format!(".{name}"),
        false => format!(".{}", quoted(name)),
    }
}

fn starred(concrete: String) -> Label {
    Label {
        concrete,
        shape: "[*]".to_owned(),
        hidden: false,
    }
}
