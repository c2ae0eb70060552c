use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

fn accepts(text: &str) -> bool {
    let mut cursor = Cursor::new(text.as_bytes());
    cursor.skip_value().and_then(|()| cursor.end()).is_ok()
}

#[test]
fn nesting_is_bounded_and_takes_no_stack() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    // The innermost container is empty, so it is never open while another value is read.
    assert!(accepts(&nested(MAX_DEPTH + 1)));
    assert!(!accepts(&nested(MAX_DEPTH + 2)));
    assert!(!accepts(&"[".repeat(10_000_000)));
    assert!(!accepts(&"{\"a\":".repeat(1_000_000)));
}

#[test]
fn values_are_counted_up_to_a_bound_and_none_in_strings() {
    assert_eq!(count_values("7", 10), Some(1));
    assert_eq!(count_values(r#"[1,{"a":[]}]"#, 10), Some(6));
    assert_eq!(count_values(r#""a,b:[{\",,""#, 10), Some(1));
    assert_eq!(count_values(r#"["\\",1]"#, 10), Some(3));
    assert_eq!(count_values("[1,2,3,4]", 5), Some(5));
    assert_eq!(count_values("[1,2,3,4]", 4), None);
}

#[test]
fn a_fault_is_told_with_its_place() {
    let fault = |text: &str| {
        let mut cursor = Cursor::new(text.as_bytes());
        cursor.skip_value().and_then(|()| cursor.end()).map_err(|fault| (fault.at, fault.what))
    };
    assert_eq!(fault("[1 2]"), Err((3, "expected ',' or ']'")));
    assert_eq!(fault("{\"a\" 1}"), Err((5, "expected ':'")));
    assert_eq!(fault("\"ab\ncd\""), Err((3, "control character in a string")));
    assert_eq!(fault("{} {}"), Err((3, "data after the end of the object")));
}

#[test]
fn a_control_character_deep_in_a_long_string_is_found() {
    for length in 0..100 {
        let text = format!("\"{}\u{1}{}\"", "a".repeat(length), "b".repeat(100 - length));
        let mut cursor = Cursor::new(text.as_bytes());
        assert_eq!(cursor.string().map_err(|fault| fault.at), Err(length + 1));
    }
}

#[test]
fn special_bytes_are_found_at_every_place_among_any_others() {
    for special in [b'"', b'\\', 0, 0x1f, b'\n'] {
        for filler in [b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
            for at in 0..40 {
                let mut text = vec![filler; 40];
                assert_eq!(plain_prefix(&text), 40);
                text[at] = special;
                assert_eq!(plain_prefix(&text), at, "{special:#x} among {filler:#x}");
            }
        }
    }
}

#[test]
fn what_python_takes_beyond_json_is_taken() {
    for text in
        ["NaN", "Infinity", "-Infinity", r#""\ud800""#, "1e400", "123456789012345678901234567890"]
    {
        assert!(accepts(text), "{text}");
    }
    for text in ["-NaN", "+1", "nan", "Inf", "01", "1.", "-", "'a'", "\u{feff}1", ""] {
        assert!(!accepts(text), "{text}");
    }
}

proptest! {
    /// Any text over JSON's alphabet is judged as serde_json judges it.
    #[test]
    fn texts_are_accepted_as_by_the_reference(
        text in r#"[\[\]{},:"\\/ \n\tbu0-9aAeE.+tr-]{0,24}"#
    ) {
        let reference = serde_json::from_str::<&RawValue>(&text).is_ok();
        prop_assert_eq!(accepts(&text), reference);
    }

    /// The same over texts that are mostly well formed.
    #[test]
    fn nearly_valid_texts_are_accepted_as_by_the_reference(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\n\"", "\"", "1", "-0.5e+3", "0", "true",
            "null", "false", " ", "\"key\":", "[1,2]", "{}", "\\",
        ]), 0..12)
    ) {
        let text = pieces.concat();
        let reference = serde_json::from_str::<&RawValue>(&text).is_ok();
        prop_assert_eq!(accepts(&text), reference, "{}", text);
    }
}

#[test]
fn items_are_found_one_at_a_time_as_they_are_written() {
    let of = |raw| items(raw).map(|items| items.collect::<Vec<_>>());
    let raw = r#" [ 1 , "a,]" ,{"b": [2]},[ ] ,null ] "#;
    assert_eq!(of(raw), Some(vec!["1", r#""a,]""#, r#"{"b": [2]}"#, "[ ]", "null"]));
    assert_eq!(of("[]"), Some(vec![]));
    for other in ["", "{}", "7", r#""[1]""#, "null"] {
        assert_eq!(of(other), None, "{other}");
    }
    // What nobody asks for is not walked, and what is broken is the end.
    assert_eq!(items("[1,2,:").and_then(|mut items| items.nth(1)), Some("2"));
    assert_eq!(of("[1,2,:"), Some(vec!["1", "2"]));
}
