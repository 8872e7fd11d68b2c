//! The usage thread: asks the driver (`crate::usage`) how full the devices of the process on the screen are.
//!
//! Each query starts a child process that loads NVML, so queries start at least two seconds apart and take at most a
//! twentieth of the time. The thread ends after a query that fails. Deliberately absent: who uses that memory; see the
//! report's ledger.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::Message;
use super::names::Names;
use crate::usage;

const BETWEEN: Duration = Duration::from_secs(2);

pub struct Question {
    pub recording: PathBuf,
    pub pid: u32,
    /// CUDA's ordinal and UUID of each device.
    pub devices: Vec<(i32, String)>,
}

/// Used memory of a device, by any process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    pub of: u64,
}

/// Answers the latest question until the sender of questions is gone.
pub fn serve(asked: &Receiver<Question>, answers: &Sender<Message>) {
    while let Ok(mut question) = asked.recv() {
        while let Ok(newer) = asked.try_recv() {
            question = newer;
        }
        let began = Instant::now();
        let message = answer(question);
        let answered = matches!(message, Message::Used(..));
        if answers.send(message).is_err() || !answered {
            return;
        }
        thread::sleep(BETWEEN.max(began.elapsed() * 19));
    }
}

/// Asks the driver.
pub fn answer(question: Question) -> Message {
    let uuids: Vec<&str> = question.devices.iter().map(|(_, uuid)| uuid.as_str()).collect();
    match usage::ask(question.pid, &uuids) {
        Ok(usage) => {
            let used = usage.devices.iter().map(|device| {
                let used = Used {
                    bytes: device.used_bytes,
                    of: device.total_bytes,
                };
                (question.devices[device.device].0, used)
            });
            Message::Used(question.recording, used.collect())
        }
        Err(why) => Message::Names(
            Names::default(),
            vec![format!("the usage of the devices is unknown: {why}")],
        ),
    }
}
