//! Attempts to send a request, and what their answers mean.
//!
//! Each attempt has a time limit, and answers are read up to a limit. Redirects are not followed: they would send credentials, and
//! a POST as a GET, to a place that the user did not name.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;
use serde::Deserialize;
use ureq::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::{Agent, Body};

use super::target::{Headers, Target, tls};
use crate::export::protobuf::messages;
use crate::options::server::{Protocol, ServerArgs};

/// The most bytes of an answer that are read; OTLP recommends this limit.
const LARGEST_ANSWER: usize = 4 << 20;
/// The longest wait before the second attempt, and before any other.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The longest wait that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);

/// What became of a request. The sentences have no secrets.
#[derive(Debug)]
pub enum Outcome {
    Accepted {
        bytes: usize,
        note: Option<String>,
    },
    /// The server refuses this request whenever it is sent, or a part of it.
    Refused(String),
    /// Nothing can be sent now: the server is busy or absent, or the URL, the credentials or a certificate is wrong.
    Stopped(String),
}

/// Why another attempt may succeed.
struct Again {
    why: String,
    asked: Option<Duration>,
}

impl Protocol {
    fn path(self) -> &'static str {
        match self {
            Protocol::Pyroscope => "/push.v1.PusherService/Push",
            Protocol::OtlpProfiles => "/v1development/profiles",
            Protocol::OtlpMetrics => "/v1/metrics",
        }
    }

    pub fn is_otlp(self) -> bool {
        self != Protocol::Pyroscope
    }
}

// `Export…ServiceResponse`, the answer to any OTLP request; `rejected` is the number of data points or profiles.
messages! {
    ExportResponse { partial_success: Option<PartialSuccess> = 1 message optional; }
    PartialSuccess { rejected: i64 = 1 int64; error_message: String = 2 string; }
}

/// `google.rpc.Status`, and in JSON that of Pyroscope: the body of an error.
#[derive(Clone, PartialEq, Message, Deserialize)]
struct Status {
    #[prost(string, tag = "2")]
    #[serde(alias = "error")]
    message: String,
}

#[derive(Debug)]
pub struct Client {
    agent: Agent,
    pub target: Target,
    protocol: Protocol,
    args: ServerArgs,
    headers: Headers,
    /// The end of this round.
    pub deadline: Option<Instant>,
    /// The server asked for no requests before.
    not_before: Option<Instant>,
}

impl Client {
    /// # Errors
    /// The URL is unusable; certificates or credentials cannot be read, or others could read the credentials.
    pub fn new(to: &str, protocol: Protocol, args: ServerArgs) -> Result<Client, String> {
        let target = Target::parse(to, protocol.path()).map_err(|reason| format!("--to: {reason}"))?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("culeak/", env!("CARGO_PKG_VERSION")))
            .accept("")
            .timeout_global(Some(args.timeout))
            .timeout_connect(Some(args.timeout.min(Duration::from_secs(10))));
        if target.is_https {
            config = config.https_only(true).tls_config(tls(args.ca_file.as_deref())?);
        }
        if target.is_local {
            // A proxy would be another machine, with another localhost.
            config = config.proxy(None);
        }
        Ok(Client {
            agent: config.build().new_agent(),
            headers: Headers::read(&args, &target)?,
            target,
            protocol,
            args,
            deadline: None,
            not_before: None,
        })
    }

    /// Reads the credentials again.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn refresh(&mut self) -> Result<(), String> {
        self.headers = Headers::read(&self.args, &self.target)?;
        Ok(())
    }

    /// Sends a request, with attempts until the time is over.
    pub fn send(&mut self, body: &[u8]) -> Outcome {
        let until = Instant::now() + self.args.retry_for;
        let until = self.deadline.map_or(until, |deadline| until.min(deadline));
        let mut attempts = 0;
        loop {
            if let Some(wait) = self.not_before.and_then(|at| at.checked_duration_since(Instant::now())) {
                if Instant::now() + wait > until {
                    let left = wait.as_secs().max(1);
                    return Outcome::Stopped(format!("{}: asked to wait; {left} s of that are left", self.target));
                }
                thread::sleep(wait);
            }
            let again = match self.attempt(body) {
                Ok(outcome) => return outcome,
                Err(again) => again,
            };
            attempts += 1;
            let wait = wait_after(attempts).max(again.asked.unwrap_or_default());
            if again.asked.is_some() {
                self.not_before = Some(Instant::now() + wait);
            }
            if Instant::now() + wait > until {
                return Outcome::Stopped(again.why);
            }
            thread::sleep(wait);
        }
    }

    fn attempt(&self, body: &[u8]) -> Result<Outcome, Again> {
        let mut post = self.agent.post(&self.target.url);
        post = match self.protocol.is_otlp() {
            true => post
                .content_type("application/x-protobuf")
                .header("content-encoding", "gzip"),
            false => post
                .content_type("application/proto")
                .header("connect-protocol-version", "1"),
        };
        for (name, value) in &self.headers.list {
            post = post.header(name, value);
        }
        match post.send(body) {
            Ok(response) => self.judge(response, body.len()),
            Err(error) => self.failed(&error),
        }
    }

    /// A sentence about the server: one line, at most 300 characters of it, without secrets and active characters.
    fn why(&self, words: &str) -> String {
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        let hidden = self.headers.hide(words);
        let line: String = hidden.trim().chars().take(300).map(visible).collect();
        format!("{}: {line}", self.target)
    }

    fn failed(&self, error: &ureq::Error) -> Result<Outcome, Again> {
        let in_tls = match error {
            ureq::Error::Rustls(error) => Some(error),
            ureq::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
            _ => None,
        };
        let words = match (error, in_tls) {
            (_, Some(rustls::Error::InvalidCertificate(reason))) => {
                return Ok(Outcome::Stopped(self.why(&format!(
                    "the server's certificate is not trusted ({reason}); if your own authority signed it, name its certificate with \
                     --ca-file"
                ))));
            }
            (ureq::Error::Timeout(_), _) => format!("no answer within {:?}", self.args.timeout),
            (ureq::Error::HostNotFound, _) => "the host's name is not known".to_owned(),
            (other, _) => other.to_string(),
        };
        Err(Again {
            why: self.why(&words),
            asked: None,
        })
    }

    fn judge(&self, response: ureq::http::Response<Body>, sent: usize) -> Result<Outcome, Again> {
        let (head, mut body) = response.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let content_type = header(CONTENT_TYPE)
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default();
        let content_type = content_type.trim().to_ascii_lowercase();
        let mut answer = Vec::new();
        let whole = body
            .as_reader()
            .take(LARGEST_ANSWER as u64 + 1)
            .read_to_end(&mut answer);
        let status = head.status;
        if status.is_success() {
            return Ok(self.accepted(&content_type, &answer, whole.is_ok(), sent));
        }
        if status.is_redirection() {
            let to = header(LOCATION).map(without_secrets).unwrap_or_default();
            return Ok(Outcome::Stopped(self.why(&format!(
                "redirects ({status}) to {to}; redirects are not followed, so name the right URL with --to"
            ))));
        }
        let why = match words_of(&content_type, &answer) {
            said if said.is_empty() => self.why(&status.to_string()),
            said => self.why(&format!("{status}: {said}")),
        };
        match status.as_u16() {
            408 | 429 | 502 | 503 | 504 => Err(Again {
                why,
                asked: header(RETRY_AFTER).and_then(retry_after),
            }),
            401 | 403 | 404 | 405 | 407 => Ok(Outcome::Stopped(format!(
                "{why}; check the URL, --as and the credentials"
            ))),
            // OTLP forbids another attempt after other failures.
            _ => Ok(Outcome::Refused(why)),
        }
    }

    fn accepted(&self, content_type: &str, answer: &[u8], is_whole: bool, bytes: usize) -> Outcome {
        if answer.len() > LARGEST_ANSWER {
            return Outcome::Refused(
                self.why("the answer is larger than 4 MiB, so it is unknown whether the request was accepted"),
            );
        }
        let is_protobuf = matches!(
            content_type,
            "application/x-protobuf" | "application/protobuf" | "application/proto"
        );
        let decoded = ExportResponse::decode(answer);
        // A page is a proxy's, or that of another service.
        if content_type == "text/html" || is_protobuf && is_whole && decoded.is_err() {
            return Outcome::Stopped(self.why("the answer is not that of the protocol; check the URL and --as"));
        }
        let partial = decoded.ok().filter(|_| is_protobuf && self.protocol.is_otlp());
        match partial.and_then(|answer| answer.partial_success) {
            Some(partial) if partial.rejected > 0 => Outcome::Refused(self.why(&format!(
                "{} items rejected: {}",
                partial.rejected, partial.error_message
            ))),
            partial => Outcome::Accepted {
                bytes,
                note: partial
                    .filter(|partial| !partial.error_message.is_empty())
                    .map(|partial| self.why(&partial.error_message)),
            },
        }
    }
}

/// The wait after this many failed attempts: between a half and the whole of a time that doubles.
fn wait_after(attempts: u32) -> Duration {
    let whole = FIRST_WAIT.saturating_mul(1 << (attempts - 1).min(16)).min(LONGEST_WAIT);
    whole.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// The seconds of a Retry-After header. `None` if it has something else.
fn retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    // More digits than a number holds are a long time, too.
    is_number.then(|| Duration::from_secs(value.parse().unwrap_or(u64::MAX)).min(LONGEST_ASKED))
}

/// The message in the body of an error: text, `google.rpc.Status`, or JSON. Whole, since a cut secret would not be recognized.
fn words_of(content_type: &str, body: &[u8]) -> String {
    let text = || String::from_utf8_lossy(body).into_owned();
    match content_type {
        "application/json" => serde_json::from_slice(body).map_or_else(|_| text(), |status: Status| status.message),
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
    let (scheme, rest) = plain.split_once("//").unwrap_or(("", plain));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    match scheme {
        "" => format!("{host}{path}"),
        scheme => format!("{scheme}//{host}{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_with_jitter_up_to_a_limit() {
        for (attempts, most) in [(1, 500), (2, 1_000), (6, 16_000), (7, 30_000), (u32::MAX, 30_000)] {
            for _ in 0..100 {
                let wait = wait_after(attempts).as_millis();
                assert!((most / 2..=most).contains(&wait), "{attempts}: {wait}");
            }
        }
    }

    #[test]
    fn servers_ask_in_seconds() {
        let seconds = |text| retry_after(text).map(|wait| wait.as_secs());
        assert_eq!(seconds(" 120 "), Some(120));
        assert_eq!(seconds("99999999999999999999999"), Some(3600));
        for nonsense in ["soon", "-1", "", "Sun, 06 Nov 1994 08:49:47 GMT"] {
            assert_eq!(seconds(nonsense), None);
        }
    }

    #[test]
    fn a_redirect_is_shown_without_secrets() {
        let shown = without_secrets("https://me:hunter2@other.example/x?token=hunter2");
        assert_eq!(shown, "https://other.example/x");
        assert_eq!(without_secrets("//me:hunter2@other.example"), "other.example");
    }
}
