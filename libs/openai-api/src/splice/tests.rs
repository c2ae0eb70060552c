use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::body::RouteKind;

fn view(body: &str) -> BodyView<'_> {
    BodyView::parse(body.as_bytes(), RouteKind::Chat).expect("a body that is fine")
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).expect("edits keep UTF-8")
}

#[test]
fn values_that_are_not_edited_keep_every_byte() {
    let body = concat!(
        "{ \"seed\": 9007199254740993, \"seed\" :18446744073709551616,\"temperature\":1.0,\n",
        "\t\"top_p\":1E-7, \"x\":0.30000000000000004, \"logit_bias\":{\"50256\":-100},",
        "\"stop\":\"\\u00e9é\", \"mod\\u0065l\" : \"m\", \"y\":-0, \"z\":1e400 }\r\n",
    );
    let parsed = view(body);
    assert_eq!(text(&Splice::new(&parsed).finish()), body);
    let edited = Splice::new(&parsed).set_text(Field::Model, "other/\"m\"").finish();
    assert_eq!(text(&edited), body.replace(": \"m\"", ": \"other/\\\"m\\\"\""));
    let edited = Splice::new(&parsed).set_text(Field::CacheSalt, "s").set(Field::N, "2").finish();
    let expected = body.replace(" }\r\n", " ,\"n\":2,\"cache_salt\":\"s\"}\r\n");
    assert_eq!(text(&edited), expected);
}

#[test]
fn pieces_are_parts_of_the_body_and_what_is_new() {
    let body = Bytes::from(r#"{"n":1,"model":"m","priority":2,"stream":true,"messages":[7]}"#);
    let parsed = BodyView::parse(&body, RouteKind::Chat).expect("a body that is fine");
    let within = |piece: &Bytes| body.as_ptr_range().contains(&piece.as_ptr());
    let edit = || Splice::new(&parsed).set_text(Field::Model, "o").remove(Field::Priority);
    for (splice, new) in [(edit(), 1), (edit().include_usage(), 2), (Splice::new(&parsed), 0)] {
        let pieces = splice.clone().pieces(&body);
        assert_eq!(pieces.concat(), splice.finish());
        assert!(pieces.iter().all(|piece| !piece.is_empty()));
        assert_eq!(pieces.iter().filter(|piece| !within(piece)).count(), new);
    }
}

#[test]
fn of_two_edits_of_one_field_the_last_counts() {
    let parsed = view(r#"{"model":"m","n":1}"#);
    let edit = || Splice::new(&parsed).set(Field::N, "2");
    assert_eq!(text(&edit().set(Field::N, "3").finish()), r#"{"model":"m","n":3}"#);
    assert_eq!(text(&edit().remove(Field::N).finish()), r#"{"model":"m"}"#);
}

#[test]
fn a_removed_field_takes_exactly_one_comma_along() {
    let remove = |body: &str, fields: &[Field]| {
        let parsed = view(body);
        let splice =
            fields.iter().fold(Splice::new(&parsed), |splice, field| splice.remove(*field));
        text(&splice.finish()).to_owned()
    };
    let body = r#"{"n":1,"model":"m","user":"u"}"#;
    assert_eq!(remove(body, &[Field::N]), r#"{"model":"m","user":"u"}"#);
    assert_eq!(remove(body, &[Field::User]), r#"{"n":1,"model":"m"}"#);
    assert_eq!(remove(body, &[Field::Model]), r#"{"n":1,"user":"u"}"#);
    assert_eq!(remove(body, &[Field::N, Field::User]), r#"{"model":"m"}"#);
    assert_eq!(remove(body, &[Field::Model, Field::User]), r#"{"n":1}"#);
    assert_eq!(remove(body, &[Field::N, Field::Model]), r#"{"user":"u"}"#);
    assert_eq!(remove(body, &[Field::N, Field::Model, Field::User]), "{}");
    assert_eq!(remove(body, &[Field::Priority]), body);
    assert_eq!(remove("{ \"model\" : \"m\" }", &[Field::Model]), "{  }");
}

#[test]
fn a_member_inside_a_field_is_taken_out_with_exactly_one_comma() {
    let object = r#"{ "a" :1,"b":{"a":2} , "\u0061":[3], "c":1e400 }"#;
    let body = format!(r#"{{"model":"m","sampling_params":{{"x":{object},"x":{object}}},"n":2}}"#);
    let parsed = view(&body);
    let objects = parsed.objects(Field::SamplingParams, &["x"]);
    assert_eq!(objects.len(), 2, "a key that is given twice is found twice");
    let remove = |names: &[&str]| {
        let such =
            |member: &crate::body::Member<'_>| names.contains(&member.name.as_deref().unwrap());
        let splice = objects
            .iter()
            .fold(Splice::new(&parsed), |splice, object| splice.remove_members(object, such));
        text(&splice.remove(Field::N).finish()).to_owned()
    };
    let expected = |left: &str| body.replace(object, left).replace(r#","n":2"#, "");
    assert_eq!(remove(&[]), expected(object));
    assert_eq!(remove(&["a"]), expected(r#"{ "b":{"a":2} , "c":1e400 }"#));
    assert_eq!(remove(&["c"]), expected(r#"{ "a" :1,"b":{"a":2} , "\u0061":[3] }"#));
    assert_eq!(remove(&["b"]), expected(r#"{ "a" :1 , "\u0061":[3], "c":1e400 }"#));
    assert_eq!(remove(&["a", "b", "c"]), expected("{    }"));
    assert!(parsed.objects(Field::SamplingParams, &["y"]).is_empty());
    assert!(parsed.objects(Field::N, &[]).is_empty(), "no object");
    assert!(parsed.objects(Field::VllmXargs, &[]).is_empty(), "not there");
}

#[test]
fn a_field_is_inserted_without_a_comma_where_nothing_stays_before_it() {
    let parsed = view(r#"{"model":"m"}"#);
    let edited = Splice::new(&parsed).remove(Field::Model).set(Field::N, "1").finish();
    assert_eq!(text(&edited), r#"{"n":1}"#);
}

#[test]
fn asking_for_usage_keeps_the_other_stream_options() {
    let with_usage = |options: &str| {
        let body = format!(r#"{{"model":"m","stream":true{options},"seed":9007199254740993}}"#);
        text(&Splice::new(&view(&body)).include_usage().finish()).to_owned()
    };
    let end = r#","seed":9007199254740993}"#;
    let start = r#"{"model":"m","stream":true"#;
    let expected = [
        ("", format!(r#"{start}{end}"#)),
        (
            r#","stream_options":{}"#,
            format!(r#"{start},"stream_options":{{"include_usage":true}}{end}"#),
        ),
        (
            r#","stream_options":null"#,
            format!(r#"{start},"stream_options":{{"include_usage":true}}{end}"#),
        ),
        (
            r#","stream_options":{ "x" : 1.0 }"#,
            format!(r#"{start},"stream_options":{{ "x" : 1.0 ,"include_usage":true}}{end}"#),
        ),
        (
            r#","stream_options":{"include_usag\u0065": false,"x":1}"#,
            format!(r#"{start},"stream_options":{{"include_usag\u0065": true,"x":1}}{end}"#),
        ),
        (
            r#","stream_options":{"include_usage":false,"include_usage":null}"#,
            format!(
                r#"{start},"stream_options":{{"include_usage":true,"include_usage":true}}{end}"#
            ),
        ),
    ];
    for (options, expected) in &expected[1..] {
        assert_eq!(&with_usage(options), expected);
    }
    let absent = r#"{"model":"m","stream":true,"seed":9007199254740993,"stream_options":{"include_usage":true}}"#;
    assert_eq!(with_usage(expected[0].0), absent);
}

#[test]
fn a_body_that_must_not_be_asked_for_usage_stays_as_it_is() {
    for rest in [
        r#""stream":false"#,
        r#""n":1"#,
        r#""stream":true,"stream_options":{"include_usage":true}"#,
        r#""stream":true,"stream_options":{"continuous_usage_stats":true}"#,
        r#""stream":true,"stream_options":7"#,
    ] {
        let body = format!(r#"{{"model":"m",{rest}}}"#);
        assert_eq!(text(&Splice::new(&view(&body)).include_usage().finish()), body);
    }
}

/// One member of a body as it is written, and what becomes of it.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    space: String,
    value: String,
    edit: Option<Option<String>>,
}

fn any_member() -> impl Strategy<Value = Member> {
    let value = prop::sample::select(vec![
        "1",
        "-0",
        "1e400",
        "9007199254740993",
        "null",
        "true",
        "\"\\u00e9, }\"",
        "\"\"",
        "[]",
        "{ }",
        "[1, {\"n\" : 2}]",
        "{\"model\":\"x\",\"n\":[]}",
        "NaN",
        "\"\\ud800\"",
    ]);
    let field = prop::sample::select(Field::ALL)
        .prop_filter("not the model", |field| *field != Field::Model)
        .prop_map(|field| field.as_str().to_owned());
    let name = prop_oneof![2 => field, 1 => "[x-z]{1,3}"];
    let new = prop::sample::select(vec!["7", "\"new\"", "{\"a\":[]}"]);
    let edit = prop::option::of(prop::option::of(new.prop_map(str::to_owned)));
    (name, "[ \n\t]{0,2}", value.prop_map(str::to_owned), edit)
        .prop_map(|(name, space, value, edit)| Member { name, space, value, edit })
}

fn write(members: &[&Member], value: impl Fn(&Member) -> String) -> Vec<String> {
    let member = |member: &&Member| {
        let Member { name, space, .. } = member;
        format!("{space}\"{name}\"{space}:{space}{}{space}", value(member))
    };
    members.iter().map(member).collect()
}

proptest! {
    /// Replaced and inserted values change nothing else; removed members are gone, and every
    /// other member stays as it was written.
    #[test]
    fn edits_do_what_they_say_and_nothing_else(
        members in prop::collection::vec(any_member(), 0..10),
        place in 0..10_usize,
        absent in prop::collection::btree_set(prop::sample::select(Field::ALL), 0..3),
    ) {
        let model = Member { name: "model".into(), space: " ".into(), value: "\"m\"".into(), edit: None };
        let mut seen = std::collections::HashSet::new();
        let mut members: Vec<&Member> = members
            .iter()
            .filter(|member| Field::from_name(&member.name).is_none() || seen.insert(member.name.clone()))
            .filter(|member| !(member.name == "messages" && member.value == "[]"))
            .collect();
        members.insert(place.min(members.len()), &model);
        let body = format!("{{{}}}\n", write(&members, |member| member.value.clone()).join(","));
        let parsed = view(&body);

        let mut replaced = Splice::new(&parsed);
        let mut removed = Splice::new(&parsed);
        for member in &members {
            match (Field::from_name(&member.name), &member.edit) {
                (Some(field), Some(Some(new))) => replaced = replaced.set(field, new.clone()),
                (Some(field), Some(None)) => removed = removed.remove(field),
                _ => {}
            }
        }
        let mut appended = String::new();
        for field in absent.iter().filter(|field| parsed.raw(**field).is_none()) {
            replaced = replaced.set(*field, "[0]");
            appended += &format!(",\"{}\":[0]", field.as_str());
        }
        let new_value = |member: &Member| match (Field::from_name(&member.name), &member.edit) {
            (Some(_), Some(Some(new))) => new.clone(),
            _ => member.value.clone(),
        };
        let expected = format!("{{{}{appended}}}\n", write(&members, new_value).join(","));
        let got = replaced.finish();
        prop_assert_eq!(text(&got), &expected);

        let got = removed.finish();
        let kept: Vec<&Member> = members
            .iter()
            .copied()
            .filter(|member| Field::from_name(&member.name).is_none() || member.edit != Some(None))
            .collect();
        // What a removed member leaves is white space.
        let spaceless = |text: &str| text.replace([' ', '\n', '\t'], "");
        let expected = format!("{{{}}}", write(&kept, |member| member.value.clone()).join(","));
        prop_assert_eq!(spaceless(text(&got)), spaceless(&expected));
        for member in write(&kept, |member| member.value.clone()) {
            prop_assert!(text(&got).contains(member.trim()));
        }
        if let Ok(reference) = serde_json::from_str::<Value>(&expected) {
            prop_assert_eq!(serde_json::from_slice::<Value>(&got).ok(), Some(reference));
        }
    }
}
