//! Sends profiles and metrics over HTTP: to Pyroscope, and to receivers of OpenTelemetry's protocol (OTLP).
//!
//! ```text
//! messages ─► request ─► queue ─► send ─► client
//! ```
//!
//! - [`messages`]: the protobuf messages of Pyroscope and OTLP, as far as they are written here.
//! - [`request`]: one HTTP request without its destination, and the file that it is stored in.
//! - [`queue`]: requests that wait, in a folder or in memory; bounded.
//! - [`target`]: where requests go: the URL, TLS roots and credentials.
//! - [`client`]: one attempt, and what its answer means.
//! - [`send`]: attempts until the queue is empty or the time is over; [`backoff`] says how long to wait between them.
//!
//! Deliberately absent: what is sent. The caller makes the messages.

pub mod backoff;
pub mod client;
pub mod messages;
pub mod queue;
pub mod request;
pub mod send;
pub mod target;

/// Text from a peer or a file that is safe to print: one line, no active characters, at most 300 characters.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 300;
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.trim().chars().take(MOST).map(visible).collect();
    if text.trim().chars().nth(MOST).is_some() {
        line.push('…');
    }
    line
}
