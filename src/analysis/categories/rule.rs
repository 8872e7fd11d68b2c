//! One rule: a category, and the conditions under which memory belongs to it.
//!
//! ```text
//! CATEGORY: CONDITION and CONDITION and not CONDITION …
//!
//! PATTERN              a frame's function, source file or module matches
//! PATTERN in PATTERN   one frame matches both: its function the first, its file or module the second
//! function PATTERN     a frame's function matches
//! library PATTERN      the CUDA library that requested the memory: cuBLAS, NCCL …
//! thread PATTERN       the name of the thread
//! kind KIND            the kind of memory, as in --kind
//! domain PATTERN       the allocator that owns the block: pytorch, xla, or a name that the program chose
//! ```
//!
//! Patterns are those of suppressions. All conditions must hold; each may be met by another frame.

use crate::analysis::categories::Category;
use crate::analysis::suppressions::{Names, Pattern, find_unescaped};
use crate::kind::Kind;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub category: Category,
    pub conditions: Vec<Condition>,
    /// The line as written.
    pub text: String,
    pub source: String,
    pub line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// A frame passes the test of this number.
    Frame(usize),
    Library(Pattern),
    Thread(Pattern),
    Kind(Kind),
    Domain(Pattern),
    Not(Box<Condition>),
}

impl Condition {
    /// Whether the condition is on the thread, the kind or the allocator, and not on the stack.
    pub fn is_of_request(&self) -> bool {
        match self {
            Condition::Frame(_) | Condition::Library(_) => false,
            Condition::Thread(_) | Condition::Kind(_) | Condition::Domain(_) => true,
            Condition::Not(condition) => condition.is_of_request(),
        }
    }
}

/// A test of a single frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    Any(Pattern),
    Function(Pattern),
    In(Pattern, Pattern),
}

impl Test {
    pub fn passes(&self, names: &Names) -> bool {
        match self {
            Test::Any(pattern) => pattern.matches_names(names),
            Test::Function(pattern) => names.functions().any(|name| pattern.matches(name)),
            Test::In(function, home) => {
                names.functions().any(|name| function.matches(name)) && names.homes().any(|name| home.matches(name))
            }
        }
    }
}

/// A column, from 1, and what is wrong there.
type Mistake = (usize, String);

impl Rule {
    /// Parses a line. Tests of frames that are not among `tests` are appended.
    ///
    /// # Errors
    /// The column, from 1, and what is wrong there.
    pub fn parse(line: &str, tests: &mut Vec<Test>) -> Result<Rule, Mistake> {
        let Some((name, conditions)) = line.split_once(':') else {
            let reason = format!("expected CATEGORY: CONDITION, found {line:?}; comments begin with #");
            return Err((1, reason));
        };
        let category = Category::from_name(name.trim_end()).ok_or_else(|| {
            let names: Vec<_> = Category::ALL.iter().map(|category| category.name()).collect();
            (
                1,
                format!(
                    "no such category: {:?}; use one of {}",
                    name.trim_end(),
                    names.join(", ")
                ),
            )
        })?;
        let (mut rest, mut parsed) = (conditions, Vec::new());
        loop {
            let end = find_unescaped(rest, " and ");
            let condition = &rest[..end.unwrap_or(rest.len())];
            let at = condition.as_ptr() as usize - line.as_ptr() as usize;
            let behind = |(column, reason): Mistake| (column + line[..at].chars().count(), reason);
            parsed.push(parse_condition(condition, tests).map_err(behind)?);
            match end {
                Some(end) => rest = &rest[end + " and ".len()..],
                None => break,
            }
        }
        // The end of the line is trimmed, so the word has no space behind it.
        if rest.ends_with(" and") {
            return Err((
                line.chars().count() + 1,
                "expected a condition after \"and\"".to_owned(),
            ));
        }
        Ok(Rule {
            category,
            conditions: parsed,
            text: line.to_owned(),
            source: String::new(),
            line: 0,
        })
    }
}

fn parse_condition(text: &str, tests: &mut Vec<Test>) -> Result<Condition, Mistake> {
    let trimmed = text.trim();
    let column = |part: &str| text[..part.as_ptr() as usize - text.as_ptr() as usize].chars().count() + 1;
    let pattern = |part: &str| {
        let behind = |(at, reason): Mistake| (at + column(part) - 1, reason);
        Pattern::parse(part.trim_end()).map_err(behind)
    };
    let mut frame = |test: Test| {
        let number = tests.iter().position(|known| *known == test);
        Condition::Frame(number.unwrap_or_else(|| {
            tests.push(test);
            tests.len() - 1
        }))
    };
    let (word, rest) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
    let rest = rest.trim_start();
    match word {
        "" => Err((
            column(trimmed),
            "expected a condition, for example FUNCTION in FILE".to_owned(),
        )),
        "not" | "library" | "thread" | "kind" | "domain" | "function" if rest.is_empty() => {
            let reason = format!("expected something after {word:?}; write \\{word} for a pattern of that text");
            Err((column(trimmed), reason))
        }
        "not" => {
            let behind = |(at, reason): Mistake| (at + column(rest) - 1, reason);
            Ok(Condition::Not(Box::new(parse_condition(rest, tests).map_err(behind)?)))
        }
        "library" => Ok(Condition::Library(pattern(rest)?)),
        "thread" => Ok(Condition::Thread(pattern(rest)?)),
        "domain" => Ok(Condition::Domain(pattern(rest)?)),
        "kind" => match Kind::from_name(rest) {
            Some(kind) => Ok(Condition::Kind(kind)),
            None => Err((
                column(rest),
                format!("no such kind of memory: {rest:?}; use a value of --kind"),
            )),
        },
        "function" => Ok(frame(Test::Function(pattern(rest)?))),
        _ => match find_unescaped(trimmed, " in ") {
            Some(at) => {
                let (function, home) = (&trimmed[..at], trimmed[at + " in ".len()..].trim_start());
                Ok(frame(Test::In(pattern(function)?, pattern(home)?)))
            }
            None => Ok(frame(Test::Any(pattern(trimmed)?))),
        },
    }
}
