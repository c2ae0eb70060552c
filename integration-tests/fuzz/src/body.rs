//! Bodies of requests.

use std::cell::Cell;

use bytes::Bytes;
use openai_api::{BodyView, Field, Member, Object, RouteKind, Splice};

/// What edits write.
const MODEL: &str = "another \"model\" \u{e9}";

/// Objects inside fields of which members are taken out.
const OBJECTS: [(Field, &[&str]); 4] = [
    (Field::SamplingParams, &["extra_args"]),
    (Field::SamplingParams, &[]),
    (Field::VllmXargs, &[]),
    (Field::ChatTemplateKwargs, &[]),
];

/// Every kind of call.
const KINDS: [RouteKind; 9] = [
    RouteKind::Chat,
    RouteKind::ChatBatch,
    RouteKind::Completions,
    RouteKind::Messages,
    RouteKind::Responses,
    RouteKind::Generate,
    RouteKind::CohereChat,
    RouteKind::GenerativeScoring,
    RouteKind::ByLoad,
];

/// A body that is taken is UTF-8 and JSON, its fields stand where they are said to, and an edit
/// changes what it names and nothing else; whatever the kind of call.
///
/// # Panics
/// Where that does not hold.
pub fn check(data: &[u8]) {
    for kind in KINDS {
        let Ok(view) = BodyView::parse(data, kind) else { continue };
        stands(&view, data);
        replaces(&view, data);
        removes(&view);
        for (field, path) in OBJECTS {
            removes_members(&view, field, path);
        }
        asks_for_usage(&view, data);
        let _ = (view.prompt(), view.value(), view.prompt_bytes().count(), view.growing().len());
    }
}

fn again<'a>(edited: &'a Bytes, view: &BodyView<'_>) -> BodyView<'a> {
    BodyView::parse(edited, view.kind()).expect("an edited body is a body")
}

/// The text of every field.
fn fields<'a>(view: &BodyView<'a>) -> Vec<(Field, Option<&'a str>)> {
    Field::ALL.iter().map(|&field| (field, view.raw(field))).collect()
}

fn stands(view: &BodyView<'_>, data: &[u8]) {
    let text = std::str::from_utf8(data).expect("only text is taken");
    for &field in Field::ALL {
        let raw = view.span(field).map(|span| &text[span]);
        assert_eq!(raw, view.raw(field), "a field stands where it is said to");
    }
    assert_eq!(Splice::new(view).finish(), data, "no edit, no change");
}

fn replaces(view: &BodyView<'_>, data: &[u8]) {
    let edited = Splice::new(view).set_text(Field::Model, MODEL).finish();
    let again = again(&edited, view);
    assert_eq!(again.model, MODEL);
    let (from, to) = (view.span(Field::Model), again.span(Field::Model));
    let (from, to) = (from.expect("checked"), to.expect("set"));
    assert_eq!(data[..from.start], edited[..to.start], "what stands before stays");
    assert_eq!(data[from.end..], edited[to.end..], "and what stands behind");
}

/// Single fields are taken out, and every second of those that are there.
fn removes(view: &BodyView<'_>) {
    let there: Vec<Field> = Field::ALL.iter().copied().filter(|&f| view.raw(f).is_some()).collect();
    let others = there.iter().copied().filter(|&field| field != Field::Model);
    let mut sets: Vec<Vec<Field>> = others.clone().map(|field| vec![field]).collect();
    sets.push(others.clone().step_by(2).collect());
    sets.push(others.collect());
    for gone in sets {
        let edited = gone.iter().copied().fold(Splice::new(view), Splice::remove).finish();
        let mut left = fields(view);
        left.iter_mut().filter(|(f, _)| gone.contains(f)).for_each(|(_, raw)| *raw = None);
        assert_eq!(fields(&again(&edited, view)), left, "{gone:?} goes, and nothing else");
    }
}

/// Every second member is taken out of an object, and all of them.
fn removes_members(view: &BodyView<'_>, field: Field, path: &[&str]) {
    let objects = view.objects(field, path);
    // Of a key on the way that is given twice one may stand inside what another one loses.
    if !matches!(objects.as_slice(), [_]) {
        return;
    }
    let told = |object: &Object<'_>| -> Vec<(Option<String>, String)> {
        let told = |name: Option<&str>, raw: &str| (name.map(str::to_owned), raw.to_owned());
        object.members.iter().map(|m| told(m.name.as_deref(), m.raw)).collect()
    };
    for step in [1_usize, 2] {
        let place = Cell::new(0_usize);
        let goes = |_: &Member<'_>| place.replace(place.get() + 1).is_multiple_of(step);
        let edited = Splice::new(view).remove_members(&objects[0], goes).finish();
        let left =
            told(&objects[0]).into_iter().enumerate().filter(|(at, _)| !at.is_multiple_of(step));
        let left: Vec<_> = left.map(|(_, member)| member).collect();
        let again = again(&edited, view);
        assert_eq!(told(&again.objects(field, path)[0]), left, "every {step}. member goes");
        let others = |view: &BodyView<'_>| -> Vec<Option<String>> {
            let others = fields(view).into_iter().filter(|(of, _)| *of != field);
            others.map(|(_, raw)| raw.map(str::to_owned)).collect()
        };
        assert_eq!(others(&again), others(view), "and nothing else");
    }
}

fn asks_for_usage(view: &BodyView<'_>, data: &[u8]) {
    let asked = Splice::new(view).include_usage().finish();
    if view.can_inject_usage() {
        let again = again(&asked, view);
        assert_eq!(again.include_usage, Some(true));
        assert_eq!((&again.model, again.stream), (&view.model, view.stream));
    } else {
        assert_eq!(asked, data, "left alone");
    }
}
