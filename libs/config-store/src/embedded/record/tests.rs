use super::*;

fn entry(document: Option<&'static [u8]>) -> Entry {
    let schema = SchemaVersion { major: 1, minor: 3 };
    Entry {
        key: Key::new("backends", "gpu-0").unwrap(),
        revision: Revision(7),
        created: Revision(3),
        at: Timestamp(1_700_000_000_123),
        author: "root".into(),
        document: document.map(|b| Document { schema, bytes: Bytes::from_static(b) }),
        extra: Bytes::new(),
    }
}

fn records() -> Vec<Record> {
    let id = StoreId([9; 16]);
    let (base, floor, at) = (Revision(5), Revision(2), Timestamp(11));
    vec![
        Record::Segment(SegmentHead { format: FORMAT, id, base, floor, states: 4, at }),
        Record::Entry(entry(Some(b"{\"a\": 1}"))),
        Record::Entry(entry(Some(b""))),
        Record::Entry(entry(None)),
        Record::Sealed(Revision(12)),
    ]
}

fn place() -> Place {
    Place::of_segment(StoreId([9; 16]), Revision(5)).at(100)
}

fn written(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, place(), 40, record);
    out
}

#[test]
fn every_record_is_read_as_it_was_written() {
    for record in records() {
        let mut bytes = written(&record);
        let length = bytes.len();
        bytes.extend_from_slice(b"what follows");
        let framed = read(&bytes.into(), place()).unwrap();
        assert_eq!((framed.record, framed.durable, framed.length), (record, 40, length));
    }
}

#[test]
fn a_record_cut_anywhere_is_none() {
    for record in records() {
        let bytes = Bytes::from(written(&record));
        for length in 0..bytes.len() {
            let found = read(&bytes.slice(..length), place());
            assert!(matches!(found, Err(Unreadable::Broken(_))), "{length} of {record:?}");
        }
    }
}

#[test]
fn every_flipped_bit_is_seen() {
    for record in records() {
        let bytes = written(&record);
        for at in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            let found = read(&bytes.into(), place());
            assert!(matches!(found, Err(Unreadable::Broken(_))), "bit {at} of {record:?}");
        }
    }
}

#[test]
fn a_record_at_another_place_is_none() {
    let bytes = Bytes::from(written(&records()[1]));
    let others = [
        Place::of_segment(StoreId([9; 16]), Revision(5)).at(101),
        Place::of_segment(StoreId([9; 16]), Revision(6)).at(100),
        Place::of_segment(StoreId([8; 16]), Revision(5)).at(100),
    ];
    for other in others {
        assert!(matches!(read(&bytes, other), Err(Unreadable::Broken(_))));
    }
}

/// A record with a body of our choice.
fn with_body(body: &[u8]) -> Bytes {
    let mut out = Vec::new();
    let length = u32::try_from(body.len()).unwrap();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&0_u64.to_le_bytes());
    out.extend_from_slice(&place().checksum(length, 0, body).to_le_bytes());
    out.extend_from_slice(body);
    out.into()
}

#[test]
fn fields_that_a_later_version_adds_are_kept() {
    for document in [None, Some(&b"{}"[..])] {
        let mut body = encode(&Record::Entry(entry(document))).to_vec();
        body.extend_from_slice(b"more");
        let framed = read(&with_body(&body), place()).unwrap();
        assert_eq!(encode(&framed.record), body);
    }
}

#[test]
fn what_only_a_later_version_can_read_is_not_called_damage() {
    let mut head = encode(&records()[0]).to_vec();
    head[1] = 2;
    let found = read(&with_body(&head), place()).unwrap_err();
    assert_eq!(found, Unreadable::Newer("format 2.0".to_owned()));
    let found = read(&with_body(&[77, 1, 2]), place()).unwrap_err();
    assert_eq!(found, Unreadable::Newer("a record of kind 77".to_owned()));
}

#[test]
fn a_sound_checksum_over_nonsense_is_no_panic() {
    for body in [&[][..], &[1], &[2], &[3], &[2, 1, 0, 0], &[2; 60], &[1; 60]] {
        assert!(read(&with_body(body), place()).is_err(), "{body:?}");
    }
}
