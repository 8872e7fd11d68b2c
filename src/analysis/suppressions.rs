//! Suppressions in the syntax of LeakSanitizer: leaks that a user has examined and accepted.
//!
//! ```text
//! # our logger keeps its ring buffer until the end
//! leak:RingBuffer::grow
//! keep:^vendorAlloc$
//! leak:^libvendor*.so$
//! site:^Cache::fill(float\*)$ in ^cache.cu:88$
//! ```
//!
//! Each line is one rule:
//!
//! - `leak:PATTERN` matches a record if the pattern occurs in the function, the source file (a Python file too) or the
//!   module of any frame of its stack, including hidden frames. Files and modules match by their whole path or by their
//!   name.
//! - `keep:PATTERN` matches likewise, and excludes the record from the rules after it: a library may keep some memory and
//!   hand out other memory.
//! - `site:FUNCTION in FILE` matches the call site only: its whole function name and its source file, or a line of it (its module
//!   if no file is known). It matches only memory that the program requested itself, unless `by LIBRARY` follows. ` of memory` or
//!   ` of objects` at its end limits it to memory, or to objects without an address.
//!
//! `FILE:LINE` matches frames of this line. In patterns, `*` matches any text, `^` and `$` match the two ends, and `\` escapes the next character. The first
//! rule that matches takes the record, so each byte is suppressed once. LeakSanitizer has no `keep` and `site` rules;
//! its types other than `leak` are deliberately absent.

use std::fmt;

use serde::Serialize;

use crate::analysis::function_name::without_hash;
use crate::analysis::site::{CallStack, Frame};
use crate::tally::Tally;

mod pattern;
mod sieve;

pub(in crate::analysis) use pattern::Names;
pub use pattern::Pattern;
pub use sieve::{Doubt, Lack, Sieve};

/// Rules for memory that CUDA, its libraries and frameworks keep until the process ends.
pub const BUILT_IN: &str = include_str!("suppressions/built_in.txt");
/// How rules of [`BUILT_IN`] name their source.
pub const BUILT_IN_NAME: &str = "built-in";

/// A line that is not a valid rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// File name.
    pub source: String,
    /// Line and column count from 1.
    pub line: usize,
    pub column: usize,
    pub reason: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}: {}", self.source, self.line, self.column, self.reason)
    }
}

impl std::error::Error for ParseError {}

/// Calls `add` with every rule of a file and its line, counted from 1; empty lines and comments are skipped. `add` returns the
/// column within the rule and the reason if it is not valid.
///
/// # Errors
/// The first line that is not a valid rule.
pub(super) fn each_rule(
    text: &str,
    source: &str,
    mut add: impl FnMut(&str, usize) -> Result<(), (usize, String)>,
) -> Result<(), ParseError> {
    for (index, line) in text.lines().enumerate() {
        let rule = line.trim();
        if rule.is_empty() || rule.starts_with('#') {
            continue;
        }
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        add(rule, index + 1).map_err(|(column, reason)| ParseError {
            source: source.to_owned(),
            line: index + 1,
            column: indent + column,
            reason,
        })?;
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    scope: Scope,
    /// What it suppresses; `None`: both.
    of: Option<Of>,
    /// A `keep` rule.
    keeps: bool,
    /// The line as written.
    pub text: String,
    pub source: String,
    pub line: usize,
}

/// What a rule suppresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Of {
    Memory,
    /// Objects without an address.
    Objects,
}

impl Of {
    /// How rules name it.
    const fn suffix(self) -> &'static str {
        match self {
            Of::Memory => " of memory",
            Of::Objects => " of objects",
        }
    }
}

/// What a rule compares.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    /// All names of all frames.
    AnyFrame(Pattern),
    Site(SitePattern),
}

impl Scope {
    fn matches_names(&self, names: &Names) -> bool {
        matches!(self, Scope::AnyFrame(pattern) if pattern.matches_names(names))
    }

    fn matches_site(&self, stack: &CallStack) -> bool {
        matches!(self, Scope::Site(pattern) if pattern.matches(stack))
    }
}

/// Rules in order of precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suppressions {
    rules: Vec<Rule>,
}

/// What one rule suppressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Used {
    pub rule: String,
    pub source: String,
    pub line: usize,
    pub suppressed: Tally,
    /// The number of objects without an address.
    pub objects: u64,
}

impl Suppressions {
    /// Appends the built-in list.
    pub fn add_built_in(&mut self) {
        self.add(BUILT_IN, BUILT_IN_NAME)
            .expect("the built-in list is valid, as a test checks");
    }

    /// Appends the rules of a file; `source` is its name, for messages.
    ///
    /// # Errors
    /// The first line that is not a valid rule.
    pub fn add(&mut self, text: &str, source: &str) -> Result<(), ParseError> {
        each_rule(text, source, |rule, line| {
            let (keeps, scope, of) = parse_rule(rule)?;
            self.rules.push(Rule {
                scope,
                of,
                keeps,
                text: rule.to_owned(),
                source: source.to_owned(),
                line,
            });
            Ok(())
        })
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Index of the rule that suppresses memory, or objects, of this stack: the first that matches, unless it is a `keep` rule.
    pub fn matching(&self, stack: &CallStack, of: Of) -> Option<usize> {
        let suits = |rule: &Rule| rule.of.is_none_or(|only| only == of);
        let mut rules = self.rules.iter();
        let of_site = rules.position(|rule| suits(rule) && rule.scope.matches_site(stack));
        let mut first = of_site.unwrap_or(self.rules.len());
        for frame in &stack.frames {
            let names = Names::of(frame);
            let rules = &self.rules[..first];
            first = rules
                .iter()
                .position(|rule| rule.scope.matches_names(&names))
                .unwrap_or(first);
        }
        self.rules.get(first).filter(|rule| !rule.keeps).map(|_| first)
    }
}

/// Whether it is a `keep` rule, its scope, and what it suppresses; `None`: memory and objects.
///
/// # Errors
/// The column, from 1, and what is wrong there.
fn parse_rule(rule: &str) -> Result<(bool, Scope, Option<Of>), (usize, String)> {
    let Some((kind, pattern)) = rule.split_once(':') else {
        return Err((
            1,
            format!(
                "expected leak:PATTERN, site:PATTERN in FILE or keep:PATTERN, found {rule:?}; comments begin with #"
            ),
        ));
    };
    let behind = |(column, reason): (usize, String)| (column + kind.len() + 1, reason);
    match kind {
        "leak" | "keep" => {
            let pattern = Pattern::parse(pattern).map_err(behind)?;
            Ok((kind == "keep", Scope::AnyFrame(pattern), None))
        }
        "site" => {
            let of = [Of::Memory, Of::Objects]
                .into_iter()
                .find(|of| pattern.ends_with(of.suffix()));
            let pattern = of.map_or(pattern, |of| &pattern[..pattern.len() - of.suffix().len()]);
            Ok((false, Scope::Site(SitePattern::parse(pattern).map_err(behind)?), of))
        }
        _ => {
            let reason = format!(
                "no such type of suppression: {kind:?}; use leak:PATTERN, site:PATTERN in FILE or keep:PATTERN"
            );
            Err((1, reason))
        }
    }
}

impl Pattern {
    pub fn matches_stack(&self, stack: &CallStack) -> bool {
        stack.frames.iter().any(|frame| self.matches_names(&Names::of(frame)))
    }
}

/// `FUNCTION in FILE by LIBRARY`: one call site. The last part is absent if the program itself requested the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SitePattern {
    function: Pattern,
    source: Pattern,
    library: Option<Pattern>,
}

impl SitePattern {
    /// # Errors
    /// The column, from 1, and what is wrong there.
    fn parse(text: &str) -> Result<SitePattern, (usize, String)> {
        let Some(at) = find_unescaped(text, " in ") else {
            let reason =
                "expected FUNCTION in FILE: the call site's function, and its source file or module".to_owned();
            return Err((1, reason));
        };
        let (function, rest) = (&text[..at], &text[at + " in ".len()..]);
        let (source, library) = match find_unescaped(rest, " by ") {
            Some(by) => (&rest[..by], Some(&rest[by + " by ".len()..])),
            None => (rest, None),
        };
        let column = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
        let pattern = |part| Pattern::parse(part).map_err(|(at, reason)| (at + column(part), reason));
        Ok(SitePattern {
            function: pattern(function)?,
            source: pattern(source)?,
            library: library.map(pattern).transpose()?,
        })
    }

    fn matches(&self, stack: &CallStack) -> bool {
        let by = match (&self.library, stack.library) {
            (None, None) => true,
            (Some(pattern), Some(library)) => pattern.matches(library),
            _ => false,
        };
        let site = stack.site().filter(|_| by);
        let is_source = |site: &Frame| {
            let (name, names) = (site.source(), Names::of(site));
            self.source.matches(name) || self.source.is_line(site.line, names.files().chain([name]))
        };
        site.is_some_and(|site| is_source(site) && self.function.matches(&name_of_site(site)))
    }
}

/// The function with its parameters, without the hash that differs between builds.
fn name_of_site(site: &Frame) -> String {
    match site.function {
        Some(function) => without_hash(function).to_owned(),
        None => site.name(),
    }
}

/// Position of this text, if no backslash escapes its first character.
pub(super) fn find_unescaped(text: &str, wanted: &str) -> Option<usize> {
    let mut literal = false;
    text.char_indices().find_map(|(at, c)| {
        let found = !literal && text[at..].starts_with(wanted);
        literal = c == '\\' && !literal;
        found.then_some(at)
    })
}

/// A rule that matches only this stack's call site: the line, if it is known, because a function may leak at several. `None` if the
/// site has no stable name.
pub fn rule_for(stack: &CallStack, of: Of) -> Option<String> {
    let site = stack.site()?;
    // Code outside all modules has no stable name.
    let source = Some(site.source()).filter(|source| !source.is_empty())?;
    let function = name_of_site(site);
    let source = site
        .line
        .map_or_else(|| source.to_owned(), |line| format!("{source}:{line}"));
    let by = stack.library.map(|library| format!(" by {}", exactly(library)));
    let rule = format!(
        "site:{} in {}{}{}",
        exactly(&function),
        exactly(&source),
        by.unwrap_or_default(),
        of.suffix()
    );
    parse_rule(&rule).ok().map(|_| rule)
}

/// A pattern that matches only this text. A rule is one line, so control characters become `*`.
fn exactly(text: &str) -> String {
    let mut pattern = String::from("^");
    for (at, c) in text.char_indices() {
        // The separators of a rule are escaped.
        let separator = [" in ", " by "].iter().any(|word| text[at..].starts_with(word));
        match c {
            c if c.is_control() => pattern.push('*'),
            c if separator || matches!(c, '*' | '\\') => pattern.extend(['\\', c]),
            c => pattern.push(c),
        }
    }
    pattern + "$"
}

#[cfg(test)]
mod tests;
