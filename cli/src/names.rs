//! Names of frames for trees and for formats with one text per frame, such as flame graphs and folded stacks.
//!
//! A stack begins with the place of its memory (`GPU 0`, `host memory`), because bytes of different places do not add up,
//! and ends with its kind in brackets. Names are escaped: each is one visible line without the separator `;`.

use std::collections::HashMap;
use std::hash::Hash;

use culeak::analysis::function_name::plain;
use culeak::analysis::groups::Level;
use culeak::analysis::profile::{Profile, Sample};
use culeak::analysis::site::{CallStack, Frame};
use culeak::kind::Place;

use crate::escape::Escaped;

/// Distinct values, numbered in order of arrival.
pub struct Distinct<T> {
    pub items: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Distinct<T> {
        Distinct {
            items: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    pub fn number(&mut self, value: T) -> usize {
        let next = self.items.len();
        *self.numbers.entry(value).or_insert_with_key(|value| {
            self.items.push(value.clone());
            next
        })
    }
}

impl Distinct<String> {
    /// The number of a text as it is shown.
    pub fn escaped(&mut self, text: &str) -> usize {
        self.number(Escaped(text).to_string())
    }
}

/// In place of a missing stack.
pub const NO_STACK: &str = "(recorded without a stack)";
/// In place of missing outer frames.
pub const CUT: &str = "(the stack was cut here)";

/// The parts of a frame that its name includes.
#[derive(Debug, Clone, Copy)]
pub struct Detail {
    /// Parameters and template arguments.
    pub signatures: bool,
    /// `train.cu:212`. Without lines, stacks of two builds of a program match.
    pub lines: bool,
}

/// The call site of a stack, with its line.
pub fn site(stack: &CallStack) -> String {
    let detail = Detail {
        signatures: false,
        lines: true,
    };
    let site = stack.site();
    site.map_or_else(|| NO_STACK.to_owned(), |site| frame(site, detail))
}

/// The function without its place.
pub fn function(frame: &Frame, detail: Detail) -> String {
    let name = frame.name();
    Escaped(&if detail.signatures {
        name
    } else {
        plain(&name).into_owned()
    })
    .to_string()
}

/// `Trainer::step (train.cu:212)`.
pub fn frame(frame: &Frame, detail: Detail) -> String {
    let mut name = function(frame, detail);
    if detail.lines
        && let Some(place) = frame.short_place()
    {
        name.push_str(&format!(" ({})", Escaped(&place)));
    }
    name.replace(';', ":")
}

/// `[device]`, `[device, cuBLAS]`, `[async, cached by PyTorch]`.
pub fn kind(profile: &Profile, sample: &Sample) -> String {
    let kind = sample.kind.name();
    match (sample.level, profile.paths[sample.path].origin) {
        (Level::Cached, Some(owner)) => format!("[{kind}, cached by {owner}]"),
        (Level::Cached, None) => format!("[{kind}, cached]"),
        (_, Some(library)) if sample.kind.place() != Place::Within => format!("[{kind}, {library}]"),
        _ => format!("[{kind}]"),
    }
}

/// All names of a sample's stack, outermost first.
pub fn stack<'p>(profile: &'p Profile, sample: &'p Sample, detail: Detail) -> impl Iterator<Item = String> + 'p {
    let path = &profile.paths[sample.path];
    let missing = match (path.frames.is_empty(), path.truncated) {
        (true, _) => Some(NO_STACK),
        (_, true) => Some(CUT),
        _ => None,
    };
    std::iter::once(profile.place(sample))
        .chain(missing.map(str::to_owned))
        .chain(profile.path(sample.path).map(move |each| frame(each, detail)))
        .chain(std::iter::once(kind(profile, sample)))
}
