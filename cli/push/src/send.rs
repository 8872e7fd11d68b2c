//! Sends what waits in a queue, oldest first, with attempts until the time is over.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::backoff;
use crate::client::{Answer, Client};
use crate::queue::Queue;
use crate::request::{Protocol, Request};

/// Attempts at one request at which the receiver fails, after which the request counts as refused: one that crashes its receiver
/// must not hold up the others.
const MOST_FAILURES: u32 = 5;
/// Sentences of one kind that are kept.
const MOST_SENTENCES: usize = 10;

/// What sending led to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sent {
    pub requests: u64,
    pub bytes: u64,
    /// Requests that the receiver refused; they are removed.
    pub refused: u64,
    /// Why, for the first of them; and what the receiver said about accepted ones.
    pub refusals: Vec<String>,
    pub notes: Vec<String>,
    /// Why requests still wait; `None` if none does.
    pub stopped: Option<String>,
}

/// How long to try.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// The longest time without success.
    pub retry_for: Duration,
    /// When to stop in any case.
    pub deadline: Option<Instant>,
}

/// Something that sends one request.
pub trait Courier {
    fn protocol(&self) -> Protocol;
    /// Called before a round.
    ///
    /// # Errors
    /// Why nothing can be sent.
    fn prepare(&mut self) -> Result<(), String>;
    fn attempt(&mut self, request: &Request) -> Answer;
}

impl Courier for Client {
    fn protocol(&self) -> Protocol {
        Client::protocol(self)
    }

    fn prepare(&mut self) -> Result<(), String> {
        self.refresh()
    }

    fn attempt(&mut self, request: &Request) -> Answer {
        Client::attempt(self, request)
    }
}

/// The time, which tests replace.
pub trait Clock {
    fn now(&self) -> Instant;
    fn sleep(&self, time: Duration);
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// Sends from queues to one receiver.
#[derive(Debug)]
pub struct Sender<C = Client, T = SystemClock> {
    courier: C,
    clock: T,
    /// The receiver asked for no requests before.
    not_before: Option<Instant>,
    /// The request at which the receiver failed last, and how often: the next round goes on counting.
    failing: Option<(Known, u32)>,
}

impl<C: Courier> Sender<C> {
    pub fn new(courier: C) -> Sender<C> {
        Sender {
            courier,
            clock: SystemClock,
            not_before: None,
            failing: None,
        }
    }
}

/// A request without its body: subject, length and checksum.
#[derive(Debug, PartialEq, Eq)]
struct Known(String, usize, u32);

impl Known {
    fn of(request: &Request) -> Known {
        Known(
            request.subject.clone(),
            request.body.len(),
            crc32fast::hash(&request.body),
        )
    }
}

/// What to do after an attempt.
enum Next {
    Done,
    Again,
    Stop(String),
}

impl<C: Courier, T: Clock> Sender<C, T> {
    pub fn courier(&self) -> &C {
        &self.courier
    }

    /// Sends the requests of the receiver's protocol until none waits or the patience is over.
    ///
    /// # Errors
    /// The queue cannot be read or changed.
    pub fn drain(&mut self, queue: &mut Queue, patience: Patience) -> io::Result<Sent> {
        let mut sent = Sent::default();
        let mut trouble = Trouble::new(self.clock.now(), patience);
        if let Err(why) = self.courier.prepare() {
            sent.stopped = Some(why);
            return Ok(sent);
        }
        let _sending = loop {
            match queue.begin_sending()? {
                Some(sending) => break sending,
                None if trouble.allows(self.clock.now(), POLL) => self.clock.sleep(POLL),
                None => {
                    sent.stopped = Some("another process is sending from this queue".to_owned());
                    return Ok(sent);
                }
            }
        };
        let mut last = None;
        while let Some((number, request)) = queue.next(last, self.courier.protocol())? {
            let known = Known::of(&request);
            let before = self.failing.take().filter(|(failing, _)| *failing == known);
            let mut failures = before.map_or(0, |(_, failures)| failures);
            loop {
                match self.once(&request, &mut failures, &mut trouble, &mut sent) {
                    Next::Again => {}
                    Next::Done => break,
                    Next::Stop(why) => {
                        self.failing = (failures > 0).then_some((known, failures));
                        sent.stopped = Some(why);
                        return Ok(sent);
                    }
                }
            }
            let refused = failures == REFUSED;
            queue.remove(number, refused)?;
            last = Some(number);
        }
        Ok(sent)
    }

    /// One attempt, and the wait after it. Sets `failures` to [`REFUSED`] for a request that is to be removed unsent.
    fn once(&mut self, request: &Request, failures: &mut u32, trouble: &mut Trouble, sent: &mut Sent) -> Next {
        let now = self.clock.now();
        if let Some(wait) = self
            .not_before
            .map(|at| at.saturating_duration_since(now))
            .filter(|wait| !wait.is_zero())
        {
            if !trouble.allows(now, wait) {
                return Next::Stop(format!(
                    "the receiver asked to wait; {} s of that are left",
                    wait.as_secs().max(1)
                ));
            }
            self.clock.sleep(wait);
        }
        let (why, asked) = match self.courier.attempt(request) {
            Answer::Accepted { note } => {
                sent.requests += 1;
                sent.bytes += request.body.len() as u64;
                keep(&mut sent.notes, note);
                trouble.is_over(self.clock.now());
                return Next::Done;
            }
            Answer::Refused { why } => {
                trouble.is_over(self.clock.now());
                return refuse(request, failures, sent, &why);
            }
            Answer::Blocked { why } => return Next::Stop(why),
            Answer::Failed { why } => {
                *failures += 1;
                if *failures == MOST_FAILURES {
                    return refuse(request, failures, sent, &format!("{why} ({MOST_FAILURES} attempts)"));
                }
                (why, None)
            }
            Answer::Busy { why, wait } => (why, wait),
        };
        trouble.attempts += 1;
        let now = self.clock.now();
        let wait = backoff::wait(trouble.attempts).max(asked.unwrap_or_default());
        if asked.is_some() {
            self.not_before = Some(now + wait);
        }
        match trouble.allows(now, wait) {
            true => {
                self.clock.sleep(wait);
                Next::Again
            }
            false => Next::Stop(why),
        }
    }
}

const REFUSED: u32 = u32::MAX;
/// How often to look whether another process has finished sending.
const POLL: Duration = Duration::from_millis(100);

fn refuse(request: &Request, failures: &mut u32, sent: &mut Sent, why: &str) -> Next {
    *failures = REFUSED;
    sent.refused += 1;
    keep(&mut sent.refusals, Some(format!("{}: {why}", request.subject)));
    Next::Done
}

fn keep(sentences: &mut Vec<String>, sentence: Option<String>) {
    if sentences.len() < MOST_SENTENCES {
        sentences.extend(sentence.filter(|sentence| !sentences.contains(sentence)));
    }
}

/// A time without success.
struct Trouble {
    since: Instant,
    attempts: u32,
    patience: Patience,
}

impl Trouble {
    fn new(now: Instant, patience: Patience) -> Trouble {
        Trouble {
            since: now,
            attempts: 0,
            patience,
        }
    }

    fn is_over(&mut self, now: Instant) {
        *self = Trouble::new(now, self.patience);
    }

    /// Whether there is patience for this wait.
    fn allows(&self, now: Instant, wait: Duration) -> bool {
        let then = now + wait;
        then.saturating_duration_since(self.since) <= self.patience.retry_for
            && self.patience.deadline.is_none_or(|deadline| then <= deadline)
    }
}

#[cfg(test)]
mod tests;
