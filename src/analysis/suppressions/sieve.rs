//! Rules applied to one snapshot, and the stacks of which too little is known to apply them.
//!
//! A `keep` rule exempts memory from the rules below it. If a part of a stack was cut off or has no name, a `keep` rule may match
//! there, so a rule below it suppresses memory that it may not suppress: a [`Doubt`].

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{BUILT_IN_NAME, Of, Rule, Scope, Suppressions, Used};
use crate::analysis::site::{CallStack, CallStacks, Frame, Role};
use crate::tally::Tally;

/// Several records may share a stack and there may be hundreds of rules, so each stack is matched once.
pub struct Sieve<'r> {
    rules: &'r Suppressions,
    by_stack: HashMap<(Option<usize>, Of), OfStack>,
}

/// What a rule suppressed of one stack.
#[derive(Debug, Clone, Copy, Default)]
struct OfStack {
    rule: Option<usize>,
    tally: Tally,
    /// The number of objects without an address.
    objects: u64,
}

impl OfStack {
    fn hides(&self) -> bool {
        self.tally.count > 0 || self.objects > 0
    }
}

/// What stacks lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// Their outer part was cut off.
    Callers,
    /// Frames have no names.
    Names,
    /// The frames of Python were not recorded.
    Python,
}

/// Memory and objects that a rule may not suppress, as far as their stacks are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt<'r> {
    pub rule: &'r str,
    /// The rule above it that may exempt them; `None`: the rule names a call site, and theirs may have been cut off.
    pub keep: Option<&'r str>,
    pub lack: Lack,
    pub tally: Tally,
    pub objects: u64,
}

impl<'r> Sieve<'r> {
    pub fn new(rules: &'r Suppressions) -> Sieve<'r> {
        Sieve {
            rules,
            by_stack: HashMap::new(),
        }
    }

    /// The rule that suppresses memory of this stack.
    pub fn rule(&mut self, stack: Option<usize>, stacks: &CallStacks) -> Option<usize> {
        self.of_stack(stack, Of::Memory, stacks)?.rule
    }

    fn of_stack(&mut self, stack: Option<usize>, of: Of, stacks: &CallStacks) -> Option<&mut OfStack> {
        if self.rules.is_empty() {
            return None;
        }
        let entry = self.by_stack.entry((stack, of));
        let known = entry.or_insert_with(|| OfStack {
            rule: self.rules.matching(stacks.get(stack), of),
            ..OfStack::default()
        });
        known.rule.is_some().then_some(known)
    }

    /// Whether no rule suppresses memory of this stack. Otherwise `tally` is added to the rule.
    pub fn lets_through(&mut self, stack: Option<usize>, tally: Tally, stacks: &CallStacks) -> bool {
        let suppressed = self.of_stack(stack, Of::Memory, stacks);
        suppressed.map(|suppressed| suppressed.tally.join(tally)).is_none()
    }

    /// Whether no rule suppresses objects of this stack. Otherwise `count` is added to the rule.
    pub fn lets_objects_through(&mut self, stack: Option<usize>, count: u64, stacks: &CallStacks) -> bool {
        let suppressed = self.of_stack(stack, Of::Objects, stacks);
        let add = |of: &mut OfStack| of.objects = of.objects.saturating_add(count);
        suppressed.map(add).is_none()
    }

    /// The memory that all rules suppressed.
    pub fn suppressed(&self) -> Tally {
        Tally::total(self.by_stack.values().map(|of| of.tally))
    }

    /// The number of objects that all rules suppressed.
    pub fn suppressed_objects(&self) -> u64 {
        let objects = self.by_stack.values().map(|of| of.objects);
        objects.fold(0, u64::saturating_add)
    }

    /// All rules except `keep` rules, with what each suppressed.
    pub fn used(&self) -> Vec<Used> {
        let mut used: Vec<Used> = self.rules.rules.iter().map(Used::nothing).collect();
        for of in self.by_stack.values() {
            if let Some(rule) = of.rule {
                used[rule].suppressed.join(of.tally);
                used[rule].objects = used[rule].objects.saturating_add(of.objects);
            }
        }
        let rules = self.rules.rules.iter().zip(used).filter(|(rule, _)| !rule.keeps);
        rules.map(|(_, used)| used).collect()
    }

    /// What was suppressed although the stacks do not show that no `keep` rule above matches. `has_python`: stacks have Python's
    /// frames, if there are any.
    pub fn doubts(&self, stacks: &CallStacks, has_python: bool) -> Vec<Doubt<'r>> {
        let hidden = self.by_stack.iter().filter(|(_, of)| of.hides());
        let mut named = None;
        let mut sums: BTreeMap<(usize, Option<usize>, Lack), (Tally, u64)> = BTreeMap::new();
        for (&(stack, _), of) in hidden {
            let (stack, Some(rule)) = (stacks.get(stack), of.rule) else {
                continue;
            };
            let named: &HashSet<&str> = named.get_or_insert_with(|| modules_with_names(stacks));
            if let Some((keep, lack)) = self.rules.doubt(stack, rule, named, has_python) {
                let (tally, objects) = sums.entry((rule, keep, lack)).or_default();
                tally.join(of.tally);
                *objects = objects.saturating_add(of.objects);
            }
        }
        let text = |rule: usize| self.rules.rules[rule].text.as_str();
        let doubts = sums.into_iter().map(|((rule, keep, lack), (tally, objects))| Doubt {
            rule: text(rule),
            keep: keep.map(text),
            lack,
            tally,
            objects,
        });
        doubts.collect()
    }

    /// The first rule of a file that matches every stack of the program, and the number of call sites that it hides: several, or one by
    /// its outermost caller, or by what called `main`. Such a rule names no leak: it names `main`, or the program.
    pub fn too_broad(&self, stacks: &CallStacks) -> Option<(&'r Rule, usize)> {
        let rules = self.rules.rules.iter().enumerate();
        let mut given = rules.filter(|(_, rule)| !rule.keeps && !rule.is_built_in());
        let (index, rule, pattern) = given.find_map(|(index, rule)| match &rule.scope {
            Scope::AnyFrame(pattern) if stacks.all().all(|stack| pattern.matches_stack(stack)) => {
                Some((index, rule, pattern))
            }
            _ => None,
        })?;
        let by_outermost = |stack: &CallStack| {
            let outermost = [stack.callers().last(), stack.frames.last()];
            let below_main = stack.frames.iter().filter(|frame| frame.role == Role::BelowMain);
            let mut frames = outermost.into_iter().flatten().chain(below_main);
            frames.any(|frame| pattern.matches_frame(frame) && stack.site() != Some(frame))
        };
        let hidden = self
            .by_stack
            .iter()
            .filter(|(_, of)| of.rule == Some(index) && of.hides());
        let sites: HashSet<_> = hidden
            .map(|((stack, _), _)| stacks.get(*stack).site_fingerprint)
            .collect();
        let names_no_leak = sites.len() > 1 || sites.len() == 1 && stacks.all().all(by_outermost);
        names_no_leak.then_some((rule, sites.len()))
    }
}

impl Used {
    fn nothing(rule: &Rule) -> Used {
        Used {
            rule: rule.text.clone(),
            source: rule.source.clone(),
            line: rule.line,
            suppressed: Tally::default(),
            objects: 0,
        }
    }
}

/// Modules of which a name is known: the names of all their exported functions are.
fn modules_with_names<'s>(stacks: &'s CallStacks<'_>) -> HashSet<&'s str> {
    let frames = stacks.all().flat_map(|stack| &stack.frames);
    let named = frames.filter(|frame| frame.function.is_some());
    named.map(|frame| frame.module).collect()
}

impl Rule {
    fn is_built_in(&self) -> bool {
        self.source == BUILT_IN_NAME
    }
}

impl Suppressions {
    /// Why this rule may not suppress what has this stack: the `keep` rule above it, and what the stack lacks.
    fn doubt(
        &self,
        stack: &CallStack,
        rule: usize,
        named: &HashSet<&str>,
        has_python: bool,
    ) -> Option<(Option<usize>, Lack)> {
        let Scope::AnyFrame(pattern) = &self.rules[rule].scope else {
            let is_seen = stack.site().is_some_and(|site| site.role == Role::User);
            return (stack.truncated && !is_seen).then_some((None, Lack::Callers));
        };
        let last = stack.frames.iter().rposition(|frame| pattern.matches_frame(frame));
        let library = last.map_or("", |last| stack.frames[last].module);
        let entered = last.is_some_and(|last| stack.frames[last..].iter().any(|frame| frame.module != library));
        let lacks_name = |frame: &Frame, by_library: bool| {
            frame.function.is_none()
                && match frame.role {
                    _ if by_library => frame.module == library && !named.contains(library),
                    Role::User => true,
                    Role::Runtime | Role::Allocator | Role::BelowMain => false,
                    _ => !named.contains(frame.module),
                }
        };
        let keeps = self.rules[..rule].iter().enumerate().filter(|(_, rule)| rule.keeps);
        let lack = |keep: &Rule| {
            // Built-in rules name functions of the library itself, so its callers do not matter.
            let by_library = keep.is_built_in();
            if stack.truncated && !(by_library && entered) {
                return Some(Lack::Callers);
            }
            if stack.frames.iter().any(|frame| lacks_name(frame, by_library)) {
                return Some(Lack::Names);
            }
            (!has_python && !by_library).then_some(Lack::Python)
        };
        let mut doubts = keeps.filter_map(|(number, keep)| Some((Some(number), lack(keep)?)));
        doubts.next()
    }
}
