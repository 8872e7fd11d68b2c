//! The data that the page's script reads: strings and frames are stored once and referred to by number.
//!
//! Every string from a recording passes through [`Data::text`], which escapes control characters, line breaks and
//! bidirectional controls, as on the terminal.

use std::io::{self, Write};

use culeak::analysis::function_name::plain;
use culeak::analysis::site::{Frame, Role};
use culeak::kind::Kind;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

use super::columns::{Column, Columns};
use crate::names::Distinct;

/// Version of the layout. Script and data are in one file, so no reader checks it.
const VERSION: u32 = 1;

#[derive(Default)]
pub struct Data<'a> {
    strings: Distinct<String>,
    frames: Distinct<Frame<'a>>,
    pub columns: Columns,
    /// Runs of a library's frames are not folded.
    pub full_stacks: bool,
}

/// Everything that is not a column.
#[derive(Serialize)]
struct Header<'h, T> {
    format: &'static str,
    version: u32,
    made_by: &'static str,
    kinds: Vec<&'static str>,
    page: &'h T,
    strings: &'h [String],
    columns: &'h [Column],
}

impl<'a> Data<'a> {
    pub fn new() -> Data<'a> {
        let mut data = Data::default();
        // 0 is the empty string.
        data.text("");
        data
    }

    /// The number of a string, which is escaped.
    pub fn text(&mut self, text: &str) -> u64 {
        self.strings.escaped(text) as u64
    }

    /// The number of a frame.
    pub fn frame(&mut self, frame: &Frame<'a>) -> u32 {
        // The address of a frame that has a name is not shown.
        let address = frame.function.map_or(frame.address, |_| 0);
        self.frames.number(Frame { address, ..*frame }) as u32
    }

    /// Writes everything, compressed.
    pub fn write(mut self, page: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
        self.frame_columns();
        let header = Header {
            format: "culeak-page",
            version: VERSION,
            made_by: concat!("culeak ", env!("CARGO_PKG_VERSION")),
            kinds: Kind::ALL.iter().map(|kind| kind.name()).collect(),
            page,
            strings: &self.strings.items,
            columns: &self.columns.names,
        };
        let header = serde_json::to_vec(&header)?;
        let mut out = ZlibEncoder::new(out, Compression::default());
        out.write_all(&(header.len() as u32).to_le_bytes())?;
        out.write_all(&header)?;
        out.write_all(&self.columns.bytes)?;
        out.finish()?;
        Ok(())
    }

    fn frame_columns(&mut self) {
        let frames = std::mem::take(&mut self.frames).items;
        let mut column = |name: &str, number: &dyn Fn(&mut Data<'a>, &Frame<'a>) -> u64| {
            let numbers: Vec<_> = frames.iter().map(|frame| number(self, frame)).collect();
            self.columns.add(format!("frames.{name}"), numbers);
        };
        column("name", &|data, frame| data.text(&plain(&frame.name())));
        column("full", &|data, frame| data.text(&frame.name()));
        column("place", &|data, frame| {
            data.text(&frame.short_place().unwrap_or_default())
        });
        column("path", &|data, frame| data.text(&frame.place().unwrap_or_default()));
        column("module", &|data, frame| data.text(frame.module));
        column("group", &|data, frame| data.text(group(frame)));
        column("library", &|data, frame| {
            let folded = frame.python_library().filter(|_| !data.full_stacks);
            data.text(folded.unwrap_or_default())
        });
        column("inlined", &|_, frame| frame.inlined.into());
        column("users", &|_, frame| (frame.role == Role::User).into());
    }
}

/// The group that gives a frame its colour: its module, Python package, or user file.
fn group<'a>(frame: &Frame<'a>) -> &'a str {
    match frame.home() {
        home if frame.is_python() => home.split('/').next().unwrap_or(home),
        home => home,
    }
}
