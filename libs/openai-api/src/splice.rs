//! Edits of a request body by byte range: everything outside an edit stays the client's own
//! bytes (numbers, order, spacing, unknown and repeated keys).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use bytes::Bytes;

use crate::body::{BodyView, Entry, Field, Member, Object};
use crate::json::{Cursor, Malformed};

/// Edits of top-level fields, and members taken out of objects inside them, applied at once by
/// [`finish`](Splice::finish). Of several edits of one field the last counts.
#[derive(Clone, Debug)]
pub struct Splice<'a> {
    view: &'a BodyView<'a>,
    /// The new JSON text of a field; `None` removes it.
    edits: BTreeMap<Field, Option<String>>,
    /// Members taken out of objects inside fields, in the order of each object.
    inside: Vec<Vec<Entry>>,
}

impl<'a> Splice<'a> {
    /// No edits yet.
    pub fn new(view: &'a BodyView<'a>) -> Self {
        Self { view, edits: BTreeMap::new(), inside: Vec::new() }
    }

    /// Gives a field the value whose JSON text is `json`: in place where the field exists, as
    /// the last member where it does not.
    #[must_use]
    pub fn set(mut self, field: Field, json: impl Into<String>) -> Self {
        self.edits.insert(field, Some(json.into()));
        self
    }

    /// Gives a field a string value.
    #[must_use]
    pub fn set_text(self, field: Field, text: &str) -> Self {
        self.set(field, serde_json::Value::from(text).to_string())
    }

    /// Takes a field out, with one comma. A field that is not there is none.
    #[must_use]
    pub fn remove(mut self, field: Field) -> Self {
        self.edits.insert(field, None);
        self
    }

    /// Takes members out of an object inside a field that has no other edit, each with one comma.
    #[must_use]
    pub fn remove_members(
        mut self,
        object: &Object<'_>,
        such: impl Fn(&Member<'_>) -> bool,
    ) -> Self {
        let removed = object.members.iter().filter(|member| such(member));
        self.inside.push(removed.map(|member| member.entry.clone()).collect());
        self
    }

    /// Asks for the usage event of a stream and keeps the other options, where
    /// [`BodyView::can_inject_usage`] says that this may be done.
    #[must_use]
    pub fn include_usage(self) -> Self {
        if !self.view.can_inject_usage() {
            return self;
        }
        // A view that can be injected into holds well-formed options, so there always are new
        // ones; without, the body is left alone.
        match including_usage(self.view.raw(Field::StreamOptions).unwrap_or("null")) {
            Ok(options) => self.set(Field::StreamOptions, options),
            Err(_) => self,
        }
    }

    /// Whether the body stays as it is.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.inside.iter().all(Vec::is_empty)
    }

    /// The edited body.
    pub fn finish(self) -> Bytes {
        let body = Bytes::copy_from_slice(self.view.body_text().as_bytes());
        Bytes::from(self.pieces(&body).concat())
    }

    /// The edited body in pieces: what stays are parts of `body`, which is what the view was parsed
    /// from, and nothing of it is copied. No piece is empty.
    pub fn pieces(self, body: &Bytes) -> Vec<Bytes> {
        debug_assert!(body == self.view.body_text().as_bytes(), "it is another body's view");
        let edits = self.ranges();
        let mut pieces = Vec::with_capacity(2 * edits.len() + 1);
        let mut from = 0;
        for (range, new) in edits {
            pieces.push(body.slice(from..range.start));
            pieces.push(Bytes::from(new));
            from = range.end;
        }
        pieces.push(body.slice(from..));
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// What goes where, in order.
    fn ranges(self) -> Vec<(Range<usize>, String)> {
        let mut ranges: Vec<(Range<usize>, String)> = Vec::new();
        let mut removed = Vec::new();
        let mut appended = String::new();
        for (field, json) in self.edits {
            match (self.view.entry(field), json) {
                (Some(entry), Some(json)) => ranges.push((entry.value.clone(), json)),
                (Some(entry), None) => removed.push(entry),
                (None, Some(json)) => {
                    let comma = if appended.is_empty() { "" } else { "," };
                    // Writing to a string cannot fail.
                    let _ = write!(appended, "{comma}\"{}\":{json}", field.as_str());
                }
                (None, None) => {}
            }
        }
        removed.sort_by_key(|entry| entry.index);
        ranges.extend(without(&removed).map(|range| (range, String::new())));
        for members in &self.inside {
            let members = members.iter().collect::<Vec<_>>();
            ranges.extend(without(&members).map(|range| (range, String::new())));
        }
        if !appended.is_empty() && self.view.members() > removed.len() {
            appended.insert(0, ',');
        }
        let close = self.view.closing_brace();
        ranges.push((close..close, appended));
        ranges.sort_by_key(|(range, _)| range.start);
        ranges
    }
}

/// What goes with members, in order, of one object. A removed member takes the comma before it
/// along, as a member that stays (or none) stands there. The members removed from the very front
/// have none: they take the comma that follows.
fn without<'a>(removed: &'a [&Entry]) -> impl Iterator<Item = Range<usize>> + 'a {
    removed.iter().enumerate().map(|(rank, entry)| {
        if entry.index == rank {
            entry.member.start..entry.comma_after.map_or(entry.member.end, |comma| comma + 1)
        } else {
            entry.comma_before.unwrap_or(entry.member.start)..entry.member.end
        }
    })
}

/// Replaces ranges that are in order and do not overlap.
fn apply(text: &str, edits: &[(Range<usize>, &str)]) -> String {
    let added: usize = edits.iter().map(|(_, new)| new.len()).sum();
    let mut out = String::with_capacity(text.len() + added);
    let mut from = 0;
    for (range, new) in edits {
        out.push_str(&text[from..range.start]);
        out.push_str(new);
        from = range.end;
    }
    out.push_str(&text[from..]);
    out
}

fn including_usage(options: &str) -> Result<String, Malformed> {
    if options == "null" {
        return Ok(r#"{"include_usage":true}"#.to_owned());
    }
    let mut cursor = Cursor::new(options.as_bytes());
    cursor.enter(b'{')?;
    let mut edits = Vec::new();
    let (mut first, mut members) = (true, 0);
    while let Some(key) = cursor.next_key(&mut first)? {
        let name = crate::body::unescape(options, &key);
        let value = cursor.value()?;
        if name.as_deref() == Some("include_usage") {
            edits.push((value, "true"));
        }
        members += 1;
    }
    if edits.is_empty() {
        let close = cursor.position() - 1;
        let member =
            if members == 0 { r#""include_usage":true"# } else { r#","include_usage":true"# };
        edits.push((close..close, member));
    }
    Ok(apply(options, &edits))
}

#[cfg(test)]
mod tests;
