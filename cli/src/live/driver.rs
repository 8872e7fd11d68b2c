//! What the driver says of the devices of a process that is watched.

use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use culeak::snapshot::{Device, ProcessState, Usage};

use super::reading::Reading;
use crate::usage;

/// The devices that were asked for by their UUIDs, and the driver's answer.
pub type Asked = (Vec<String>, Usage);

/// Asks the driver how full the devices of the process on the screen are. Each query starts a child process that loads NVML, so
/// it has a thread of its own, and takes at most a twentieth of the time. After a query that fails there is no other.
#[derive(Default)]
pub struct Driver {
    asking: Option<(PathBuf, Instant, JoinHandle<Asked>)>,
    /// No query begins before.
    next: Option<Instant>,
    failed: bool,
}

impl Driver {
    pub fn ask(&mut self, reading: &Reading) {
        if self.asking.is_some() || self.failed || self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        if let Some((pid, uuids)) = question(reading) {
            let asking = thread::spawn(move || asked(pid, uuids));
            self.asking = Some((reading.recording.clone(), Instant::now(), asking));
        }
    }

    /// The recording that was asked about, and what the driver says, once it has answered.
    pub fn answer(&mut self) -> Option<(PathBuf, Option<Asked>)> {
        const BETWEEN: Duration = Duration::from_secs(2);
        let (recording, began, asking) = self.asking.take_if(|(.., asking)| asking.is_finished())?;
        self.next = Some(Instant::now() + BETWEEN.max(began.elapsed() * 19));
        let usage = asking.join().ok();
        self.failed = usage.as_ref().is_none_or(|(_, usage)| usage.devices.is_empty());
        Some((recording, usage))
    }
}

/// What to ask the driver about a running process: its number, and its devices.
pub fn question(reading: &Reading) -> Option<(u32, Vec<String>)> {
    let is_running = reading.process.state == ProcessState::Running && reading.noun() != "holder";
    let uuids = reading.devices.iter().map(|device| device.uuid.clone());
    let uuids: Vec<String> = uuids.collect();
    (is_running && !uuids.is_empty()).then(|| (reading.process.number(), uuids))
}

/// Asks at once, and waits for the answer.
pub fn asked(pid: u32, uuids: Vec<String>) -> Asked {
    let texts: Vec<&str> = uuids.iter().map(String::as_str).collect();
    let usage = usage::of_devices(pid, &texts);
    (uuids, usage)
}

/// The answer by places in this list of devices, which may have grown since the driver was asked.
pub fn of_devices(devices: &[Device], uuids: &[String], usage: &Usage) -> Usage {
    let place = |asked: usize| devices.iter().position(|device| uuids.get(asked) == Some(&device.uuid));
    let mut usage = usage.clone();
    usage
        .devices
        .retain_mut(|of| place(of.device).map(|place| of.device = place).is_some());
    usage
}
