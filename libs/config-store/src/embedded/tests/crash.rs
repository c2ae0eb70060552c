//! Loss of power behind every operation, in every way that the disk may be found afterwards.

use super::sim_disk::{Content, SimDisk};
use super::support::{Driver, States};
use crate::embedded::journal::WriteFault;
use crate::{Entry, Revision};

/// Groups of changes: new keys, replaced ones, deletions, a document over several pages, enough
/// for several segments.
fn script() -> Vec<Vec<(&'static str, Option<&'static str>)>> {
    const LONG: &str = "a document that is longer than a page of this disk, so that a part of it \
                        can be lost while what is before and behind it is kept as it was written";
    vec![
        vec![("a", Some("1"))],
        vec![("b", Some(LONG)), ("c", Some("3"))],
        vec![("a", None)],
        vec![("c", Some("33")), ("c", Some("333")), ("b", None)],
        vec![("d", Some(LONG))],
        vec![("a", Some("again")), ("d", None)],
        vec![("e", Some("5")), ("c", None), ("e", Some(LONG))],
        vec![("f", Some("6"))],
        vec![("f", Some("66"))],
    ]
}

/// What a run had come to when the log of the disk had some length.
#[derive(Clone)]
struct Mark {
    operations: usize,
    /// The last revision that was acknowledged by then.
    acknowledged: Revision,
    /// The state at each revision from zero to the last that was begun to be written.
    states: Vec<States>,
}

/// The marks of a run.
struct Run(Vec<Mark>);

impl Run {
    /// Runs the script until it ends or the disk breaks.
    fn on(disk: &SimDisk) -> Self {
        let mut run = Self(Vec::new());
        let mut states = vec![States::new()];
        let opened = Driver::open(disk);
        run.mark(disk, Revision::ZERO, &states);
        let Ok(mut driver) = opened else { return run };
        for changes in script() {
            let entries = driver.plan(&changes);
            let acknowledged = states.len();
            for entry in &entries {
                let mut next = states.last().unwrap().clone();
                next.insert(entry.key.clone(), entry.clone());
                states.push(next);
            }
            run.mark(disk, driver.revision(), &states);
            match driver.write(&entries) {
                Ok(()) => {}
                // What was not written must not be there later.
                Err(WriteFault::NotWritten(_)) => states.truncate(acknowledged),
                // It may be there after all, so that nothing may follow it.
                Err(WriteFault::Broken(_)) => break,
            }
            run.mark(disk, driver.revision(), &states);
            let _ = driver.compact();
            run.mark(disk, driver.revision(), &states);
            if !driver.journal.is_writable() {
                break;
            }
        }
        run
    }

    fn mark(&mut self, disk: &SimDisk, acknowledged: Revision, states: &[States]) {
        let (operations, states) = (disk.operations(), states.to_vec());
        self.0.push(Mark { operations, acknowledged, states });
    }

    /// What had been promised, and what may be there, behind so many operations.
    fn at(&self, operations: usize) -> Mark {
        let start =
            Mark { operations: 0, acknowledged: Revision::ZERO, states: vec![States::new()] };
        self.0.iter().rfind(|mark| mark.operations <= operations).cloned().unwrap_or(start)
    }
}

impl Mark {
    /// Opens what a crash left and checks it; returns the disk that the recovery ran on.
    fn check(&self, content: Content) -> SimDisk {
        let disk = SimDisk::holding(content);
        let driver = Driver::open(&disk).unwrap();
        let (revision, acknowledged) = (driver.revision(), self.acknowledged);
        assert!(revision >= acknowledged, "{revision} is there, {acknowledged} was acknowledged");
        let expected = self.states.get(revision.0 as usize);
        let expected = expected.unwrap_or_else(|| panic!("{revision} was not even begun"));
        assert_eq!(live(&driver.states), live(expected));
        disk
    }
}

fn live(states: &States) -> Vec<Entry> {
    let mut live: Vec<_> = states.values().filter(|e| e.document.is_some()).cloned().collect();
    live.sort_by_key(|entry| entry.revision);
    live
}

/// The store goes on from there, and what it does then is kept.
fn goes_on(disk: &SimDisk) {
    let mut driver = Driver::open(disk).unwrap();
    let entries = driver.plan(&[("after", Some("the crash"))]);
    driver.write(&entries).unwrap();
    driver.compact().unwrap();
    let again = Driver::open(disk).unwrap();
    assert_eq!(again.torn, None);
    assert_eq!(again.states, driver.states);
}

#[test]
fn nothing_acknowledged_is_lost_with_the_power_whatever_the_disk_kept() {
    let disk = SimDisk::default();
    let run = Run::on(&disk);
    let mut seen = 0;
    for operations in 0..=disk.operations() {
        let mark = run.at(operations);
        for content in disk.crashes(operations) {
            let recovered = mark.check(content);
            seen += 1;
            // The recovery may lose its power too; what it found is then found again.
            if seen % 16 == 0 {
                for more in 0..=recovered.operations() {
                    for content in recovered.crashes(more) {
                        mark.check(content);
                    }
                }
            }
            goes_on(&recovered);
        }
    }
    assert!(seen > 1_000, "only {seen} crashes were tried");
    assert!(run.0.last().unwrap().states.len() > 15);
}

#[test]
fn what_a_restarted_process_has_read_or_written_is_not_lost_with_the_power() {
    let disk = SimDisk::default();
    Run::on(&disk);
    for operations in 0..=disk.operations() {
        // The process is killed there, its files are still in memory, another one starts.
        let disk = disk.as_of(operations);
        let mut driver = Driver::open(&disk).unwrap();
        let read = driver.revision();
        for content in disk.crashes(disk.operations()) {
            let recovered = Driver::open(&SimDisk::holding(content)).unwrap();
            assert_eq!((recovered.revision(), &recovered.states), (read, &driver.states));
        }
        let entries = driver.plan(&[("after", Some("the restart"))]);
        driver.write(&entries).unwrap();
        for content in disk.crashes(disk.operations()) {
            let recovered = Driver::open(&SimDisk::holding(content)).unwrap();
            assert_eq!(recovered.states, driver.states);
        }
    }
}

#[test]
fn a_killed_process_leaves_everything_it_had_written() {
    let disk = SimDisk::default();
    let run = Run::on(&disk);
    let last = run.0.last().unwrap();
    assert_eq!(last.acknowledged.0 as usize, last.states.len() - 1);
    last.check(disk.content());
    goes_on(&SimDisk::holding(disk.content()));
}

#[test]
fn a_disk_that_fails_at_any_operation_breaks_no_promise() {
    let whole = SimDisk::default();
    Run::on(&whole);
    for operation in 0..whole.operations() {
        let disk = SimDisk::default();
        disk.fail_after(operation);
        let run = Run::on(&disk);
        assert!(disk.has_failed(), "operation {operation}");
        // At once after it, some operations later, and at the end.
        let last = disk.operations();
        for operations in (operation..last.min(operation + 6)).chain([last]) {
            let mark = run.at(operations);
            for content in disk.crashes(operations) {
                goes_on(&mark.check(content));
            }
        }
        // A process that is started again on the same machine.
        goes_on(&run.at(last).check(disk.content()));
    }
}

#[test]
fn a_write_that_fails_for_want_of_room_leaves_the_store_writable() {
    let disk = SimDisk::default();
    let mut driver = Driver::open(&disk).unwrap();
    let entries = driver.plan(&[("a", Some("1"))]);
    disk.fail_after(1);
    let failed = driver.write(&entries);
    assert!(matches!(failed, Err(WriteFault::NotWritten(_))), "{failed:?}");
    assert!(disk.has_failed() && driver.journal.is_writable());
    driver.write(&entries).unwrap();
    assert_eq!(Driver::open(&disk).unwrap().states, driver.states);
}

#[test]
fn after_a_failed_sync_nothing_is_written_any_more() {
    let disk = SimDisk::default();
    let mut driver = Driver::open(&disk).unwrap();
    let entries = driver.plan(&[("a", Some("1"))]);
    disk.fail_after(2);
    driver.write(&entries).unwrap_err();
    let operations = disk.operations();
    driver.write(&entries).unwrap_err();
    assert!(!driver.journal.is_writable() && !driver.journal.wants_compaction());
    assert_eq!(disk.operations(), operations);
}
