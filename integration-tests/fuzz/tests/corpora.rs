//! Every input of the corpora, on any toolchain.

use std::fs;
use std::path::Path;

use fuzzing::CHECKS;

#[test]
fn every_input_of_the_corpora_passes() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, check) in CHECKS {
        let mut inputs = 0;
        for entry in fs::read_dir(corpora.join(name)).expect("a folder for each check") {
            let path = entry.expect("readable").path();
            // Shows which one it was, where it panics.
            println!("{}", path.display());
            check(&fs::read(&path).expect("readable"));
            inputs += 1;
        }
        assert!(inputs >= 5, "{name} has a corpus");
    }
}

#[test]
fn every_check_has_a_fuzzer() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/src/bin");
    let mut names: Vec<String> = fs::read_dir(targets)
        .expect("readable")
        .map(|entry| entry.expect("readable").path())
        .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned))
        .collect();
    names.sort();
    assert_eq!(names, CHECKS.map(|(name, _)| name));
}
