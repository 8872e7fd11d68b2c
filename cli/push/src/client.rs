//! One attempt to send a request, and what its answer means.
//!
//! Every phase of an attempt has a time limit, and the whole has one. Answers are read up to a limit. Redirects are not
//! followed: they would send credentials, and a POST as a GET, to a place that the user did not name.

use std::error::Error as _;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use prost::Message;
use serde::Deserialize;
use ureq::http::StatusCode;
use ureq::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::{Agent, Body};

use crate::backoff;
use crate::messages::otlp::{ExportResponse, Status};
use crate::request::{Protocol, Request};
use crate::shown;
use crate::target::{Credentials, Headers, Target, tls};

/// The most bytes of an answer that are read; OTLP recommends this limit.
pub const LARGEST_ANSWER: u64 = 4 << 20;

/// What an attempt led to. The reasons are sentences without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The receiver has it. It may have said something about it.
    Accepted { note: Option<String> },
    /// The receiver refuses this request whenever it is sent, or a part of it.
    Refused { why: String },
    /// The receiver failed at this request. Another attempt may succeed.
    Failed { why: String },
    /// The receiver cannot be reached, or has no time; it may ask for a wait.
    Busy { why: String, wait: Option<Duration> },
    /// The receiver refuses whatever is sent: the URL, the credentials or a certificate is wrong.
    Blocked { why: String },
}

/// Sends requests to one receiver.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    pub target: Target,
    protocol: Protocol,
    credentials: Credentials,
    headers: Headers,
    timeout: Duration,
}

/// How to reach a receiver.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    pub credentials: Credentials,
    /// Trust these certificates, not those of the system.
    pub ca_file: Option<PathBuf>,
    /// The longest time of one attempt.
    pub timeout: Duration,
    /// Send credentials over plain HTTP to other machines, too.
    pub plain_credentials: bool,
}

/// The headers of requests to a target.
fn headers(credentials: &Credentials, target: &Target) -> Result<Headers, String> {
    let mut headers = credentials.read()?;
    target.values_in_query().for_each(|value| headers.hides(value));
    Ok(headers)
}

impl Client {
    /// # Errors
    /// Certificates or credentials cannot be read, or others could read the credentials.
    pub fn new(target: Target, protocol: Protocol, connection: Connection) -> Result<Client, String> {
        let credentials = connection.credentials;
        if credentials.are_secret() && target.is_readable_by_others() && !connection.plain_credentials {
            return Err(format!(
                "{target}: credentials would be sent unencrypted; use an https URL, or add --allow-plain-credentials"
            ));
        }
        let timeout = connection.timeout;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("culeak/", env!("CARGO_PKG_VERSION")))
            .accept("")
            .timeout_global(Some(timeout))
            .timeout_connect(Some(timeout.min(Duration::from_secs(10))));
        if target.is_https {
            config = config.https_only(true).tls_config(tls(connection.ca_file.as_deref())?);
        }
        if target.is_local {
            // A proxy would be another machine, with another localhost.
            config = config.proxy(None);
        }
        Ok(Client {
            agent: config.build().new_agent(),
            headers: headers(&credentials, &target)?,
            target,
            protocol,
            credentials,
            timeout,
        })
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Reads the credentials again.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn refresh(&mut self) -> Result<(), String> {
        self.headers = headers(&self.credentials, &self.target)?;
        Ok(())
    }

    /// Sends a request once.
    pub fn attempt(&self, request: &Request) -> Answer {
        let mut post = self
            .agent
            .post(&self.target.url)
            .header(CONTENT_TYPE, self.protocol.content_type());
        if request.gzipped {
            post = post.header("content-encoding", "gzip");
        }
        if self.protocol == Protocol::Pyroscope {
            post = post.header("connect-protocol-version", "1");
        }
        for (name, value) in &self.headers.list {
            post = post.header(name, value);
        }
        match post.send(&request.body) {
            Ok(response) => self.judge(response),
            Err(error) => self.failed(&error),
        }
    }

    fn why(&self, words: &str) -> String {
        format!("{}: {}", self.target, shown(&self.headers.hide(words)))
    }

    fn failed(&self, error: &ureq::Error) -> Answer {
        let (words, certificate) = match error {
            ureq::Error::Timeout(_) => (format!("no answer within {:?}", self.timeout), false),
            ureq::Error::HostNotFound => ("the host's name is not known".to_owned(), false),
            ureq::Error::ConnectionFailed => ("the connection failed".to_owned(), false),
            ureq::Error::Protocol(_) | ureq::Error::Http(_) | ureq::Error::LargeResponseHeader(..) => {
                (format!("the answer is not HTTP as expected ({error})"), false)
            }
            ureq::Error::Rustls(error) => in_tls(error),
            ureq::Error::Io(error) => match error.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(error) => in_tls(error),
                None => (
                    error.source().map_or_else(|| error.to_string(), ToString::to_string),
                    false,
                ),
            },
            other => (other.to_string(), false),
        };
        let why = self.why(&words);
        match certificate {
            true => Answer::Blocked {
                why: format!("{why}; if your own authority signed it, name its certificate with --ca-file"),
            },
            false => Answer::Busy { why, wait: None },
        }
    }

    fn judge(&self, response: ureq::http::Response<Body>) -> Answer {
        let (head, body) = response.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let content_type = header(CONTENT_TYPE).unwrap_or_default();
        let content_type = content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        let (body, is_whole) = read(body);
        let status = head.status;
        if status.is_success() {
            return self.accepted(&content_type, &body, is_whole);
        }
        if status.is_redirection() {
            let to = header(LOCATION).map(without_secrets).unwrap_or_default();
            let words =
                format!("redirects ({status}) to {to}; redirects are not followed, so name the right URL with --to");
            return Answer::Blocked { why: self.why(&words) };
        }
        let said = words_of(&content_type, &body);
        let why = self.why(&match said.is_empty() {
            true => format!("{status}"),
            false => format!("{status}: {said}"),
        });
        let wait = header(RETRY_AFTER).and_then(|value| backoff::retry_after(value, SystemTime::now()));
        match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Answer::Busy { why, wait },
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::PROXY_AUTHENTICATION_REQUIRED => Answer::Blocked {
                why: format!("{why}; check the URL, --as and the credentials"),
            },
            // OTLP forbids another attempt.
            status if status.is_server_error() && !self.protocol.is_otlp() => Answer::Failed { why },
            _ => Answer::Refused { why },
        }
    }

    fn accepted(&self, content_type: &str, body: &[u8], is_whole: bool) -> Answer {
        if body.len() as u64 > LARGEST_ANSWER {
            let why = self.why("the answer is larger than 4 MiB, so it is unknown whether the request was accepted");
            return Answer::Refused { why };
        }
        // A page: a proxy's, or that of another service.
        let is_page = content_type.starts_with("text/html");
        let decoded = ExportResponse::decode(body);
        let is_message = match content_type {
            "application/x-protobuf" | "application/protobuf" | "application/proto" => decoded.is_ok() || !is_whole,
            _ => true,
        };
        if is_page || !is_message {
            let words = format!(
                "the answer is not that of {}; check the URL and --as",
                self.protocol.receiver()
            );
            return Answer::Blocked { why: self.why(&words) };
        }
        let partial = decoded.ok().and_then(|answer| answer.partial_success);
        match partial.filter(|_| self.protocol.is_otlp() && content_type.contains("protobuf")) {
            Some(partial) if partial.rejected > 0 => {
                let words = format!("{} items rejected: {}", partial.rejected, partial.error_message);
                Answer::Refused { why: self.why(&words) }
            }
            Some(partial) if !partial.error_message.is_empty() => Answer::Accepted {
                note: Some(self.why(&partial.error_message)),
            },
            _ => Answer::Accepted { note: None },
        }
    }
}

/// What a TLS error is in words, and whether the server's certificate is the reason.
fn in_tls(error: &rustls::Error) -> (String, bool) {
    match error {
        rustls::Error::InvalidCertificate(reason) => {
            (format!("the server's certificate is not trusted ({reason})"), true)
        }
        other => (format!("TLS: {other}"), false),
    }
}

/// Reads an answer up to the limit; one byte more means that there is more. An answer that breaks off is not whole.
fn read(mut body: Body) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let whole = body.as_reader().take(LARGEST_ANSWER + 1).read_to_end(&mut bytes);
    (bytes, whole.is_ok())
}

/// What the body of an error says: a text, `google.rpc.Status`, or JSON with a message.
fn words_of(content_type: &str, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Said {
        #[serde(alias = "error")]
        message: String,
    }
    // Whole, since a secret that is cut would not be recognized.
    let text = || String::from_utf8_lossy(body).into_owned();
    match content_type {
        "application/json" => serde_json::from_slice(body).map_or_else(|_| text(), |said: Said| said.message),
        "application/x-protobuf" | "application/protobuf" => {
            Status::decode(body).map(|status| status.message).unwrap_or_default()
        }
        "text/html" => String::new(),
        _ => text(),
    }
}

/// The URL of a redirect without user name, password and query.
fn without_secrets(location: &str) -> String {
    let plain = location.split(['?', '#']).next().unwrap_or_default();
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => plain.rsplit('@').next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests;
