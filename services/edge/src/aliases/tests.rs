use openai_api::RouteKind;

use super::*;

fn alias(targets: &[(&str, u32)]) -> Alias {
    Alias { targets: targets.iter().map(|(model, weight)| ((*model).into(), *weight)).collect() }
}

fn shares(alias: &Alias, is_served: impl Fn(&ModelId) -> bool + Copy) -> Vec<String> {
    (0..10_000).map(|i| alias.choose(is_served, || mix(i)).as_str().to_owned()).collect()
}

#[test]
fn conversations_are_spread_by_weight_and_stay() {
    let alias = alias(&[("a", 9), ("b", 1)]);
    let first = shares(&alias, |_| true);
    let of_b = first.iter().filter(|model| *model == "b").count();
    assert!((850..1150).contains(&of_b), "{of_b}");
    assert_eq!(first, shares(&alias, |_| true));
}

#[test]
fn when_a_model_goes_only_its_conversations_move() {
    let alias = alias(&[("a", 1), ("b", 1), ("c", 1)]);
    let before = shares(&alias, |_| true);
    let after = shares(&alias, |model| model.as_str() != "b");
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || before == "b");
        assert_ne!(after, "b");
    }
    assert_eq!(shares(&alias, |_| false)[0], "a", "for the answer that nobody serves it");
}

#[test]
fn the_turns_of_a_conversation_are_one_and_another_is_another() {
    let of = |kind, body: &str| {
        let body = format!(r#"{{"model":"m",{body}}}"#);
        conversation(&BodyView::parse(body.as_bytes(), kind).unwrap())
    };
    let chat = |turns: &str| of(RouteKind::Chat, &format!(r#""messages":[{turns}]"#));
    let (system, hi) = (r#"{"role":"system","content":"s"}"#, r#"{"role":"user","content":"hi"}"#);
    let first = chat(&format!("{system},{hi}"));
    let more = format!(r#"{system},{hi},{{"role":"assistant","content":"x"}},{hi}"#);
    assert_eq!(chat(&more), first);
    assert_ne!(chat(hi), first);
    assert_ne!(chat(&format!("{system},{}", hi.replace("hi", "ho"))), first);
    let prompt = |text: &str| of(RouteKind::Completions, &format!(r#""prompt":"{text}""#));
    let long = "x".repeat(100);
    assert_eq!(prompt(&long), prompt(&format!("{long} and more")));
    assert_ne!(prompt("a"), prompt("b"));
    let session = |id: &str, text: &str| {
        of(RouteKind::Completions, &format!(r#""session_id":"{id}","prompt":"{text}""#))
    };
    assert_eq!(session("s", "a"), session("s", "b"));
    assert_ne!(session("s", "a"), session("t", "a"));
    let ids = |list: &str| of(RouteKind::Generate, &format!(r#""token_ids":[{list}]"#));
    assert_ne!(ids("1,2"), ids("1,3"));
}

#[test]
fn of_a_conversation_no_more_is_read_than_tells_it_from_others() {
    let of = |items: &str| {
        let body = format!(r#"{{"model":"m","messages":[{items}]}}"#);
        conversation(&BodyView::parse(body.as_bytes(), RouteKind::Chat).unwrap())
    };
    let many =
        |last: &str| format!(r#"{}{{"role":"tool","content":"{last}"}}"#, "{},".repeat(ITEMS));
    assert_eq!(of(&many("a")), of(&many("b")));
    let few = |last: &str| many(last).replacen("{},", "", 1);
    assert_ne!(of(&few("a")), of(&few("b")));
}

#[test]
fn a_conversation_is_known_by_the_same_number_in_every_version() {
    // An edge that is not yet replaced must send it to the same model.
    let known = |body: &str, bytes: &str| {
        let view = BodyView::parse(body.as_bytes(), RouteKind::Messages).unwrap();
        assert_eq!(conversation(&view), digest(bytes.as_bytes()));
    };
    let (a, user) = (r#"{"role":"assistant","content":1}"#, r#"{"role":"user"}"#);
    let list = format!(r#"{{"model":"m","system":"s","messages":[{a}, {user}, {a}]}}"#);
    known(&list, &format!("\"s\"{a}{user}"));
    known(r#"{"model":"m","messages":"text"}"#, "\"text\"");
}
