//! Recordings read again and again, for `export -f openmetrics` and `watch`: options, readers, outlets, and the loop.
//!
//! [`culeak_metrics::agent`] decides what is read; this module reads, looks up names, asks the driver, and hands the result to
//! outlets until a signal arrives. Another destination for the figures is another [`Outlet`].

use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use culeak::reader;
use culeak::snapshot::Snapshot;
use culeak::system::unix_ns;
use culeak_metrics::agent::{Agent, Inputs, Outlet, Settings, Update};
use culeak_metrics::server::{self, Limits, Served};
use culeak_metrics::text::encode;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::load::many::Symbols;
use crate::load::{self, Loaded, NameArgs, Place};
use crate::output::{self, Overwrite};
use crate::{progress, signals, text, usage};

/// The port of `--listen` without one.
pub const PORT: u16 = 9477;
/// The time between two passes, if none is named.
pub const EVERY: Duration = Duration::from_secs(15);
/// Call sites of a process with series of their own, if no number is given.
const TOP: usize = 10;

/// Where the figures go.
#[derive(Debug, Clone, Default, Args)]
pub struct SeriesArgs {
    /// Serve /metrics and /healthz over HTTP at ADDR:PORT, a port of 127.0.0.1, or 127.0.0.1:9477; runs until SIGTERM or Ctrl-C
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, require_equals = false, default_missing_value = "9477", value_parser = parse_address)]
    pub listen: Option<SocketAddr>,
    /// Write a textfile for node_exporter, replaced in one step; its name must end in .prom
    #[arg(long, value_name = "FILE.prom")]
    pub textfile: Option<PathBuf>,
}

/// What to read, without inputs: figures of a job, with series for this number of call sites.
pub fn settings(job: Option<&str>, top: Option<usize>) -> Settings {
    Settings {
        folders: Vec::new(),
        files: Vec::new(),
        job_id: job.unwrap_or_default().to_owned(),
        top: top.unwrap_or(TOP),
        processes: usize::MAX,
        forget: None,
        interval: EVERY,
    }
}

/// Parses `9477`, `0.0.0.0:9477` or `[::1]:9477`.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        Err(_) => text
            .parse()
            .map_err(|_| "expected a port, or an address and a port such as 127.0.0.1:9477 or [::1]:9477".to_owned()),
    }
}

impl SeriesArgs {
    /// Checks the outlets before anything is read.
    ///
    /// # Errors
    /// The textfile cannot be written.
    pub fn check(&self, overwrite: Overwrite) -> Result<(), Failure> {
        let Some(path) = &self.textfile else { return Ok(()) };
        let shown = path.display();
        if path.extension().is_none_or(|extension| extension != "prom") {
            return Err(Failure::new(format!(
                "{shown}: node_exporter reads only files whose names end in .prom; choose such a name"
            )));
        }
        output::check(path, may_replace(path, overwrite))
    }

    /// Starts the outlets. Call this after signals are blocked.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn outlets(&self, overwrite: Overwrite) -> Result<Vec<Box<dyn Outlet>>, Failure> {
        let mut outlets: Vec<Box<dyn Outlet>> = Vec::new();
        if let Some(address) = self.listen {
            let served = Served::default();
            let bound = server::start(address, Limits::default(), Arc::clone(&served)).map_err(|error| {
                format!("--listen {address}: cannot be bound: {error}; choose another address or port")
            })?;
            progress::say(format_args!("metrics at http://{bound}/metrics"));
            if !bound.ip().is_loopback() {
                progress::say(format_args!(
                    "note: {} can be reached from other machines, without a password; host names, programs and lines of code are shown",
                    bound.ip()
                ));
            }
            outlets.push(Box::new(Endpoint(served)));
        }
        if let Some(path) = &self.textfile {
            outlets.push(Box::new(Textfile {
                path: path.clone(),
                overwrite,
            }));
        }
        Ok(outlets)
    }
}

/// Whether a file may be replaced: figures that were written earlier always may.
pub fn may_replace(path: &Path, overwrite: Overwrite) -> Overwrite {
    overwrite.or_ours(path, |content| content.starts_with(b"# HELP culeak_"))
}

struct Endpoint(Served);

impl Outlet for Endpoint {
    fn updated(&mut self, update: &Update) -> Result<(), String> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(encode(&update.page).into());
        Ok(())
    }
}

/// Reads all inputs once and writes their figures. Returns whether all could be read.
///
/// # Errors
/// An argument names nothing that can be read.
pub fn export(
    inputs: &[OsString],
    mut settings: Settings,
    names: &NameArgs,
    path: &Path,
    overwrite: Overwrite,
) -> Result<bool, Failure> {
    if !output::is_standard_output(path) {
        output::check(path, may_replace(path, overwrite))?;
    }
    sort(inputs, &mut settings)?;
    let path = path.to_path_buf();
    let outlets = || Ok(vec![Box::new(Textfile { path, overwrite }) as Box<dyn Outlet>]);
    run(Agent::new(settings), Reading::new(names.clone()), None, outlets)
}

struct Textfile {
    path: PathBuf,
    overwrite: Overwrite,
}

impl Outlet for Textfile {
    fn updated(&mut self, update: &Update) -> Result<(), String> {
        let page = encode(&update.page);
        let overwrite = may_replace(&self.path, self.overwrite);
        let write = |out: &mut dyn Write| out.write_all(page.as_bytes());
        let written = match output::is_standard_output(&self.path) {
            true => text::print_lines(write),
            false => output::create(&self.path, overwrite, write),
        };
        written.map_err(|failure| failure.message)
    }
}

/// Reads recordings with names.
pub struct Reading {
    pub names: NameArgs,
    pub symbols: Mutex<Symbols>,
    /// The blocked signals, and the one that arrived.
    signals: Option<SignalFd>,
    stopped_by: Option<Signal>,
}

impl Reading {
    pub fn new(names: NameArgs) -> Reading {
        Reading {
            names,
            symbols: Mutex::default(),
            signals: None,
            stopped_by: None,
        }
    }

    /// Waits until a time, or for a signal, which is returned.
    fn stopped(&mut self, until: Instant) -> Option<Signal> {
        if self.stopped_by.is_none() {
            self.stopped_by = self.signals.as_ref().and_then(|signals| signals::wait(signals, until));
        }
        self.stopped_by
    }

    fn named(&self, snapshot: Snapshot, path: &Path) -> Snapshot {
        let mut item = loaded(snapshot, path);
        let mut symbols = self.symbols.lock().unwrap_or_else(PoisonError::into_inner);
        symbols.name(&mut item, &self.names);
        item.snapshot
    }
}

fn loaded(snapshot: Snapshot, path: &Path) -> Loaded {
    Loaded::of(snapshot, path.display().to_string())
}

impl Inputs for Reading {
    fn read(&mut self, path: &Path) -> Result<Snapshot, String> {
        let place = Place::File(path.to_path_buf());
        let snapshot = match path.extension().is_some_and(|extension| extension == "culeak") {
            true => reader::read_without_peaks(path).map_err(|error| error.to_string())?,
            false => place.load_without_peaks().map_err(|failure| failure.message)?.snapshot,
        };
        let snapshot = self.named(snapshot, path);
        let point = snapshot.usual_point();
        snapshot.into_at(&point).map_err(|error| error.to_string())
    }

    fn ask_driver(&mut self, snapshot: &mut Snapshot) {
        let mut item = loaded(std::mem::take(snapshot), Path::new(""));
        usage::ask_driver(&mut item);
        *snapshot = item.snapshot;
    }

    fn is_stopping(&mut self) -> bool {
        self.stopped(Instant::now()).is_some()
    }
}

/// The folders and files that arguments name. Folders are searched again and again; other arguments are resolved once.
///
/// # Errors
/// An argument names nothing that can be read again.
pub fn sort(inputs: &[OsString], settings: &mut Settings) -> Result<(), Failure> {
    for input in inputs {
        let path = Path::new(input);
        if path.is_dir() {
            settings.folders.push(path.to_path_buf());
            continue;
        }
        let found = load::places(input);
        if let Some(failure) = found.failures.into_iter().next() {
            return Err(failure);
        }
        for place in found.places {
            settings.files.push(match place {
                // A program may create it later.
                Place::File(path) if settings.forget.is_some() && !path.exists() => {
                    settings.folders.push(path);
                    continue;
                }
                Place::File(path) => path,
                Place::Process(pid) => load::recording_of(pid)?.0,
                pipe @ (Place::Pipe(_) | Place::StandardInput) => return Err(only_files(&pipe)),
            });
        }
    }
    Ok(())
}

fn only_files(pipe: &Place) -> Failure {
    Failure::new(format!(
        "{pipe}: a pipe can be read only once; name a recording, a snapshot or a folder"
    ))
}

/// Reads everything, once or until a signal, and calls the outlets after each pass. Returns whether all of it succeeded, if once.
///
/// # Errors
/// Signals cannot be received, or an outlet cannot be started.
pub fn run(
    mut agent: Agent,
    mut inputs: Reading,
    every: Option<Duration>,
    outlets: impl FnOnce() -> Result<Vec<Box<dyn Outlet>>, Failure>,
) -> Result<bool, Failure> {
    // A signal ends a single pass as usual.
    inputs.signals = every.map(|_| signals::block()).transpose()?;
    let mut outlets = outlets()?;
    let mut said: Vec<Option<String>> = vec![None; outlets.len()];
    loop {
        let began = Instant::now();
        let update = agent.pass(&mut inputs, unix_ns());
        if let Some(signal) = inputs.stopped_by {
            return Ok(stopped(signal));
        }
        for failure in &update.failures {
            progress::fail(&Failure::new(failure.as_str()));
        }
        let mut complete = update.failures.is_empty();
        for (outlet, said) in outlets.iter_mut().zip(&mut said) {
            let failure = outlet.updated(&update).err();
            complete &= failure.is_none();
            if let Some(reason) = failure.as_ref().filter(|_| *said != failure) {
                progress::fail(&Failure::new(reason.as_str()));
            }
            *said = failure;
        }
        let Some(every) = every else {
            return Ok(complete);
        };
        // A pass that takes long is followed by a pause all the same.
        let next = (began + every).max(Instant::now() + every / 10);
        if let Some(signal) = inputs.stopped(next) {
            return Ok(stopped(signal));
        }
    }
}

fn stopped(signal: Signal) -> bool {
    progress::say(format_args!("{}: stopped", Escaped(signal.as_str())));
    true
}
