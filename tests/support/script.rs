//! Scripts that `victims/script.c` runs, its transcripts, and random scripts.

use std::fmt;
use std::str::FromStr;

mod generate;

pub use generate::random;

/// One line of a script.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub id: u64,
    pub thread: u64,
    pub site: u64,
    pub verb: String,
    /// A domain, a mark or a phase; stands before the other arguments.
    pub name: String,
    pub arguments: Vec<i64>,
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {} {}", self.id, self.thread, self.site, self.verb)?;
        if !self.name.is_empty() {
            write!(out, " {}", self.name)?;
        }
        self.arguments
            .iter()
            .try_for_each(|argument| write!(out, " {argument}"))
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [id, thread, site, verb, rest @ ..] = &words[..] else {
            return Err(format!("not a line of a script: {text}"));
        };
        let (name, numbers) = match rest.split_first() {
            Some((name, numbers)) if name.parse::<i64>().is_err() => (*name, numbers),
            _ => ("", rest),
        };
        let number = |word: &&str| word.parse().map_err(|_| format!("not a number: {word}"));
        Ok(Line {
            id: number(id)? as u64,
            thread: number(thread)? as u64,
            site: number(site)? as u64,
            verb: (*verb).to_owned(),
            name: name.to_owned(),
            arguments: numbers.iter().map(number).collect::<Result<_, _>>()?,
        })
    }
}

/// A script: the environment that it needs, and its lines.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// `CULEAK_FAKE_…`: failures and sizes.
    pub environment: Vec<(String, String)>,
    pub lines: Vec<Line>,
}

impl fmt::Display for Script {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            writeln!(out, "# {name}={value}")?;
        }
        self.lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Script, String> {
        let mut script = Script::default();
        for line in text.lines() {
            match line.strip_prefix('#') {
                Some(setting) => script.environment.extend(
                    setting
                        .trim()
                        .split_once('=')
                        .filter(|(name, _)| name.starts_with("CULEAK_"))
                        .map(|(name, value)| (name.to_owned(), value.to_owned())),
                ),
                None if line.trim().is_empty() => {}
                None => script.lines.push(line.parse()?),
            }
        }
        Ok(script)
    }
}

/// What the driver answered to a line.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub pid: u32,
    pub id: u64,
    pub result: i32,
    pub value: u64,
    pub detail: u64,
    /// The current context and device of the thread after the call.
    pub context: u64,
    pub device: Option<i32>,
    pub thread: u32,
}

impl Answer {
    pub fn all(transcript: &str) -> Vec<Answer> {
        let answer = |line: &str| -> Option<Answer> {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some(Answer {
                pid: words.first()?.parse().ok()?,
                id: words.get(1)?.parse().ok()?,
                result: words.get(2)?.parse().ok()?,
                value: words.get(3)?.parse().ok()?,
                detail: words.get(4)?.parse().ok()?,
                context: words.get(5)?.parse().ok()?,
                device: words.get(6)?.parse().ok().filter(|device| *device >= 0),
                thread: words.get(7)?.parse().ok()?,
            })
        };
        transcript
            .lines()
            .map(|line| answer(line).unwrap_or_else(|| panic!("{line}")))
            .collect()
    }
}
