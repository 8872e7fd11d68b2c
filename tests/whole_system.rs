//! The library in `/etc/ld.so.preload`: in every process, and inert except where a recording is asked for.
//!
//! A private mount namespace has an `/etc` of its own; that of the machine is never changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::profile::{fake_driver_folder, folder};
use crate::support::{Outcome, Profile, another_pid, expect_root, profile, program, shim};

/// Runs a profile without `LD_PRELOAD` in a mount namespace whose `/etc/ld.so.preload` lists `library`.
fn on_system_with(library: &Path, profile: Profile) -> Outcome {
    expect_root("mounts over /etc in a namespace of its own");
    let own = folder();
    let layers = own.path().display();
    let prepare = format!(
        "mount -t tmpfs none {layers} && mkdir {layers}/upper {layers}/work && \
         mount -t overlay -o lowerdir=/etc,upperdir={layers}/upper,workdir={layers}/work overlay /etc && \
         echo {} > /etc/ld.so.preload && exec \"$@\"",
        library.display()
    );
    profile
        .bare()
        .wrapped_in(&[
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &prepare,
            "sh",
        ])
        .run()
}

#[test]
#[ignore = "needs root"]
fn a_program_that_nobody_asked_to_record_is_not_recorded() {
    let outcome = on_system_with(&shim(), profile("endings").arg("returns"));
    outcome.expect_success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("done\n", ""));
    let left = fs::read_dir(outcome.work()).expect("readable").count();
    assert_eq!(left, 0, "no file in the program's folder");
}

#[test]
#[ignore = "needs root"]
fn a_program_with_an_output_folder_is_recorded() {
    let recorded = folder();
    let pattern = recorded.path().join("%p.culeak");
    let outcome = on_system_with(
        &shim(),
        profile("endings").arg("returns").setting("CULEAK_OUTPUT", &pattern),
    );
    outcome.expect_success();
    let recordings = crate::support::outcome::recordings_in(recorded.path());
    assert_eq!(recordings.len(), 1, "{}", outcome.everything());
    crate::support::outcome::read(&recordings[0]).expect_live(Device, 1, 100);
}

#[test]
#[ignore = "needs root"]
fn a_program_that_preloads_it_too_is_recorded_once() {
    let outcome = on_system_with(&shim(), profile("endings").arg("returns").env("LD_PRELOAD", shim()));
    outcome.expect_success();
    let recordings = crate::support::outcome::recordings_in(&outcome.work());
    assert_eq!(recordings.len(), 1, "{}", outcome.everything());
}

#[test]
#[ignore = "needs root"]
fn a_setuid_program_ignores_the_variables() {
    let (recorded, private) = (folder(), folder());
    let copy = private.path().join("setuid");
    // A setuid program ignores LD_LIBRARY_PATH; this one names the folder of its driver.
    let driver = fake_driver_folder().join("libcuda.so.1");
    fs::copy(executable("secure", &["-DLOOKUP_LINKED"], &[driver]), &copy).expect("copied");
    for (path, mode) in [(private.path(), 0o755), (&copy, 0o4755), (recorded.path(), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    }
    // The file of facts of `culeak run` has this length; the caller has named a file that only root can write.
    let target = recorded.path().join("only-root");
    fs::write(&target, vec![0; culeak::proof::BYTES]).expect("written");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).expect("set");
    let as_nobody = |arguments: &Path| {
        program("/usr/bin/setpriv")
            .args("--reuid=65534 --clear-groups --")
            .arg(arguments)
            .setting("CULEAK_OUTPUT", recorded.path().join("%p.culeak"))
            .setting("CULEAK_RUN", format!("{}:{}", another_pid(), target.display()))
    };
    let outcome = on_system_with(&shim(), as_nobody(&copy));
    outcome.expect_success();
    assert_eq!(outcome.stdout, "secure 1\n", "{}", outcome.everything());
    assert_eq!(crate::support::outcome::recordings_in(recorded.path()).len(), 0);
    assert!(fs::read(&target).expect("readable").iter().all(|&byte| byte == 0));
}

#[test]
#[ignore = "needs root"]
fn without_the_file_programs_run_with_a_message_of_the_loader() {
    let outcome = on_system_with(Path::new("/no/such/libculeak.so"), profile("endings").arg("returns"));
    outcome.expect_success();
    assert_eq!(outcome.stdout, "done\n");
    assert!(outcome.stderr.contains("cannot be preloaded"), "{}", outcome.stderr);
}
