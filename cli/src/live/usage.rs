//! The asking thread: how full the devices are, as the driver says (`crate::usage`), for the process on the screen.
//!
//! Each question starts a child process and NVML in it, so it is asked every two seconds at most and for a twentieth of the
//! time at most. Who gets no answer asks no more. Deliberately absent: whose that memory is; the report tells.

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
    /// CUDA's ordinal and UUID of each.
    pub devices: Vec<(i32, String)>,
}

/// Memory of a device, whoever has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    pub of: u64,
}

/// Answers the latest question until nobody asks any more.
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
            vec![format!("how full the devices are is not known: {why}")],
        ),
    }
}
