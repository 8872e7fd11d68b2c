//! What the rules of suppressions, limits and options name: functions, files and modules, with wildcards.

use std::borrow::Cow;

use serde::Serialize;

use crate::analysis::function_name::plain;
use crate::analysis::site::{Frame, file_name};

/// A text with wildcards: `*` matches any text, `^` and `$` anchor the pattern, and `\` escapes the next character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// The parts between the stars.
    parts: Vec<String>,
    from_start: bool,
    to_end: bool,
    /// `FILE:LINE`: the pattern of the file, and the line.
    line: Option<(Box<Pattern>, u32)>,
}

impl Pattern {
    /// # Errors
    /// The column, from 1, and what is wrong there.
    pub fn parse(text: &str) -> Result<Pattern, (usize, String)> {
        let (from_start, body) = text.strip_prefix('^').map_or((false, text), |body| (true, body));
        let mut parts = vec![String::new()];
        let (mut to_end, mut characters) = (false, body.chars());
        while let Some(c) = characters.next() {
            match c {
                '*' => parts.push(String::new()),
                '$' if characters.as_str().is_empty() => to_end = true,
                '\\' => parts
                    .last_mut()
                    .expect("there is one")
                    .extend(characters.next().or(Some(c))),
                _ => parts.last_mut().expect("there is one").push(c),
            }
        }
        if parts.iter().all(|part| part.chars().all(char::is_whitespace)) {
            let reason = "this pattern would match everything; name a function, a file or a module".to_owned();
            return Err((1, reason));
        }
        Ok(Pattern {
            text: text.to_owned(),
            parts,
            from_start,
            to_end,
            line: at_line(text),
        })
    }

    pub fn matches(&self, text: &str) -> bool {
        let (first, others) = self.parts.split_first().expect("split gives one part at least");
        let mut rest = if self.from_start {
            match text.strip_prefix(first.as_str()) {
                Some(rest) => rest,
                None => return false,
            }
        } else if others.is_empty() && self.to_end {
            return text.ends_with(first.as_str());
        } else {
            match text.find(first.as_str()) {
                Some(at) => &text[at + first.len()..],
                None => return false,
            }
        };
        for (nth, part) in others.iter().enumerate() {
            if self.to_end && nth + 1 == others.len() {
                return rest.ends_with(part.as_str());
            }
            match rest.find(part.as_str()) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        !self.to_end || rest.is_empty()
    }

    /// The pattern as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the function, the file or the module of the frame matches.
    pub fn matches_frame(&self, frame: &Frame) -> bool {
        self.matches_names(&Names::of(frame))
    }

    pub(in crate::analysis) fn matches_names(&self, names: &Names) -> bool {
        names.all.iter().flatten().any(|name| self.matches(name)) || self.is_line(names.line, names.files())
    }

    /// Whether it names this line of a file with one of these names.
    pub(super) fn is_line<'n>(&self, line: Option<u32>, mut files: impl Iterator<Item = &'n str>) -> bool {
        let of = self.line.as_ref().filter(|(_, known)| line == Some(*known));
        of.is_some_and(|(file, _)| files.any(|name| file.matches(name)))
    }
}

/// The file and the line of a pattern such as `train.py:88`. Line 88 is not line 8, so the number is no part of a text.
fn at_line(text: &str) -> Option<(Box<Pattern>, u32)> {
    let (file, line) = text.strip_suffix('$').unwrap_or(text).rsplit_once(':')?;
    let is_number = line.bytes().all(|byte| byte.is_ascii_digit());
    let line = line.parse().ok().filter(|_| is_number)?;
    // The line ends the name of the file.
    Some((Box::new(Pattern::parse(&format!("{file}$")).ok()?), line))
}

/// All names of a frame, computed once because many rules are compared with each frame.
pub(in crate::analysis) struct Names<'a> {
    all: [Option<Cow<'a, str>>; 6],
    line: Option<u32>,
}

impl<'a> Names<'a> {
    pub(in crate::analysis) fn of(frame: &Frame<'a>) -> Names<'a> {
        let module = Some(frame.module).filter(|module| !module.is_empty());
        let whole = |text: Option<&'a str>| text.map(Cow::Borrowed);
        // A path without a folder is equal to its short form.
        let short = |path: Option<&'a str>| {
            path.filter(|path| path.contains('/'))
                .map(|path| Cow::Borrowed(file_name(path)))
        };
        let bare = frame
            .function
            .map(plain)
            .filter(|bare| Some(bare.as_ref()) != frame.function);
        Names {
            all: [
                whole(frame.function),
                bare,
                whole(frame.file),
                short(frame.file),
                whole(module),
                short(module),
            ],
            line: frame.line,
        }
    }

    pub(in crate::analysis) fn functions(&self) -> impl Iterator<Item = &str> {
        self.all[..2].iter().flatten().map(Cow::as_ref)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.all[2..4].iter().flatten().map(Cow::as_ref)
    }

    /// The source file and the module.
    pub(in crate::analysis) fn homes(&self) -> impl Iterator<Item = &str> {
        self.all[2..].iter().flatten().map(Cow::as_ref)
    }
}

impl Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.text)
    }
}
