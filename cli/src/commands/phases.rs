//! `culeak report --phases`: what each phase of the program held, allocated and left behind.

use std::io::Write;
use std::process::ExitCode;

use culeak::analysis::phases::{Options, Phases};

use super::report::ReportArgs;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::options::rows_shown;
use crate::{load, progress, text};

/// Reports every input that can be read; any other input makes the exit code 2.
///
/// # Errors
/// No input can be read.
pub fn execute(args: &ReportArgs, name: &str) -> Result<ExitCode, Failure> {
    let options = Options {
        name: (!name.is_empty()).then(|| name.to_owned()),
        filter: args.filter.filter(&args.categories.read()?),
        sites: (!args.json).then_some(text::phases::SITES_SHOWN),
    };
    let (mut places, mut unreadable) = (Vec::new(), 0);
    for input in &args.inputs {
        let found = load::places(input);
        unreadable += found.failures.len();
        found.failures.iter().for_each(progress::fail);
        places.extend(found.places);
    }
    let mut loaded = Vec::new();
    for place in &places {
        let found = place.load_with_events();
        let found = found.and_then(|found| args.filter.suits(&found.0).map(|()| found));
        match found {
            Ok((mut item, timeline)) => {
                // Names tell what belongs to a caching allocator. Times need none.
                if timeline.is_some() || !options.filter.is_empty() {
                    args.names.name_frames(&mut item);
                }
                loaded.push((item, timeline));
            }
            Err(failure) => {
                unreadable += 1;
                progress::fail(&failure);
            }
        }
    }
    let mut all: Vec<(&str, Phases)> = loaded
        .iter()
        .map(|(item, timeline)| {
            let phases = Phases::of(&item.snapshot, timeline.as_ref(), &options);
            (item.source.as_str(), phases)
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
    if args.json {
        match all.as_slice() {
            [(_, one)] => text::print_json(one)?,
            several => text::print_json(&several.iter().map(|(_, phases)| phases).collect::<Vec<_>>())?,
        }
    } else {
        let top = rows_shown(args.top, true);
        text::print_lines(|out: &mut dyn Write| {
            for (number, (source, phases)) in all.iter().enumerate() {
                if all.len() > 1 {
                    let gap = if number > 0 { "\n" } else { "" };
                    writeln!(out, "{gap}== {} ==", Escaped(source))?;
                }
                match &options.name {
                    None => text::phases::page(phases, top).text(out)?,
                    Some(_) => text::phases::page_of_chosen(phases, top).text(out)?,
                }
            }
            Ok(())
        })?;
    }
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
            format!("{source}: has no phase {wanted:?}, and no others; record with culeak run --timeline, or --nvtx")
        }
        false => format!("{source}: has no phase {wanted:?}; it has {}", known.join(", ")),
    })
}
