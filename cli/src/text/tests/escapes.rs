//! Hostile text is escaped in every page.

use proptest::prelude::*;

use crate::escape::is_active;

use super::*;

/// A snapshot in which every text is `text`.
fn with_every_text(text: &str) -> Snapshot {
    let mut snapshot = leaky();
    let text = || text.to_owned();
    let process = &mut snapshot.process;
    (process.executable, process.host, process.recording) = (text(), text(), text());
    process.command_line = vec![text()];
    process.ranks.insert(text(), text());
    process.state = ProcessState::Unknown;
    for module in &mut snapshot.modules {
        module.path = text();
    }
    for symbol in snapshot.locations.iter_mut().flat_map(|location| &mut location.symbols) {
        symbol.function = text();
        symbol.file = Some(text());
    }
    snapshot.allocations.change(|_, _, call| call.api = text());
    (snapshot.objects, snapshot.objects_known) = (serving().objects, true);
    snapshot
        .objects
        .change(|_, row, call| (row.stack, call.api) = (Some(0), text()));
    for failed in &mut snapshot.failed {
        failed.api = text();
    }
    for thread in &mut snapshot.threads {
        thread.name = text();
    }
    for device in &mut snapshot.devices {
        device.name = text();
    }
    snapshot.losses.unhooked = vec![text()];
    snapshot.marks.push(culeak::snapshot::Mark {
        time_ns: 0,
        name: text(),
        thread: 0,
    });
    snapshot.allocators.push(culeak::snapshot::Allocator {
        domain: text(),
        device: None,
        live_bytes: 0,
        reserved_bytes: 0,
        events: 1,
        mismatches: 1,
        unseen_bytes: 0,
    });
    let mut usage = crate::text::sample::usage_while_training();
    (usage.source, usage.missing) = (text(), Some(text()));
    snapshot.usage = Some(usage);
    snapshot.process.python = Some(culeak::snapshot::Python {
        version: text(),
        no_frames: Some(text()),
    });
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_text_is_escaped(text in "[\\x00-\\x1f\u{7f}-\u{9f}\u{202a}-\u{202e}\u{2066}-\u{2069}a-z<>()\\[;m ]{0,40}|\\PC*") {
        let snapshot = with_every_text(&text);
        let mut out = Vec::new();
        for &by in By::ALL {
            crate::text::report::page(&Report::of(&snapshot, &Options { by, source: text.clone(), ..Options::default() }), Extent::ALL).text(&mut out)?;
        }
        let other = leaky();
        crate::text::diff::page(&Diff::of(&snapshot, &other, &culeak::analysis::diff::Options::default()), true, true).text(&mut out)?;
        crate::text::check::page(&verdict(&snapshot, &Rules::default()), &text).text(&mut out)?;
        let limits = Limits::from([Limit::objects(Kind::Stream, 1)]);
        crate::text::check::page(&verdict(&snapshot, &limits.into()), &text).text(&mut out)?;
        // Styles are the only escape sequences.
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out)?).to_string();
        let ours = String::from_utf8(out)?.matches('\x1b').count();
        let drawn = snapshot_escapes(&snapshot);
        prop_assert!(ours > 0 && drawn);
        prop_assert!(!text.chars().any(|c| c != '\n' && is_active(c)), "{text:?}");
    }
}

/// Whether the text of the snapshot contains no escape sequence once it is escaped.
fn snapshot_escapes(snapshot: &Snapshot) -> bool {
    let text = crate::escape::Escaped(&snapshot.process.host).to_string();
    !text.contains('\x1b')
}
