//! A call site as text: what remains of it when its snapshot is dropped.

use serde::Serialize;

use super::{CallStack, Fingerprint, Frame, NO_STACK, Role};
use crate::analysis::function_name::plain;

/// A call site as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Site {
    /// The function, or module and offset.
    pub label: String,
    /// `train.py:212`.
    pub place: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub module: String,
    /// A caching allocator holds the memory.
    pub pool: bool,
    /// The owner of that allocator.
    pub allocator: Option<&'static str>,
    /// The CUDA library that requested the memory.
    pub library: Option<&'static str>,
    /// Of its records, if they are of one snapshot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<&'static str>,
    /// The kind of object that it creates, if the row is of objects without an address; it has counts only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<&'static str>,
    /// `site_fingerprint` of a report, or `fingerprint` if rows are stacks.
    pub fingerprint: Fingerprint,
    /// The shown frames of one of its stacks, innermost first.
    pub stack: Vec<SiteFrame>,
    /// The number of its nearest callers, wrappers aside, that all of its stacks share; `None` if they share all.
    #[serde(skip)]
    pub parts_after: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteFrame {
    pub function: String,
    pub place: Option<String>,
    pub module: String,
    pub role: Role,
    /// Whether this frame is the call site.
    pub site: bool,
    /// As [`super::Frame::python_library`].
    #[serde(skip)]
    pub python_library: Option<String>,
}

impl CallStack<'_> {
    /// The function and the place of the call site: `load_batch`, `train.cu:14`.
    pub fn site_names(&self) -> (String, Option<String>) {
        let site = self.site();
        let name = site.map_or_else(|| NO_STACK.to_owned(), Frame::name);
        (name, site.and_then(Frame::short_place))
    }
}

impl Site {
    /// Memory of a CUDA library or of a caching allocator: lists have the program's own before it.
    pub fn is_of_library(&self) -> bool {
        self.pool || self.library.is_some()
    }

    /// By what sites with equal numbers are sorted.
    pub fn order(&self) -> (&str, Option<&str>, Fingerprint, bool) {
        (&self.label, self.place.as_deref(), self.fingerprint, self.pool)
    }

    /// The call site of a stack, as if no caching allocator held its memory.
    pub fn of(stack: &CallStack) -> Site {
        let site = stack.site();
        // Of a process that was never recorded, it is the path from a holder.
        let is_path = |frame: &Frame| frame.is_python() && frame.file.is_none();
        let name = |frame: &Frame| match is_path(frame) {
            true => frame.name(),
            false => plain(&frame.name()).into_owned(),
        };
        let frames = stack.shown().map(|frame| SiteFrame {
            function: name(frame),
            place: frame.short_place(),
            module: frame.module_name().to_owned(),
            role: frame.role,
            site: Some(frame) == site,
            python_library: frame.python_library().map(str::to_owned),
        });
        Site {
            label: site.map_or_else(|| NO_STACK.to_owned(), name),
            place: site.and_then(|site| site.short_place()),
            file: site.and_then(|site| site.file).map(str::to_owned),
            line: site.and_then(|site| site.line),
            module: site.map_or_else(String::new, |site| site.module_name().to_owned()),
            pool: false,
            allocator: stack.allocator,
            library: stack.library,
            kinds: Vec::new(),
            object: None,
            fingerprint: stack.site_fingerprint,
            stack: frames.collect(),
            parts_after: None,
        }
    }

    /// The frames that called the call site, innermost first.
    pub fn callers(&self) -> impl Iterator<Item = &SiteFrame> {
        self.stack.iter().skip_while(|frame| !frame.site).skip(1)
    }

    /// Where the stacks part of this site and of the same one in another snapshot.
    pub(crate) fn join_callers(&mut self, other: &Site) {
        let is_caller = |frame: &&SiteFrame| frame.role != Role::Wrapper;
        let own: Vec<&SiteFrame> = self.callers().filter(is_caller).collect();
        let others: Vec<&SiteFrame> = other.callers().filter(is_caller).collect();
        let shared = own.iter().zip(&others).take_while(|(a, b)| a == b).count();
        let parts = (own != others).then_some(shared);
        self.parts_after = [self.parts_after, other.parts_after, parts].into_iter().flatten().min();
    }
}
