//! The thread of the key `l`: the ledger of the process on the screen, which is that of a report.
//!
//! It reads the whole recording, looks up names and asks the driver, so it has a thread of its own, and only the open page asks
//! for it. The process is neither stopped nor read.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use culeak::analysis::groups::Groups;
use culeak::analysis::ledger::Ledger;
use culeak::analysis::site::CallStacks;

use super::Message;
use crate::errors::Failure;
use crate::load::Place;
use crate::symbolize::{Places, symbolize};
use crate::text::ledger::{Entry, beside_devices, entries, known_devices, title_of};
use crate::usage;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub recording: PathBuf,
    /// `None`: the process has ended.
    pub pid: Option<u32>,
}

/// The ledger at one instant, in the words of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// On the recording's clock.
    pub at_ns: u64,
    pub took_ns: u64,
    pub devices: Vec<Device>,
    /// Rows that belong to no device.
    pub beside: Vec<(&'static str, String)>,
    /// Why the driver's figures are missing.
    pub missing: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    pub title: String,
    pub entries: Vec<Entry>,
}

/// What is known of the ledger of a process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    pub asked: bool,
    /// The last one; an error says why there is none.
    pub answer: Option<Result<Answer, String>>,
}

impl Known {
    /// Whether to ask again, after a reading at this time. Asking takes at most a fifth of the time.
    pub fn is_due(&self, at_ns: u64, finished: bool) -> bool {
        const BETWEEN: u64 = 2_000_000_000;
        match &self.answer {
            _ if self.asked => false,
            Some(Ok(answer)) if finished => answer.at_ns < at_ns,
            Some(Ok(answer)) => at_ns.saturating_sub(answer.at_ns) >= BETWEEN.max(answer.took_ns.saturating_mul(5)),
            Some(Err(_)) | None => true,
        }
    }
}

/// Answers questions until their sender is gone.
pub fn serve(asked: &Receiver<Question>, answers: &Sender<Message>, places: impl Fn(Option<PathBuf>) -> Places) {
    while let Ok(question) = asked.recv() {
        let answer = answer(&question, &places).map_err(|failure| failure.to_string());
        if answers.send(Message::Ledger(question.recording, answer)).is_err() {
            return;
        }
    }
}

fn answer(question: &Question, places: &impl Fn(Option<PathBuf>) -> Places) -> Result<Answer, Failure> {
    let began = Instant::now();
    let place = match question.pid {
        Some(pid) => Place::Process(pid),
        None => Place::File(question.recording.clone()),
    };
    let mut item = place.load()?;
    usage::ask_driver(&mut item);
    // The thread that names stacks prints the notes of this.
    symbolize(&mut item.snapshot, &places(item.root.clone()));
    let snapshot = &item.snapshot;
    let stacks = CallStacks::of(snapshot);
    let groups = Groups::of(snapshot, &stacks);
    let ledger = Ledger::of(snapshot, &stacks, &groups);
    Ok(Answer {
        took_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        ..Answer::of(&ledger, snapshot.taken.at_ns)
    })
}

impl Answer {
    pub fn of(ledger: &Ledger, at_ns: u64) -> Answer {
        let device = |device| {
            let device: &culeak::analysis::ledger::DeviceLedger = device;
            Device {
                title: format!("GPU {}: {}", device.ordinal, title_of(device, ledger)),
                entries: entries(device, ledger),
            }
        };
        let devices: Vec<Device> = known_devices(ledger).map(device).collect();
        Answer {
            at_ns,
            took_ns: 0,
            beside: beside_devices(ledger),
            missing: ledger.missing.clone().filter(|_| !devices.is_empty()),
            devices,
        }
    }
}
