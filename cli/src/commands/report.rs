//! `culeak report`: memory that is held or leaked, by call site.

use std::process::ExitCode;

use crate::errors::{Failure, USAGE};
use crate::load::{self, Loaded};
use crate::options::output::Form;
use crate::options::view::Shape;
use inputs::Inputs;

mod args;
pub mod inputs;
mod pages;

pub use args::{ReportArgs, Rules};

/// Reports every input that can be read; any other input makes the exit code 2.
pub fn execute(args: &ReportArgs) -> Result<ExitCode, Failure> {
    execute_as(args, args.output.form()?)
}

/// As [`execute`], in a format that the name of the file does not choose.
///
/// # Errors
/// No input can be read, or the file cannot be written.
pub fn execute_as(args: &ReportArgs, form: Form) -> Result<ExitCode, Failure> {
    load::segments::are_wanted(&args.selection.kind)?;
    match args.view.shape() {
        Shape::Phases(name) => return super::phases::execute(args, name.as_deref(), form),
        Shape::Churn => return super::churn::execute(args, form),
        Shape::Segments => return super::segments::execute(args, form),
        _ => {}
    }
    let rules = Rules {
        suppressions: args.suppressions.read()?,
        categories: args.categories.read()?,
    };
    if form == Form::Svg {
        let item = args.load(&load::single(args.input()?)?, form)?;
        pages::write_flamegraph(args, &rules, &item)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut inputs = Inputs::new(args, form)?;
    if inputs.only.is_none() && args.shows_job() {
        return super::job::execute(args, &rules, inputs, form);
    }
    match form {
        Form::Html => {
            let items: Vec<Loaded> = inputs.only.take().into_iter().chain(&mut inputs).collect();
            // An empty page would hide that no input could be read.
            if !items.is_empty() {
                pages::write_html(args, &rules, &items)?
            }
        }
        Form::Json => pages::write_json(args, &rules, &mut inputs)?,
        _ => pages::write_text(args, &rules, &mut inputs, form)?,
    }
    Ok(ExitCode::from(if inputs.unreadable > 0 { USAGE } else { 0 }))
}
