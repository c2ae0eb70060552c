//! `docs/events.md` against the types: every example is of its type, every type has an example.

use std::collections::BTreeMap;
use std::fs;

use events::{
    Announcement, Answer, BackendEvent, DecisionEvent, Envelope, LoadEvent, Region, Verdict,
};
use integration_tests::environment::workspace_root;
use serde_json::Value;

fn text() -> String {
    fs::read_to_string(workspace_root().join("docs/events.md")).unwrap()
}

/// The examples by the heading they stand under.
fn examples() -> BTreeMap<String, Vec<String>> {
    let text = text();
    let sections = text.split("\n## ").skip(1);
    let example = |section: &str| {
        let (heading, rest) = section.split_once('\n').unwrap();
        let blocks = rest.split("```json\n").skip(1);
        let blocks = blocks.map(|block| block.split("```").next().unwrap().to_owned());
        (heading.to_owned(), blocks.collect())
    };
    sections.map(example).collect()
}

/// Reads and writes an example: what comes back is all that was in it.
fn again<T: serde::de::DeserializeOwned + serde::Serialize>(example: &str) -> T {
    let value: Value = serde_json::from_str(example).unwrap();
    let read: T = events::decode(example.as_bytes()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), value, "a field that the type does not have");
    read
}

#[test]
fn every_example_is_of_its_type_and_every_type_has_one() {
    let examples = examples();
    let headings: Vec<_> = examples.keys().map(String::as_str).collect();
    let types =
        ["Announcement", "Answer", "BackendEvent", "DecisionEvent", "Envelope", "LoadEvent"];
    assert_eq!(headings, types);
    for (name, examples) in &examples {
        assert!(!examples.is_empty(), "{name} has no example");
        for example in examples {
            match name.as_str() {
                "BackendEvent" => drop(again::<BackendEvent>(example)),
                "LoadEvent" => drop(again::<LoadEvent>(example)),
                "DecisionEvent" => drop(again::<DecisionEvent>(example)),
                "Announcement" => drop(again::<Announcement>(example)),
                "Answer" => drop(again::<Answer>(example)),
                "Envelope" => {
                    // A seed of an example would be a token of an example: somebody would use it.
                    let envelope = again::<Envelope>(example);
                    again::<Announcement>(&envelope.body);
                }
                other => panic!("{other} is no payload"),
            }
        }
    }
}

#[test]
fn the_subjects_are_those_that_are_used() {
    let text = text();
    let region = Region::new("default").unwrap();
    for (written, subject) in [
        ("warmpath.v1.<region>.backends.<backend>", region.backend("B")),
        ("warmpath.v1.<region>.loads.<backend>", region.load("B")),
        ("warmpath.v1.<region>.decisions.<model>", region.decisions("M")),
        ("warmpath.v1.<region>.announce.<token>", region.announce("T")),
        ("warmpath.v1.<region>.answers.<token>.<backend>", region.answers("T", "B")),
        ("warmpath.v1.<region>.pools.<model>", region.pool("M")),
    ] {
        assert!(text.contains(&format!("`{written}`")), "{written}");
        let filled = written
            .replace("<region>", "default")
            .replace("<backend>", "B")
            .replace("<model>", "M")
            .replace("<token>", "T");
        assert_eq!(filled, subject.as_str());
    }
    let slash = region.backend("meta/llama");
    assert!(slash.as_str().ends_with("meta%2Fllama") && text.contains("`meta%2Fllama`"));
}

#[test]
fn every_verdict_is_explained() {
    let text = text();
    for verdict in Verdict::ALL {
        assert!(text.contains(&format!("`{}`", verdict.as_str())), "{}", verdict.as_str());
    }
}
