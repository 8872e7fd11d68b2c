//! `culeak report --view phases`: what each phase of the program held, allocated and left behind.

use std::process::ExitCode;

use culeak::analysis::phases::{Options, Phases};

use super::report::ReportArgs;
use crate::errors::{Failure, USAGE};
use crate::load::Sources;
use crate::options::output::Form;
use crate::options::rows_shown;
use crate::{progress, text};

/// Reports every input that can be read; any other input makes the exit code 2.
///
/// # Errors
/// No input can be read.
pub fn execute(args: &ReportArgs, name: Option<&str>, form: Form) -> Result<ExitCode, Failure> {
    let options = Options {
        name: name.map(str::to_owned),
        filter: args.selection.filter(&args.categories.read()?),
        sites: (form != Form::Json).then_some(text::phases::SITES_SHOWN),
    };
    let mut found = Sources::each(&args.inputs);
    let loaded = found.read(|place| {
        let (mut item, timeline) = place.load_with_events()?;
        args.selection.suits(&item)?;
        // Names tell what belongs to a caching allocator. Times need none.
        if timeline.is_some() || !options.filter.is_empty() {
            args.names.name_frames(&mut item);
        }
        Ok((item, timeline))
    });
    found.failures.iter().for_each(progress::fail);
    let mut unreadable = found.failures.len();
    let mut all: Vec<(String, Phases)> = loaded
        .iter()
        .map(|(item, timeline)| {
            let phases = Phases::of(&item.snapshot, timeline.as_ref(), &options);
            (item.source.clone(), phases)
        })
        .collect();
    if let Some(name) = &options.name {
        all.retain(|(source, phases)| {
            let found = !phases.chosen.is_empty();
            if !found {
                progress::fail(&no_phase(source, name, phases));
                unreadable += 1;
            }
            found
        });
        if all.is_empty() {
            return Ok(ExitCode::from(USAGE));
        }
    }
    let top = rows_shown(args.selection.top, true);
    let source = match all.as_slice() {
        [(source, _)] => source,
        _ => "RECORDING",
    };
    let page = |phases: &Phases| match &options.name {
        None => text::phases::page(phases, top, source),
        Some(_) => text::phases::page_of_chosen(phases, top),
    };
    args.output.pages(form, "culeak: phases", &all, page)?;
    Ok(ExitCode::from(if unreadable > 0 { USAGE } else { 0 }))
}

/// Names some of the phases that there are.
fn no_phase(source: &str, wanted: &str, phases: &Phases) -> Failure {
    const SHOWN: usize = 5;
    let mut known: Vec<String> = Vec::new();
    for row in &phases.rows {
        let name = format!("{:?}", row.name);
        if !known.contains(&name) && known.len() <= SHOWN {
            known.push(name);
        }
    }
    if known.len() > SHOWN {
        known[SHOWN] = "…".to_owned();
    }
    Failure::new(match known.is_empty() {
        true => {
            format!(
                "{source}: has no phase {wanted:?}, and no others; record with culeak run --timeline, or --record nvtx"
            )
        }
        false => format!("{source}: has no phase {wanted:?}; it has {}", known.join(", ")),
    })
}
