//! What a check finds, and what to do about it.

use std::borrow::Cow;
use std::fmt::Display;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Ok,
    /// A feature that some users need does not work.
    Warn,
    /// Recording does not work.
    Fail,
}

/// One line of the report.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub level: Level,
    pub subject: Cow<'static, str>,
    pub text: String,
    pub remedy: Option<String>,
}

impl Finding {
    pub fn new(
        level: Level,
        subject: impl Into<Cow<'static, str>>,
        text: impl Display,
        remedy: Option<String>,
    ) -> Finding {
        Finding {
            level,
            subject: subject.into(),
            text: text.to_string(),
            remedy,
        }
    }

    pub fn ok(subject: impl Into<Cow<'static, str>>, text: impl Display) -> Finding {
        Finding::new(Level::Ok, subject, text, None)
    }

    pub fn warn(subject: impl Into<Cow<'static, str>>, text: impl Display, remedy: impl Display) -> Finding {
        Finding::new(Level::Warn, subject, text, Some(remedy.to_string()))
    }

    pub fn fail(subject: impl Into<Cow<'static, str>>, text: impl Display, remedy: impl Display) -> Finding {
        Finding::new(Level::Fail, subject, text, Some(remedy.to_string()))
    }
}
