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
fn what_another_reader_may_take_for_the_model_is_a_second_one() {
    for head in [
        &b"form-data; name=\"x\"; name=\"model\""[..],
        b"form-data; name=\"model\"; name=\"x\"",
        b"form-data; x=\"\xff\"; name=\"model\"",
        b"form-data; name=\"model\"\r\nX-A: \xff",
        b"form-data; name*=utf-8''model",
        b"form-data; NAME*0=mo; name*1=del",
    ] {
        let part = [b"--XX\r\nContent-Disposition: ", head, b"\r\n\r\nsecret\r\n"].concat();
        for parts in [
            [&part[..], field("model", "raw").as_bytes()].concat(),
            [field("model", "raw").as_bytes(), &part[..]].concat(),
        ] {
            let body = [&parts[..], b"--XX--\r\n"].concat();
            assert_eq!(scan(&body, 13), Err(FormFault::Twice), "{}", body.escape_ascii());
        }
    }
}

#[test]
fn of_two_boundaries_none_counts() {
    for content_type in [
        "multipart/form-data; boundary=XX; boundary=YY",
        "multipart/form-data; boundary=XX; Boundary*=utf-8''YY",
        "multipart/form-data; boundary*0=XX",
    ] {
        assert!(FormScanner::new(content_type).is_none(), "{content_type}");
    }
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
        assert!(scanner.pending.held() < 16);
    }
}

/// Bytes copied, moved and looked at for a body in pieces of that length.
fn work(body: &[u8], cut: usize) -> usize {
    let mut scanner = FormScanner::new(PLAIN).unwrap();
    for piece in body.chunks(cut) {
        scanner.feed(piece).unwrap();
    }
    scanner.pending.work
}

#[test]
fn the_work_for_a_form_is_linear_in_its_bytes_whatever_they_are() {
    const MIB: usize = 1 << 20;
    let start = file("").strip_suffix("\r\n").unwrap().as_bytes().to_vec();
    let filled = |with: &[u8]| [start.clone(), with.repeat(MIB / with.len())].concat();
    for (name, body) in [
        ("blanks behind a delimiter", [&b"--XX"[..], &b" \t".repeat(MIB / 2)].concat()),
        ("what begins like delimiters", filled(b"\r\n--XXy")),
        ("delimiters with blanks", filled(b"\r\n--XX \ty")),
        ("beginnings of a delimiter", filled(b"\r\n--X")),
        ("line ends", filled(b"\r\n")),
        ("empty parts", filled(b"\r\n--XX\r\n\r\n")),
        ("parts with heads", filled(b"\r\n--XX\r\nX: y\r\n\r\n")),
        ("the end and more", filled(b"\r\n--XX--")),
        ("sound", filled(&[0, 7, 200])),
    ] {
        for cut in [64 * 1024, 1000, 61] {
            let work = work(&body, cut);
            assert!(work <= 4 * body.len(), "{name} by {cut}: {work} of {}", body.len());
        }
        // A read of its own for each byte costs a delimiter each.
        let small = &body[..body.len() / 16];
        let work = work(small, 1);
        assert!(work <= 20 * small.len(), "{name} by 1: {work} of {}", small.len());
    }
    let long = format!("--XX\r\nX: {}", "a".repeat(MAX_HEAD_BYTES - 10));
    assert!(work(long.as_bytes(), 1) <= 8 * long.len(), "one head, byte by byte");
}

#[test]
fn what_is_too_long_is_so_however_it_is_cut() {
    let name = |length| [field("model", &"a".repeat(length)), "--XX--".to_owned()].concat();
    let head = |length: usize| {
        let head = format!("X: {}\r\n", "a".repeat(length - 5));
        assert_eq!(head.len(), length);
        format!("--XX\r\n{head}\r\n{}", ["\r\n", &field("model", "m"), "--XX--"].concat())
    };
    for cut in [1, 7, 1 << 20] {
        assert!(scan(name(MAX_MODEL_BYTES).as_bytes(), cut).is_ok());
        assert!(scan(name(MAX_MODEL_BYTES + 1).as_bytes(), cut).is_err());
        assert!(scan(head(MAX_HEAD_BYTES).as_bytes(), cut).is_ok());
        assert!(scan(head(MAX_HEAD_BYTES + 1).as_bytes(), cut).is_err());
    }
}

/// The same scan over a body that is there whole, word for word as the standard says it.
fn naive(body: &[u8]) -> Result<Option<FormModel>, ()> {
    const DELIMITER: &[u8] = b"\r\n--XX";
    let all = [b"\r\n", body].concat();
    let find = |from: usize, what: &[u8]| {
        (from..all.len()).find(|&at| all[at..].starts_with(what)).ok_or(())
    };
    let (mut at, mut model) = (0, None);
    loop {
        let mut line = find(at, DELIMITER)? + DELIMITER.len();
        while matches!(all.get(line), Some(b' ' | b'\t')) {
            line += 1;
        }
        if all[line..].starts_with(b"--") {
            return Ok(model);
        }
        at = line;
        if !all[line..].starts_with(b"\r\n") {
            continue;
        }
        let head = line + 2;
        let end = match all[head..].starts_with(b"\r\n") {
            true => head,
            false => find(head, b"\r\n\r\n")? + 2,
        };
        at = end + 2;
        if is_model(&all[head..end]) {
            let end = find(at, DELIMITER)?;
            if model.is_some() || end == at {
                return Err(());
            }
            let name = String::from_utf8(all[at..end].to_vec()).map_err(|_| ())?;
            model = Some(FormModel { name, at: at - 2..end - 2 });
            at = end;
        }
    }
}

const WORDS: [&[u8]; 14] = [
    b"\r\n--XX",
    b"--XX",
    b"--",
    b"\r\n",
    b"\r",
    b"\n",
    b" ",
    b"\t",
    b"y",
    b"\xff",
    b"\r\n\r\n",
    b"Content-Disposition: form-data; name=\"model\"",
    b"Content-Disposition: form-data; name=\"file\"",
    b"\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n",
];

proptest! {
    #[test]
    fn a_form_says_what_a_naive_reading_of_it_whole_says(
        words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..40),
        ends in any::<bool>(),
        cut in 1usize..300,
    ) {
        let end: &[u8] = if ends { b"\r\n--XX--" } else { b"" };
        let body = [b"--XX\r\n", &words.concat()[..], end].concat();
        prop_assert_eq!(scan(&body, cut).map_err(|_| ()), naive(&body));
    }

    #[test]
    fn nothing_panics_and_the_cut_makes_no_difference(
        body in prop::collection::vec(prop::sample::select(b"\r\n-Xmodel=\";: ".to_vec()), 0..200),
        cut in 1usize..50,
    ) {
        let body = [b"--XX\r\n", &body[..]].concat();
        prop_assert_eq!(scan(&body, cut), scan(&body, body.len()));
    }
}
