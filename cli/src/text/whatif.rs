//! What PyTorch's allocator would have reserved: the error of the model, a table of settings, and the recommended ones.

use culeak::analysis::report::shell_word;
use culeak::analysis::whatif::{CALL, FailedRequest, OnDevice, Prediction, VARIABLE, WhatIf};
use culeak::point::Point;

use super::units::plural;
use super::{parts, units};
use crate::document::{BOLD, Cell, Document, PLAIN, Rows, WARN, bold, counted, dim, styled};
use crate::escape::Escaped;

pub fn page(whatif: &WhatIf, source: &str) -> Document {
    let mut page = Document::default();
    for note in &whatif.notes {
        page.line(styled(WARN, Escaped(note).to_string()));
    }
    for device in &whatif.devices {
        write_device(whatif, device, &mut page);
        page.blank();
    }
    page.field("process", parts::process(&whatif.process));
    page.next(format!("culeak report {} --view segments", shell_word(source)));
    page
}

fn write_device(whatif: &WhatIf, device: &OnDevice, page: &mut Document) {
    let peak = units::bytes(device.of.recorded_peak_bytes);
    page.line(
        bold(format!("GPU {}", device.ordinal))
            + format!(
                "  PyTorch reserved {peak} at its peak, of which {} were in live blocks at most; {}",
                units::bytes(device.of.peak_live_bytes),
                counted(device.of.allocations, "request")
            ),
    );
    let settings = match (device.settings.as_str(), device.variable.as_deref()) {
        ("", _) => "default settings".to_owned(),
        (settings, Some(CALL)) => format!("{} by {CALL}", Escaped(settings)),
        (settings, Some(variable)) => format!("{variable}={}", Escaped(settings)),
        (settings, None) => format!("{} (by its segments; no setting was recorded)", Escaped(settings)),
    };
    page.item(format!(
        "the run: {}, {settings}; the model is off by at most {} after any request ({:.1} % of the peak), with {}",
        match whatif.pytorch {
            Some(version) => format!("PyTorch {}", Escaped(version)),
            None => format!("as PyTorch {}, since the version is not known", whatif.modelled_as),
        },
        units::bytes(device.error_bytes),
        device.error * 100.0,
        match device.pools {
            1 => "one stream or pool".to_owned(),
            pools => format!("{pools} streams or pools"),
        }
    ));
    for ignored in device.ignored.iter().flat_map(|all| all.split(',')) {
        let why = match ignored.starts_with("expandable_segments") {
            true => "the memory was taken in whole segments",
            false => "the model reproduces the run only without it",
        };
        page.item(styled(WARN, format!("{} had no effect: {why}", Escaped(ignored))));
    }
    if let Some(from_ns) = device.of.cut_off_ns {
        page.item(styled(
            WARN,
            format!(
                "what comes after {} is not modelled: a segment was freed while blocks in it were live (cudaDeviceReset?)",
                Point::Time(from_ns)
            ),
        ));
    }
    if device.of.elsewhere > 0 {
        page.item(format!(
            "{} not modelled: they lie in memory of another allocator (a MemPool of NCCL, for example), or it was not recorded",
            plural(device.of.elsewhere, "block is", "blocks are")
        ));
    }
    if device.of.limited_by_program {
        page.item(
            "the last request that failed did so although the driver refused nothing: the program limits its memory \
             (torch.cuda.set_per_process_memory_fraction), and the rows have this limit, too",
        );
    }
    if let Some(why) = &device.no_advice {
        page.line(styled(WARN, format!("no advice: {why}")));
        return;
    }
    if let Some(memory) = device.device_bytes {
        let lacks = match device.of.other_is_complete {
            true => "at most",
            false => "at most (without what the driver takes for itself, which was not recorded)",
        };
        page.item(format!(
            "on {}: beside PyTorch's segments, the process had {} {lacks}; it is subtracted at each time",
            units::bytes(memory),
            units::bytes(device.of.other_peak_bytes)
        ));
    }
    if let Some(bytes) = device.failed_bytes {
        page.item(format!("the request that failed is of {}", units::bytes(bytes)));
    }
    table(device, page);
    page.item(dim(format!(
        "live blocks of these sizes need {}; a plan in one range that knows when each is freed needs {}",
        units::bytes(device.of.peak_live_bytes),
        units::bytes(device.of.planned_bytes)
    )));
    recommend(device, page);
}

fn table(device: &OnDevice, page: &mut Document) {
    let fits = |row: &&Prediction| match row.fits_device {
        Some(true) => "yes",
        _ => "no",
    };
    let failed = |row: &&Prediction| match row.failed_request {
        Some(FailedRequest::Fits) => "fits",
        Some(FailedRequest::Perhaps) => "perhaps",
        _ => "fails",
    };
    let peak = |row: &&Prediction| match (row.least_peak_reserved_bytes, row.peak_reserved_bytes) {
        (least, most) if least < most - most / 10 => {
            Cell::from(format!("{} to {}", units::bytes(least), units::bytes(most)))
        }
        (_, most) => Cell::Size(most),
    };
    let best = device.recommended.first().map(|&best| &device.predictions[best]);
    let is_best = |row: &&Prediction| best == Some(*row);
    let rows = Rows::of(&device.predictions)
        .column("peak reserved", peak)
        .short("peak")
        .column("at the end", |row| Cell::Size(row.end_reserved_bytes))
        .short("end")
        .column("driver calls", |row| Cell::Count(row.driver_calls))
        .short("calls")
        .column_if(device.device_bytes.is_some(), "fits", fits)
        .column_if(device.failed_bytes.is_some(), "failed request", failed)
        .column("setting", |row| row.label.clone())
        .style(|row| if is_best(row) { BOLD } else { PLAIN });
    page.table(rows);
    page.more(
        device.marks_left_out,
        "mark",
        ", where empty_cache() gives back less or nothing",
    );
}

fn recommend(device: &OnDevice, page: &mut Document) {
    let own = device.predictions[0].peak_reserved_bytes;
    if device.recommended.is_empty() {
        page.line("no setting reserves clearly less; the lines whose blocks pin memory are in --view segments");
        return;
    }
    let variable = device.variable.as_deref().unwrap_or(VARIABLE);
    page.line(bold(match variable {
        CALL => "put one of these in the place of the program's own call",
        _ => "put one of these into the environment",
    }));
    for &nth in &device.recommended {
        let row = &device.predictions[nth];
        let settings = row.settings.as_deref().unwrap_or_default();
        let saved = match own.checked_sub(row.peak_reserved_bytes) {
            Some(saved) => format!("{} less", units::bytes(saved)),
            None => format!("{} more", units::bytes(row.peak_reserved_bytes - own)),
        };
        let line = match settings {
            settings if variable == CALL => format!("{CALL}({settings:?})"),
            "" => format!("unset {variable}"),
            settings => format!("export {variable}={}", shell_word(settings)),
        };
        page.item(bold(line) + format!("    {saved}"));
    }
}
