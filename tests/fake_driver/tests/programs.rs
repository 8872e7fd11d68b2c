//! C programs on the fake driver: compared with the answers of a real one, and through a CUDA runtime.
//!
//! NVIDIA's runtimes and headers come from `fetch_cudart.sh` (network and pip, once); `CULEAK_CUDART` names a folder that
//! already has them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Exit status of the smoke test if the runtime does not start.
const STOPPED: i32 = 77;

/// A temporary folder with the fake driver under its usual name and a compiled program.
struct Stage {
    folder: PathBuf,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        symlink(fake_driver(), folder.join("libcuda.so.1")).unwrap();
        Stage { folder }
    }

    fn compile(&self, output: &str, arguments: &[&str]) -> &Stage {
        let compiler = std::env::var("CC").unwrap_or("cc".to_string());
        let status = Command::new(compiler)
            .current_dir(&self.folder)
            .args(["-w", "-o", output])
            .args(arguments)
            .status();
        assert!(status.unwrap().success(), "{arguments:?}");
        self
    }

    fn run(&self, library_path: &[&str], environment: &[(&str, &str)]) -> Output {
        let folders = [self.folder.to_str().unwrap()]
            .into_iter()
            .chain(library_path.iter().copied());
        let path = folders.collect::<Vec<_>>().join(":");
        let mut command = Command::new(self.folder.join("program"));
        command
            .env("LD_LIBRARY_PATH", path)
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    }
}

/// Cargo puts the library beside the folder of this test.
fn fake_driver() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(1).unwrap().join("libculeak_fake_driver.so")
}

fn source(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file downloaded by `fetch_cudart.sh`.
fn cudart(path: &str) -> String {
    static FOLDER: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = match std::env::var_os("CULEAK_CUDART") {
            Some(folder) => PathBuf::from(folder),
            None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("cudart"),
        };
        let fetched = Command::new("sh")
            .arg(source("fetch_cudart.sh"))
            .arg(&folder)
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&fetched.stderr);
        assert!(
            fetched.status.success(),
            "cannot download NVIDIA's cudart; allow network and pip once, or set CULEAK_CUDART:\n{words}"
        );
        folder
    });
    folder.join(path).to_string_lossy().into_owned()
}

#[test]
fn every_answer_matches_a_real_driver() {
    let include = cudart("12/include");
    let stage = Stage::new("answers");
    stage.compile(
        "program",
        &["-I", &include, &source("tests/answers.c"), "libcuda.so.1", "-lpthread"],
    );
    let wanted = fs::read_to_string(source("tests/answers.txt")).unwrap();
    let got = text(&stage.run(&[], &[]));
    for (number, (wanted, got)) in wanted.lines().zip(got.lines()).enumerate() {
        assert_eq!(got, wanted, "line {}", number + 1);
    }
    assert_eq!(got.lines().count(), wanted.lines().count());
}

#[test]
fn the_stand_in_runtime_passes_the_smoke_test_as_a_shared_library() {
    let stage = Stage::new("stand_in_shared");
    let (runtime, map) = (source("runtime/runtime.c"), source("runtime/libcudart.map"));
    let version_script = format!("-Wl,--version-script,{map}");
    let soname = "-Wl,-soname,libcudart.so.12";
    stage.compile(
        "libcudart.so.12",
        &[
            "-shared",
            "-fPIC",
            soname,
            &version_script,
            &runtime,
            "-ldl",
            "-lpthread",
        ],
    );
    let (include, smoke) = (source("runtime"), source("../victims/cudart_smoke.c"));
    stage.compile("program", &["-I", &include, &smoke, "libcudart.so.12"]);
    let output = stage.run(&[], &[]);
    assert!(
        output.status.success() && text(&output).ends_with("all ok\n"),
        "{}",
        text(&output)
    );
}

#[test]
fn the_stand_in_runtime_passes_the_smoke_test_linked_statically() {
    let stage = Stage::new("stand_in_static");
    let (include, smoke) = (source("runtime"), source("../victims/cudart_smoke.c"));
    let runtime = source("runtime/runtime.c");
    stage.compile(
        "program",
        &[
            "-fvisibility=hidden",
            "-I",
            &include,
            &smoke,
            &runtime,
            "-ldl",
            "-lpthread",
        ],
    );
    let output = stage.run(&[], &[]);
    assert!(
        output.status.success() && text(&output).ends_with("all ok\n"),
        "{}",
        text(&output)
    );
}

/// The README describes how far NVIDIA's runtime gets; this fails when that changes.
#[test]
fn nvidias_runtimes_start_until_their_check_of_the_driver() {
    for version in ["12", "13"] {
        for linked in ["shared", "static"] {
            let root = cudart(version);
            let stage = Stage::new(&format!("cudart_{version}_{linked}"));
            let library = match linked {
                "shared" => format!("{root}/lib/libcudart.so.{version}"),
                _ => format!("{root}/lib/libcudart_static.a"),
            };
            let (include, smoke) = (format!("{root}/include"), source("../victims/cudart_smoke.c"));
            stage.compile(
                "program",
                &["-I", &include, &smoke, &library, "-ldl", "-lrt", "-lpthread"],
            );
            let log = stage.folder.join("calls");
            let output = stage.run(&[&format!("{root}/lib")], &[("CULEAK_FAKE_LOG", log.to_str().unwrap())]);
            let calls = fs::read_to_string(log).unwrap();
            assert_eq!(
                output.status.code(),
                Some(STOPPED),
                "{version} {linked}: {}",
                text(&output)
            );
            for reached in [
                "cuInit 0",
                "primary-context 0",
                "cuDeviceGetAttribute 0",
                "table-unknown d4082055",
            ] {
                assert!(calls.contains(reached), "{version} {linked} never reached {reached}");
            }
        }
    }
}

#[test]
fn failures_are_injected_by_call() {
    let stage = Stage::new("injected");
    let program = stage.folder.join("program.c");
    let code = "extern int cuInit(unsigned), cuDeviceGetCount(int *); int printf(const char *, ...);
        int main(void) { int n; cuInit(0); for (int i = 0; i < 3; i++) printf(\"%d \", cuDeviceGetCount(&n)); return 0; }";
    fs::write(&program, code).unwrap();
    stage.compile("program", &["program.c", "libcuda.so.1"]);
    assert_eq!(
        text(&stage.run(&[], &[("CULEAK_FAKE_FAIL", "cuDeviceGetCount:2:999")])),
        "0 999 0 "
    );
    assert_eq!(
        text(&stage.run(&[], &[("CULEAK_FAKE_FAIL", "cuDeviceGetCount:*:2")])),
        "2 2 2 "
    );
}
