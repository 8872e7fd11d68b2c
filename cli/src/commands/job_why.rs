//! `culeak why` over several processes: what holds their memory, merged by the shape of the path.

use std::process::ExitCode;

use culeak::analysis::job::Unreadable;
use culeak::analysis::job::member::Member;
use culeak::analysis::job::why::Job;
use culeak::analysis::why::{self, Unanswered, Why};

use super::why::{WhyArgs, failure, load_place};
use crate::errors::{Failure, USAGE};
use crate::load::Place;
use crate::load::many::{fail_unreadable, unreadable_input};
use crate::options::categories::CategoryArgs;
use crate::options::output::Form;
use crate::progress::{Progress, Unit};
use crate::text;

/// Answers for every input that was searched; any other input makes the exit code 2.
///
/// # Errors
/// No input has an answer.
pub fn execute(args: &WhyArgs, places: &[Place], failures: Vec<Failure>, form: Form) -> Result<ExitCode, Failure> {
    let mut unreadable: Vec<Unreadable> = failures
        .iter()
        .map(|failure| unreadable_input(String::new(), failure))
        .collect();
    let mut job = Job::default();
    let (mut selected, mut answered) = (false, false);
    let categories = CategoryArgs::read(&args.categories)?;
    let progress = Progress::over("searching", places.len() as u64, Unit::Of("processes"));
    for place in places {
        progress.advance(1);
        let item = match load_place(args, place) {
            Ok(item) => item,
            Err(failure) => {
                unreadable.push(unreadable_input(place.to_string(), &failure));
                continue;
            }
        };
        let options = why::Options {
            source: item.source.clone(),
            selector: args.selector.clone(),
            class: args.class,
            filter: args.selection.filter(&categories),
            ..why::Options::default()
        };
        let member = Member::of(&item.snapshot);
        match Why::of(&item.snapshot, &options) {
            Ok(answer) => {
                job.add(item.source.clone(), member, Some(&answer));
                answered = true;
            }
            // Another process has such memory, or none.
            Err(Unanswered::NothingSelected(_)) => {
                job.add(item.source.clone(), member, None);
                selected = true;
            }
            Err(unanswered) => unreadable.push(unreadable_input(
                item.source.clone(),
                &failure(&unanswered, args, &item),
            )),
        }
    }
    drop(progress);
    fail_unreadable(&unreadable);
    if !answered {
        return Err(Failure::new(match selected {
            true => "no process has memory that matches; name another call site, holder or class",
            false => "no input has an answer (see above); record with culeak run --why, or name running processes",
        }));
    }
    let all_answered = unreadable.is_empty();
    let answer = job.finish(unreadable, &args.selection.of_job(form != Form::Json));
    args.output.page(form, "culeak why: job", &answer, || {
        text::job::why::page(&answer, &args.selection.again())
    })?;
    Ok(ExitCode::from(if all_answered { 0 } else { USAGE }))
}
