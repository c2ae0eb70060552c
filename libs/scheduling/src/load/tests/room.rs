//! Prompts that wait for room in the cache.

use super::*;

#[test]
fn what_does_not_fit_waits_with_all_behind_it_and_is_no_sample() {
    let mut book = LoadBook::new();
    for lease in [A, B, C] {
        book.book(lease, work(100, 0.1), true, at(0.0));
    }
    let mut asked = Vec::new();
    book.start_due(at(0.5), |lease, due| {
        asked.push((lease, due));
        lease == A
    });
    assert_eq!(asked, [(A, Due::Predicted), (B, Due::Predicted)]);
    assert_eq!(book.first_token(A, at(1.0)), None, "time went by without work");
    // Time that passes without room is no work done.
    book.start_due(at(5.0), |_, _| false);
    assert_delay(&book, 5.0, 0.2);
    assert_eq!(starts(&mut book, at(6.0)), [B]);
    assert_delay(&book, 6.0, 0.2);
    // The engine had room after all: what is seen counts.
    book.first_token(C, at(6.1));
    assert_eq!(starts(&mut book, at(6.1)), [C]);
}

#[test]
fn what_does_not_stream_does_not_finish_while_it_has_no_room() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), false, at(0.0));
    book.start_due(at(0.0), |_, _| false);
    assert_delay(&book, 9.0, 0.0);
    book.start_due(at(9.0), |_, _| true);
    assert_eq!(book.running(), 0);
    assert_delay(&book, 9.0, 1.0);
    assert_eq!(starts(&mut book, at(10.0)), []);
    assert_eq!(book.running(), 1);
}

#[test]
fn the_wait_for_room_is_the_line_over_what_ends_in_a_second() {
    let mut book = LoadBook::new();
    assert_eq!(book.room_delay_seconds(100, false, at(0.0)), 0.0, "nothing is known yet");
    for n in 0..400_u32 {
        let now = at(f64::from(n) * 0.5);
        book.book(LeaseId(u64::from(n)), work(100, 0.01), true, now);
        book.first_token(LeaseId(u64::from(n)), now);
        book.end(LeaseId(u64::from(n)), now);
    }
    let now = at(200.0);
    assert_eq!(book.room_delay_seconds(100, true, now), 0.0);
    let alone = book.room_delay_seconds(100, false, now);
    assert!((alone - 0.5).abs() < 0.02, "{alone}");
    for lease in 1_000..1_009 {
        book.book(LeaseId(lease), work(100, 0.01), true, now);
    }
    let last = book.room_delay_seconds(100, false, now);
    assert!((last - 5.0).abs() < 0.2, "{last}");
    // Behind one that was refused even a prompt that fits has to wait.
    assert_eq!(book.room_delay_seconds(1, true, now), 0.0);
    book.start_due(now, |_, _| false);
    assert!(book.room_delay_seconds(1, true, now) > 4.0);
}

#[test]
fn the_line_stands_until_the_last_of_those_that_were_held_up_is_through() {
    let mut book = LoadBook::new();
    let now = at(100.0);
    book.book(LeaseId(9), work(100, 0.01), true, at(99.0));
    book.first_token(LeaseId(9), at(99.0));
    book.end(LeaseId(9), at(99.0));
    for lease in [A, B, C] {
        book.book(lease, work(100, 0.01), true, now);
    }
    let waits = |book: &LoadBook| book.room_delay_seconds(1, true, at(101.0)) > 0.0;
    // The first one fits, whatever becomes of it: those behind it are held up all the same.
    book.start_due(at(100.1), |lease, _| lease == A);
    assert!(waits(&book));
    starts(&mut book, at(100.2));
    book.first_token(A, at(100.3));
    assert!(waits(&book), "B and C stood behind it");
    // One that leaves makes the line shorter.
    book.end(C, at(100.4));
    assert!(waits(&book));
    book.first_token(B, at(100.5));
    assert!(!waits(&book));
}

#[test]
fn open_leases_are_told_the_youngest_first() {
    let mut book = LoadBook::new();
    for lease in [A, B, C] {
        book.book(lease, work(100, 0.1), true, at(0.0));
    }
    book.first_token(B, at(0.5));
    book.end(A, at(1.0));
    assert_eq!(book.youngest_first().collect::<Vec<_>>(), [C, B]);
}
