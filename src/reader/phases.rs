//! Phases, in the order of their begin.

use super::RawSnapshot;
use crate::format::{PhaseRow, Section};
use crate::snapshot::Phase;

impl RawSnapshot {
    pub fn phases(&self, mut thread_of: impl FnMut(u32) -> usize) -> Vec<Phase> {
        let rows = (0u32..).zip(self.section(Section::Phases).rows::<PhaseRow>());
        let mut rows: Vec<_> = rows.filter(|(_, row)| row.begin_plus_one != 0).collect();
        // A parent has a lower row than its children, and begins no later.
        rows.sort_by_key(|(_, row)| row.begin_plus_one);
        let mut numbers = vec![None; self.section(Section::Phases).len()];
        let mut phases = Vec::with_capacity(rows.len());
        for (number, row) in rows {
            let parent = row.parent_plus_one.checked_sub(1);
            // A damaged file may name a later row, which has no number yet.
            let parent = parent.and_then(|parent| numbers.get(parent as usize).copied().flatten());
            numbers[number as usize] = Some(phases.len());
            let begin_ns = row.begin_plus_one - 1;
            phases.push(Phase {
                name: self.text(row.name),
                domain: row.domain.present().map(|domain| self.text(domain)),
                thread: thread_of(row.thread),
                begin_ns,
                end_ns: row.end_plus_one.checked_sub(1).map(|end| end.max(begin_ns)),
                parent,
            });
        }
        phases
    }
}

#[cfg(test)]
mod tests {
    use crate::format::{Loss, NONE, PhaseSource};
    use crate::reader::read;
    use crate::reader::tests::{Folder, record};
    use crate::recording::{NewPhase, PHASE_NAME_MAX};

    fn named(name: &str) -> NewPhase<'_> {
        NewPhase {
            name: name.as_bytes(),
            domain: None,
            thread: NONE,
            parent: None,
            source: PhaseSource::Client,
        }
    }

    #[test]
    fn phases_are_read_as_they_were_written() {
        let folder = Folder::new("phases");
        let recording = record(&folder.0.join("a.culeak"));
        let outer = recording.begin_phase(&named("outer"));
        let inner = NewPhase {
            domain: Some(b"data"),
            parent: outer,
            source: PhaseSource::NvtxPush,
            ..named("inner")
        };
        let inner = recording.begin_phase(&inner).unwrap();
        recording.end_phase(inner, PhaseSource::NvtxPush);
        recording.end_phase(inner, PhaseSource::NvtxPush);
        // Neither a phase of another source nor one that does not exist.
        recording.end_phase(outer.unwrap(), PhaseSource::NvtxStart);
        recording.end_phase(inner + 1, PhaseSource::NvtxPush);
        recording.begin_phase_at_start(&named(&"長".repeat(100)));
        let snapshot = read(&folder.0.join("a.culeak")).unwrap();
        let [early, outer, inner] = &snapshot.phases[..] else {
            panic!("{:?}", snapshot.phases);
        };
        assert_eq!((early.begin_ns, early.name.len()), (0, PHASE_NAME_MAX / 3 * 3));
        assert_eq!((&*outer.name, outer.parent, outer.end_ns), ("outer", None, None));
        assert_eq!(
            (&*inner.name, inner.parent, inner.domain.as_deref()),
            ("inner", Some(1), Some("data"))
        );
        assert!(inner.end_ns.is_some_and(|end| end >= inner.begin_ns) && inner.begin_ns >= outer.begin_ns);
        assert!(snapshot.taken.at_ns >= inner.begin_ns);
    }

    #[test]
    fn the_number_of_phases_and_marks_is_bounded_and_names_are_stored_once() {
        let folder = Folder::new("phases-many");
        let recording = record(&folder.0.join("a.culeak"));
        let before = std::fs::metadata(folder.0.join("a.culeak")).unwrap().len();
        for _ in 0..5000 {
            let name = "the name of a phase that is begun again and again".repeat(4);
            if let Some(phase) = recording.begin_phase(&named(&name)) {
                recording.end_phase(phase, PhaseSource::Client);
            }
            recording.mark(name.as_bytes(), NONE);
        }
        assert_eq!((recording.loss(Loss::Phases), recording.loss(Loss::Marks)), (904, 904));
        let snapshot = read(&folder.0.join("a.culeak")).unwrap();
        assert_eq!((snapshot.phases.len(), snapshot.marks.len()), (4096, 4096));
        assert_eq!((snapshot.losses.lost_phases, snapshot.losses.lost_marks), (904, 904));
        assert_eq!(snapshot.losses.lost_details, 0);
        let after = std::fs::metadata(folder.0.join("a.culeak")).unwrap().len();
        assert!(after - before < 1 << 20, "{} bytes", after - before);
    }
}
