//! Claims about the queue: order, bounds, crashes, several users.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn request(name: &str, size: usize) -> Request {
    Request {
        protocol: Protocol::Pyroscope,
        subject: name.to_owned(),
        gzipped: false,
        body: vec![b'x'; size],
    }
}

fn subjects(queue: &mut Queue) -> Vec<String> {
    let mut last = None;
    let mut subjects = Vec::new();
    while let Some((number, request)) = queue.next(last, Protocol::Pyroscope).expect("readable") {
        subjects.push(request.subject);
        last = Some(number);
    }
    subjects
}

fn with_both(bytes: u64, claim: impl Fn(Queue)) {
    let folder = tempfile::tempdir().expect("a folder");
    claim(Queue::in_folder(&folder.path().join("new/queue"), bytes).expect("a queue"));
    claim(Queue::in_memory(bytes));
}

#[test]
fn the_oldest_comes_first_and_is_dropped_first() {
    with_both(10_000, |mut queue| {
        for name in ["a", "b", "c", "d"] {
            queue.put(&request(name, 3_000)).expect("room");
        }
        assert_eq!(subjects(&mut queue), ["b", "c", "d"]);
        let counts = queue.counts();
        assert_eq!(counts.dropped, 1);
        assert!((3_000..3_300).contains(&counts.dropped_bytes), "{counts:?}");
        let (waiting, bytes) = queue.waiting().expect("readable");
        assert!(waiting == 3 && bytes <= 10_000, "{waiting} {bytes}");
        assert_eq!(queue.put(&request("e", 9_000)).expect("room"), 3);
        assert_eq!(subjects(&mut queue), ["e"]);
        let error = queue.put(&request("f", 10_001)).expect_err("too large");
        assert!(error.to_string().contains("--queue-bytes"), "{error}");
        assert_eq!(subjects(&mut queue), ["e"]);
    });
}

#[test]
fn a_queue_survives_its_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || Queue::in_folder(folder.path(), 1 << 20).expect("a queue");
    open().put(&request("a", 10)).expect("room");
    open().put(&request("b", 10)).expect("room");
    let mut queue = open();
    let (number, first) = queue.next(None, Protocol::Pyroscope).expect("readable").expect("one");
    assert_eq!(first, request("a", 10));
    queue.remove(number, true).expect("removed");
    assert_eq!(subjects(&mut open()), ["b"]);
    assert_eq!(open().counts().refused, 1);
}

#[test]
fn a_crash_loses_at_most_the_request_that_is_being_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut queue = Queue::in_folder(folder.path(), 1 << 20).expect("a queue");
    queue.put(&request("a", 10)).expect("room");
    // What a crash leaves: a temporary file in part, and, without a journal, a file of the right name without content.
    fs::write(folder.path().join("new.tmp"), b"{\"form").expect("written");
    fs::write(folder.path().join("00000000000000000002.request"), b"").expect("written");
    queue.put(&request("b", 10)).expect("room");
    assert_eq!(subjects(&mut queue), ["a", "b"]);
    assert_eq!(queue.counts().damaged, 1);
    assert_eq!(queue.waiting().expect("readable").0, 2);
}

#[test]
fn what_is_no_request_does_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    fs::write(&secret, request("stolen", 5).to_file()).expect("written");
    let queue = folder.path().join("queue");
    let mut queue_of = Queue::in_folder(&queue, 1 << 20).expect("a queue");
    fs::write(queue.join("README"), b"not ours").expect("written");
    fs::write(queue.join("counts.json"), b"garbage").expect("written");
    fs::write(queue.join("00000000000000000001.request"), vec![0xff; 9_000]).expect("written");
    fs::create_dir(queue.join("00000000000000000002.request")).expect("created");
    std::os::unix::fs::symlink(&secret, queue.join("00000000000000000003.request")).expect("linked");
    let socket = std::os::unix::net::UnixListener::bind(queue.join("00000000000000000004.request"));
    socket.expect("a socket");
    queue_of.put(&request("a", 5)).expect("room");
    // A folder cannot be removed as a file.
    assert!(queue_of.next(None, Protocol::Pyroscope).is_err());
    fs::remove_dir(queue.join("00000000000000000002.request")).expect("removed");
    assert_eq!(subjects(&mut queue_of), ["a"]);
    assert!(queue.join("README").exists() && secret.exists());
    assert_eq!(queue_of.counts().damaged, 3);
}

#[test]
fn a_fifo_among_the_requests_is_removed_and_not_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut queue = Queue::in_folder(folder.path(), 1 << 20).expect("a queue");
    queue.put(&request("a", 5)).expect("room");
    let fifo = folder.path().join("00000000000000000001.request");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let over = AtomicBool::new(false);
    let opened = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Fails until there is a reader, which waits for this writer.
            let open = || OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(&fifo);
            let mut opened = false;
            while !opened && !over.load(Ordering::Relaxed) {
                opened = open().is_ok();
                thread::sleep(Duration::from_millis(1));
            }
            opened
        });
        assert_eq!(subjects(&mut queue), ["a"]);
        over.store(true, Ordering::Relaxed);
        writer.join().expect("a thread that ends")
    });
    assert!(!opened && !fifo.exists());
    assert_eq!(queue.counts().damaged, 1);
}

#[test]
fn a_folder_that_others_write_to_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("changed");
    let error = Queue::in_folder(folder.path(), 1 << 20).expect_err("refused");
    assert!(error.to_string().contains("chmod"), "{error}");
    let inner = Queue::in_folder(&folder.path().join("own"), 1 << 20);
    inner.expect("a folder in it is ours");
}

#[test]
fn many_threads_share_a_folder_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    thread::scope(|scope| {
        for nth in 0..4 {
            let path = folder.path();
            scope.spawn(move || {
                let mut queue = Queue::in_folder(path, 1 << 20).expect("a queue");
                for number in 0..10 {
                    queue.put(&request(&format!("{nth}.{number}"), 10)).expect("room");
                }
            });
        }
    });
    let mut queue = Queue::in_folder(folder.path(), 1 << 20).expect("a queue");
    let mut found = subjects(&mut queue);
    found.sort();
    let expected: Vec<String> = (0..4)
        .flat_map(|nth| (0..10).map(move |number| format!("{nth}.{number}")))
        .collect();
    assert_eq!(found, expected);
}

/// A process that still sends the last request under its number must not remove another one.
#[test]
fn numbers_are_not_used_again_when_the_folder_was_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut last = None;
    for name in ["a", "b", "c"] {
        let mut queue = Queue::in_folder(folder.path(), 1 << 20).expect("a queue");
        queue.put(&request(name, 10)).expect("room");
        let (number, found) = queue
            .next(last, Protocol::Pyroscope)
            .expect("readable")
            .expect("a later one");
        assert_eq!(found.subject, name);
        queue.remove(number, false).expect("removed");
        last = Some(number);
    }
}
