//! Paths and classes in words.

use std::borrow::Cow;

use serde::Serialize;

use crate::snapshot::{Class, HolderPath, RootKind, Step};

/// The steps at each end of a path that are written out. A path that is not made of runs is far shorter.
const STEPS_SHOWN: usize = 24;
/// The most characters of one part of a path.
const PART_SHOWN: usize = 160;
/// The most characters of a path. A small file may have one path, and rows for it at a hundred thousand call sites.
const PATH_SHOWN: usize = 1000;

/// The path from its origin on: `keep[*] → Tensor → storage`. Bounded, however long the path is.
pub fn path_text(path: &HolderPath) -> String {
    let mut text = bounded(stem(path)).into_owned();
    let steps = &path.steps;
    if steps.len() <= 2 * STEPS_SHOWN {
        steps.iter().for_each(|step| add(&mut text, step));
    } else {
        let (first, last) = (&steps[..STEPS_SHOWN], &steps[steps.len() - STEPS_SHOWN..]);
        first.iter().for_each(|step| add(&mut text, step));
        text.push_str(&format!(" → … {} steps …", steps.len() - 2 * STEPS_SHOWN));
        last.iter().for_each(|step| add(&mut text, step));
    }
    if path.interior {
        text.push_str(match text.is_empty() {
            true => "into the block",
            false => ", into the block",
        });
    }
    shortened(text, PATH_SHOWN)
}

/// The text, cut in the middle if it has more characters.
pub(super) fn shortened(text: String, most: usize) -> String {
    let characters = text.chars().count();
    if characters <= most {
        return text;
    }
    let first = text.chars().take(most / 2);
    let last = text.chars().skip(characters - most / 2);
    first.chain(['…']).chain(last).collect()
}

fn add(text: &mut String, step: &Step) {
    let via = bounded(step.via.trim());
    if !via.is_empty() {
        if !text.is_empty() && !via.starts_with(['[', '.', '(']) {
            text.push_str(", ");
        }
        text.push_str(&via);
    }
    if !step.holder.is_empty() {
        if !text.is_empty() {
            text.push_str(" → ");
        }
        text.push_str(&bounded(&step.holder));
    }
}

/// The name that a path continues from: `keep` for `__main__.keep`, `t` for `frame of main, train.py:62, local t`. Empty if
/// the origin is no variable.
fn stem(path: &HolderPath) -> &str {
    let origin = path.origin.as_str();
    let after = |separator: &str| origin.rsplit_once(separator).map(|(_, name)| name);
    match path.root {
        _ if path.class != Class::Held => "",
        RootKind::Module => match after(".") {
            Some(name) if !name.contains([']', ')', ' ']) => name,
            _ => origin,
        },
        RootKind::Frame => after(" local ").unwrap_or(""),
        RootKind::Global => origin.split(" in ").next().unwrap_or(origin),
        _ => "",
    }
}

fn bounded(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(PART_SHOWN) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}

/// What paths must have in common to be in one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OriginKey<'a> {
    pub class: Class,
    pub root: RootKind,
    /// As [`HolderPath::origin`].
    pub origin: &'a str,
    pub origin_type: &'a str,
    pub note: Option<&'a str>,
}

/// The path and its origin: `__main__.keep (list of 60): keep[*] → Tensor → storage`.
pub fn whole_path_text(path: &HolderPath) -> String {
    let origin = OriginKey::of(path).text();
    match path_text(path) {
        steps if steps.is_empty() => origin,
        steps => format!("{origin}: {steps}"),
    }
}

impl<'a> OriginKey<'a> {
    pub fn of(path: &'a HolderPath) -> OriginKey<'a> {
        OriginKey {
            class: path.class,
            root: path.root,
            origin: &path.origin,
            origin_type: &path.origin_type,
            note: path.note.as_deref(),
        }
    }
}

impl OriginKey<'_> {
    /// The class and the origin: `__main__.keep (list of 60)`, `uncollected cycle Node.o → Node.o (gc is disabled)`.
    pub fn text(&self) -> String {
        let origin = bounded(self.origin);
        let named = match (origin.is_empty(), self.origin_type.is_empty()) {
            (true, true) => root_name(self.root).to_owned(),
            (true, false) => format!("{} ({})", root_name(self.root), bounded(self.origin_type)),
            (false, true) => origin.into_owned(),
            (false, false) => format!("{origin} ({})", bounded(self.origin_type)),
        };
        let mut text = match self.class {
            Class::Held => named,
            Class::Cycle if named.starts_with("cycle") => format!("uncollected {named}"),
            Class::Cycle => format!("uncollected cycle {named}"),
            Class::NativeHolder => format!("native code holds {named}"),
            Class::OverCounted => format!("over-counted: {named}; a reference was never released"),
            Class::Lost => return format!("lost: {}", self.note.map_or(Cow::Borrowed(NO_POINTER), bounded)),
        };
        if let Some(note) = self.note {
            text.push_str(&format!(" ({})", bounded(note)));
        }
        text
    }

    /// As [`OriginKey::text`], without the type: `list of 60` differs between processes.
    pub fn text_without_type(self) -> String {
        let origin_type = "";
        OriginKey { origin_type, ..self }.text()
    }
}

const NO_POINTER: &str = "no pointer to it is left in the process";

/// What a path without a named origin begins with.
fn root_name(root: RootKind) -> &'static str {
    match root {
        RootKind::Module => "a module",
        RootKind::Frame => "a running function",
        RootKind::ThreadLocal => "a thread-local variable",
        RootKind::Context => "a context variable",
        RootKind::Exception => "an exception that is being handled",
        RootKind::Interpreter => "the interpreter",
        RootKind::Global => "a global variable of native code",
        RootKind::Stack => "a thread's stack",
        RootKind::Heap => "heap memory whose holder was not found",
        RootKind::None => "an object",
    }
}

/// What a class means for its memory, after a total.
pub fn meaning(class: Class) -> &'static str {
    match class {
        Class::Held => ", by variables that still exist",
        Class::Cycle => ", by objects that only refer to each other",
        Class::NativeHolder => ", by native code that refers to a Python object",
        Class::OverCounted => ": a reference to a Python object was never released",
        Class::Lost => ": no pointer to it is left, so nothing can free it",
    }
}

/// `__main__.keep` of `__main__.keep (list of 60)`.
pub(crate) fn untyped(name: &str) -> &str {
    match name.rsplit_once(" (") {
        Some((untyped, _)) if name.ends_with(')') => untyped,
        _ => name,
    }
}

/// The name with `*` in place of numbers in brackets, or of everything in brackets.
pub(super) fn without_indices(name: &str, all_keys: bool) -> String {
    let mut shape = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        let Some((key, behind)) = after.split_once(']') else {
            break;
        };
        let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let key = if is_number || all_keys { "*" } else { key };
        shape.push_str(&format!("{before}[{key}]"));
        rest = behind;
    }
    shape + rest
}
