//! One HTTP request without its destination, and the file that it is stored in.
//!
//! The file is a line of JSON, then the body. It contains neither the destination nor credentials: they are chosen when it is
//! sent.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use serde::{Deserialize, Serialize};

/// The protocol that a request speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    Pyroscope,
    OtlpProfiles,
    OtlpMetrics,
}

impl Protocol {
    /// The path below the base URL.
    pub fn path(self) -> &'static str {
        match self {
            Protocol::Pyroscope => "/push.v1.PusherService/Push",
            Protocol::OtlpProfiles => "/v1development/profiles",
            Protocol::OtlpMetrics => "/v1/metrics",
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Protocol::Pyroscope => "application/proto",
            Protocol::OtlpProfiles | Protocol::OtlpMetrics => "application/x-protobuf",
        }
    }

    pub fn is_otlp(self) -> bool {
        self != Protocol::Pyroscope
    }

    /// What a receiver is called in messages.
    pub fn receiver(self) -> &'static str {
        match self {
            Protocol::Pyroscope => "Pyroscope",
            Protocol::OtlpProfiles => "a receiver of OTLP profiles",
            Protocol::OtlpMetrics => "a receiver of OTLP metrics",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub protocol: Protocol,
    /// What it is about, for messages.
    pub subject: String,
    /// `body` is gzipped.
    pub gzipped: bool,
    pub body: Vec<u8>,
}

/// The largest message that is sent. OTLP recommends this limit to clients and servers.
pub const LARGEST_MESSAGE: usize = 64 << 20;

/// Compresses: the level that Go uses, since higher levels save little space.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    // Writes to a vector do not fail.
    let _ = packed.write_all(bytes);
    packed.finish().unwrap_or_default()
}

impl Request {
    /// Encodes and compresses a message. Pyroscope's profile is compressed by itself, so its message is not.
    ///
    /// # Errors
    /// The message is larger than [`LARGEST_MESSAGE`].
    pub fn new(protocol: Protocol, subject: &str, message: &impl Message) -> Result<Request, String> {
        let plain = message.encode_to_vec();
        if plain.len() > LARGEST_MESSAGE {
            return Err(format!(
                "{subject}: the message has {} bytes, more than the {LARGEST_MESSAGE} that receivers accept",
                plain.len()
            ));
        }
        let gzipped = protocol.is_otlp();
        Ok(Request {
            protocol,
            subject: subject.to_owned(),
            gzipped,
            body: if gzipped { gzip(&plain) } else { plain },
        })
    }

    pub(crate) fn to_file(&self) -> Vec<u8> {
        let head = Head {
            format: FORMAT.to_owned(),
            version: 1,
            protocol: self.protocol,
            subject: self.subject.chars().take(LONGEST_SUBJECT).collect(),
            gzipped: self.gzipped,
            bytes: self.body.len(),
            crc32: crc32fast::hash(&self.body),
        };
        let mut file = serde_json::to_vec(&head).unwrap_or_default();
        file.push(b'\n');
        file.extend_from_slice(&self.body);
        file
    }

    pub(crate) fn from_file(file: &[u8]) -> io::Result<Request> {
        let damaged = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let line = file.iter().take(LONGEST_HEAD).position(|&byte| byte == b'\n');
        let (head, body) = file.split_at(line.ok_or_else(|| damaged("it has no first line"))?);
        let head: Head = serde_json::from_slice(head).map_err(|_| damaged("its first line is damaged"))?;
        let body = &body[1..];
        if head.format != FORMAT || head.version != 1 {
            return Err(damaged("another version of culeak wrote it"));
        }
        if body.len() != head.bytes || crc32fast::hash(body) != head.crc32 {
            return Err(damaged("its body is incomplete"));
        }
        Ok(Request {
            protocol: head.protocol,
            subject: head.subject,
            gzipped: head.gzipped,
            body: body.to_vec(),
        })
    }
}

const FORMAT: &str = "culeak-push";
const LONGEST_HEAD: usize = 8 << 10;
const LONGEST_SUBJECT: usize = 200;

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
    protocol: Protocol,
    subject: String,
    gzipped: bool,
    bytes: usize,
    crc32: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(body: Vec<u8>) -> Request {
        Request {
            protocol: Protocol::OtlpMetrics,
            subject: "process 4711 \"x\"\n".to_owned(),
            gzipped: true,
            body,
        }
    }

    #[test]
    fn damage_is_noticed() {
        let file = request(b"body".to_vec()).to_file();
        for cut in 0..file.len() {
            assert!(Request::from_file(&file[..cut]).is_err(), "{cut}");
        }
        let mut other = file.clone();
        *other.last_mut().unwrap() ^= 1;
        assert!(Request::from_file(&other).is_err());
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(body in any::<Vec<u8>>()) {
            let request = request(body);
            prop_assert_eq!(Request::from_file(&request.to_file()).unwrap(), request);
        }

        #[test]
        fn any_bytes_are_read_or_refused(file in any::<Vec<u8>>()) {
            let _ = Request::from_file(&file);
        }
    }
}
