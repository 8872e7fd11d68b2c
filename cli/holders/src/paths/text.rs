//! The words of a path: its origin, and the steps that follow.
//!
//! ```text
//! modules ['train'] module .__dict__ dict ['fn'] function .__closure__ tuple [0] cell contents list [3] Tensor …
//! └──────────────────────────── origin: train.fn closure x ───────────────────────┘└── step ──┘
//! ```
//!
//! The origin ends with the first object that is no namespace. From there on, implementation details are left out:
//! instance dictionaries, cells, tracebacks, containers between two named references, and what PyTorch puts between a
//! tensor and its memory.

use culeak::snapshot::{RootKind, Step};

use super::names::{Beginning, Kind, Part, Place};
use super::runs;
use super::torch;
use crate::graph::EdgeKind;

/// The words of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    pub root: RootKind,
    pub origin: String,
    pub origin_type: String,
    pub steps: Vec<Step>,
    /// The origin object is this part; the ones before are namespaces.
    pub origin_part: usize,
}

/// How to put a path into words.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    /// With indices and keys.
    pub concrete: bool,
    /// The lengths of its runs are the largest of several paths.
    pub varies: bool,
    /// The path ends with an object instead of a block.
    pub to_object: bool,
}

/// The parts begin with a root; the last one refers to the block.
pub(super) fn words(parts: &[Part], style: Style) -> Words {
    let mut origin = Origin::of(parts);
    origin.through_namespaces();
    let at = origin.at;
    let detail = || parts.get(at).map_or_else(String::new, |part| part.detail.clone());
    let mut origin_type = origin.object.unwrap_or_else(detail);
    if origin_type == origin.text {
        origin_type.clear();
    }
    Words {
        root: origin.root,
        origin: origin.text,
        origin_type,
        steps: collapsed(steps(parts, at, origin.skip, style), style),
        origin_part: at,
    }
}

fn collapsed(steps: Vec<Pace>, style: Style) -> Vec<Step> {
    runs::collapse(runs::through_modules(steps), style)
}

/// The steps between objects; the first part is no root.
pub(super) fn steps_of(parts: &[Part], style: Style) -> Vec<Step> {
    collapsed(steps(parts, 0, false, style), style)
}

/// Appends steps to the words before them.
pub(super) fn append(text: &mut String, steps: &[Step]) {
    for step in steps {
        append_reference(text, &step.via);
        if !step.holder.is_empty() {
            text.push_str(" → ");
            text.push_str(&step.holder);
        }
    }
}

/// Names what the last reference of a path to a block leads to.
pub(super) fn end_with(steps: &mut Vec<Step>, holder: &str) {
    let holder = holder.to_owned();
    match steps.last_mut() {
        Some(step) if step.holder.is_empty() => step.holder = holder,
        _ => steps.push(Step {
            via: String::new(),
            holder,
        }),
    }
}

/// Appends a reference to the words before it.
fn append_reference(text: &mut String, via: &str) {
    if !text.is_empty() && !via.is_empty() && !via.starts_with(['.', '[']) {
        text.push_str(", ");
    }
    text.push_str(via);
}

/// The origin while it is found.
struct Origin<'a> {
    parts: &'a [Part],
    root: RootKind,
    text: String,
    /// Its type, if the part is not to say it.
    object: Option<String>,
    /// The part that is described.
    at: usize,
    /// The part is the buffer of a vector.
    skip: bool,
}

impl<'a> Origin<'a> {
    fn of(parts: &'a [Part]) -> Origin<'a> {
        let beginning = parts.first().and_then(|part| part.beginning.clone());
        let mut origin = Origin {
            parts,
            root: RootKind::None,
            text: String::new(),
            object: None,
            at: 1,
            skip: false,
        };
        let label = |at: usize| parts.get(at).map_or("", |part| part.label.concrete.as_str());
        match beginning {
            Some(Beginning::Modules) => {
                origin.root = RootKind::Module;
                origin.text = unquoted(label(1)).to_owned();
                origin.at = 2;
            }
            Some(Beginning::Namespace(name)) => {
                origin.root = RootKind::Module;
                origin.text = name;
                origin.attribute();
            }
            Some(Beginning::Frame(thread)) => {
                origin.root = RootKind::Frame;
                let frame = parts.get(1).map_or("", |part| part.name.as_str());
                origin.text = format!("{thread}{frame}");
                let label = parts.get(1).map(|part| &part.label).filter(|label| !label.hidden);
                append_reference(&mut origin.text, label.map_or("", |label| label.concrete.trim()));
                origin.at = 2;
            }
            Some(Beginning::ThreadLocal(thread)) => {
                origin.root = RootKind::ThreadLocal;
                // A dictionary of the thread, and in it the dictionary of a `threading.local`.
                let is_local = parts.get(2).is_some_and(|part| part.place == Place::Attributes);
                let last = if is_local { 2 } else { 1 };
                let name = parts.get(last).map_or("", |part| unquoted(&part.label.concrete));
                origin.text = format!("{thread}thread-local {name}").trim_end().to_owned();
                origin.at = last + 1;
            }
            Some(Beginning::Context(thread)) => {
                origin.root = RootKind::Context;
                let count = parts[1..].iter().take_while(|part| part.kind == Kind::Context).count();
                let mut labels = parts[1..1 + count].iter().map(|part| part.label.concrete.trim());
                let name = labels.rfind(|label| !label.is_empty()).unwrap_or("");
                let words = if name.starts_with("context variable") {
                    ""
                } else {
                    "context variable "
                };
                origin.text = format!("{thread}{words}{}", unquoted(name)).trim_end().to_owned();
                origin.at = 1 + count;
            }
            Some(Beginning::Other(name, root)) => {
                origin.root = root;
                origin.text = name;
            }
            Some(Beginning::Word(name, root, is_vector)) => {
                origin.root = root;
                origin.text = name;
                let buffer = parts.get(1).is_some_and(|part| part.kind == Kind::Unnamed);
                if buffer && is_vector {
                    origin.object = Some("std::vector".to_owned());
                    origin.skip = true;
                } else if buffer || parts.len() < 2 {
                    origin.object = Some(String::new());
                }
            }
            Some(Beginning::Object) => {
                origin.text = parts.get(1).map_or_else(String::new, |part| part.detail.clone());
                origin.object = Some(String::new());
            }
            None => origin.at = 0,
        }
        origin.at = origin.at.min(parts.len());
        origin
    }

    /// Goes on as long as the object is a module, a class or a function, whose parts have names of their own.
    fn through_namespaces(&mut self) {
        if self.object.is_some() {
            return;
        }
        while let Some(part) = self.parts.get(self.at) {
            let next = self.parts.get(self.at + 1);
            match part.kind {
                Kind::Cell => self.at += 1,
                Kind::Wrapper if next.is_some() => {
                    // A static method is called like its function; a property has up to three.
                    if part.label.concrete.starts_with(".f") {
                        self.text.push_str(&part.label.concrete);
                    }
                    self.at += 1;
                }
                Kind::Module | Kind::Class | Kind::Function if part.label.hidden && next.is_some() => {
                    self.at += 1;
                    self.attribute();
                }
                Kind::Module | Kind::Class if self.parts.len() > self.at + 1 && !part.label.concrete.is_empty() => {
                    self.text.push_str(&part.label.concrete);
                    self.at += 1;
                }
                Kind::Function => match next {
                    Some(next) if next.place == Place::Closure && next.label.concrete.starts_with("closure") => {
                        self.text.push_str(&format!(" {}", next.label.concrete));
                        self.at += 2;
                    }
                    Some(next) if matches!(next.place, Place::Closure | Place::Defaults) => {
                        self.text.push_str(&part.label.concrete);
                        self.text.push_str(&next.label.concrete);
                        self.at += 2;
                    }
                    _ => return,
                },
                _ => return,
            }
        }
    }

    /// The part is a dictionary of variables.
    fn attribute(&mut self) {
        if let Some(part) = self.parts.get(self.at) {
            self.text.push_str(&attribute(&part.label.concrete));
        }
        self.at += 1;
    }
}

/// `.a` for `['a']`, and `.'a b'` for `['a b']`.
pub(super) fn attribute(label: &str) -> String {
    let name = unquoted(label);
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let inner = label.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner {
        Some(text) if name.len() < text.len() && !plain => format!(".{text}"),
        _ if plain && name.len() < label.len() => format!(".{name}"),
        _ => label.to_owned(),
    }
}

/// `a` for `['a']`.
fn unquoted(label: &str) -> &str {
    let inner = label.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inner = inner.unwrap_or(label);
    let quote = ['\'', '"'];
    let text = inner.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    text.unwrap_or(inner)
}

/// A step and what a run of equal ones needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pace {
    pub shape: String,
    pub concrete: String,
    pub holder: String,
    /// Periods that are left out after this step, and the number of parts in each.
    pub omitted: (u64, usize),
}

fn steps(parts: &[Part], at: usize, skip: bool, style: Style) -> Vec<Pace> {
    let mut steps: Vec<Pace> = Vec::new();
    let (mut shape, mut concrete) = (String::new(), String::new());
    let mut omitted = (0, 0);
    let mut skipped = skip;
    // What the next reference comes from: the last part that means something.
    let mut from = parts.get(at);
    if skip {
        from = parts.first();
    }
    let mut after_saved = false;
    for (nth, part) in parts.iter().enumerate().skip(at) {
        let next = parts.get(nth + 1);
        let reference = reference(from.unwrap_or(part), part, next, parts, nth);
        append_reference(&mut shape, &reference.0);
        append_reference(&mut concrete, &reference.1);
        if omitted.0 == 0 {
            omitted = part.omitted;
        }
        let Some(next) = next else { break };
        after_saved |= reference.0.starts_with("saved");
        let is_object = style.to_object && nth + 2 == parts.len();
        let is_hidden = !is_object
            && is_hidden(
                from.unwrap_or(part),
                part,
                next,
                parts.get(nth + 2),
                &shape,
                after_saved,
            );
        if !is_meaningless(next.kind) || matches!(next.kind, Kind::Tensor | Kind::AutogradMeta | Kind::PyNode) {
            from = Some(next);
        }
        let repeated = next.kind == Kind::Unnamed
            && shape.is_empty()
            && steps.last().is_some_and(|step: &Pace| step.holder == next.name);
        skipped &= next.kind == Kind::Unnamed;
        if is_hidden || (repeated || skipped) && !is_object {
            continue;
        }
        after_saved = false;
        steps.push(Pace {
            shape: std::mem::take(&mut shape),
            concrete: std::mem::take(&mut concrete),
            holder: match next.kind {
                Kind::Tensor => "Tensor".to_owned(),
                Kind::Storage => "storage".to_owned(),
                _ => next.name.clone(),
            },
            omitted: std::mem::take(&mut omitted),
        });
    }
    if !style.to_object {
        steps.push(Pace {
            shape,
            concrete,
            holder: String::new(),
            omitted: (0, 0),
        });
    }
    steps
}

fn is_meaningless(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Unnamed | Kind::Cell | Kind::Traceback | Kind::Context | Kind::CacheLink
    )
}

/// What to call the reference from a part to the next one: as a shape, and with indices.
fn reference(from: &Part, part: &Part, next: Option<&Part>, parts: &[Part], nth: usize) -> (String, String) {
    let fixed = |text: &str| (text.to_owned(), text.to_owned());
    let next_kind = next.map_or(Kind::Gap, |next| next.kind);
    let has_no_words = is_meaningless(part.kind) && part.kind != Kind::Unnamed && part.kind != Kind::Context;
    if part.label.hidden || has_no_words || part.place == Place::Threads {
        return fixed("");
    }
    if part.kind == Kind::Context && !part.label.shape.is_empty() {
        return fixed(&format!("context variable {}", part.label.shape));
    }
    if part.place == Place::Attributes {
        // The name of an attribute is part of the shape.
        return fixed(&attribute(&part.label.concrete));
    }
    if part.place == Place::Closure && part.label.concrete.starts_with("closure") {
        return fixed(&part.label.concrete);
    }
    match (from.kind, next_kind) {
        (Kind::Function, _) if next.is_some_and(|next| next.place == Place::Closure) => {
            let named = next.is_some_and(|next| next.label.concrete.starts_with("closure"));
            fixed(if named { "" } else { &part.label.shape })
        }
        (Kind::Generator, Kind::Frame) => fixed(""),
        (Kind::AutogradMeta, Kind::Tensor) => match torch::GRADIENT.contains(&part.edge.index()) {
            true => fixed(".grad"),
            false => fixed("._base"),
        },
        (Kind::AutogradMeta, Kind::GradNode | Kind::PyNode) => fixed(".grad_fn"),
        (Kind::GradNode, Kind::Tensor) if from.name == "AccumulateGrad" => fixed(".variable"),
        (Kind::GradNode, Kind::Tensor) => fixed(torch::saved_tensor(&from.name)),
        // The context of a function that is written in Python.
        (Kind::Object, Kind::Tensor) if part.kind == Kind::Unnamed && has_node_before(parts, nth) => {
            fixed("saved tensor")
        }
        (Kind::Object, Kind::Container)
            if part.edge.kind() == EdgeKind::Word
                && matches!(part.name.as_str(), "Tensor" | "Parameter")
                && next.is_some_and(|next| next.name == "OrderedDict") =>
        {
            fixed("._backward_hooks")
        }
        _ => (
            part.label.shape.trim().to_owned(),
            part.label.concrete.trim().to_owned(),
        ),
    }
}

fn has_node_before(parts: &[Part], nth: usize) -> bool {
    let object = parts[..=nth].iter().rposition(|part| part.kind == Kind::Object);
    let before = object.and_then(|place| place.checked_sub(1));
    before.is_some_and(|place| parts[place].kind == Kind::PyNode)
}

/// Whether the next part needs no words of its own. `via`: what leads to it.
fn is_hidden(from: &Part, part: &Part, next: &Part, after: Option<&Part>, via: &str, after_saved: bool) -> bool {
    let is_end = |part: Option<&Part>| part.is_none();
    match next.kind {
        Kind::Cell | Kind::Traceback | Kind::Context | Kind::CacheLink | Kind::AutogradMeta => true,
        Kind::Dict | Kind::Container if matches!(next.place, Place::Attributes | Place::Threads) => true,
        Kind::Dict | Kind::Container => {
            let named = matches!(
                next.edge.kind(),
                EdgeKind::Item | EdgeKind::Value | EdgeKind::Key | EdgeKind::Member
            );
            matches!(next.place, Place::Closure | Place::Defaults) || named && !via.is_empty()
        }
        // Up to 3.10 the frame is an object of its own.
        Kind::Frame => part.kind == Kind::Generator,
        Kind::Tensor => {
            from.kind == Kind::Object && part.kind == Kind::Object && part.edge.kind() == EdgeKind::Word
                || after_saved && after.is_some_and(|after| after.kind == Kind::Storage)
        }
        Kind::Storage => after_saved && is_end(after),
        Kind::PyNode => after.is_some_and(|after| after.kind == Kind::Object),
        // The C++ object behind a Python object of the same class.
        Kind::GradNode => from.kind == Kind::Object && from.name == next.name,
        Kind::Unnamed => {
            let known = !matches!(part.kind, Kind::Unnamed | Kind::Root);
            let after_known = after.is_some_and(|after| after.kind != Kind::Unnamed);
            known && after_known
        }
        _ => false,
    }
}
