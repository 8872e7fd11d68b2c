//! Categories: what a tensor is for, derived from the stack and the thread that requested it.
//!
//! The rules are data (`categories/rules.txt`, and files of the user), in the order in which they are tried. The first
//! rule that matches decides; memory that no rule matches is [`Category::Other`]. Every byte has one category, so the sum
//! over categories is the sum of the memory. For each rule, a report can say which bytes it decided.
//!
//! ```text
//! rule       one line: a category, and conditions on the frames, the library, the thread and the kind
//! rules.txt  the built-in rules
//! ```
//!
//! Rules are compared with stacks, never with single records. Thousands of stacks share their frames: each distinct frame
//! is compared with the patterns once, and a stack's answer is the union of its frames' answers. What is left to compare
//! for each request are the few conditions on its thread, kind and allocator.
//!
//! Deliberately absent: guesses from sizes, ages and order. docs/categories.md says when stacks cannot tell.

use std::cell::RefCell;

use foldhash::HashMap;
use serde::Serialize;

use crate::analysis::groups::Group;
use crate::analysis::site::{CallStack, CallStacks, Frame};
use crate::analysis::suppressions::{Names, ParseError, each_rule};
use crate::kind::{Kind, Place};
use crate::named;
use crate::snapshot::{Call, Snapshot};
use crate::tally::Tally;

mod rule;

use rule::{Condition, Rule, Test};

/// The rules that apply unless the user replaces them.
pub const BUILT_IN: &str = include_str!("categories/rules.txt");
/// How rules of [`BUILT_IN`] name their source.
pub const BUILT_IN_NAME: &str = "built-in";

named! {
    /// What a tensor is for. The name is the word used in rules, reports, `--category` and JSON.
    #[derive(Hash, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Category {
        /// Parameters and buffers of modules.
        Parameters = "parameters",
        /// Values that a backward pass computed: gradients of parameters and, within the pass, of activations.
        Gradients = "gradients",
        /// Moments, master copies and other state of optimizers.
        OptimizerState = "optimizer-state",
        /// Values that modules and operators computed.
        Activations = "activations",
        /// Tensors that the program brought to the device: batches, labels, prompts.
        Inputs = "inputs",
        /// Scratch memory of cuBLAS, cuDNN and the like.
        Workspace = "workspace",
        /// Keys and values of earlier tokens.
        KvCache = "kv-cache",
        /// Buffers of collective operations.
        Communication = "communication",
        /// No rule matches. By the built-in rules also memory that the program itself requests from the driver.
        Other = "other",
    }
}

/// Rules in the order in which they are tried. The default is the built-in list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Categories {
    rules: Vec<Rule>,
    /// The distinct tests of frames; rules refer to them by index.
    tests: Vec<Test>,
}

impl Default for Categories {
    fn default() -> Categories {
        let mut built_in = Categories::none();
        built_in.add_built_in();
        built_in
    }
}

impl Categories {
    /// No rules: all memory is [`Category::Other`].
    pub fn none() -> Categories {
        Categories {
            rules: Vec::new(),
            tests: Vec::new(),
        }
    }

    /// Appends the built-in rules.
    pub fn add_built_in(&mut self) {
        self.add(BUILT_IN, BUILT_IN_NAME)
            .expect("the built-in rules are valid, as a test checks");
    }

    /// Appends the rules of a file; `source` is its name, for messages.
    ///
    /// # Errors
    /// The first line that is not a valid rule.
    pub fn add(&mut self, text: &str, source: &str) -> Result<(), ParseError> {
        each_rule(text, source, |rule, line| {
            let rule = Rule::parse(rule, &mut self.tests)?;
            self.rules.push(Rule {
                source: source.to_owned(),
                line,
                ..rule
            });
            Ok(())
        })
    }
}

/// The memory that one rule decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Decided {
    pub rule: String,
    pub source: String,
    pub line: usize,
    pub memory: Tally,
}

/// The memory of one category.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CategoryTotal {
    pub category: Category,
    pub memory: Tally,
    /// The part of `memory` that lies in blocks of frameworks: tensors and buffers.
    pub blocks: Tally,
    /// The rules of this category that decided memory, in their order, and the user's rules that decided nothing. Empty for
    /// memory that no rule matched.
    pub rules: Vec<Decided>,
}

/// Rules applied to one snapshot.
pub struct Sorter<'c> {
    categories: &'c Categories,
    snapshot: &'c Snapshot,
    known: RefCell<Compared>,
}

/// What was compared before.
#[derive(Default)]
struct Compared {
    frames: HashMap<FrameKey, Bits>,
    /// The rules whose conditions on the stack hold, in order, up to the first that has no other conditions.
    candidates: HashMap<Option<usize>, Box<[usize]>>,
}

/// What a request has besides its stack.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub kind: Kind,
    pub domain: Option<&'a str>,
    /// Index into the snapshot's threads; `None` if it is not known, so no name matches.
    pub thread: Option<usize>,
}

impl<'a> From<&'a Call> for Request<'a> {
    fn from(call: &'a Call) -> Request<'a> {
        Request {
            kind: call.kind,
            domain: call.domain.as_deref(),
            thread: Some(call.thread),
        }
    }
}

/// Of which no more than the kind is known.
impl From<Kind> for Request<'_> {
    fn from(kind: Kind) -> Self {
        Request {
            kind,
            domain: None,
            thread: None,
        }
    }
}

/// One bit per test of frames.
type Bits = Box<[u64]>;

/// The addresses of a frame's function, file and module. Frames borrow their texts from the snapshot, so equal addresses
/// are equal texts.
type FrameKey = (usize, usize, usize);

impl<'c> Sorter<'c> {
    pub fn new(categories: &'c Categories, snapshot: &'c Snapshot) -> Sorter<'c> {
        Sorter {
            categories,
            snapshot,
            known: RefCell::default(),
        }
    }

    /// The category of requests of this stack, which must be of the sorter's snapshot.
    pub fn category<'r>(&self, stack: Option<usize>, request: impl Into<Request<'r>>, stacks: &CallStacks) -> Category {
        self.category_by(self.rule(stack, request.into(), stacks))
    }

    /// Index of the rule that decides; `None` if no rule matches.
    fn rule(&self, stack: Option<usize>, request: Request, stacks: &CallStacks) -> Option<usize> {
        let Compared { frames, candidates } = &mut *self.known.borrow_mut();
        let candidates = candidates
            .entry(stack)
            .or_insert_with(|| self.candidates(stacks.get(stack), frames));
        let rules = &self.categories.rules;
        let holds = |condition: &Condition| !condition.is_of_request() || self.holds_for(condition, request);
        let decides = |rule: &&usize| rules[**rule].conditions.iter().all(holds);
        candidates.iter().find(decides).copied()
    }

    fn candidates(&self, stack: &CallStack, frames: &mut HashMap<FrameKey, Bits>) -> Box<[usize]> {
        let bits = self.bits(stack, frames);
        let holds = |condition: &Condition| condition.is_of_request() || holds_for_stack(condition, stack, &bits);
        let mut candidates = Vec::new();
        for (nth, rule) in self.categories.rules.iter().enumerate() {
            if rule.conditions.iter().all(holds) {
                candidates.push(nth);
                if !rule.conditions.iter().any(Condition::is_of_request) {
                    break;
                }
            }
        }
        candidates.into_boxed_slice()
    }

    fn category_by(&self, rule: Option<usize>) -> Category {
        rule.map_or(Category::Other, |rule| self.categories.rules[rule].category)
    }

    /// The tests that some frame of the thread's own passes: who started a backward pass does not say what it computes.
    fn bits(&self, stack: &CallStack, frames: &mut HashMap<FrameKey, Bits>) -> Bits {
        let tests = &self.categories.tests;
        let empty = || vec![0; tests.len().div_ceil(64)].into_boxed_slice();
        let mut bits = empty();
        for frame in stack.frames[..stack.own].iter().filter(|frame| !frame.is_gradient()) {
            let of_frame = frames.entry(frame_key(frame)).or_insert_with(|| {
                let (names, mut passed) = (Names::of(frame), empty());
                for (nth, test) in tests.iter().enumerate() {
                    passed[nth / 64] |= u64::from(test.passes(&names)) << (nth % 64);
                }
                passed
            });
            bits.iter_mut().zip(of_frame.iter()).for_each(|(all, one)| *all |= one);
        }
        bits
    }

    fn holds_for(&self, condition: &Condition, request: Request) -> bool {
        match condition {
            Condition::Thread(pattern) => request
                .thread
                .is_some_and(|thread| pattern.matches(&self.snapshot.threads[thread].name)),
            Condition::Kind(kind) => request.kind == *kind,
            Condition::Domain(pattern) => request.domain.is_some_and(|domain| pattern.matches(domain)),
            Condition::Not(condition) => !self.holds_for(condition, request),
            Condition::Frame(_) | Condition::Library(_) => false,
        }
    }

    /// The memory of these groups by category, in the order of [`Category::ALL`]; categories without records and without
    /// rules of the user are absent.
    pub fn totals<'b>(&self, groups: impl Iterator<Item = &'b Group<'b>>, stacks: &CallStacks) -> Vec<CategoryTotal> {
        let rules = &self.categories.rules;
        let mut by_rule = vec![Tally::default(); rules.len()];
        let mut totals: Vec<(Tally, Tally)> = vec![Default::default(); Category::ALL.len()];
        for group in groups {
            let rule = self.rule(group.stack, group.call.into(), stacks);
            if let Some(rule) = rule {
                by_rule[rule].join(group.tally());
            }
            let (memory, blocks) = &mut totals[self.category_by(rule) as usize];
            memory.join(group.tally());
            if group.call.kind.place() == Place::Within {
                blocks.join(group.tally());
            }
        }
        let decided = |category| {
            let rules = rules.iter().zip(&by_rule).filter(move |(rule, memory)| {
                rule.category == category && (memory.count > 0 || rule.source != BUILT_IN_NAME)
            });
            rules.map(|(rule, &memory)| Decided {
                rule: rule.text.clone(),
                source: rule.source.clone(),
                line: rule.line,
                memory,
            })
        };
        let all = Category::ALL.iter().zip(totals);
        let all = all.map(|(&category, (memory, blocks))| CategoryTotal {
            category,
            memory,
            blocks,
            rules: decided(category).collect(),
        });
        all.filter(|total| total.memory.count > 0 || !total.rules.is_empty())
            .collect()
    }
}

fn holds_for_stack(condition: &Condition, stack: &CallStack, bits: &Bits) -> bool {
    match condition {
        Condition::Frame(test) => bits[test / 64] >> (test % 64) & 1 == 1,
        Condition::Library(pattern) => stack.library.is_some_and(|library| pattern.matches(library)),
        Condition::Not(condition) => !holds_for_stack(condition, stack, bits),
        Condition::Thread(_) | Condition::Kind(_) | Condition::Domain(_) => false,
    }
}

fn frame_key(frame: &Frame) -> FrameKey {
    let address = |text: &str| text.as_ptr() as usize;
    (
        frame.function.map_or(0, address),
        frame.file.map_or(0, address),
        address(frame.module),
    )
}

#[cfg(test)]
mod tests;
