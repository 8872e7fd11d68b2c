//! The forms of a report: text and Markdown, trees, HTML, JSON and flame graphs.

use std::io::{self, Write};
use std::path::Path;

use culeak::analysis::estimate;
use culeak::analysis::filter::only_objects;
use culeak::analysis::profile::tree::{Limits, Tree};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::report::{Options, Report};
use serde::ser::{SerializeSeq, Serializer};

use super::inputs::Inputs;
use super::{ReportArgs, Rules};
use crate::document::Document;
use crate::errors::Failure;
use crate::export::flamegraph;
use crate::html::Item;
use crate::load::Loaded;
use crate::names::Detail;
use crate::options::output::{Form, section};
use crate::options::view::Shape;
use crate::{json, load, text};

impl ReportArgs {
    fn profile_options(&self, rules: &Rules) -> profile::Options {
        profile::Options {
            full_stacks: self.view.full_stacks,
            filter: self.selection.filter(&rules.categories),
            suppressions: rules.suppressions.clone(),
            categories: rules.categories.clone(),
            ..profile::Options::default()
        }
    }

    fn suppressing(&self, rules: &Rules, item: &Loaded, form: Form) -> Options {
        let process = &item.snapshot.process;
        let is_here = |recording: &&String| Path::new(recording).is_file();
        let left = || Some(&process.recording).filter(is_here).cloned().unwrap_or_default();
        Options {
            is_of_snapshot: item.is_of_snapshot,
            left: (!load::process_lives(process.number())).then(left),
            suppressions: rules.suppressions.clone(),
            points: item.points.clone(),
            ..self.options(item.source.clone(), &rules.categories, form)
        }
    }

    /// How frames are named in trees, with lines, and in flame graphs.
    fn detail(&self, lines: bool) -> Detail {
        Detail {
            signatures: self.view.full_stacks,
            lines,
        }
    }
}

pub fn write_html(args: &ReportArgs, rules: &Rules, loaded: &[Loaded]) -> Result<(), Failure> {
    let items = loaded.iter().map(|item| Item {
        snapshot: &item.snapshot,
        timeline: item.timeline.as_ref(),
        options: args.suppressing(rules, item, Form::Html),
        full_stacks: args.view.full_stacks,
    });
    let items: Vec<Item> = items.collect();
    args.output
        .write(Form::Html, |out| text::report::write_html(&items, out))
}

pub fn write_flamegraph(args: &ReportArgs, rules: &Rules, item: &Loaded) -> Result<(), Failure> {
    let profile = Profile::of(&item.snapshot, &args.profile_options(rules));
    let detail = args.detail(args.view.lines);
    args.output
        .write(Form::Svg, |out| flamegraph::write(&profile, detail, out))
}

pub fn write_json(args: &ReportArgs, rules: &Rules, inputs: &mut Inputs) -> Result<(), Failure> {
    let options = |item: &Loaded| args.suppressing(rules, item, Form::Json);
    if let Some(item) = inputs.only.take() {
        let report = Report::of(&item.snapshot, &options(&item));
        return args.output.write(Form::Json, |out| text::write_json(&report, out));
    }
    args.output.write(Form::Json, |out| {
        let mut json = json::pretty(&mut *out);
        let mut list = json.serialize_seq(None)?;
        for item in inputs {
            list.serialize_element(&Report::of(&item.snapshot, &options(&item)))?;
        }
        list.end()?;
        writeln!(out)
    })
}

/// Writes text or Markdown; each of several processes has a heading.
pub fn write_text(args: &ReportArgs, rules: &Rules, inputs: &mut Inputs, form: Form) -> Result<(), Failure> {
    args.output.write(form, |out| {
        if let Some(item) = inputs.only.take() {
            return write_item(args, rules, &item, form, out);
        }
        for (nth, item) in inputs.enumerate() {
            section(form, nth, &item.source, out)?;
            write_item(args, rules, &item, form, out)?;
            // A message about the next input follows this one.
            out.flush()?;
        }
        Ok(())
    })
}

fn write_item(args: &ReportArgs, rules: &Rules, item: &Loaded, form: Form, out: &mut dyn Write) -> io::Result<()> {
    let view = &args.view;
    let page = match view.shape() {
        Shape::Tree => tree(args, rules, item),
        _ => {
            let report = Report::of(&item.snapshot, &args.suppressing(rules, item, form));
            let implied = [
                (Shape::Objects, only_objects(&args.selection.kind)),
                (Shape::Stacks, view.full_stacks),
            ];
            let implied = implied
                .into_iter()
                .filter_map(|(view, is_implied)| is_implied.then_some(view));
            let mut views = Vec::new();
            for view in view.view.iter().cloned().chain(implied) {
                if !views.contains(&view) {
                    views.push(view);
                }
            }
            let extent = text::report::Extent {
                views: &views,
                full_stacks: view.full_stacks,
            };
            text::report::page(&report, extent)
        }
    };
    match form {
        Form::Markdown => page.markdown(out),
        _ => page.text(out),
    }
}

fn tree(args: &ReportArgs, rules: &Rules, item: &Loaded) -> Document {
    let profile = Profile::of(&item.snapshot, &args.profile_options(rules));
    let options = args.options(item.source.clone(), &rules.categories, Form::Text);
    let limits = Limits {
        top: options.top,
        min_bytes: options.min_bytes,
        all: true,
    };
    let mut page = Document::default();
    text::tree::write(&profile, &Tree::of(&profile, &limits), args.detail(true), &mut page);
    if let Some(filter) = &profile.filter {
        page.line(format!("filter: {}", text::parts::filter(filter, 0)));
    }
    let sampling = item.snapshot.sampling;
    let suppressions = &profile.suppressions;
    text::parts::suppressions(profile.suppressed, 0, suppressions, sampling.is_some(), &mut page);
    page.warnings(sampling.map(|sampling| estimate::sampled("of this recording", sampling)));
    page
}
