//! The thread of the key `w`: searches the memory of the process on the screen for what holds its blocks.
//!
//! A search takes up to some seconds, so it has a thread of its own, and only a key starts one. The process keeps running.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};

use culeak::analysis::filter::Filter;
use culeak::analysis::groups::Groups;
use culeak::analysis::site::CallStacks;
use culeak::analysis::why::{SiteHolders, by_site};

use super::Message;
use crate::errors::Failure;
use crate::load::Place;
use crate::load::holders::{Wanted, of_process};
use crate::symbolize::{Places, symbolize};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub recording: PathBuf,
    pub pid: u32,
}

/// What holds the memory of each call site.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// On the recording's clock.
    pub at_ns: u64,
    pub took_ns: u64,
    pub sites: Vec<SiteHolders>,
    /// What was not searched, in sentences.
    pub limits: Vec<String>,
}

/// Answers questions until their sender is gone.
pub fn serve(asked: &Receiver<Question>, answers: &Sender<Message>, places: impl Fn(Option<PathBuf>) -> Places) {
    while let Ok(question) = asked.recv() {
        let answer = answer(&question, &places).map_err(|failure| failure.to_string());
        if answers.send(Message::Holders(question.recording, answer)).is_err() {
            return;
        }
    }
}

fn answer(question: &Question, places: &impl Fn(Option<PathBuf>) -> Places) -> Result<Answer, Failure> {
    let mut item = Place::Process(question.pid).load()?;
    // The thread that names stacks prints the notes of this.
    symbolize(&mut item.snapshot, &places(item.root.clone()));
    of_process(&mut item, question.pid, &Wanted::default())?;
    let snapshot = &item.snapshot;
    let stacks = CallStacks::of(snapshot);
    let groups = Groups::of(snapshot, &stacks);
    let search = snapshot.holders.as_ref().map(|holders| holders.search.clone());
    let search = search.unwrap_or_default();
    Ok(Answer {
        at_ns: search.at_ns,
        took_ns: search.took_ns,
        sites: by_site(snapshot, &stacks, &groups, &Filter::default()),
        limits: search.limits,
    })
}
