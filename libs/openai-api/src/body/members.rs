//! Members of objects inside a field, found where they stand so that single ones can be taken out.

use std::borrow::Cow;

use super::{BodyView, Entry, Field, read};
use crate::json::{Cursor, Malformed};

/// An object inside a field's value.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    /// Its members, in order. A key may stand twice.
    pub members: Vec<Member<'a>>,
}

/// One member of an object.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The key, unescaped; `None` if it is no valid text.
    pub name: Option<Cow<'a, str>>,
    /// The JSON text of the value, as the client wrote it.
    pub raw: &'a str,
    pub(crate) entry: Entry,
}

impl<'a> BodyView<'a> {
    /// The objects that stand at `path` within a field, the field's own value where it is empty.
    /// Of a key that is given twice on the way all are found, as readers differ about which of them
    /// counts. What is no object has no members.
    pub fn objects(&self, field: Field, path: &[&str]) -> Vec<Object<'a>> {
        let mut objects: Vec<Object<'a>> =
            self.span(field).and_then(|span| self.object(span.start)).into_iter().collect();
        for key in path {
            let members = objects.iter().flat_map(|object| &object.members);
            let named = members.filter(|member| member.name.as_deref() == Some(*key));
            objects = named.filter_map(|member| self.object(member.entry.value.start)).collect();
        }
        objects
    }

    /// The object that begins there.
    fn object(&self, at: usize) -> Option<Object<'a>> {
        // The text is known to be well formed.
        self.body_text()[at..].starts_with('{').then(|| self.walk(at).ok()).flatten()
    }

    fn walk(&self, at: usize) -> Result<Object<'a>, Malformed> {
        let text = self.body_text();
        let mut cursor = Cursor::at(text.as_bytes(), at);
        cursor.enter(b'{')?;
        let (mut first, mut members) = (true, Vec::<Member<'a>>::new());
        while let Some(key) = cursor.next_key(&mut first)? {
            let comma_before = (!members.is_empty()).then(|| cursor.last_comma());
            if let Some(last) = members.last_mut() {
                last.entry.comma_after = comma_before;
            }
            let name = read::unescape(text, &key);
            let value = cursor.value()?;
            let member = key.inner.start - 1..value.end;
            let (index, raw) = (members.len(), &text[value.clone()]);
            let entry = Entry { index, member, value, comma_before, comma_after: None };
            members.push(Member { name, raw, entry });
        }
        Ok(Object { members })
    }
}
