//! Requests that describe processes to Pyroscope and to receivers of OpenTelemetry's protocol (OTLP).
//!
//! - [`messages`]: the protobuf messages.
//! - [`target`]: the URL, certificates and credentials.
//! - [`client`]: attempts, and what their answers mean.
//!
//! Every sum is that of `report --json`. Deliberately absent: a queue. A collector between culeak and the server has one.

pub mod client;
mod messages;
mod target;

use std::collections::HashMap;
use std::io::Write;

use culeak::analysis::job::member::Member;
use culeak::analysis::profile;
use culeak::analysis::report::{Options, Report};
use culeak::snapshot::{ProcessState, Snapshot};
use culeak_metrics::choice::Choice;
use culeak_metrics::label;
use culeak_metrics::page::ProcessSamples;
use culeak_metrics::process::{self, Growth, Shown};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::errors::Failure;
use crate::export::pprof::{self, ProfileMessage};
use crate::options::server::Protocol;
use client::{Client, Outcome};
use messages::Origin;

/// The largest message that is sent. OTLP recommends this limit to clients and servers.
const LARGEST_MESSAGE: usize = 64 << 20;

/// The labels of a process besides those from its recording.
pub struct Labels {
    pub service: Option<String>,
    pub job: Option<String>,
    /// The last of equal names counts.
    pub own: Vec<(String, String)>,
}

impl Labels {
    fn origin(&self, member: &Member) -> Origin {
        let program = member.program.script.as_ref().unwrap_or(&member.program.executable);
        let service = Some(label::value(self.service.as_ref().unwrap_or(program)));
        let service = service.filter(|service| !service.is_empty());
        let service = service.unwrap_or_else(|| "unknown_service".to_owned());
        let known = [
            ("job_id", self.job.clone().or_else(|| member.job.clone())),
            ("host", Some(member.host.clone())),
            ("rank", member.rank.map(|rank| rank.to_string())),
            ("pid", Some(member.pid.to_string()).filter(|_| member.pid != 0)),
        ];
        let known = known
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_owned(), label::value(&text?))));
        let mut labels: Vec<(String, String)> = Vec::new();
        for (name, value) in self.own.iter().rev().cloned().chain(known) {
            if !value.is_empty() && labels.iter().all(|(other, _)| *other != name) {
                labels.push((name, value));
            }
        }
        labels.sort();
        Origin {
            service,
            host: label::value(&member.host),
            pid: member.pid,
            labels,
        }
    }
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

/// Sends processes to one server.
pub struct Pusher {
    pub protocol: Protocol,
    pub labels: Labels,
    /// Call sites with metrics of their own.
    pub top: usize,
    pub client: Client,
    /// Of processes that run: the last samples, since counters must not fall, and the choice of call sites, which lasts.
    pub running: HashMap<(String, u32, u64), (Choice, Option<ProcessSamples>)>,
}

impl Pusher {
    /// Sends the state of a process: a snapshot with names, at its point in time.
    ///
    /// # Errors
    /// The message cannot be made, or is too large for servers.
    pub fn send(&mut self, mut snapshot: Snapshot) -> Result<Outcome, Failure> {
        snapshot.taken.at_unix_ns = time_of(&snapshot);
        let member = Member::of(&snapshot);
        let origin = self.labels.origin(&member);
        let subject = match member.rank {
            Some(rank) => format!("rank {rank} (process {} on {})", origin.pid, origin.host),
            None => format!("process {} on {}", origin.pid, origin.host),
        };
        let profile = || {
            let profile = pprof::compact(&snapshot, &profile::Options::default());
            profile.map_err(|error| Failure::new(format!("{subject}: {error}")))
        };
        let message = match self.protocol {
            Protocol::OtlpMetrics => messages::otlp_metrics(&origin, &snapshot, &self.samples(&snapshot, &member)),
            Protocol::Pyroscope => messages::pyroscope(&origin, &gzip(&profile()?)),
            Protocol::OtlpProfiles => {
                let profile = ProfileMessage::decode(profile()?.as_slice());
                let profile = profile.map_err(|error| format!("{subject}: {error}"))?;
                messages::otlp_profiles(&origin, &snapshot, &profile)
            }
        };
        if message.len() > LARGEST_MESSAGE {
            return Err(Failure::new(format!(
                "{subject}: the message has {} bytes, more than the {LARGEST_MESSAGE} that receivers accept; record with culeak run --sample",
                message.len()
            )));
        }
        // Pyroscope's profile is compressed by itself.
        let body = if self.protocol.is_otlp() {
            gzip(&message)
        } else {
            message
        };
        Ok(match self.client.send(&body) {
            Outcome::Refused(why) => Outcome::Refused(format!("{subject}: {why}")),
            other => other,
        })
    }

    /// The samples of `culeak metrics`, without growth, which needs a history.
    fn samples(&mut self, snapshot: &Snapshot, member: &Member) -> ProcessSamples {
        let key = (member.host.clone(), member.pid, member.started_unix_ns);
        let (mut choice, before) = self.running.remove(&key).unwrap_or_default();
        let report = Report::of(snapshot, &Options::default());
        let shown = Shown {
            job_id: "",
            top: self.top,
        };
        let mut samples = process::samples(snapshot, &report, &Growth::default(), shown, &mut choice);
        // The end of a script is sent once it has ended, and by then more had happened.
        before.iter().for_each(|before| samples.never_fall(before));
        if samples.running {
            self.running.insert(key, (choice, Some(samples.clone())));
        }
        samples
    }
}

/// Compresses: the level that Go uses, since higher levels save little space.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    // Writes to a vector do not fail.
    let _ = packed.write_all(bytes);
    packed.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::sample::leaky;

    #[test]
    fn labels_of_the_user_take_precedence_and_hostile_names_are_short() {
        let own = [("rank", "a"), ("team", "b"), ("team", "c")];
        let labels = Labels {
            service: None,
            job: Some("7".to_owned()),
            own: own.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        };
        let mut snapshot = leaky();
        snapshot.process.ranks.insert("RANK".to_owned(), "3".to_owned());
        snapshot.process.host = "\n\u{202e}\u{1b}[31m".repeat(1 << 16);
        let origin = labels.origin(&Member::of(&snapshot));
        assert!(origin.host.len() <= 160 && !origin.host.contains(['\n', '\u{1b}', '\u{202e}']));
        let found: Vec<_> = origin
            .labels
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let pid = snapshot.process.pid.to_string();
        let expected = [
            ("host", origin.host.as_str()),
            ("job_id", "7"),
            ("pid", &pid),
            ("rank", "a"),
            ("team", "c"),
        ];
        assert_eq!(found, expected);
    }
}
