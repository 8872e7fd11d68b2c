//! Where requests go: the URL, the certificates that are trusted, and credentials.
//!
//! Credentials come from files or from environment variables, and are read again for each round of sending, since they expire.
//! Nothing here prints them: the URL that messages contain has no query, and a URL with a user name is refused.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::BASE64;
use ureq::http::{HeaderName, HeaderValue, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::request::Protocol;

/// A destination. Displays as its URL without the query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) url: String,
    shown: String,
    pub(crate) is_https: bool,
    /// The URL names this machine.
    pub(crate) is_local: bool,
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.shown)
    }
}

impl Target {
    /// The URL of a receiver: `base` with the protocol's path, unless it ends with that already.
    ///
    /// # Errors
    /// It is no URL of HTTP, or has a user name or password; the sentence does not repeat it.
    pub fn parse(base: &str, protocol: Protocol) -> Result<Target, String> {
        const EXPECTED: &str = "expected a URL such as https://pyroscope.example:4040";
        let uri: Uri = base.trim().parse().map_err(|error| format!("{error}; {EXPECTED}"))?;
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(format!("it begins with neither http:// nor https://; {EXPECTED}")),
        };
        let authority = uri.authority().ok_or_else(|| format!("it has no host; {EXPECTED}"))?;
        if authority.as_str().contains('@') {
            return Err("it contains a user name or a password, which others could see in the list of processes; use --user with \
                 --password-file or --password-env, or --token-file"
                .to_owned());
        }
        if authority.host().is_empty() {
            return Err(format!("it has no host; {EXPECTED}"));
        }
        let scheme = if is_https { "https" } else { "http" };
        let path = uri.path().trim_end_matches('/');
        let path = match path.ends_with(protocol.path()) {
            true => path.to_owned(),
            false => format!("{path}{}", protocol.path()),
        };
        let shown = format!("{scheme}://{authority}{path}");
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let host = authority.host().trim_matches(['[', ']']);
        Ok(Target {
            url: format!("{shown}{query}"),
            shown,
            is_https,
            is_local: host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback()),
        })
    }

    /// The values in the query, one of which may be a key.
    pub(crate) fn values_in_query(&self) -> impl Iterator<Item = &str> {
        let query = self.url.split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1))
    }

    /// Whether others on the network could read what is sent.
    pub fn is_readable_by_others(&self) -> bool {
        !self.is_https && !self.is_local
    }
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Variable(String),
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => path.display().fmt(out),
            Source::Variable(name) => write!(out, "the environment variable {name}"),
        }
    }
}

/// How requests are authorized.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A bearer token.
    pub token: Option<Source>,
    /// A user name, and its password.
    pub basic: Option<(String, Source)>,
    /// A file of headers, one `Name: value` each line.
    pub headers: Option<PathBuf>,
    /// The tenant, which is no secret: the header X-Scope-OrgID.
    pub tenant: Option<String>,
}

/// Headers with secrets, which its `Debug` does not show.
#[derive(Clone, Default)]
pub struct Headers {
    pub(crate) list: Vec<(HeaderName, HeaderValue)>,
    secrets: Vec<String>,
}

impl fmt::Debug for Headers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list()
            .entries(self.list.iter().map(|(name, _)| name))
            .finish()
    }
}

impl Headers {
    /// The text without secrets: servers repeat them in answers.
    pub(crate) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret, "***");
        }
        text
    }

    fn add(&mut self, name: &str, value: &str, from: &str) -> Result<(), String> {
        let name: HeaderName = name
            .parse()
            .map_err(|_| format!("{from}: one of its lines does not begin with a header's name and a colon"))?;
        let owned_here = [
            "content-length",
            "content-type",
            "content-encoding",
            "transfer-encoding",
            "host",
            "connection",
        ];
        if owned_here.contains(&name.as_str()) {
            return Err(format!("{from}: the header {name} is set by culeak; leave it out"));
        }
        let mut value: HeaderValue = value
            .parse()
            .map_err(|_| format!("{from}: the value for the header {name} has characters that headers cannot have"))?;
        value.set_sensitive(true);
        self.list.push((name, value));
        Ok(())
    }

    /// Longest first, so that a secret that contains another is hidden whole.
    pub(crate) fn hides(&mut self, secret: &str) {
        // Shorter ones would hide parts of words and protect nothing.
        if secret.len() >= 4 {
            self.secrets.push(secret.to_owned());
            self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }
}

impl Credentials {
    /// Whether there is a secret in them.
    pub fn are_secret(&self) -> bool {
        self.token.is_some() || self.basic.is_some() || self.headers.is_some()
    }

    /// Reads them.
    ///
    /// # Errors
    /// A file or variable is missing, empty, or not text that a header can have.
    pub fn read(&self) -> Result<Headers, String> {
        let mut headers = Headers::default();
        if let Some(tenant) = &self.tenant {
            headers.add("x-scope-orgid", tenant, "--tenant")?;
        }
        if let Some(source) = &self.token {
            let token = secret(source)?;
            headers.add("authorization", &format!("Bearer {token}"), &source.to_string())?;
            headers.hides(&token);
        }
        if let Some((user, source)) = &self.basic {
            let password = secret(source)?;
            let pair = BASE64.encode(format!("{user}:{password}").as_bytes());
            headers.add("authorization", &format!("Basic {pair}"), &source.to_string())?;
            headers.hides(&password);
            headers.hides(&pair);
        }
        if let Some(path) = &self.headers {
            let shown = path.display().to_string();
            let lines = text_of(path).map_err(|reason| format!("{shown}: {reason}"))?;
            for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
                let (name, value) = line.split_once(':').unwrap_or(("", line));
                headers.add(name.trim(), value.trim(), &shown)?;
                headers.hides(value.trim());
                value.split_whitespace().for_each(|word| headers.hides(word));
            }
        }
        Ok(headers)
    }
}

fn secret(source: &Source) -> Result<String, String> {
    let text = match source {
        Source::File(path) => text_of(path).map_err(|reason| format!("{source}: {reason}"))?,
        Source::Variable(name) => match env::var(name) {
            Ok(text) => text,
            Err(env::VarError::NotPresent) => return Err(format!("{source} is not set; set it, or name a file")),
            Err(env::VarError::NotUnicode(_)) => return Err(format!("{source} is not UTF-8")),
        },
    };
    match text.trim() {
        "" => Err(format!("{source} is empty; it must contain the secret")),
        text => Ok(text.to_owned()),
    }
}

/// The text of a small file.
fn text_of(path: &Path) -> Result<String, String> {
    String::from_utf8(bytes_of(path, 64 << 10)?).map_err(|_| "it is not UTF-8".to_owned())
}

fn bytes_of(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    match bytes.len() as u64 > most {
        true => Err(format!("it is larger than {most} bytes")),
        false => Ok(bytes),
    }
}

/// The certificates that servers may be signed with: those of `file`, or of the system.
///
/// # Errors
/// The file cannot be read or has no certificate; or the system has none.
pub(crate) fn tls(file: Option<&Path>) -> Result<TlsConfig, String> {
    let roots: Vec<Certificate<'static>> = match file {
        Some(path) => roots_of(path).map_err(|reason| format!("{}: {reason}", path.display()))?,
        None => {
            let found = rustls_native_certs::load_native_certs();
            let own = |der: rustls::pki_types::CertificateDer| Certificate::from_der(&der).to_owned();
            let roots: Vec<_> = found.certs.into_iter().map(own).collect();
            if roots.is_empty() {
                return Err(
                    "this system has no certificates to verify servers with; install them (Debian: ca-certificates), set \
                     SSL_CERT_FILE, or name a file with --ca-file"
                        .to_owned(),
                );
            }
            roots
        }
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

fn roots_of(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let bytes = bytes_of(path, 16 << 20)?;
    let mut roots = Vec::new();
    for item in parse_pem(&bytes) {
        match item {
            Ok(PemItem::Certificate(certificate)) => roots.push(certificate),
            Ok(_) => {}
            Err(_) => return Err("a part of it is damaged; expected certificates in PEM format".to_owned()),
        }
    }
    match roots.is_empty() {
        true => Err("it contains no certificate; expected certificates in PEM format".to_owned()),
        false => Ok(roots),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn url(base: &str) -> Result<String, String> {
        Target::parse(base, Protocol::OtlpMetrics).map(|target| target.url)
    }

    #[test]
    fn the_path_of_the_protocol_is_added_once() {
        let to = |base| url(base).expect("a URL");
        assert_eq!(to("http://h:4318"), "http://h:4318/v1/metrics");
        assert_eq!(to("http://h:4318/"), "http://h:4318/v1/metrics");
        assert_eq!(to("https://h/opentelemetry"), "https://h/opentelemetry/v1/metrics");
        assert_eq!(
            to("https://h/opentelemetry/v1/metrics/"),
            "https://h/opentelemetry/v1/metrics"
        );
        assert_eq!(to("https://h?extra=1"), "https://h/v1/metrics?extra=1");
        let pyroscope = Target::parse("https://h:4040/base?key=secret", Protocol::Pyroscope).expect("a URL");
        assert_eq!(pyroscope.to_string(), "https://h:4040/base/push.v1.PusherService/Push");
    }

    #[test]
    fn a_url_with_a_password_is_refused_and_not_repeated() {
        for bad in [
            "https://me:hunter2@h/",
            "https://hunter2@h",
            "ftp://me:hunter2@h",
            "me:hunter2@h",
            "https://h :hunter2",
            "https://me:hunter2@",
            "hunter2",
            "http://",
            "https:///hunter2",
        ] {
            let reason = url(bad).expect_err(bad);
            assert!(!reason.contains("hunter2"), "{reason}");
        }
    }

    #[test]
    fn only_this_machine_and_tls_are_private() {
        let open = |base| {
            Target::parse(base, Protocol::Pyroscope)
                .expect("a URL")
                .is_readable_by_others()
        };
        assert!(open("http://example.com") && open("http://10.0.0.1:4040") && open("http://localhost.example.com"));
        assert!(!open("https://example.com") && !open("http://127.0.0.1:1") && !open("http://[::1]:1"));
        assert!(!open("http://localhost:4040"));
    }

    #[test]
    fn secrets_come_from_files_and_are_not_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("written");
            path
        };
        let credentials = Credentials {
            basic: Some(("me".to_owned(), Source::File(write("password", b"hunter2\n")))),
            headers: Some(write("headers", b"X-Key: key-1234\n\nOther: two words\n")),
            ..Credentials::default()
        };
        let headers = credentials.read().expect("read");
        let sent: Vec<_> = headers
            .list
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(
            sent,
            [
                ("authorization", "Basic bWU6aHVudGVyMg=="),
                ("x-key", "key-1234"),
                ("other", "two words")
            ]
        );
        let printed = format!("{headers:?}");
        assert!(!printed.contains("hunter2") && !printed.contains("bWU6"), "{printed}");
        assert_eq!(
            headers.hide("hunter2 Basic bWU6aHVudGVyMg== key-1234 h"),
            "*** Basic *** *** h"
        );
        let missing = |source| {
            Credentials {
                token: Some(source),
                ..Credentials::default()
            }
            .read()
            .expect_err("refused")
        };
        assert!(missing(Source::File(write("empty", b" \n"))).contains("is empty"));
        assert!(missing(Source::File(write("binary", b"\xff\xfe\xfd"))).contains("not UTF-8"));
        assert!(missing(Source::File(write("huge", &[b'a'; 70_000]))).contains("larger"));
        let two_lines = missing(Source::File(write("lines", b"secret1\nsecret2")));
        assert!(
            two_lines.contains("characters") && !two_lines.contains("secret1"),
            "{two_lines}"
        );
        assert!(missing(Source::Variable("CULEAK_NO_SUCH_VARIABLE".to_owned())).contains("is not set"));
        let bad = Credentials {
            headers: Some(write("bad", b"hunter2")),
            ..Credentials::default()
        };
        assert!(!bad.read().expect_err("refused").contains("hunter2"));
    }

    #[test]
    fn a_file_of_certificates_must_contain_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.pem");
        for text in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAA"] {
            fs::write(&path, text).expect("written");
            assert!(tls(Some(&path)).is_err(), "{text:?}");
        }
        assert!(tls(Some(&folder.path().join("missing"))).is_err());
    }
}
