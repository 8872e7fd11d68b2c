//! Notes on modules without reliable names, combined into sentences.
//!
//! A recording that is read on another machine lacks all of its program's libraries, so many modules share one sentence.

use crate::text::units::unless_zero;
use std::collections::BTreeMap;

/// The maximum number of modules named in one sentence.
const NAMED: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Note {
    /// No names of this module could be read.
    Nameless { module: String, problem: String },
    /// The names of this module may be wrong.
    Doubtful { module: String, problem: String },
}

/// The notes as sentences, one for each problem.
pub fn sentences(notes: impl IntoIterator<Item = Note>) -> Vec<String> {
    let (mut sentences, mut nameless) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for note in notes {
        match note {
            Note::Nameless { module, problem } => nameless.entry(problem).or_default().push(module),
            Note::Doubtful { module, problem } => sentences.push(format!("{module}: {problem}")),
        }
    }
    let sentence = |(problem, modules): (String, Vec<String>)| match modules.as_slice() {
        [one] => {
            format!("{one}: {problem}, so its frames are shown as offsets; point --debug-dir at its debug files")
        }
        many => format!(
            "{} modules: {problem}, so their frames are shown as offsets; point --debug-dir at their debug files: {}",
            many.len(),
            list(many)
        ),
    };
    sentences.extend(nameless.into_iter().map(sentence));
    sentences
}

fn list(modules: &[String]) -> String {
    let names: Vec<&str> = modules
        .iter()
        .take(NAMED)
        .map(|path| culeak::analysis::site::file_name(path))
        .collect();
    let rest = unless_zero(modules.len() - names.len(), |more| format!(" and {more} more"));
    format!("{}{rest}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(module: &str) -> Note {
        Note::Nameless {
            module: module.to_owned(),
            problem: "not on this machine".to_owned(),
        }
    }

    #[test]
    fn many_modules_with_one_problem_are_one_sentence() {
        let doubtful = Note::Doubtful {
            module: "/opt/app".to_owned(),
            problem: "is newer".to_owned(),
        };
        let all = ["/v/a.so", "/v/b.so", "/v/c.so", "/v/d.so", "/w/e.so"].map(missing);
        let combined = sentences([doubtful].into_iter().chain(all));
        assert_eq!(
            combined,
            [
                "/opt/app: is newer",
                "5 modules: not on this machine, so their frames are shown as offsets; point --debug-dir at their debug \
                 files: a.so, b.so, c.so, d.so and 1 more",
            ]
        );
        assert_eq!(
            sentences([missing("/v/a.so")]),
            ["/v/a.so: not on this machine, so its frames are shown as offsets; point --debug-dir at its debug files"]
        );
    }
}
