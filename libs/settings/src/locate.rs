//! From a dotted key to the line of the file that sets it.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The line, from 1, that holds the byte at `offset`.
pub(crate) fn line_of_offset(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The line, from 1, of `key` (`edge.listen`, `backends[1].url`), or of the nearest table or item
/// around it that the text has. `None`: not even its first part is there.
pub(crate) fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut steps = steps_of(key);
    let Step::Name(first) = steps.next()? else { return None };
    let (mut offset, mut value) = entry(root.get_ref(), first)?;
    for step in steps {
        let next = match (step, value) {
            (Step::Name(name), DeValue::Table(table)) => entry(table, name),
            (Step::Item(index), DeValue::Array(items)) => {
                items.get(index).map(|item| (item.span().start, item.get_ref()))
            }
            _ => None,
        };
        let Some((deeper, inner)) = next else { break };
        (offset, value) = (deeper, inner);
    }
    Some(line_of_offset(text, offset))
}

fn entry<'t, 'i>(table: &'t DeTable<'i>, name: &str) -> Option<(usize, &'t DeValue<'i>)> {
    let (key, value): (_, &Spanned<DeValue<'i>>) = table.get_key_value(name)?;
    Some((key.span().start, value.get_ref()))
}

enum Step<'k> {
    Name(&'k str),
    Item(usize),
}

fn steps_of(key: &str) -> impl Iterator<Item = Step<'_>> {
    key.split(['.', '[']).filter(|part| !part.is_empty()).map(|part| {
        match part.strip_suffix(']').and_then(|index| index.parse().ok()) {
            Some(index) => Step::Item(index),
            None => Step::Name(part),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a = 1\n[edge]\nlisten = 2\n[[backends]]\nid = 3\n[[backends]]\n\nurl = 4\n";

    #[test]
    fn the_line_is_that_of_the_key_or_of_what_is_nearest_around_it() {
        assert_eq!(line_of_key(TEXT, "a"), Some(1));
        assert_eq!(line_of_key(TEXT, "edge.listen"), Some(3));
        assert_eq!(line_of_key(TEXT, "edge.absent"), Some(2));
        assert_eq!(line_of_key(TEXT, "backends[1].url"), Some(8));
        assert_eq!(line_of_key(TEXT, "backends[1].absent"), Some(6));
        assert_eq!(line_of_key(TEXT, "absent.key"), None);
        assert_eq!(line_of_key(TEXT, ""), None);
    }
}
