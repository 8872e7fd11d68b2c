//! Requests that describe processes to Pyroscope and to receivers of OpenTelemetry's protocol.
//!
//! [`Pusher::add`] makes the request of a snapshot and queues it, [`Pusher::send`] sends what waits. `culeak_push` has the queue
//! and the client. [`metrics`] and [`profiles`] make the messages. Every sum is that of `report --json`.

mod metrics;
mod profiles;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use culeak::analysis::job::member::Member;
use culeak::analysis::profile;
use culeak::analysis::report::{self, Report};
use culeak::snapshot::{ProcessState, Snapshot};
use culeak_push::client::{Client, Connection};
use culeak_push::messages::otlp_metrics::{ExportMetrics, ResourceMetrics};
use culeak_push::messages::pyroscope;
use culeak_push::queue::Queue;
use culeak_push::request::{self, Protocol, Request};
use culeak_push::send::{Patience, Sender, Sent};
use culeak_push::target::Target;
use prost::Message;

use crate::errors::Failure;
use crate::export::pprof;
use crate::progress;

/// The first part of the type of profiles, and the period type of OTLP profiles.
const PROFILE_NAME: &str = "cuda_memory";
/// Metrics of several processes go into one message up to about this size.
const BATCH: usize = 1 << 20;
/// The longest value of a label.
const LONGEST_VALUE: usize = 160;

/// What the labels of a process contain besides what its recording says.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    pub service: Option<String>,
    pub job: Option<String>,
    pub own: Vec<(String, String)>,
}

impl Labels {
    fn service_of(&self, member: &Member) -> String {
        let program = member.program.script.as_ref().unwrap_or(&member.program.executable);
        let name = self.service.as_ref().unwrap_or(program);
        match value(name) {
            name if name.is_empty() => "unknown_service".to_owned(),
            name => name,
        }
    }

    /// `job_id`, `host`, `rank` and `pid` as far as they are known, and the user's, which take precedence.
    fn of(&self, member: &Member) -> Vec<(String, String)> {
        let known = [
            ("job_id", self.job.clone().or_else(|| member.job.clone())),
            ("host", Some(member.host.clone())),
            ("rank", member.rank.map(|rank| rank.to_string())),
            ("pid", Some(member.pid.to_string()).filter(|_| member.pid != 0)),
        ];
        let mut labels: Vec<(String, String)> = Vec::new();
        let known = known
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_owned(), value(&text?))));
        // The last of equal names counts.
        let own = self.own.iter().rev().cloned();
        for (name, value) in own.chain(known) {
            if !value.is_empty() && labels.iter().all(|(other, _)| *other != name) {
                labels.push((name, value));
            }
        }
        labels.sort();
        labels
    }
}

/// A text from a recording as the value of a label: short and of one line.
fn value(text: &str) -> String {
    let plain = |c: char| if crate::escape::is_active(c) { '?' } else { c };
    let mut value = String::new();
    for c in text.chars().map(plain) {
        if value.len() + c.len_utf8() > LONGEST_VALUE {
            break;
        }
        value.push(c);
    }
    value
}

/// When the process was in the state that a snapshot shows. A recording that is read late shows the end of its process.
fn time_of(snapshot: &Snapshot) -> u64 {
    match snapshot.process.state {
        ProcessState::Exited | ProcessState::Ended => {
            snapshot.process.started_unix_ns.saturating_add(snapshot.taken.at_ns)
        }
        ProcessState::Running | ProcessState::Unknown => snapshot.taken.at_unix_ns,
    }
}

pub struct Options {
    pub to: String,
    pub protocol: Protocol,
    pub connection: Connection,
    pub labels: Labels,
    /// Call sites with metrics of their own.
    pub top: usize,
    /// Where requests wait; `None`: in memory.
    pub queue: Option<PathBuf>,
    pub queue_bytes: u64,
}

/// Makes, queues and sends requests to one server.
pub struct Pusher {
    protocol: Protocol,
    labels: Labels,
    top: usize,
    folder: Option<PathBuf>,
    queue: Queue,
    /// For requests that the folder cannot take.
    spare: Queue,
    sender: Sender,
    batch: Vec<ResourceMetrics>,
    batch_bytes: usize,
    /// What was sent of the counters of each process: allocations, frees, failed requests.
    counted: HashMap<(String, u32, u64), [u64; 3]>,
    /// Requests that were dropped for newer ones by this value.
    pub dropped: u64,
}

impl Pusher {
    /// Opens the queue, and reads certificates and credentials. Connects to nothing.
    ///
    /// # Errors
    /// The URL, a file or the queue is unusable.
    pub fn open(options: Options) -> Result<Pusher, Failure> {
        let target =
            Target::parse(&options.to, options.protocol).map_err(|reason| Failure::new(format!("--to: {reason}")))?;
        let client = Client::new(target, options.protocol, options.connection).map_err(Failure::new)?;
        let queue = match &options.queue {
            None => Queue::in_memory(options.queue_bytes),
            Some(path) => Queue::in_folder(path, options.queue_bytes).map_err(|error| in_queue(path, &error))?,
        };
        Ok(Pusher {
            protocol: options.protocol,
            labels: options.labels,
            top: options.top,
            folder: options.queue,
            queue,
            spare: Queue::in_memory(options.queue_bytes),
            sender: Sender::new(client),
            batch: Vec::new(),
            batch_bytes: 0,
            counted: HashMap::new(),
            dropped: 0,
        })
    }

    pub fn target(&self) -> &Target {
        &self.sender.courier().target
    }

    pub fn queue_folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The number of requests that wait.
    pub fn waiting(&self) -> u64 {
        let waiting = |queue: &Queue| queue.waiting().map_or(0, |(requests, _)| requests as u64);
        waiting(&self.queue) + waiting(&self.spare)
    }

    /// Queues what a process holds: a snapshot with names, at its point in time. Metrics of several processes wait in memory for
    /// [`Pusher::flush`] or until they fill a message.
    ///
    /// # Errors
    /// The message is too large for servers.
    pub fn add(&mut self, mut snapshot: Snapshot) -> Result<(), Failure> {
        snapshot.taken.at_unix_ns = time_of(&snapshot);
        let snapshot = &snapshot;
        let member = Member::of(snapshot);
        let subject = match member.rank {
            Some(rank) => format!("rank {rank} (process {} on {})", member.pid, value(&member.host)),
            None => format!("process {} on {}", member.pid, value(&member.host)),
        };
        let service = self.labels.service_of(&member);
        let mut labels = self.labels.of(&member);
        let failed = |reason: &dyn Display| Failure::new(format!("{subject}: {reason}"));
        match self.protocol {
            Protocol::OtlpMetrics => {
                let mut report = Report::of(snapshot, &report::Options::default());
                self.never_fall(&member, &mut report);
                let metrics = metrics::of(snapshot, &report, &service, &labels, self.top);
                self.batch_bytes += metrics.encoded_len();
                self.batch.push(metrics);
                match self.batch_bytes >= BATCH {
                    true => self.flush(),
                    false => Ok(()),
                }
            }
            Protocol::Pyroscope => {
                let profile = pprof::compact(snapshot, &profile::Options::default()).map_err(|error| failed(&error))?;
                labels.retain(|(name, _)| name != "service_name");
                labels.push(("service_name".to_owned(), service));
                let message = pyroscope::request(PROFILE_NAME, &labels, request::gzip(&profile));
                self.queue(&Request::new(self.protocol, &subject, &message).map_err(Failure::new)?)
            }
            Protocol::OtlpProfiles => {
                let profile = pprof::compact(snapshot, &profile::Options::default()).map_err(|error| failed(&error))?;
                let profile = pprof::ProfileMessage::decode(profile.as_slice()).map_err(|error| failed(&error))?;
                let message = profiles::of(profile, snapshot, &service, &labels);
                self.queue(&Request::new(self.protocol, &subject, &message).map_err(Failure::new)?)
            }
        }
    }

    /// Keeps counters from being less than before: the end of a script is sent once it has ended, and by then more had happened.
    fn never_fall(&mut self, member: &Member, report: &mut Report) {
        let process = (member.host.clone(), member.pid, member.started_unix_ns);
        let totals = &mut report.totals;
        let now = [&mut totals.allocated, &mut totals.freed, &mut totals.failed.count];
        let most = self.counted.entry(process).or_default();
        for (most, now) in most.iter_mut().zip(now) {
            *most = (*most).max(*now);
            *now = *most;
        }
    }

    /// Queues metrics that wait for others.
    ///
    /// # Errors
    /// The message is too large for servers.
    pub fn flush(&mut self) -> Result<(), Failure> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let resource_metrics = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let subject = crate::text::units::plural(resource_metrics.len() as u64, "process", "processes");
        let message = ExportMetrics { resource_metrics };
        self.queue(&Request::new(self.protocol, &subject, &message).map_err(Failure::new)?)
    }

    /// A request that the folder cannot take waits in memory.
    fn queue(&mut self, request: &Request) -> Result<(), Failure> {
        let put = match (self.queue.put(request), &self.folder) {
            (Err(error), Some(folder)) => {
                let failure = in_queue(folder, &error);
                progress::say(format_args!(
                    "{failure}; the request is kept in memory until it is sent"
                ));
                self.spare.put(request)
            }
            (put, _) => put,
        };
        self.dropped += put.map_err(|error| Failure::new(format!("{}: {error}", request.subject)))?;
        Ok(())
    }

    /// Sends what waits, oldest first.
    ///
    /// # Errors
    /// The queue cannot be read or changed.
    pub fn send(&mut self, patience: Patience) -> Result<Sent, Failure> {
        let folder = self.folder.clone().unwrap_or_default();
        let queued = self.sender.drain(&mut self.queue, patience);
        let may_go_on = !queued.as_ref().is_ok_and(|sent| sent.stopped.is_some());
        let spare_waits = self.spare.waiting().is_ok_and(|(requests, _)| requests > 0);
        // What is in memory alone is sent also if the folder cannot be used any more.
        let more = match may_go_on && spare_waits {
            true => Some(self.sender.drain(&mut self.spare, patience)),
            false => None,
        };
        let mut sent = queued.map_err(|error| in_queue(&folder, &error))?;
        if let Some(more) = more {
            let more = more.map_err(|error| in_queue(&folder, &error))?;
            sent.requests += more.requests;
            sent.bytes += more.bytes;
            sent.refused += more.refused;
            sent.refusals.extend(more.refusals);
            sent.notes.extend(more.notes);
            sent.stopped = more.stopped;
        }
        Ok(sent)
    }
}

fn in_queue(folder: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: the queue cannot be used: {error}", folder.display()))
}

#[cfg(test)]
mod tests;
