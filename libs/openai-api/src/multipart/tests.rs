use proptest::prelude::*;

use super::*;

const PLAIN: &str = "multipart/form-data; boundary=XX";

fn file(bytes: &str) -> String {
    format!(
        "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n{bytes}\r\n"
    )
}

fn field(name: &str, value: &str) -> String {
    format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn scan(body: &[u8], cut: usize) -> Result<Option<FormModel>, FormFault> {
    let mut scanner = FormScanner::new(PLAIN).unwrap();
    for piece in body.chunks(cut.max(1)) {
        scanner.feed(piece)?;
    }
    scanner.finish()?;
    Ok(scanner.model().cloned())
}

#[test]
fn the_model_is_found_before_and_behind_the_file_however_it_is_cut() {
    let inside = "--XX in it, \r\n--XXX too, \r\n--X and name=\"model\"";
    for body in [
        [field("model", "whisper"), file(inside), "--XX--\r\n".to_owned()].concat(),
        [file(inside), field("language", "en"), field("model", "whisper"), "--XX--".to_owned()]
            .concat(),
        [
            "preamble\r\n".to_owned(),
            file(""),
            field("model", "whisper"),
            "--XX--\r\nmore".to_owned(),
        ]
        .concat(),
    ] {
        for cut in 1..body.len() {
            let model = scan(body.as_bytes(), cut).unwrap().unwrap();
            assert_eq!(model.name, "whisper", "cut at {cut}");
            assert_eq!(&body[model.at], "whisper");
        }
    }
}

#[test]
fn a_form_without_the_field_names_no_model() {
    let body = [file("x"), field("models", "a"), "--XX--".to_owned()].concat();
    assert_eq!(scan(body.as_bytes(), 7), Ok(None));
}

#[test]
fn a_second_model_is_refused_wherever_it_stands() {
    let body = [field("model", "a"), file("x"), field("model", "b"), "--XX--".to_owned()].concat();
    assert_eq!(scan(body.as_bytes(), 11), Err(FormFault::Twice));
}

#[test]
fn what_is_no_form_is_refused() {
    let malformed = |body: &str| matches!(scan(body.as_bytes(), 5), Err(FormFault::Malformed(_)));
    assert!(malformed(""));
    assert!(malformed("no form at all"));
    assert!(malformed(&field("model", "a")), "it does not end");
    assert!(malformed(&[field("model", ""), "--XX--".to_owned()].concat()));
    assert!(malformed(&[field("model", &"a".repeat(5000)), "--XX--".to_owned()].concat()));
    assert!(malformed(&format!("--XX\r\nX: {}", "a".repeat(20_000))));
    let mut bytes = field("model", "a").into_bytes();
    let at = bytes.iter().rposition(|b| *b == b'a').unwrap();
    bytes[at] = 0xff;
    bytes.extend_from_slice(b"--XX--");
    assert!(scan(&bytes, 9).is_err());
}

#[test]
fn a_boundary_may_be_quoted_and_is_needed() {
    for kind in [
        "multipart/form-data; boundary=XX",
        "multipart/form-data; boundary=\"XX\"",
        "Multipart/Form-Data; charset=utf-8; Boundary=\"X\\X\" ; a=b",
        "multipart/form-data;boundary=XX;charset=\"a;b\"",
    ] {
        let mut scanner = FormScanner::new(kind).expect(kind);
        let body = [field("model", "m"), "--XX--".to_owned()].concat();
        scanner.feed(body.as_bytes()).unwrap();
        assert_eq!(scanner.model().unwrap().name, "m", "{kind}");
    }
    for kind in [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"XX",
        "multipart/mixed; boundary=XX",
    ] {
        assert!(FormScanner::new(kind).is_none(), "{kind}");
    }
    let long = format!("multipart/form-data; boundary={}", "b".repeat(300));
    assert!(FormScanner::new(&long).is_none());
}

#[test]
fn little_is_held_of_a_large_file() {
    let mut scanner = FormScanner::new(PLAIN).unwrap();
    scanner.feed(file("").strip_suffix("\r\n").unwrap().as_bytes()).unwrap();
    for _ in 0..100 {
        scanner.feed(&[b'\r'; 10_000]).unwrap();
        assert!(scanner.pending.len() < 16);
    }
}

proptest! {
    #[test]
    fn nothing_panics_and_the_cut_makes_no_difference(
        body in prop::collection::vec(prop::sample::select(b"\r\n-Xmodel=\";: ".to_vec()), 0..200),
        cut in 1usize..50,
    ) {
        let body = [b"--XX\r\n", &body[..]].concat();
        prop_assert_eq!(scan(&body, cut), scan(&body, body.len()));
    }
}
