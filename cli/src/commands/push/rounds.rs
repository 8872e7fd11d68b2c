//! Rounds of pushing: read the processes, queue what they are, send what waits.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use culeak::analysis::words;
use culeak::snapshot::ProcessState;
use culeak_push::client::Connection;
use culeak_push::request::Protocol;
use culeak_push::send::{Patience, Sent};
use culeak_push::target::{Credentials, Source};

use super::{ProtocolArg, PushArgs};
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::load::{self, Found, Place, at};
use crate::progress;
use crate::push::{Labels, Options, Pusher};

/// The shortest time between the starts of two rounds.
const SHORTEST: Duration = Duration::from_millis(100);

/// What has been sent of an input.
struct Seen {
    at_unix_ns: u64,
    ended: bool,
}

pub fn execute(args: &PushArgs) -> Result<ExitCode, Failure> {
    let mut pusher = Pusher::open(options(args)?)?;
    let mut seen = HashMap::new();
    let mut said = String::new();
    loop {
        let next = args.every.map(|every| Instant::now() + every);
        let round = Round::go(args, &mut pusher, &mut seen, next);
        round.say_changes(&mut said);
        let Some(next) = next else {
            return Ok(round.finish(&pusher));
        };
        let is_open = args.inputs.is_empty() || args.inputs.iter().any(|input| may_grow(Path::new(input)));
        let all_ended = !is_open && seen.values().all(|seen: &Seen| seen.ended);
        // What waits in memory would be lost.
        if all_ended && round.sent.stopped.is_none() {
            return Ok(round.finish(&pusher));
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Whether the input may name more processes later.
fn may_grow(input: &Path) -> bool {
    input.is_dir() || input.to_string_lossy().contains(['*', '?', '['])
}

fn options(args: &PushArgs) -> Result<Options, Failure> {
    let source = |file: &Option<PathBuf>, variable: &Option<String>| match (file, variable) {
        (Some(path), _) => Some(Source::File(path.clone())),
        (None, Some(name)) => Some(Source::Variable(name.clone())),
        (None, None) => None,
    };
    if args.every.is_some_and(|every| every < SHORTEST) {
        return Err(Failure::new("--every: the shortest time is 100ms"));
    }
    if args.every.is_some() && args.inputs.iter().any(|input| input == "-") {
        return Err(Failure::new(
            "-: standard input can be read only once; with --every name files or folders",
        ));
    }
    let password = source(&args.password_file, &args.password_env);
    let basic = match (&args.user, password) {
        (Some(user), Some(password)) => Some((user.clone(), password)),
        (Some(_), None) => {
            return Err(Failure::new(
                "--user: there is no password; add --password-file or --password-env",
            ));
        }
        (None, _) => None,
    };
    Ok(Options {
        to: args.to.clone(),
        protocol: match args.protocol {
            ProtocolArg::Pyroscope => Protocol::Pyroscope,
            ProtocolArg::OtlpProfiles => Protocol::OtlpProfiles,
            ProtocolArg::OtlpMetrics => Protocol::OtlpMetrics,
        },
        connection: Connection {
            credentials: Credentials {
                token: source(&args.token_file, &args.token_env),
                basic,
                headers: args.header_file.clone(),
                tenant: args.tenant.clone(),
            },
            ca_file: args.ca_file.clone(),
            timeout: args.timeout,
            plain_credentials: args.allow_plain_credentials,
        },
        labels: Labels {
            service: args.service.clone().or_else(|| {
                let name = std::env::var("OTEL_SERVICE_NAME").ok();
                name.filter(|name| !name.is_empty())
            }),
            job: args.job.clone(),
            own: args.label.clone(),
        },
        top: args.top,
        queue: args.queue.clone(),
        queue_bytes: args.queue_bytes,
    })
}

/// Reads an input and queues it, unless that state of it has been.
fn one(args: &PushArgs, pusher: &mut Pusher, place: &Place, before: Option<&Seen>) -> Result<Seen, Failure> {
    let mut item = place.load_without_peaks()?;
    at::show(&mut item, None, &args.names)?;
    let snapshot = &item.snapshot;
    let now = Seen {
        at_unix_ns: snapshot.taken.at_unix_ns,
        ended: matches!(snapshot.process.state, ProcessState::Exited | ProcessState::Ended),
    };
    if before.is_none_or(|before| before.at_unix_ns != now.at_unix_ns || before.ended != now.ended) {
        pusher.add(item.snapshot)?;
    }
    Ok(now)
}

/// Keeps the first sentences.
fn keep(kept: &mut Vec<String>, more: Vec<String>) {
    const MOST: usize = 10;
    kept.extend(more);
    kept.truncate(MOST);
}

/// What one round led to.
#[derive(Default)]
struct Round {
    sent: Sent,
    failures: Vec<String>,
    /// Processes that were not read, since nothing could be sent and there is no queue on disk.
    left_out: usize,
}

impl Round {
    fn go(args: &PushArgs, pusher: &mut Pusher, seen: &mut HashMap<String, Seen>, deadline: Option<Instant>) -> Round {
        let mut round = Round::default();
        let patience = Patience {
            retry_for: args.retry_for,
            deadline,
        };
        let found = args.inputs.iter().map(load::places);
        let Found { places, failures, .. } = found.fold(Found::default(), |mut all, found| {
            all.places.extend(found.places);
            all.failures.extend(found.failures);
            all
        });
        round.failures.extend(failures.iter().map(ToString::to_string));
        for (nth, place) in places.iter().enumerate() {
            let source = place.to_string();
            if seen.get(&source).is_some_and(|seen| seen.ended) {
                continue;
            }
            match one(args, pusher, place, seen.get(&source)) {
                Ok(now) => seen.insert(source, now),
                Err(failure) => {
                    round.failures.push(failure.to_string());
                    // A process that has ended leaves its recording, which has another name.
                    if let (Place::Process(pid), Some(seen)) = (place, seen.get_mut(&source)) {
                        seen.ended = !load::process_lives(*pid);
                    }
                    continue;
                }
            };
            if round.sent.stopped.is_some() {
                if args.queue.is_none() && args.every.is_none() {
                    round.left_out = places.len() - nth - 1;
                    break;
                }
            } else {
                round.send(pusher, patience);
            }
        }
        if let Err(failure) = pusher.flush() {
            round.failures.push(failure.to_string());
        }
        if round.sent.stopped.is_none() {
            round.send(pusher, patience);
        }
        round
    }

    fn send(&mut self, pusher: &mut Pusher, patience: Patience) {
        let sent = pusher.send(patience).unwrap_or_else(|failure| Sent {
            stopped: Some(failure.to_string()),
            ..Sent::default()
        });
        self.sent.requests += sent.requests;
        self.sent.bytes += sent.bytes;
        self.sent.refused += sent.refused;
        keep(&mut self.sent.refusals, sent.refusals);
        keep(&mut self.sent.notes, sent.notes);
        self.sent.stopped = sent.stopped;
    }

    fn sentences(&self) -> Vec<String> {
        let error = |words: &String| format!("error: {words}");
        let mut sentences: Vec<String> = self.failures.iter().map(error).collect();
        sentences.extend(self.sent.refusals.iter().map(|why| format!("error: refused: {why}")));
        sentences.extend(self.sent.notes.iter().map(|note| format!("note: {note}")));
        sentences.extend(self.sent.stopped.iter().map(error));
        sentences
    }

    /// Prints what is wrong if it is not what was wrong before.
    fn say_changes(&self, said: &mut String) {
        let now = self.sentences();
        let all = now.join("\n");
        if all == *said {
            return;
        }
        now.iter().for_each(|words| progress::say(Escaped(words)));
        if now.is_empty() {
            progress::say("sending works again");
        }
        *said = all;
    }

    /// Prints what was sent and what was not.
    fn finish(&self, pusher: &Pusher) -> ExitCode {
        let Sent {
            requests,
            bytes,
            refused,
            ..
        } = self.sent;
        let mut parts = vec![format!(
            "{} sent to {} ({})",
            words::plural(requests, "request", "requests"),
            pusher.target(),
            words::bytes(bytes)
        )];
        if refused > 0 {
            parts.push(format!("{} refused", words::count(refused)));
        }
        let waiting = pusher.waiting();
        if waiting > 0 {
            parts.push(match pusher.queue_folder() {
                Some(folder) => format!("{} in {}", words::plural(waiting, "waits", "wait"), folder.display()),
                None => format!("{} not sent; keep such in a folder with --queue", words::count(waiting)),
            });
        }
        if pusher.dropped > 0 {
            parts.push(format!(
                "{} dropped, as the queue was full",
                words::count(pusher.dropped)
            ));
        }
        if self.left_out > 0 {
            parts.push(format!(
                "{} not read",
                words::plural(self.left_out as u64, "process", "processes")
            ));
        }
        progress::say(format_args!("{}", Escaped(&parts.join("; "))));
        let trouble = refused > 0 || waiting > 0 || pusher.dropped > 0 || self.left_out > 0;
        ExitCode::from(if trouble || !self.failures.is_empty() { USAGE } else { 0 })
    }
}
