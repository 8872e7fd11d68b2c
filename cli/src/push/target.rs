//! Where requests go: the URL, the certificates that are trusted, and credentials.
//!
//! Credentials are headers from a file or an environment variable, and are read again for each round of sending, since they expire.
//! Nothing here prints them: the URL in messages has no query, and a URL with a user name is refused.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::{cmp, env};

use ureq::http::{HeaderName, HeaderValue, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::options::server::ServerArgs;

/// No secret.
const TENANT: &str = "x-scope-orgid";

/// A destination. Displays as its URL without the query.
#[derive(Debug)]
pub struct Target {
    pub url: String,
    shown: String,
    pub is_https: bool,
    /// The URL names this machine.
    pub is_local: bool,
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
    pub fn parse(base: &str, path: &str) -> Result<Target, String> {
        const EXPECTED: &str = "expected a URL such as https://pyroscope.example:4040";
        let uri: Uri = base.trim().parse().map_err(|error| format!("{error}; {EXPECTED}"))?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
        let scheme = scheme.ok_or_else(|| format!("it begins with neither http:// nor https://; {EXPECTED}"))?;
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or_else(|| format!("it has no host; {EXPECTED}"))?;
        if authority.as_str().contains('@') {
            return Err(
                "it contains a user name or a password, which others could see in the list of processes; use \
                 --header-file"
                    .to_owned(),
            );
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix(path).unwrap_or(base);
        let shown = format!("{scheme}://{authority}{base}{path}");
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let host = authority.host().trim_matches(['[', ']']);
        Ok(Target {
            url: format!("{shown}{query}"),
            shown,
            is_https: scheme == "https",
            is_local: host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback()),
        })
    }
}

/// Headers with secrets, which its `Debug` does not show.
#[derive(Default)]
pub struct Headers {
    pub list: Vec<(HeaderName, HeaderValue)>,
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
    /// Reads the headers of `--header-file` or `--header-env`.
    ///
    /// # Errors
    /// The file or variable cannot be read, or has a line that is no header; or others on the network could read a secret.
    pub fn read(args: &ServerArgs, target: &Target) -> Result<Headers, String> {
        let mut headers = Headers::default();
        // One of the values may be a key.
        let query = target.url.split_once('?').map_or("", |(_, query)| query);
        let values = query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1));
        values.for_each(|value| headers.hides(value));
        let (text, from) = match (&args.header_file, &args.header_env) {
            (Some(path), _) => (small_text(path)?, path.display().to_string()),
            (None, Some(name)) => {
                let from = format!("the environment variable {name}");
                let text = env::var(name).map_err(|error| format!("{from}: {error}; set it, or use --header-file"))?;
                (text, from)
            }
            (None, None) => return Ok(headers),
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = line.split_once(':').unwrap_or(("", line));
            headers.add(name, value, &from)?;
        }
        if headers.list.is_empty() {
            return Err(format!("{from} is empty; it must contain a header"));
        }
        let is_secret = headers.list.iter().any(|(name, _)| name != TENANT);
        if is_secret && !target.is_https && !target.is_local && !args.allow_plain_credentials {
            return Err(format!(
                "{target}: credentials would be sent unencrypted; use an https URL, or add --allow-plain-credentials"
            ));
        }
        Ok(headers)
    }

    /// The text without secrets: servers repeat them in answers.
    pub fn hide(&self, text: &str) -> String {
        self.secrets
            .iter()
            .fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    fn hides(&mut self, secret: &str) {
        // Shorter ones would hide parts of words and protect nothing.
        if secret.len() >= 4 {
            self.secrets.push(secret.to_owned());
            // Longest first, so that a secret that contains another is hidden whole.
            self.secrets.sort_by_key(|secret| cmp::Reverse(secret.len()));
        }
    }

    fn add(&mut self, name: &str, value: &str, from: &str) -> Result<(), String> {
        const OF_CULEAK: [&str; 6] = [
            "content-length",
            "content-type",
            "content-encoding",
            "transfer-encoding",
            "host",
            "connection",
        ];
        let text = value.trim();
        let name: HeaderName = (name.trim().parse()).map_err(|_| {
            format!("{from}: one of its lines does not begin with a header's name and a colon; write NAME: VALUE")
        })?;
        if OF_CULEAK.contains(&name.as_str()) {
            return Err(format!("{from}: the header {name} is set by culeak; leave it out"));
        }
        let mut value: HeaderValue = text.parse().map_err(|_| {
            format!("{from}: the value for the header {name} has characters that headers cannot have; remove them")
        })?;
        value.set_sensitive(true);
        if name != TENANT {
            self.hides(text);
            text.split_whitespace().for_each(|word| self.hides(word));
        }
        self.list.push((name, value));
        Ok(())
    }
}

fn small_text(path: &Path) -> Result<String, String> {
    const LARGEST: u64 = 64 << 10;
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text)) {
        Ok(length) if length as u64 <= LARGEST => Ok(text),
        Ok(_) => Err(format!(
            "{}: it is larger than {LARGEST} bytes; name a smaller file",
            path.display()
        )),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Trust in the certificates of `file`, or in those of the system.
///
/// # Errors
/// The file cannot be read or has no certificate; or the system has none.
pub fn tls(file: Option<&Path>) -> Result<TlsConfig, String> {
    let roots: Vec<Certificate<'static>> = match file {
        Some(path) => {
            let shown = path.display();
            let bytes = fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
            let items: Vec<PemItem> = parse_pem(&bytes).collect::<Result<_, _>>().unwrap_or_default();
            let certificates = items.into_iter().filter_map(|item| match item {
                PemItem::Certificate(certificate) => Some(certificate),
                _ => None,
            });
            let roots: Vec<_> = certificates.collect();
            if roots.is_empty() {
                return Err(format!(
                    "{shown}: expected certificates in PEM format, all of them undamaged"
                ));
            }
            roots
        }
        None => {
            let system = rustls_native_certs::load_native_certs().certs;
            if system.is_empty() {
                return Err(
                    "this system has no certificates to verify servers with; install them (Debian: ca-certificates), set \
                     SSL_CERT_FILE, or name a file with --ca-file"
                        .to_owned(),
                );
            }
            system.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
        }
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_the_protocol_is_added_once() {
        let to = |base| Target::parse(base, "/v1/metrics").expect("a URL").url;
        assert_eq!(to("http://h:4318"), "http://h:4318/v1/metrics");
        assert_eq!(to("https://h/otel/v1/metrics/"), "https://h/otel/v1/metrics");
        assert_eq!(to("https://h?extra=1"), "https://h/v1/metrics?extra=1");
        let shown = Target::parse("https://h:4040/base?key=secret", "/push")
            .expect("a URL")
            .to_string();
        assert_eq!(shown, "https://h:4040/base/push");
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
            let reason = Target::parse(bad, "/push").expect_err(bad);
            assert!(!reason.contains("hunter2"), "{reason}");
        }
    }

    #[test]
    fn only_this_machine_and_tls_are_private() {
        let is_private = |base| {
            let target = Target::parse(base, "/push").expect("a URL");
            target.is_https || target.is_local
        };
        assert!(
            ["http://h", "http://10.0.0.1:4040", "http://localhost.h"]
                .iter()
                .all(|base| !is_private(base))
        );
        assert!(
            ["https://h", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost"]
                .into_iter()
                .all(is_private)
        );
    }
}
