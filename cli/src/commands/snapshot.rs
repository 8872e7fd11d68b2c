//! `culeak snapshot`: one instant of a process as a JSON file that needs neither the process nor its binaries.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use culeak::snapshot::Snapshot;

use crate::errors::Failure;
use crate::{load, text, usage};

/// Write what a process holds right now to a JSON file, without stopping it
#[derive(Debug, Args)]
#[command(after_help = "\
The format is described by docs/snapshot.schema.json.

Examples:
  culeak snapshot --list                 which processes can be looked at
  culeak snapshot 4711 -o before.json
  culeak snapshot 4711 -o - | ssh desk culeak report -")]
pub struct SnapshotArgs {
    /// Process id, recording or snapshot
    #[arg(value_name = "PID|RECORDING", required_unless_present = "list")]
    pub input: Option<String>,
    /// Where to write; - for standard output
    #[arg(short, long, value_name = "FILE.json", required_unless_present = "list")]
    pub output: Option<PathBuf>,
    /// Keep addresses only; names can be looked up later where the binaries are
    #[arg(long)]
    pub no_symbols: bool,
    /// Also look for debug files here; repeatable
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
    /// List the processes of this user that are being recorded
    #[arg(long, conflicts_with_all = ["input", "output"])]
    pub list: bool,
}

pub fn execute(args: &SnapshotArgs) -> Result<ExitCode, Failure> {
    let (Some(input), Some(output)) = (&args.input, &args.output) else {
        return super::list::execute();
    };
    let mut loaded = load::one(input)?;
    usage::ask_driver(&mut loaded);
    if !args.no_symbols {
        super::name_frames(&mut loaded, &args.debug_dir);
    }
    if output.as_os_str() == "-" {
        text::print_json(&loaded.snapshot)?;
    } else {
        write_file(&loaded.snapshot, output).map_err(|error| {
            Failure::new(format!(
                "{}: cannot be written ({error}); choose another place with -o",
                output.display()
            ))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes beside the target and renames, so that nobody ever reads half a snapshot.
fn write_file(snapshot: &Snapshot, path: &Path) -> io::Result<()> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        // /dev/null or a named pipe is written to and never replaced.
        return write_to(snapshot, File::options().write(true).open(path)?);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".culeak-")
        .suffix(".tmp")
        .tempfile_in(folder)?;
    write_to(snapshot, file.as_file_mut())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn write_to(snapshot: &Snapshot, file: impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(file);
    serde_json::to_writer(&mut out, snapshot).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()
}
