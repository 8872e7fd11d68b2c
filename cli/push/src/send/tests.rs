//! Claims about sending, with a receiver and a clock that are made up.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;

struct Script {
    answers: VecDeque<Answer>,
    seen: Vec<String>,
}

impl Courier for Script {
    fn protocol(&self) -> Protocol {
        Protocol::OtlpMetrics
    }

    fn prepare(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn attempt(&mut self, request: &Request) -> Answer {
        self.seen.push(request.subject.clone());
        self.answers.pop_front().unwrap_or(Answer::Accepted { note: None })
    }
}

/// A clock that jumps instead of sleeping.
#[derive(Clone)]
struct Fake {
    start: Instant,
    slept: Rc<Cell<Duration>>,
}

impl Clock for Fake {
    fn now(&self) -> Instant {
        self.start + self.slept.get()
    }

    fn sleep(&self, time: Duration) {
        self.slept.set(self.slept.get() + time);
    }
}

fn sender(answers: impl IntoIterator<Item = Answer>) -> (Sender<Script, Fake>, Fake) {
    let clock = Fake {
        start: Instant::now(),
        slept: Rc::default(),
    };
    let courier = Script {
        answers: answers.into_iter().collect(),
        seen: Vec::new(),
    };
    let sender = Sender {
        courier,
        clock: clock.clone(),
        not_before: None,
        failing: None,
    };
    (sender, clock)
}

fn queue(names: &[&str]) -> Queue {
    let mut queue = Queue::in_memory(1 << 20);
    for name in names {
        queue.put(&request(name, Protocol::OtlpMetrics)).expect("room");
    }
    queue
}

fn request(name: &str, protocol: Protocol) -> Request {
    Request {
        protocol,
        subject: name.to_owned(),
        gzipped: false,
        body: b"body".to_vec(),
    }
}

const MINUTE: Patience = Patience {
    retry_for: Duration::from_secs(60),
    deadline: None,
};

fn busy(wait: Option<u64>) -> Answer {
    Answer::Busy {
        why: "busy".to_owned(),
        wait: wait.map(Duration::from_secs),
    }
}

fn refused() -> Answer {
    Answer::Refused { why: "bad".to_owned() }
}

#[test]
fn requests_are_sent_in_order_and_those_of_another_protocol_wait() {
    let (mut sender, clock) = sender([]);
    let mut queue = queue(&["a", "b"]);
    queue.put(&request("other", Protocol::Pyroscope)).expect("room");
    queue.put(&request("c", Protocol::OtlpMetrics)).expect("room");
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!((sent.requests, sent.bytes, sent.stopped), (3, 12, None));
    assert_eq!(sender.courier.seen, ["a", "b", "c"]);
    assert_eq!(queue.waiting().expect("memory").0, 1);
    assert_eq!(clock.slept.get(), Duration::ZERO);
}

#[test]
fn a_busy_receiver_is_tried_again_after_the_time_that_it_asks_for() {
    let (mut sender, clock) = sender([busy(None), busy(Some(7)), busy(None)]);
    let mut queue = queue(&["a"]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!((sent.requests, sender.courier.seen.len()), (1, 4));
    // At least half of 0.5 s and 2 s around the 7 s.
    assert!(
        clock.slept.get() >= Duration::from_millis(250 + 7_000 + 1_000),
        "{:?}",
        clock.slept
    );
    assert!(
        clock.slept.get() <= Duration::from_millis(500 + 7_000 + 2_000),
        "{:?}",
        clock.slept
    );
}

#[test]
fn patience_ends_and_the_request_stays() {
    let (mut sender, clock) = sender((0..100).map(|_| busy(None)));
    let mut queue = queue(&["a", "b"]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!(sent.stopped.as_deref(), Some("busy"));
    assert!(clock.slept.get() <= Duration::from_secs(60));
    assert!(
        (5..20).contains(&sender.courier.seen.len()),
        "{}",
        sender.courier.seen.len()
    );
    assert_eq!(queue.waiting().expect("memory").0, 2);
}

#[test]
fn success_renews_patience() {
    let answers = (0..10).flat_map(|_| [busy(Some(40)), Answer::Accepted { note: None }]);
    let (mut sender, _clock) = sender(answers);
    let mut queue = queue(&["a", "b", "c", "d", "e"]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!((sent.requests, sent.stopped), (5, None));
}

#[test]
fn a_wait_that_is_too_long_ends_the_round_and_holds_for_the_next() {
    let (mut sender, clock) = sender([busy(Some(3_000))]);
    let mut queue = queue(&["a"]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!(
        (sent.stopped.as_deref(), clock.slept.get()),
        (Some("busy"), Duration::ZERO)
    );
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!(sender.courier.seen.len(), 1, "no attempt before the time");
    assert!(sent.stopped.is_some_and(|why| why.contains("3000 s")));
    clock.sleep(Duration::from_secs(2_990));
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!((sent.requests, clock.slept.get()), (1, Duration::from_secs(3_000)));
}

#[test]
fn a_deadline_ends_the_round() {
    let (mut sender, clock) = sender((0..100).map(|_| busy(None)));
    let patience = Patience {
        deadline: Some(clock.now() + Duration::from_secs(3)),
        ..MINUTE
    };
    let sent = sender.drain(&mut queue(&["a"]), patience).expect("drained");
    assert!(sent.stopped.is_some() && clock.slept.get() <= Duration::from_secs(3));
}

#[test]
fn a_refused_request_is_counted_and_does_not_hold_up_the_next() {
    let (mut sender, _clock) = sender([refused()]);
    let mut queue = queue(&["a", "b"]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!((sent.requests, sent.refused), (1, 1));
    assert_eq!(sent.refusals, ["a: bad"]);
    assert_eq!(queue.waiting().expect("memory").0, 0);
    assert_eq!(queue.counts().refused, 1);
}

#[test]
fn a_request_at_which_the_receiver_fails_is_given_up_after_five_attempts() {
    let failed = || Answer::Failed {
        why: "crash".to_owned(),
    };
    let (mut sender, _clock) = sender((0..5).map(|_| failed()));
    let mut queue = queue(&["a", "b"]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!(sender.courier.seen, ["a", "a", "a", "a", "a", "b"]);
    assert_eq!((sent.requests, sent.refused, sent.stopped), (1, 1, None));
}

#[test]
fn what_the_user_must_mend_ends_the_round_and_keeps_everything() {
    let blocked = Answer::Blocked { why: "401".to_owned() };
    let (mut sender, clock) = sender([blocked]);
    let mut queue = queue(&["a", "b"]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert_eq!(
        (sent.stopped.as_deref(), clock.slept.get()),
        (Some("401"), Duration::ZERO)
    );
    assert_eq!(queue.waiting().expect("memory").0, 2);
}

#[test]
fn one_process_sends_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut queue = Queue::in_folder(folder.path(), 1 << 20).expect("a queue");
    queue.put(&request("a", Protocol::OtlpMetrics)).expect("room");
    let other = Queue::in_folder(folder.path(), 1 << 20).expect("a queue");
    let sending = other.begin_sending().expect("a lock").expect("free");
    let (mut sender, _clock) = sender([]);
    let sent = sender.drain(&mut queue, MINUTE).expect("drained");
    assert!(sent.stopped.is_some_and(|why| why.contains("another process")));
    drop(sending);
    assert_eq!(sender.drain(&mut queue, MINUTE).expect("drained").requests, 1);
}

/// With `--every 1s` each round ends before the receiver has failed often enough.
#[test]
fn failures_at_a_request_are_counted_over_rounds() {
    let failed = || Answer::Failed { why: "500".to_owned() };
    let (mut sender, _clock) = sender((0..MOST_FAILURES).map(|_| failed()));
    let mut queue = queue(&["crashes the receiver", "good"]);
    let short = Patience {
        retry_for: Duration::ZERO,
        deadline: None,
    };
    for _ in 1..MOST_FAILURES {
        let sent = sender.drain(&mut queue, short).expect("drained");
        assert_eq!((sent.requests, sent.refused), (0, 0));
    }
    let sent = sender.drain(&mut queue, short).expect("drained");
    assert_eq!((sent.requests, sent.refused, sent.stopped), (1, 1, None));
    assert_eq!(queue.waiting().expect("memory").0, 0);
}
