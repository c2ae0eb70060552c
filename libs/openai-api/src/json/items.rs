//! The items of an array, in passing.

use super::Cursor;

/// The items of an array, each as its JSON text. They are found one at a time: who wants the first
/// few does not walk the rest.
pub struct Items<'a> {
    text: &'a str,
    cursor: Cursor<'a>,
    first: bool,
}

/// Walks the items of a JSON array that is known to be well formed; `None` of any other value.
pub fn items(raw: &str) -> Option<Items<'_>> {
    let mut cursor = Cursor::new(raw.as_bytes());
    cursor.enter(b'[').ok()?;
    Some(Items { text: raw, cursor, first: true })
}

impl<'a> Iterator for Items<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        // What is not well formed ends here.
        if !self.cursor.next_item(&mut self.first).ok()? {
            return None;
        }
        let span = self.cursor.value().ok()?;
        self.text.get(span)
    }
}
