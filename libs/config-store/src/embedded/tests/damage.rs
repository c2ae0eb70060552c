//! A journal whose bytes are not what they were.

use super::sim_disk::{Content, SimDisk};
use super::support::{Driver, RULES};
use crate::embedded::journal::Rules;
use crate::{Revision, StoreError};

const FIRST: &str = "journal-00000000000000000000.log";
/// One segment for everything.
const LARGE: Rules = Rules { segment_bytes: 1 << 20, ..RULES };

/// A journal of four changes, each written alone, and where each begins and ends.
fn four_changes() -> (Content, Vec<u64>) {
    let disk = SimDisk::default();
    let mut driver = Driver::open_with(&disk, LARGE).unwrap();
    let mut ends = vec![driver.journal.length()];
    for name in ["a", "b", "c", "d"] {
        let entries = driver.plan(&[(name, Some("a document"))]);
        driver.write(&entries).unwrap();
        ends.push(driver.journal.length());
    }
    (disk.content(), ends)
}

fn open(content: Content) -> (SimDisk, Result<Driver, StoreError>) {
    let disk = SimDisk::holding(content);
    let driver = Driver::open_with(&disk, LARGE);
    (disk, driver)
}

#[test]
fn a_journal_cut_at_any_byte_of_its_last_record_loses_that_record_alone() {
    let (content, ends) = four_changes();
    for length in ends[3]..ends[4] {
        let mut content = content.clone();
        content.file_mut(FIRST).truncate(length as usize);
        let (disk, driver) = open(content);
        let mut driver = driver.unwrap();
        assert_eq!(driver.revision(), Revision(3), "cut at {length}");
        let torn = driver.torn.take().map(|torn| (torn.file, torn.from, torn.to));
        let expected = (length > ends[3]).then(|| (FIRST.to_owned(), ends[3], length));
        assert_eq!(torn, expected, "the warning names the bytes");
        // What was cut off is kept aside, and the next change takes its place.
        let entries = driver.plan(&[("e", Some("5"))]);
        driver.write(&entries).unwrap();
        let again = Driver::open_with(&disk, LARGE).unwrap();
        assert_eq!((again.revision(), again.torn), (Revision(4), None));
    }
}

#[test]
fn what_is_cut_off_is_kept_aside() {
    let (mut content, ends) = four_changes();
    content.file_mut(FIRST).truncate(ends[4] as usize - 1);
    let torn = content.file_mut(FIRST)[ends[3] as usize..].to_vec();
    let (disk, driver) = open(content);
    driver.unwrap();
    assert_eq!(*disk.content().file_mut("torn.bytes"), torn);
}

#[test]
fn every_flipped_byte_before_the_last_record_is_an_error_that_names_it_and_changes_nothing() {
    let (content, ends) = four_changes();
    for at in 0..ends[3] {
        let mut content = content.clone();
        content.file_mut(FIRST)[at as usize] ^= 0x5a;
        let (disk, driver) = open(content.clone());
        let error = driver.err().unwrap_or_else(|| panic!("byte {at} was not missed"));
        let record = ends.iter().rfind(|end| **end <= at).copied().unwrap_or(0);
        match &error {
            StoreError::Damaged { offset, .. } => assert_eq!(*offset, record, "byte {at}"),
            other => panic!("byte {at}: {other}"),
        }
        let text = error.to_string();
        assert!(text.contains(FIRST) && text.contains("backup"), "{text}");
        assert_eq!(disk.content(), content, "byte {at}: something was changed");
    }
}

#[test]
fn every_flipped_byte_of_the_last_record_drops_it_and_says_so() {
    let (content, ends) = four_changes();
    for at in ends[3]..ends[4] {
        let mut content = content.clone();
        content.file_mut(FIRST)[at as usize] ^= 0x5a;
        let driver = open(content).1.unwrap();
        assert_eq!(driver.revision(), Revision(3), "byte {at}");
        let torn = driver.torn.unwrap();
        assert_eq!((torn.from, torn.to), (ends[3], ends[4]), "byte {at}");
    }
}

#[test]
fn the_advice_for_a_damaged_change_works() {
    let (mut content, ends) = four_changes();
    content.file_mut(FIRST)[ends[1] as usize + 30] ^= 1;
    let error = open(content.clone()).1.err().unwrap().to_string();
    let cut = format!("`truncate -s {} sim/{FIRST}`", ends[1]);
    assert!(error.contains(&cut), "{error}");
    content.file_mut(FIRST).truncate(ends[1] as usize);
    assert_eq!(open(content).1.unwrap().revision(), Revision(1));
}

#[test]
fn a_record_inside_a_document_is_not_taken_for_one() {
    let (content, ends) = four_changes();
    let whole = content.clone().file_mut(FIRST)[ends[1] as usize..].to_vec();
    // A document that holds the records of this very journal, then a torn record that holds it.
    let mut torn = content;
    torn.file_mut(FIRST).truncate(ends[1] as usize);
    torn.file_mut(FIRST).extend_from_slice(b"WPr1 torn");
    torn.file_mut(FIRST).extend_from_slice(&whole);
    let driver = open(torn).1.unwrap();
    assert_eq!(driver.revision(), Revision(1));
}

#[test]
fn a_lost_segment_is_missed() {
    let disk = SimDisk::default();
    let mut driver = Driver::open(&disk).unwrap();
    let filler = "x".repeat(300);
    while driver.journal.archived() == 0 {
        let entries = driver.plan(&[("a", Some(&filler))]);
        driver.write(&entries).unwrap();
        driver.compact().unwrap();
    }
    let mut content = disk.content();
    let newest = content.names().filter(|name| name.starts_with("journal")).max().unwrap();
    let newest = newest.to_owned();
    content.remove(&newest);
    let error = Driver::open(&SimDisk::holding(content)).err().unwrap().to_string();
    assert!(error.contains(&newest) && error.contains("missing"), "{error}");
}

#[test]
fn a_segment_under_another_name_is_not_taken() {
    let (mut content, _) = four_changes();
    let bytes = content.file_mut(FIRST).clone();
    let disk = SimDisk::holding(content);
    let mut file =
        crate::embedded::disk::Disk::create(&disk, "journal-00000000000000000009.log").unwrap();
    file.write_at(&bytes, 0).unwrap();
    let error = Driver::open(&disk).err().unwrap().to_string();
    assert!(error.contains("segment of revision 0"), "{error}");
}

#[test]
fn segments_follow_each_other_and_only_so_many_are_kept() {
    let disk = SimDisk::default();
    let mut driver = Driver::open(&disk).unwrap();
    for round in 0..100 {
        let text = format!("document {round}");
        let changes = [("a", Some(&*text)), ("b", Some(&*text)), ("b", None)];
        let entries = driver.plan(&changes);
        driver.write(&entries).unwrap();
        driver.compact().unwrap();
        let names: Vec<_> = disk.content().names().map(str::to_owned).collect();
        assert!(names.len() <= 2 + RULES.archives, "{names:?}");
        assert!(driver.journal.length() < 4 * RULES.segment_bytes);
        let again = Driver::open(&disk).unwrap();
        assert_eq!(again.states, driver.states);
        assert_eq!(again.ledger, driver.ledger);
    }
    let history = driver.journal.history(Revision::ZERO, 1000).unwrap();
    let revisions: Vec<_> = history.changes.iter().map(|entry| entry.revision).collect();
    assert_eq!(history.oldest, revisions.first().copied());
    assert_eq!(revisions.last(), Some(&Revision(300)));
    assert!(revisions.windows(2).all(|pair| pair[1] == pair[0].next()));
    assert!(revisions.len() < 100, "the oldest are gone");
}
