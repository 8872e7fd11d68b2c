//! Two versions compared: rows of a program whose library and interpreter have other versions match by the program's own lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::interpreters::interpreters;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{culeak, program};

const TRAIN: &str = "
import ctypes
import nets

client = ctypes.CDLL(None)


def step():
    return [nets.build() for _ in range(2)]


nets.begin()
for _ in range(3):
    kept = step()
    client.culeak_mark(b'step')
";

const NETS: &str = "
import ctypes
driver = ctypes.CDLL('libcuda.so.1')
def begin():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0
def layer():
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
";
const FIRST: &str = "
def build():
    layer()
";
/// Other lines, another function between, and twice the memory.
const SECOND: &str = "

def planned():
    layer()
def build():
    planned()
    layer()
";

/// Where the library is installed in this version of it.
fn packages(folder: &Path) -> PathBuf {
    folder.join("lib/python3.x/site-packages")
}

/// Records the script with the library in this version, as this rank of a job.
fn recorded(python: &Path, version: &str, build: &str, rank: &str) -> (PathBuf, TempDir) {
    let folder = folder();
    let packages = packages(folder.path());
    fs::create_dir_all(packages.join("nets")).expect("a folder");
    fs::create_dir(packages.join(format!("nets-{version}.dist-info"))).expect("a folder");
    fs::write(packages.join("nets/__init__.py"), [NETS, build].concat()).expect("written");
    let script = folder.path().join("train.py");
    fs::write(&script, TRAIN).expect("written");
    let script = program(python)
        .arg("-B")
        .arg(script)
        .env("PYTHONPATH", packages)
        .env("RANK", rank);
    let ended = script
        .setting("CULEAK_TIMELINE", "8MiB")
        .start_in(folder.path())
        .finish();
    assert!(ended.status.success(), "{:?}", ended.status);
    let recordings = recordings_in(&folder.path().join("out"));
    let [recording] = &recordings[..] else {
        panic!("one recording: {recordings:?}")
    };
    (recording.clone(), folder)
}

fn diff(before: &Path, after: &Path, words: &[&str]) -> String {
    let mut command = Command::new(culeak());
    let command = command.arg("diff").args([before, after]).args(words);
    let output = command.env("CULEAK_CACHE_DIR", "").output().expect("culeak starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_diff_of_two_versions_names_them_and_has_a_row_for_each_line_of_the_program() {
    // The oldest and the newest that are installed.
    let pythons = interpreters();
    let (old, new) = (&pythons[0].command, &pythons[pythons.len() - 1].command);
    let ((before, _old), (after, folder)) = (recorded(old, "1.0", FIRST, "0"), recorded(new, "2.0", SECOND, "0"));
    let text = diff(&before, &after, &[]);
    let versions = text.lines().nth(1).unwrap_or_default();
    assert!(
        versions.starts_with("versions: ") && versions.contains("nets 1.0 → 2.0; rows are call sites"),
        "{text}"
    );
    let row = text.lines().find(|line| line.contains("  train.py:9: "));
    assert!(
        row.is_some_and(|row| row.contains("grown") && row.contains("size=12 MiB (+6 MiB)")),
        "{text}"
    );
    // One of the two stacks that lead through the new library is the old one.
    let stacks: Value = serde_json::from_str(&diff(&before, &after, &["--by", "stack", "--json"])).expect("JSON");
    let rows = stacks["rows"].as_array().expect("rows").iter();
    let states: Vec<_> = rows
        .map(|row| (row["state"].as_str(), row["bytes_delta"].as_u64()))
        .collect();
    assert_eq!(states, [(Some("new"), Some(6 << 20))], "{stacks:#}");
    assert_eq!(stacks["totals"]["unchanged"].as_u64(), Some(1));

    let page = folder.path().join("diff.html");
    diff(&before, &after, &["-o", page.to_str().expect("a path")]);
    let page = fs::read_to_string(page).expect("a page");
    assert!(page.contains("before (dashed) and after, aligned at the start and at 3 marks of both"));
    assert!(page.contains("<polyline class=\"first\"") && page.contains("before 6 MiB, after 12 MiB"));

    // Of a job, of which another rank is on one side alone.
    let (other, _other) = recorded(old, "1.0", FIRST, "1");
    let job = folder.path().join("job");
    fs::create_dir(&job).expect("a folder");
    for (rank, recording) in [("0", &before), ("1", &other)] {
        fs::copy(recording, job.join(format!("{rank}.culeak"))).expect("copied");
    }
    let text = diff(&job, &after, &[]);
    let versions = text.lines().find(|line| line.starts_with("versions: "));
    assert!(versions.is_some_and(|line| line.ends_with("nets 1.0 → 2.0")), "{text}");
    let row = text
        .lines()
        .find(|line| line.contains("+6 MiB") && line.contains("train.py:9"));
    assert!(row.is_some(), "{text}");

    // What was installed after the process had started is not what it used.
    let packages = packages(folder.path());
    fs::remove_dir(packages.join("nets-2.0.dist-info")).expect("removed");
    fs::create_dir(packages.join("nets-3.0.dist-info")).expect("a folder");
    let text = diff(&before, &after, &[]);
    assert!(!text.contains("nets 1.0"), "{text}");
}
