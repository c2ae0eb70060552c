//! Bodies of requests.

use bytes::Bytes;
use openai_api::{BodyView, Field, RouteKind, Splice, with_include_usage};

/// What edits write.
const MODEL: &str = "another \"model\" \u{e9}";

/// A body that is taken is UTF-8 and JSON, its fields stand where they are said to, and an edit
/// changes the field it names and nothing else.
///
/// # Panics
/// Where that does not hold.
pub fn check(data: &[u8]) {
    let Ok(view) = BodyView::parse(data, RouteKind::Chat) else { return };
    let text = std::str::from_utf8(data).expect("only text is taken");
    for field in [Field::Model, Field::Messages, Field::Stream, Field::StreamOptions, Field::N] {
        let raw = view.span(field).map(|span| &text[span]);
        assert_eq!(raw, view.raw(field), "a field stands where it is said to");
    }
    assert_eq!(Splice::new(&view).finish(), data, "no edit, no change");

    let edited = Splice::new(&view).set_text(Field::Model, MODEL).finish();
    let again = BodyView::parse(&edited, RouteKind::Chat).expect("an edited body is a body");
    assert_eq!(again.model, MODEL);
    let (from, to) = (view.span(Field::Model), again.span(Field::Model));
    let (from, to) = (from.expect("checked"), to.expect("set"));
    assert_eq!(data[..from.start], edited[..to.start], "what stands before stays");
    assert_eq!(data[from.end..], edited[to.end..], "and what stands behind");

    let body = Bytes::copy_from_slice(data);
    if view.can_inject_usage() {
        let asked = with_include_usage(&view, &body);
        let again = BodyView::parse(&asked, RouteKind::Chat).expect("still a body");
        assert_eq!(again.include_usage, Some(true));
        assert_eq!((&again.model, again.stream), (&view.model, view.stream));
    }
    let _ = (view.prompt(), view.value(), view.prompt_bytes());
}
