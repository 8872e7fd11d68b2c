//! Rounds of pushing: read each process, send what it holds.

use std::collections::HashMap;
use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use culeak::analysis::words;

use super::Wanted;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::load::{self, Place, at};
use crate::options::server::ServerArgs;
use crate::progress;
use crate::push::client::{Client, Outcome};
use crate::push::{Labels, Pusher};

/// Sentences about requests that are printed for a round.
const MOST_SENTENCES: usize = 10;

/// The state of an input that was sent.
struct Seen {
    at_unix_ns: u64,
    ended: bool,
}

/// Call sites with metrics of their own, if no number is given.
const TOP: usize = 20;

/// # Errors
/// The URL, the certificates or the credentials cannot be used.
pub fn execute(to: &str, args: &ServerArgs, wanted: &Wanted) -> Result<ExitCode, Failure> {
    if wanted.every.is_some() && wanted.inputs.iter().any(|input| input == "-") {
        return Err(Failure::new(
            "-: standard input can be read only once; name files or folders, or use culeak export --to",
        ));
    }
    let named = env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    let mut pusher = Pusher {
        protocol: args.protocol,
        labels: Labels {
            service: args.service.clone().or(named),
            job: wanted.job.map(str::to_owned),
            own: args.label.clone(),
        },
        top: wanted.top.unwrap_or(TOP),
        client: Client::new(to, args.protocol, args.clone()).map_err(Failure::new)?,
        running: HashMap::new(),
    };
    let mut seen = HashMap::new();
    let mut said = Vec::new();
    loop {
        pusher.client.deadline = wanted.every.map(|every| Instant::now() + every);
        let round = Round::run(wanted, &mut pusher, &mut seen);
        if round.problems != said {
            round
                .problems
                .iter()
                .for_each(|problem| progress::say(Escaped(problem)));
            if round.problems.is_empty() {
                progress::say("sending works again");
            }
            said.clone_from(&round.problems);
        }
        let may_grow = |input: &Path| input.is_dir() || input.to_string_lossy().contains(['*', '?', '[']);
        let is_open = wanted.inputs.iter().any(|input| may_grow(Path::new(input)));
        let is_done = !is_open && round.unsent == 0 && seen.values().all(|seen| seen.ended);
        match pusher.client.deadline {
            Some(next) if !is_done => thread::sleep(next.saturating_duration_since(Instant::now())),
            _ => return Ok(round.finish(&pusher)),
        }
    }
}

/// The result of one round.
#[derive(Default)]
struct Round {
    requests: u64,
    bytes: u64,
    refused: u64,
    /// Processes that wait for the next round.
    unsent: u64,
    problems: Vec<String>,
}

impl Round {
    fn run(wanted: &Wanted, pusher: &mut Pusher, seen: &mut HashMap<String, Seen>) -> Round {
        let mut round = Round::default();
        let found: Vec<_> = wanted.inputs.iter().map(load::places).collect();
        let failures = found.iter().flat_map(|found| &found.failures);
        round
            .problems
            .extend(failures.map(|failure| format!("error: {failure}")));
        let mut stopped = pusher.client.refresh().err();
        for place in found.iter().flat_map(|found| &found.places) {
            let source = place.to_string();
            let before = seen.get_mut(&source);
            if before.as_ref().is_some_and(|seen| seen.ended) {
                continue;
            }
            if stopped.is_some() {
                round.unsent += 1;
                continue;
            }
            let (outcome, now) = match send(wanted, pusher, place, before.as_deref()) {
                Ok(Some(sent)) => sent,
                Ok(None) => continue,
                Err(failure) => {
                    round.problems.push(format!("error: {failure}"));
                    // A process that has ended leaves its recording, which has another name.
                    if let (Place::Process(pid), Some(seen)) = (place, before) {
                        seen.ended = !load::process_lives(*pid);
                    }
                    continue;
                }
            };
            match outcome {
                Outcome::Accepted { bytes, note } => {
                    round.requests += 1;
                    round.bytes += bytes as u64;
                    round.note(note.map(|note| format!("note: {note}")));
                }
                Outcome::Refused(why) => {
                    round.refused += 1;
                    round.note(Some(format!("error: refused: {why}")));
                }
                Outcome::Stopped(why) => {
                    round.unsent += 1;
                    stopped = Some(why);
                    continue;
                }
            }
            seen.insert(source, now);
        }
        round.problems.extend(stopped.map(|why| format!("error: {why}")));
        round
    }

    fn note(&mut self, sentence: Option<String>) {
        if self.problems.len() < MOST_SENTENCES {
            self.problems
                .extend(sentence.filter(|sentence| !self.problems.contains(sentence)));
        }
    }

    /// Prints what was sent and what was not.
    fn finish(&self, pusher: &Pusher) -> ExitCode {
        let requests = words::plural(self.requests, "request", "requests");
        let mut line = format!(
            "{requests} sent to {} ({})",
            pusher.client.target,
            words::bytes(self.bytes)
        );
        if self.refused > 0 {
            line += &format!("; {} refused", words::count(self.refused));
        }
        if self.unsent > 0 {
            line += &format!("; {} not sent", words::plural(self.unsent, "process", "processes"));
        }
        progress::say(Escaped(&line));
        let is_error = |problem: &String| problem.starts_with("error: ");
        let is_complete = self.refused + self.unsent == 0 && !self.problems.iter().any(is_error);
        ExitCode::from(if is_complete { 0 } else { USAGE })
    }
}

/// Reads an input and sends it, unless that state of it has been sent.
fn send(
    wanted: &Wanted,
    pusher: &mut Pusher,
    place: &Place,
    before: Option<&Seen>,
) -> Result<Option<(Outcome, Seen)>, Failure> {
    let mut item = place.load_without_peaks()?;
    at::show(&mut item, None, wanted.names)?;
    let now = Seen {
        at_unix_ns: item.snapshot.taken.at_unix_ns,
        ended: item.snapshot.process.state.has_ended(),
    };
    let is_sent = before.is_some_and(|before| before.at_unix_ns == now.at_unix_ns && before.ended == now.ended);
    match is_sent {
        true => Ok(None),
        false => Ok(Some((pusher.send(item.snapshot)?, now))),
    }
}
