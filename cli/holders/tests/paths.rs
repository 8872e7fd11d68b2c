//! The words of paths, in real interpreters that hold stand-ins of tensors in many kinds of holders.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use culeak::snapshot::{HeldBlock, HolderPath, Holders, Retainer};
use culeak_holders::source::live::Process;
use culeak_holders::{Block, Options, search};

#[allow(dead_code)]
#[path = "../../../shim/cpython/tests/support/mod.rs"]
mod interpreters;

/// A running program that printed its blocks and the expected paths.
struct Program {
    child: Child,
    blocks: Vec<Block>,
    expected: HashMap<u64, String>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(python: &Path, script: &Path) -> Program {
        let mut child = Command::new(python)
            .arg(script)
            // Threads of free-threaded builds have the variables of the thread that starts them.
            .env("PYTHON_THREAD_INHERIT_CONTEXT", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{python:?}: {error}"));
        let (mut blocks, mut expected) = (Vec::new(), HashMap::new());
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "ready" {
                break;
            }
            let (address, path) = line.split_once('\t').unwrap_or_else(|| panic!("{line}"));
            let address = u64::from_str_radix(address, 16).unwrap();
            expected.insert(address, path.to_owned());
            blocks.push(Block {
                address,
                bytes: 4096,
                time_ns: 0,
                of_torch: false,
                is_handle: false,
            });
        }
        Program {
            child,
            blocks,
            expected,
        }
    }

    fn search(&self, options: &Options) -> Holders {
        search(&Process::new(self.child.id()).unwrap(), &self.blocks, options).unwrap()
    }
}

/// The commands of all interpreters.
fn interpreters() -> impl Iterator<Item = &'static PathBuf> {
    interpreters::recorded().iter().map(|python| &python.command)
}

fn kinds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/kinds.py")
}

fn text(path: &HolderPath) -> String {
    let mut text = path.origin.clone();
    for step in &path.steps {
        if !step.via.is_empty() && !step.via.starts_with(['.', '[']) {
            text.push_str(", ");
        }
        text.push_str(&step.via);
        if !step.holder.is_empty() {
            text.push_str(" → ");
            text.push_str(&step.holder);
        }
    }
    text
}

/// Without line numbers, and with `N` in place of a thread's number.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(".py:");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result.push_str(".py");
        result.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    match result.strip_prefix("thread ") {
        Some(rest) => format!("thread N{}", rest.trim_start_matches(|c: char| c.is_ascii_digit())),
        None => result,
    }
}

#[test]
fn paths_read_as_expected_in_each_version() {
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let program = Program::start(python, &kinds());
        let holders = program.search(&Options::default());
        assert_eq!(holders.search.changed, 0, "{python:?}");
        assert_eq!(holders.blocks.len(), program.blocks.len());
        for block in &holders.blocks {
            let path = without_numbers(&text(&holders.paths[block.path]));
            let expected = &program.expected[&block.address];
            if path != *expected {
                mistakes.push(format!(
                    "{:?}:\n  expected {expected}\n  found    {path}",
                    holders.search.python
                ));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn chosen_blocks_have_their_index() {
    let program = Program::start(Path::new("python3"), &kinds());
    let all: Vec<usize> = (0..program.blocks.len()).collect();
    let holders = program.search(&Options {
        concrete: all,
        ..Options::default()
    });
    let texts: Vec<String> = holders.paths.iter().map(text).collect();
    for path in [
        "__main__.keep[1]",
        "__main__.by_name['a']",
        "__main__.by_name[7][0]",
        "__main__.nested[0][0][0]",
    ] {
        let expected = format!("{path} → T → native memory");
        assert!(texts.contains(&expected), "{expected} is not in {texts:#?}");
    }
}

#[test]
fn holders_retain_what_they_alone_hold() {
    let program = Program::start(Path::new("python3"), &kinds());
    let holders = program.search(&Options::default());
    let find = |name: &str| -> &Retainer {
        let found = holders.retainers.iter().find(|retainer| retainer.name == name);
        found.unwrap_or_else(|| panic!("{name} is not in {:#?}", holders.retainers))
    };
    let keep = find("__main__.keep (list of 2)");
    assert_eq!((keep.bytes, keep.count, keep.parent), (2 * 4096, 2, None));
    let cache = find("__main__.cache (Cache)");
    assert_eq!(cache.count, 2);
    let store = find("__main__.cache.store (list of 1)");
    assert_eq!(
        (store.count, store.parent.map(|parent| &holders.retainers[parent].name)),
        (1, Some(&cache.name))
    );
    for block in &holders.blocks {
        let path = &holders.paths[block.path];
        let typed = format!("{} ({})", path.origin, path.origin_type);
        let mut at = block.retainer;
        let mut names = Vec::new();
        while let Some(retainer) = at {
            names.push(holders.retainers[retainer].name.as_str());
            assert!(holders.retainers[retainer].parent < Some(retainer));
            at = holders.retainers[retainer].parent;
        }
        // Each of them has one holder only.
        assert!(
            names.contains(&typed.as_str()) || names.contains(&path.origin.as_str()),
            "{typed}: {names:?}"
        );
    }
}

/// The innermost holder of the block with this label.
fn retainer<'h>(program: &Program, holders: &'h Holders, label: &str) -> Option<&'h str> {
    let is_it = |address: u64| program.expected[&address] == label;
    let block = holders.blocks.iter().find(|block| is_it(block.address)).unwrap();
    Some(&holders.retainers[block.retainer?].name)
}

#[test]
fn references_of_native_memory_count_for_what_is_retained() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/retained.py");
    for python in interpreters() {
        let program = Program::start(python, &script);
        let holders = program.search(&Options::default());
        let of_object = retainer(&program, &holders, "object").unwrap_or_default();
        assert!(of_object.starts_with("__main__.owner"), "{python:?}: {holders:#?}");
        let shared = holders
            .retainers
            .iter()
            .find(|retainer| retainer.name.starts_with("__main__.first"));
        let shared = shared.unwrap_or_else(|| panic!("{python:?}: {holders:#?}"));
        assert_eq!(
            (&*shared.also, shared.count),
            (&["__main__.second".to_owned()][..], 1),
            "{python:?}"
        );
    }
}

#[test]
fn what_holds_a_part_of_a_holder_from_outside_is_named() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/outside.py");
    for python in interpreters() {
        let program = Program::start(python, &script);
        let holders = program.search(&Options::default());
        for (label, from_outside) in [
            // By a word of native memory alone.
            ("owner", None),
            ("alone", None),
            // The collector frees the garbage.
            ("in_garbage", None),
            ("counted", Some("references to list of 1 that were not found")),
            ("elsewhere", Some("sys.kept_groups")),
        ] {
            let block = holders
                .blocks
                .iter()
                .find(|block| program.expected[&block.address] == label);
            let mut around: Vec<&Retainer> = Vec::new();
            let mut at = block.and_then(|block| block.retainer);
            while let Some(nth) = at {
                around.push(&holders.retainers[nth]);
                at = holders.retainers[nth].parent;
            }
            let whole = format!("__main__.{label} (");
            let is_whole =
                (around.iter()).any(|retainer| retainer.name.starts_with(&whole) && retainer.also.is_empty());
            let mut also = around.iter().flat_map(|retainer| &retainer.also);
            let is_named = from_outside.map(|name| also.any(|also| also.starts_with(name)));
            assert_eq!(
                (is_whole, is_named),
                (from_outside.is_none(), from_outside.map(|_| true)),
                "{python:?}: {label}: {around:#?}"
            );
        }
    }
}

#[test]
fn what_two_variables_hold_is_retained_by_neither_alone() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/shared.py");
    for python in interpreters() {
        let program = Program::start(python, &script);
        let holders = program.search(&Options::default());
        let find = |name: &str| -> &Retainer {
            let found = holders
                .retainers
                .iter()
                .find(|retainer| retainer.name.starts_with(name));
            found.unwrap_or_else(|| panic!("{python:?}: {name} is not in {:#?}", holders.retainers))
        };
        for (name, also, count) in [
            ("__main__.keep (list of 3)", &["__main__.other"][..], 3),
            ("__main__.left[1] (T)", &["__main__.right[1]"], 1),
            ("__main__.settings (Settings)", &[], 1),
            ("__main__.settings.a (list of 1)", &["__main__.settings.b"], 1),
            ("__main__.pair (list of 2)", &[], 1),
            ("__main__.alone (list of 1)", &[], 1),
            ("__main__.first[0]", &["__main__.second[0]"], 1),
        ] {
            let found = find(name);
            assert_eq!(
                (&*found.also, found.count),
                (&*also.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), count),
                "{python:?}: {name}"
            );
        }
        let crowd = find("__main__.crowd");
        assert_eq!((crowd.also.len(), crowd.also_unnamed > 40), (3, true), "{crowd:?}");
        let left = holders
            .retainers
            .iter()
            .any(|retainer| retainer.name.starts_with("__main__.left ("));
        assert!(!left, "the list alone frees nothing: {:#?}", holders.retainers);
        // Of each block, what is around it is in the sums.
        let outermost = holders.retainers.iter().filter(|retainer| retainer.parent.is_none());
        let sum: u64 = outermost.map(|retainer| retainer.bytes).sum();
        assert_eq!(sum, holders.blocks.iter().map(|block| block.bytes).sum::<u64>());
    }
}

#[test]
fn each_block_has_the_module_that_owns_it() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/torch_modules.py");
    for python in interpreters() {
        let program = Program::start(python, &script);
        let holders = program.search(&Options::default());
        holders.validate().unwrap();
        let mut mistakes = Vec::new();
        for block in &holders.blocks {
            let found = module(&holders, block);
            let expected = &program.expected[&block.address];
            if found != *expected {
                mistakes.push(format!("{expected} is {found}: {:?}", holders.paths[block.path]));
            }
        }
        assert!(mistakes.is_empty(), "{python:?}: {mistakes:#?}");
        let shared = holders.modules.iter().filter(|module| module.also > 0);
        let shared: Vec<(&str, u64)> = shared.map(|module| (&*module.name, module.also)).collect();
        assert_eq!(shared, [("linear1", 1)], "{python:?}: the head has its weight");
    }
}

/// `__main__.model.layers.3`; `-`: no module owns the block.
fn module(holders: &Holders, block: &HeldBlock) -> String {
    let around = std::iter::successors(block.module, |module| holders.modules[*module].parent);
    let mut names: Vec<&str> = around.map(|module| &*holders.modules[module].name).collect();
    names.reverse();
    match names.is_empty() {
        true => "-".to_owned(),
        false => names.join("."),
    }
}
