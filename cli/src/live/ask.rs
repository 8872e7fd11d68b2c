//! The thread of the keys `w` and `l`: searches the memory of the process on the screen for what holds its blocks, or adds up its
//! ledger, which is that of a report.
//!
//! An answer takes up to some seconds, so it has a thread of its own, and only a key or the open page asks for it. The process
//! keeps running; the ledger does not read its memory.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use culeak::analysis::filter::Filter;
use culeak::analysis::groups::Groups;
use culeak::analysis::ledger::Ledger;
use culeak::analysis::site::CallStacks;
use culeak::analysis::why::{SiteHolders, by_site};

use super::Message;
use crate::document::Document;
use crate::errors::Failure;
use crate::load::holders::{Wanted, of_process};
use crate::load::{self, Place};
use crate::symbolize::{Places, symbolize};
use crate::text::ledger;
use crate::usage;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Holders,
    Ledger,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub recording: PathBuf,
    /// `None`: the process has ended.
    pub pid: Option<u32>,
    pub about: Subject,
}

#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// On the recording's clock.
    pub at_ns: u64,
    pub took_ns: u64,
    /// What holds the memory of each call site.
    pub sites: Vec<SiteHolders>,
    /// What was not searched, in sentences.
    pub limits: Vec<String>,
    /// The ledger, in the words of a report.
    pub ledger: Document,
}

/// What was asked about a process, and the last answer; an error says why there is none.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub waiting: bool,
    pub answer: Option<Result<Answer, String>>,
}

impl Asked {
    /// Whether to ask for the ledger again, after a reading at this time. Asking takes at most a fifth of the time.
    pub fn is_due(&self, at_ns: u64, finished: bool) -> bool {
        const BETWEEN: u64 = 2_000_000_000;
        match &self.answer {
            _ if self.waiting => false,
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
        if answers.send(Message::Answer(question, answer)).is_err() {
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
    if question.about == Subject::Holders && question.pid.is_some_and(load::has_no_library) {
        return Err(Failure::new("each row is a holder; enter shows the paths from it"));
    }
    let mut item = place.load()?;
    if question.about == Subject::Ledger {
        usage::ask_driver(&mut item);
    }
    // The thread that names stacks prints the notes of this.
    symbolize(&mut item.snapshot, &places(item.root.clone()));
    if let (Subject::Holders, Some(pid)) = (question.about, question.pid) {
        of_process(&mut item, pid, &Wanted::default())?;
    }
    let snapshot = &item.snapshot;
    let stacks = CallStacks::of(snapshot);
    let groups = Groups::of(snapshot, &stacks);
    let took_ns = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(match question.about {
        Subject::Ledger => Answer {
            took_ns: took_ns(),
            ..Answer::of(&Ledger::of(snapshot, &stacks, &groups), snapshot.taken.at_ns)
        },
        Subject::Holders => {
            let search = snapshot.holders.as_ref().map(|holders| holders.search.clone());
            let search = search.unwrap_or_default();
            Answer {
                at_ns: search.at_ns,
                took_ns: search.took_ns,
                sites: by_site(snapshot, &stacks, &groups, &Filter::default()),
                limits: search.limits,
                ..Answer::default()
            }
        }
    })
}

impl Answer {
    pub fn of(of: &Ledger, at_ns: u64) -> Answer {
        let mut page = Document::default();
        ledger::write(of, &mut page);
        if ledger::known_devices(of).next().is_none() {
            page.line("nothing is known of any device yet");
        }
        Answer {
            at_ns,
            ledger: page,
            ..Answer::default()
        }
    }
}
