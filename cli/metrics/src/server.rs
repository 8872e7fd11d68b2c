//! The HTTP endpoint: `GET /metrics` and `GET /healthz`, for scrapers and for peers that mean no good.
//!
//! A page is text that exists already, so a request costs no reading. Each connection has one request, a limit on the size of
//! its head, on the time until the head is complete, and on its whole life. If too many are open, the oldest one is closed: slow
//! or silent peers cannot keep others out. Deliberately absent: TLS and passwords; bind to a loopback address, or put a proxy in
//! front.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::AbortHandle;

use crate::text::{OPEN_METRICS, PROMETHEUS};

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

/// The most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;

/// The text that is served, in both formats.
#[derive(Debug, Clone, Default)]
pub struct Texts {
    open_metrics: Bytes,
    prometheus: Bytes,
}

impl Texts {
    pub fn new(open_metrics: String, prometheus: String) -> Texts {
        Texts {
            open_metrics: Bytes::from(open_metrics),
            prometheus: Bytes::from(prometheus),
        }
    }
}

/// What the server and its owner share. Until the first text, the server answers 503.
pub type Served = Arc<Mutex<Option<Texts>>>;

/// Binds the address, and serves in a thread of its own until the process ends. The address that was bound is returned.
///
/// # Errors
/// The address cannot be bound, or the thread cannot be started.
pub fn start(address: SocketAddr, limits: Limits, served: Served) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = move || runtime.block_on(serve(listener, limits, served));
    thread::Builder::new().name("metrics".to_owned()).spawn(body)?;
    Ok(bound)
}

async fn serve(listener: TcpListener, limits: Limits, served: Served) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // No more descriptors: wait for connections to end.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= limits.connections
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let served = Arc::clone(&served);
        let connection = async move {
            let service = service_fn(move |request| {
                let response = answer(&request, &served);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.head)
                .max_buf_size(HEAD_MAX)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A peer that breaks the rules gets no answer but an error of HTTP; nothing more can be done.
            let _ = tokio::time::timeout(limits.life, connection).await;
        };
        open.push_back(tokio::spawn(connection).abort_handle());
    }
}

fn answer(request: &Request<Incoming>, served: &Served) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        response
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            let texts = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match texts {
                None => text(StatusCode::SERVICE_UNAVAILABLE, "the first figures are not read yet\n"),
                Some(texts) if wants_open_metrics(request) => page(texts.open_metrics, OPEN_METRICS),
                Some(texts) => page(texts.prometheus, PROMETHEUS),
            }
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        _ => text(StatusCode::NOT_FOUND, "see /metrics\n"),
    }
}

fn wants_open_metrics(request: &Request<Incoming>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/openmetrics-text"))
}

fn text(status: StatusCode, words: &'static str) -> Response<Full<Bytes>> {
    let mut response = page(Bytes::from_static(words.as_bytes()), "text/plain; charset=utf-8");
    *response.status_mut() = status;
    response
}

fn page(body: Bytes, media_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    let value = hyper::header::HeaderValue::from_static(media_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn server(limits: Limits, texts: Option<Texts>) -> SocketAddr {
        let served: Served = Arc::new(Mutex::new(texts));
        start(SocketAddr::from(([127, 0, 0, 1], 0)), limits, served).expect("a server")
    }

    fn usual() -> SocketAddr {
        server(
            Limits::default(),
            Some(Texts::new("open\n# EOF\n".to_owned(), "older\n".to_owned())),
        )
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
    fn the_format_is_the_one_that_the_scraper_asks_for() {
        let address = usual();
        let open = get(
            address,
            "/metrics",
            "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n",
        );
        assert!(
            open.starts_with("HTTP/1.1 200") && open.ends_with("open\n# EOF\n"),
            "{open}"
        );
        assert!(open.contains("application/openmetrics-text; version=1.0.0"), "{open}");
        let older = get(address, "/metrics", "");
        assert!(
            older.contains("text/plain; version=0.0.4") && older.ends_with("older\n"),
            "{older}"
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
        assert!(!ask(address, huge).contains("older"));
        assert!(!ask(address, b"\xff\xfe\0\r\n\r\n").contains("older"));
        assert!(!ask(address, "GET /metrics SPDY/9\r\n\r\n").contains("older"));
        // A body that never comes is not waited for.
        let lying = ask(
            address,
            "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        );
        assert!(lying.contains("older"), "{lying}");
        let many = "X: y\r\n".repeat(1000);
        assert!(!get(address, "/metrics", &many).contains("older"));
        assert!(get(address, "/metrics", "").ends_with("older\n"));
    }

    #[test]
    fn a_silent_peer_is_disconnected() {
        let limits = Limits {
            head: Duration::from_millis(50),
            ..Limits::default()
        };
        let address = server(limits, Some(Texts::default()));
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
        let address = server(limits, Some(Texts::new(String::new(), large)));
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
        let address = server(limits, Some(Texts::new(String::new(), "older\n".to_owned())));
        let silent: Vec<_> = (0..20)
            .map(|_| TcpStream::connect(address).expect("connected"))
            .collect();
        assert!(get(address, "/metrics", "").ends_with("older\n"));
        drop(silent);
    }
}
