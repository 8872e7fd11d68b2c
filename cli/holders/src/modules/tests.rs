use std::fs;
use std::sync::Arc;

use super::*;
use crate::process_tests::{Victim, compile};

const LIBRARY: &str = r#"
static long hidden_table[8] = {1, 2, 3};
long exported_cache[4];
static long zeros[1 << 16];
long *cache(void) { return exported_cache; }
long *hidden(void) { return hidden_table; }
long *bss(void) { return zeros; }
"#;

const PROGRAM: &str = r#"
#include <stdio.h>
extern long *cache(void), *hidden(void), *bss(void);
int main(void) {
    static long counter;
    bss()[5] = 1;
    printf("%p %p %p %p %p\n", (void *)cache(), (void *)hidden(), (void *)bss(), (void *)&counter, (void *)main);
    fflush(stdout);
    return getchar();
}
"#;

struct Loaded {
    folder: tempfile::TempDir,
    victim: Victim,
    addresses: Vec<u64>,
}

fn started(library: &[&str]) -> Loaded {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    compile(
        folder.path(),
        "libhold.so",
        LIBRARY,
        &[&["-shared", "-fPIC"], library].concat(),
    );
    let run_path = format!("-Wl,-rpath,{path}");
    let program = compile(folder.path(), "holder", PROGRAM, &["-L", &path, "-lhold", &run_path]);
    let victim = Victim::start(&program);
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
    let addresses = victim.line.split(' ').map(hex).collect();
    Loaded {
        folder,
        victim,
        addresses,
    }
}

fn module<'a>(modules: &'a Modules, name: &str) -> &'a Module {
    let mut found = modules.all().iter().filter(|module| module.file_name() == name);
    let module = found.next().unwrap_or_else(|| panic!("{name} is loaded"));
    assert!(found.next().is_none(), "{name} is loaded once");
    module
}

#[test]
fn globals_are_found_and_named() {
    let loaded = started(&[]);
    let process = loaded.victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let modules = Modules::find(&copy);
    let [exported, hidden, zeros, counter, main] = loaded.addresses[..] else {
        panic!("5 addresses")
    };
    let library = module(&modules, "libhold.so");
    for address in [exported, hidden, zeros, zeros + (8 << 16) - 8] {
        assert_eq!(
            modules.with_global(address).map(Module::file_name),
            Some("libhold.so"),
            "{address:#x}"
        );
    }
    assert_eq!(modules.with_global(counter).map(Module::file_name), Some("holder"));
    assert!(modules.with_global(main).is_none(), "code is no global");
    assert_eq!(library.address_of(&copy, "exported_cache"), Some(exported));
    assert_eq!(library.address_of(&copy, "hidden_table"), None, "not exported");
    assert_eq!(library.address_of(&copy, "printf"), None, "not defined there");
    let libc = module(&modules, "libc.so.6");
    let environ = libc.address_of(&copy, "environ").expect("exported");
    assert_eq!(modules.with_global(environ).map(Module::file_name), Some("libc.so.6"));
    assert_eq!(
        modules.variable_at(exported + 8),
        Some(("exported_cache".to_owned(), 8))
    );
    assert_eq!(modules.variable_at(hidden + 16), Some(("hidden_table".to_owned(), 16)));
    assert_eq!(modules.variable_at(zeros + 40), Some(("zeros".to_owned(), 40)));
    assert_eq!(modules.variable_at(counter), Some(("counter".to_owned(), 0)));
    assert_eq!(modules.variable_at(main), None);
    for module in modules.all() {
        for range in &module.globals {
            assert!(range.start < range.end);
            assert!(range.end - range.start < 64 << 20, "{}", module.path);
        }
    }
}

#[test]
fn memory_behind_the_end_of_bss_is_no_global() {
    let loaded = started(&[]);
    let process = loaded.victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let modules = Modules::find(&copy);
    let heap = copy.regions().iter().find(|region| region.name == "[heap]");
    let heap = heap.expect("stdio allocates").range.clone();
    for module in modules.all() {
        assert!(
            module
                .globals
                .iter()
                .all(|range| !heap.contains(&range.start) && !heap.contains(&(range.end - 1)))
        );
    }
}

#[test]
fn a_file_that_was_replaced_gives_no_wrong_names() {
    let loaded = started(&[]);
    let path = loaded.folder.path().join("libhold.so");
    fs::remove_file(&path).expect("removed");
    let other = LIBRARY
        .replace("hidden_table[8]", "other_table[8]")
        .replace("return hidden_table", "return other_table");
    let other = other.replace("exported_cache[4]", "before[99], exported_cache[4]");
    compile(loaded.folder.path(), "libhold.so", &other, &["-shared", "-fPIC"]);
    let process = loaded.victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let modules = Modules::find(&copy);
    let library = module(&modules, "libhold.so");
    assert!(library.path.ends_with(" (deleted)"));
    let address = library.address_of(&copy, "exported_cache");
    assert_eq!(address, Some(loaded.addresses[0]), "as in memory");
    assert_eq!(library.address_of(&copy, "before"), None);
    // A privileged user can still open the file that is mapped.
    if let Some((name, _)) = modules.variable_at(loaded.addresses[1]) {
        assert_eq!(name, "hidden_table");
    }
}

#[test]
fn exported_symbols_are_found_by_both_sorts_of_hash_tables() {
    let loaded = started(&["-Wl,--hash-style=sysv"]);
    let process = loaded.victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let modules = Modules::find(&copy);
    let library = module(&modules, "libhold.so");
    assert_eq!(library.address_of(&copy, "exported_cache"), Some(loaded.addresses[0]));
    assert_eq!(library.address_of(&copy, "no_such_symbol"), None);
    let libc = module(&modules, "libc.so.6");
    assert!(libc.address_of(&copy, "environ").is_some());
    assert_eq!(libc.address_of(&copy, "no_such_symbol"), None);
}

#[test]
fn a_library_that_is_mapped_as_data_is_not_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = compile(folder.path(), "libhold.so", LIBRARY, &["-shared", "-fPIC"]);
    let program = format!(
        r#"#include <stdio.h>
#include <fcntl.h>
#include <sys/mman.h>
int main(void) {{
    int file = open("{}", O_RDONLY);
    char *first = mmap(0, 12288, PROT_READ, MAP_PRIVATE, file, 0);
    puts(first[1] == 'E' ? "mapped" : "");
    fflush(stdout);
    return getchar();
}}"#,
        library.display()
    );
    let victim = Victim::start(&compile(folder.path(), "mapper", &program, &[]));
    assert_eq!(victim.line, "mapped");
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    assert!(copy.regions().iter().any(|region| region.name.ends_with("libhold.so")));
    let modules = Modules::find(&copy);
    assert!(modules.all().iter().all(|module| module.file_name() != "libhold.so"));
}

#[test]
fn a_stripped_library_has_names_of_exported_variables() {
    let loaded = started(&["-s"]);
    let process = loaded.victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let modules = Modules::find(&copy);
    assert_eq!(modules.variable_at(loaded.addresses[1]), None);
    let exported = modules.variable_at(loaded.addresses[0]);
    assert_eq!(exported, Some(("exported_cache".to_owned(), 0)));
}

#[test]
fn a_stripped_library_has_the_names_of_its_debug_file() {
    let build_id = "-Wl,--build-id=0x00ab42";
    let loaded = started(&["-s", build_id]);
    // It has the same addresses.
    let debug = compile(loaded.folder.path(), "debug", LIBRARY, &["-shared", "-fPIC", build_id]);
    let library = loaded.folder.path().join("libhold.so");
    let find = move |path: &Path, build_id: &str| (path == library && build_id == "00ab42").then(|| debug.clone());
    let process = loaded.victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let modules = Modules::find(&copy).with_debug_files(Some(DebugFiles(Arc::new(find))));
    let name = modules.variable_at(loaded.addresses[1]);
    assert_eq!(name, Some(("hidden_table".to_owned(), 0)));
    let name = modules.variable_at(loaded.addresses[3]);
    assert_eq!(name, Some(("counter".to_owned(), 0)), "no debug file");
}

#[test]
fn static_memory_of_the_preload_library_is_not_copied() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    let source = "static long table[600] = {7}, zeros[600]; long *TABLE(void) { return table; } \
                  long *ZEROS(void) { zeros[599] = 7; return zeros; }";
    for (name, table, zeros) in [("libculeak_shim.so", "a", "b"), ("libother.so", "c", "d")] {
        let source = source.replace("TABLE", table).replace("ZEROS", zeros);
        compile(folder.path(), name, &source, &["-shared", "-fPIC"]);
    }
    let program = r#"
#include <stdio.h>
extern long *a(void), *b(void), *c(void), *d(void);
int main(void) {
    printf("%p %p %p %p\n", (void *)a(), (void *)(b() + 599), (void *)c(), (void *)(d() + 599));
    fflush(stdout);
    return getchar();
}"#;
    let run_path = format!("-Wl,-rpath,{path}");
    let libraries = ["-L", &path, "-l:libculeak_shim.so", "-lother", &run_path];
    let victim = Victim::start(&compile(folder.path(), "recorded", program, &libraries));
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
    let words: Vec<u64> = victim.line.split(' ').map(|text| copy.word(hex(text))).collect();
    assert_eq!(words, [0, 0, 7, 7]);
}
