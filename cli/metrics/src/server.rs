//! The HTTP endpoint: `GET /metrics` and `GET /healthz`, for scrapers and for peers that mean no good.
//!
//! A page is text that exists already, so a request costs no reading. Each connection has a thread and one request, a limit on the
//! size of its head, on the time until the head is complete, and on its whole life. If too many are open, the oldest one is closed:
//! slow or silent peers cannot keep others out. Deliberately absent: TLS and passwords; bind to a loopback address, or put a proxy
//! in front.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request};

use crate::text::MEDIA_TYPE;

/// What limits a peer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// Until the head of the request is complete.
    pub head: Duration,
    /// The whole connection, including the time that the peer takes to read.
    pub life: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            head: Duration::from_secs(5),
            life: Duration::from_secs(30),
        }
    }
}

/// The most bytes of a request's head, and the most headers.
const HEAD_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 100;

/// The page that the server and its owner share. Until the first one, the server answers 503.
pub type Served = Arc<Mutex<Option<Arc<str>>>>;

/// Binds the address, and serves in threads of its own until the process ends. The address that was bound is returned.
///
/// # Errors
/// The address cannot be bound, or the thread cannot be started.
pub fn start(address: SocketAddr, limits: Limits, served: Served) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let body = move || serve(&listener, limits, &served);
    thread::Builder::new().name("metrics".to_owned()).spawn(body)?;
    Ok(bound)
}

fn serve(listener: &TcpListener, limits: Limits, served: &Served) {
    let mut open: VecDeque<Weak<TcpStream>> = VecDeque::new();
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // No more descriptors: wait for connections to end.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        open.retain(|connection| connection.strong_count() > 0);
        if open.len() >= limits.connections
            && let Some(oldest) = open.pop_front().and_then(|oldest| oldest.upgrade())
        {
            // Its thread reads or writes, and ends.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let (stream, served) = (Arc::new(stream), Arc::clone(served));
        open.push_back(Arc::downgrade(&stream));
        // A peer that breaks the rules gets no more than an error of HTTP. Without a thread, the connection is closed.
        let body = move || drop(converse(&stream, limits, &served));
        let _ = thread::Builder::new().name("scrape".to_owned()).spawn(body);
    }
}

/// Reads a request and writes the answer.
///
/// # Errors
/// The peer is slow, or closes the connection.
pub fn converse(stream: &TcpStream, limits: Limits, served: &Served) -> io::Result<()> {
    let (mut stream, began) = (stream, Instant::now());
    let left = |of: Duration| {
        let left = of.saturating_sub(began.elapsed());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut)
        } else {
            Ok(Some(left))
        }
    };
    let (mut head, mut part) = (Vec::new(), [0; 2048]);
    let answer = loop {
        stream.set_read_timeout(left(limits.head.min(limits.life))?)?;
        match stream.read(&mut part)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&part[..count]),
        }
        let mut headers = [EMPTY_HEADER; HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        match request.parse(&head) {
            Ok(status) if status.is_complete() => break answer(&request, served),
            Ok(_) if head.len() < HEAD_MAX => {}
            _ => break Answer::plain("400 Bad Request", "not a request of HTTP, or too large\n"),
        }
    };
    let mut rest = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.media_type,
        answer.body.len()
    )
    .into_bytes();
    if !head.starts_with(b"HEAD ") {
        rest.extend_from_slice(answer.body.as_bytes());
    }
    let mut rest = rest.as_slice();
    while !rest.is_empty() {
        stream.set_write_timeout(left(limits.life)?)?;
        rest = &rest[stream.write(rest)?..];
    }
    stream.shutdown(Shutdown::Write)
}

struct Answer {
    status: &'static str,
    media_type: &'static str,
    body: Arc<str>,
}

impl Answer {
    fn plain(status: &'static str, words: &str) -> Answer {
        Answer {
            status,
            media_type: "text/plain; charset=utf-8",
            body: words.into(),
        }
    }
}

fn answer(request: &Request, served: &Served) -> Answer {
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return Answer::plain("405 Method Not Allowed", "only GET\n");
    }
    match request.path.unwrap_or_default().split('?').next() {
        Some("/metrics") => match served.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            None => Answer::plain("503 Service Unavailable", "the first figures are not read yet\n"),
            Some(body) => Answer {
                status: "200 OK",
                media_type: MEDIA_TYPE,
                body,
            },
        },
        Some("/healthz") => Answer::plain("200 OK", "ok\n"),
        _ => Answer::plain("404 Not Found", "see /metrics\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(limits: Limits, page: Option<&str>) -> SocketAddr {
        let served: Served = Arc::new(Mutex::new(page.map(Arc::from)));
        start(SocketAddr::from(([127, 0, 0, 1], 0)), limits, served).expect("a server")
    }

    fn usual() -> SocketAddr {
        server(Limits::default(), Some("page\n"))
    }

    fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> String {
        let mut stream = TcpStream::connect(address).expect("connected");
        // The server may answer and close before all of a wrong request is sent.
        let _ = stream.write_all(request.as_ref());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(address: SocketAddr, path: &str, more: &str) -> String {
        ask(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n"))
    }

    #[test]
    fn the_page_is_in_the_format_of_prometheus() {
        let answer = get(usual(), "/metrics", "");
        assert!(
            answer.contains("text/plain; version=0.0.4") && answer.ends_with("page\n"),
            "{answer}"
        );
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        let address = usual();
        assert!(get(address, "/healthz", "").starts_with("HTTP/1.1 200"));
        assert!(get(address, "/../etc/passwd", "").starts_with("HTTP/1.1 404"));
        assert!(
            ask(
                address,
                "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
            )
            .starts_with("HTTP/1.1 405")
        );
    }

    #[test]
    fn before_the_first_figures_the_answer_is_503() {
        let address = server(Limits::default(), None);
        assert!(get(address, "/metrics", "").starts_with("HTTP/1.1 503"));
    }

    #[test]
    fn malformed_lying_and_huge_requests_end_the_connection_and_not_the_server() {
        let address = usual();
        let huge = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
        assert!(!ask(address, huge).contains("page"));
        assert!(!ask(address, b"\xff\xfe\0\r\n\r\n").contains("page"));
        assert!(!ask(address, "GET /metrics SPDY/9\r\n\r\n").contains("page"));
        // A body that never comes is not waited for.
        let lying = ask(
            address,
            "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        );
        assert!(lying.contains("page"), "{lying}");
        let many = "X: y\r\n".repeat(1000);
        assert!(!get(address, "/metrics", &many).contains("page"));
        assert!(get(address, "/metrics", "").ends_with("page\n"));
    }

    #[test]
    fn a_silent_peer_is_disconnected() {
        let limits = Limits {
            head: Duration::from_millis(50),
            ..Limits::default()
        };
        let address = server(limits, Some(""));
        // Returns only because the server closes the connection.
        assert!(!ask(address, "GET /metrics HTTP/1.1\r\nX: ").contains("200 OK"));
    }

    #[test]
    fn a_peer_that_does_not_read_is_disconnected() {
        let limits = Limits {
            life: Duration::from_millis(200),
            ..Limits::default()
        };
        let large = "x".repeat(64 << 20);
        let address = server(limits, Some(&large));
        let mut stream = TcpStream::connect(address).expect("connected");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .expect("sent");
        let mut read = 0;
        loop {
            // Slower than the server allows.
            thread::sleep(Duration::from_millis(50));
            match stream.read(&mut [0; 1 << 16]) {
                Ok(0) | Err(_) => break,
                Ok(more) => read += more,
            }
        }
        assert!(read < 64 << 20, "{read}");
    }

    #[test]
    fn silent_peers_do_not_keep_others_out() {
        let limits = Limits {
            connections: 4,
            head: Duration::from_secs(600),
            life: Duration::from_secs(600),
        };
        let address = server(limits, Some("page\n"));
        let silent: Vec<_> = (0..20)
            .map(|_| TcpStream::connect(address).expect("connected"))
            .collect();
        assert!(get(address, "/metrics", "").ends_with("page\n"));
        drop(silent);
    }
}
