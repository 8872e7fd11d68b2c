//! Snapshots taken now: of a running process, at an interval, until the time is up, the process ends, or Ctrl-C.
//!
//! Signals arrive through a signalfd, so that they end the waiting and not this program: the snapshots are still reported.

use std::time::{Duration, Instant};

use culeak::analysis::trend::{Options, POINTS_NEEDED, Summary};
use culeak::snapshot::ProcessState;

use super::TrendArgs;
use crate::document::counted;
use crate::errors::Failure;
use crate::load;
use crate::text::units::{count, duration};
use crate::{progress, signals};

/// The summaries, and 1 if the process could not be read to its end.
pub fn summaries(pid: u32, args: &TrendArgs, options: &Options) -> Result<(Vec<Summary>, usize), Failure> {
    suffices(args)?;
    let signals = signals::block()?;
    let began = Instant::now();
    let first = load::one(pid.to_string())?;
    let (recording, _) = load::recording_of(pid)?;
    announce(pid, args);
    let (mut summaries, mut unreadable) = (vec![args.summary(first, options)], 0);
    for nth in 1u32.. {
        let next = args.every.saturating_mul(nth);
        if args.lasting.is_some_and(|lasting| next > lasting) {
            break;
        }
        if let Some(signal) = signals::wait(&signals, began + next) {
            let taken = counted(summaries.len(), "snapshot");
            eprintln!("culeak: {signal}: stopped after {taken}");
            break;
        }
        match load::one(pid.to_string()) {
            Ok(item) => summaries.push(args.summary(item, options)),
            // Its recording is the last snapshot.
            Err(failure) => {
                match load::one(&recording) {
                    Ok(item) if item.snapshot.process.state != ProcessState::Running => {
                        eprintln!("culeak: process {pid} has ended");
                        summaries.push(args.summary(item, options));
                    }
                    of_recording => {
                        unreadable = 1;
                        progress::fail(&no_more(pid, summaries.len() as u64, failure, of_recording.err()));
                    }
                }
                break;
            }
        }
    }
    Ok((summaries, unreadable))
}

/// Why there are no further snapshots. `of_recording`: why the recording cannot be read.
fn no_more(pid: u32, taken: u64, of_process: Failure, of_recording: Option<Failure>) -> Failure {
    let why = match of_recording.filter(|_| !load::process_lives(pid)) {
        Some(of_recording) => format!(
            "process {pid} has ended, and its recording cannot be read: {}",
            of_recording.message
        ),
        None => of_process.message,
    };
    Failure::new(format!(
        "snapshot {} cannot be taken: {why}; the trend ends with the {} before",
        count(taken + 1),
        counted(taken, "snapshot")
    ))
}

fn announce(pid: u32, args: &TrendArgs) {
    let every = shown(args.every);
    let until = match args.lasting {
        Some(lasting) => format!("for {}", shown(lasting)),
        None => "until it ends".to_owned(),
    };
    progress::note(format_args!(
        "taking a snapshot of process {pid} every {every} {until}; Ctrl-C stops and reports"
    ));
}

/// Refuses a time in which too few snapshots are taken.
fn suffices(args: &TrendArgs) -> Result<(), Failure> {
    let Some(lasting) = args.lasting else { return Ok(()) };
    let taken = lasting.as_nanos() / args.every.as_nanos().max(1) + 1;
    if taken >= POINTS_NEEDED as u128 {
        return Ok(());
    }
    let steps = POINTS_NEEDED as u32 - 1;
    Err(Failure::new(format!(
        "--for {}: takes {} at one each {}, but judging growth needs {POINTS_NEEDED}; take one each {} (--every), or go on for {} (--for)",
        shown(lasting),
        counted(taken as u64, "snapshot"),
        shown(args.every),
        shown(lasting / steps),
        shown(args.every.saturating_mul(steps)),
    )))
}

fn shown(time: Duration) -> String {
    duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
