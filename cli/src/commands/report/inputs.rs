//! The inputs of a report.

use std::io::{self, IsTerminal};

use super::ReportArgs;
use crate::errors::Failure;
use crate::load::{self, Loaded, Place, Sources};
use crate::options::output::Form;
use crate::progress::{self, Progress, Unit};
use crate::usage;

/// The inputs, read one at a time and dropped before the next, since there may be thousands.
pub struct Inputs<'a> {
    args: &'a ReportArgs,
    form: Form,
    /// A single input, read before anything is written.
    pub only: Option<Loaded>,
    pub places: std::vec::IntoIter<Place>,
    pub unreadable: usize,
    progress: Option<Progress>,
}

impl<'a> Inputs<'a> {
    /// # Errors
    /// No input can be read.
    pub fn new(args: &'a ReportArgs, form: Form) -> Result<Inputs<'a>, Failure> {
        let mut found = Sources::each(&args.inputs);
        load::warn_of(&found.left_out);
        let last = found.failures.pop_if(|_| found.places.is_empty());
        found.failures.iter().for_each(progress::fail);
        if let Some(last) = last {
            return Err(last);
        }
        let (places, unreadable) = (load::once(found.places), found.failures.len());
        let mut inputs = Inputs {
            args,
            form,
            only: None,
            places: Vec::new().into_iter(),
            unreadable,
            progress: None,
        };
        match places.as_slice() {
            [place] if unreadable == 0 || args.inputs.len() == 1 => inputs.only = Some(inputs.load(place)?),
            several => {
                // Reports that scroll by on a terminal already show the progress.
                let invisible = form == Form::Html || !io::stdout().is_terminal();
                let progress = || Progress::over("reading", several.len() as u64, Unit::Of("files"));
                // The reader of a job has its own bar.
                inputs.progress = (invisible && !args.shows_job() && !args.output.on_stderr).then(progress);
                inputs.places = places.into_iter();
            }
        }
        Ok(inputs)
    }

    fn load(&self, place: &Place) -> Result<Loaded, Failure> {
        let mut item = self.args.load(place, self.form)?;
        if item.snapshot.taken.point.is_none() {
            usage::ask_driver(&mut item);
        }
        Ok(item)
    }
}

impl Iterator for Inputs<'_> {
    type Item = Loaded;

    fn next(&mut self) -> Option<Loaded> {
        loop {
            let place = self.places.next()?;
            let loaded = self.load(&place);
            if let Some(progress) = &self.progress {
                progress.advance(1);
            }
            match loaded {
                Ok(item) => return Some(item),
                Err(failure) => {
                    self.unreadable += 1;
                    progress::fail(&failure);
                }
            }
        }
    }
}
