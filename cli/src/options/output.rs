//! Where an answer is written, and in which format: the same options in every command that answers.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::document::{self, Document};
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::output::{self, Overwrite};
use crate::{html, text};

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write to this file, in the format of its ending: .html, .json, .md, .svg or .txt; -: standard output, and an ending alone, such as .html: in that format
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print JSON; short for -o .json
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    #[command(flatten)]
    pub overwrite: Overwrite,
    /// Text goes to standard error, of a command whose program has standard output.
    #[arg(skip)]
    pub on_stderr: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Html,
    Json,
    Markdown,
    /// A flame graph.
    Svg,
}

impl Form {
    /// By the ending of a file's name; text without one. `None`: the ending is unknown.
    pub fn of(path: &Path) -> Option<Form> {
        let name = path.file_name()?.to_string_lossy();
        Some(match name.rsplit_once('.').map_or("txt", |(_, ending)| ending) {
            "html" | "htm" => Form::Html,
            "json" => Form::Json,
            "md" => Form::Markdown,
            "svg" => Form::Svg,
            "txt" => Form::Text,
            _ => return None,
        })
    }
}

impl OutputArgs {
    /// The format, of a file that can be written.
    ///
    /// # Errors
    /// The ending names no format, or the file cannot be written.
    pub fn form(&self) -> Result<Form, Failure> {
        let Some(path) = &self.output else {
            return Ok(if self.json { Form::Json } else { Form::Text });
        };
        let form = Form::of(path).ok_or_else(|| format!(
                "-o {}: the ending names no format; end with .html, .json, .md, .svg or .txt, or use culeak export for others",
                path.display()
            ))?;
        if let Some(path) = self.file() {
            output::check(path, self.overwrite)?;
        }
        Ok(form)
    }

    /// The file; `None`: standard output.
    fn file(&self) -> Option<&Path> {
        let path = self.output.as_deref()?;
        // A name that is an ending alone.
        let is_ending = path.parent() == Some(Path::new("")) && path.to_string_lossy().rfind('.') == Some(0);
        (!is_ending && !output::is_standard_output(path)).then_some(path)
    }

    /// Whether text goes to standard output, where rows are few and lines fit the terminal.
    pub fn is_printed(&self) -> bool {
        self.file().is_none()
    }

    /// Writes what `render` makes: to the file, or to standard output as text with lines or as it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, form: Form, render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        match (self.file(), form) {
            (Some(path), Form::Text | Form::Markdown) => output::create_plain(path, self.overwrite, render),
            (Some(path), _) => output::create(path, self.overwrite, render),
            (None, Form::Text) if self.on_stderr => text::to_stderr(render),
            (None, Form::Text) => text::print_lines(render),
            (None, Form::Json) => text::print(render),
            (None, _) => output::create(Path::new("-"), self.overwrite, render),
        }
    }

    /// Writes a page: as text, Markdown, HTML, or its value as JSON.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn page(
        &self,
        form: Form,
        title: &str,
        value: &impl serde::Serialize,
        page: impl FnOnce() -> Document,
    ) -> Result<(), Failure> {
        match form {
            Form::Text if self.is_printed() && !self.on_stderr => document::print(page),
            Form::Json => self.write(form, |out| text::write_json(value, out)),
            _ => self.write(form, |out| write_pages(form, title, vec![(String::new(), page())], out)),
        }
    }

    /// As [`OutputArgs::page`], of several values, each with the name of its section. JSON is an array unless there is one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn pages<T: serde::Serialize>(
        &self,
        form: Form,
        title: &str,
        values: &[(String, T)],
        page: impl Fn(&T) -> Document,
    ) -> Result<(), Failure> {
        self.write(form, |out| match (form, values) {
            (Form::Json, [(_, one)]) => text::write_json(one, out),
            (Form::Json, several) => text::write_json(&several.iter().map(|(_, value)| value).collect::<Vec<_>>(), out),
            _ => {
                let pages = values.iter().map(|(name, value)| (name.clone(), page(value)));
                write_pages(form, title, pages.collect(), out)
            }
        })
    }
}

/// Writes documents, with the names of sections if there are several.
fn write_pages(form: Form, title: &str, pages: Vec<(String, Document)>, out: &mut dyn Write) -> io::Result<()> {
    if form == Form::Html {
        return html::write(title, pages, out);
    }
    let several = pages.len() > 1;
    for (nth, (name, page)) in pages.iter().enumerate() {
        if several {
            section(form, nth, name, out)?;
        }
        match form {
            Form::Markdown => page.markdown(out)?,
            _ => page.text(out)?,
        }
    }
    Ok(())
}

/// Writes the heading of one of several pages.
///
/// # Errors
/// Those of `out`.
pub fn section(form: Form, nth: usize, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let gap = if nth > 0 { "\n" } else { "" };
    match (form, name) {
        (_, "") => write!(out, "{gap}"),
        (Form::Markdown, name) => writeln!(out, "{gap}## {}\n", Escaped(name)),
        _ => writeln!(out, "{gap}== {} ==", Escaped(name)),
    }
}
