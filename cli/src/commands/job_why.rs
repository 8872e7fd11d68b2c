//! `culeak why` over several processes: what holds their memory, merged by the shape of the path.

use std::process::ExitCode;

use culeak::analysis::job::Unreadable;
use culeak::analysis::job::member::Member;
use culeak::analysis::job::why::Job;
use culeak::analysis::why::{self, Unanswered, Why};

use super::why::{WhyArgs, failure, load_place};
use crate::errors::{Failure, USAGE};
use crate::load::Place;
use crate::load::many::unreadable_input;
use crate::options::categories::CategoryArgs;
use crate::options::output::Form;
use crate::progress::{self, Progress, Unit};
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
    const SHOWN: usize = 10;
    let reasons = by_reason(&unreadable);
    for text in reasons.iter().take(SHOWN) {
        progress::fail(&Failure::new(text.as_str()));
    }
    if reasons.len() > SHOWN {
        let more = reasons.len() - SHOWN;
        progress::fail(&Failure::new(format!(
            "inputs have no answer for {more} more reasons; --json lists them"
        )));
    }
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

/// Each reason once: with its input, or with one of them and their number.
fn by_reason(unreadable: &[Unreadable]) -> Vec<String> {
    let mut different: Vec<(String, &Unreadable, usize)> = Vec::new();
    for input in unreadable {
        // A reason may name its input, as in a command to type.
        let general = match input.source.is_empty() {
            true => input.reason.clone(),
            false => input.reason.replace(&input.source, "\0"),
        };
        match different.iter_mut().find(|(known, ..)| *known == general) {
            Some((_, _, count)) => *count += 1,
            None => different.push((general, input, 1)),
        }
    }
    let text = |(_, first, count): (String, &Unreadable, usize)| match (first.source.as_str(), count) {
        ("", 1) => first.reason.clone(),
        ("", count) => format!("{count} times: {}", first.reason),
        (source, 1) => format!("{source}: {}", first.reason),
        (source, count) => format!("{count} inputs, such as {source}: {}", first.reason),
    };
    different.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_many_inputs_is_said_once() {
        let mut inputs: Vec<Unreadable> = (0..64)
            .map(|rank| Unreadable {
                source: format!("runs/{rank}.culeak"),
                reason: format!("not searched; use culeak why --core FILE runs/{rank}.culeak"),
            })
            .collect();
        inputs.push(Unreadable {
            source: "runs/x.culeak".to_owned(),
            reason: "empty".to_owned(),
        });
        let said = by_reason(&inputs);
        assert_eq!(
            said,
            [
                "64 inputs, such as runs/0.culeak: not searched; use culeak why --core FILE runs/0.culeak",
                "runs/x.culeak: empty"
            ]
        );
    }
}
