//! Settings that a process takes only at its start.

use toml::{Table, Value};

/// A setting that cannot change while the process runs. Everything else can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// This key, with all below it.
    Key(&'static str),
    /// Whether there is anything at this key; what it is can change.
    Presence(&'static str),
}

impl Fixed {
    /// The key, dotted.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Key(key) | Self::Presence(key) => key,
        }
    }

    /// Adds the keys in which two configs differ where they must not.
    pub(crate) fn differing(self, before: &Table, now: &Table, found: &mut Vec<String>) {
        let (before, now) = (at(before, self.key()), at(now, self.key()));
        match self {
            Self::Key(key) => compare(key, before, now, found),
            Self::Presence(key) if is_there(before) != is_there(now) => found.push(key.to_owned()),
            Self::Presence(_) => {}
        }
    }
}

pub(crate) fn at<'t>(tree: &'t Table, key: &str) -> Option<&'t Value> {
    let mut parts = key.split('.');
    let first = tree.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

fn is_there(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.as_array().is_some_and(Vec::is_empty))
}

/// Names the innermost keys that differ.
fn compare(key: &str, before: Option<&Value>, now: Option<&Value>, found: &mut Vec<String>) {
    match (before, now) {
        (before, now) if before == now => {}
        (Some(Value::Table(before)), Some(Value::Table(now))) => {
            let added = now.keys().filter(|key| !before.contains_key(*key));
            for part in before.keys().chain(added) {
                compare(&format!("{key}.{part}"), before.get(part), now.get(part), found);
            }
        }
        _ => found.push(key.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differing(fixed: Fixed, before: &str, now: &str) -> Vec<String> {
        let mut found = Vec::new();
        fixed.differing(&before.parse().unwrap(), &now.parse().unwrap(), &mut found);
        found
    }

    #[test]
    fn the_innermost_keys_that_differ_are_named() {
        let before = "a.x = 1\na.y = 2\na.b.z = [1]\nc = 1";
        let now = "a.x = 1\na.y = 3\na.b.z = [1, 2]\na.n = 1\nc = 2";
        assert_eq!(differing(Fixed::Key("a"), before, now), ["a.b.z", "a.y", "a.n"]);
        assert_eq!(differing(Fixed::Key("a.y"), before, now), ["a.y"]);
        assert_eq!(differing(Fixed::Key("a.x"), before, now), [""; 0]);
        assert_eq!(differing(Fixed::Key("no.such"), before, now), [""; 0]);
        assert_eq!(differing(Fixed::Key("b"), "", "[b]\nc = 1"), ["b"]);
    }

    #[test]
    fn of_a_presence_only_that_is_compared() {
        let presence = Fixed::Presence("a.list");
        for (before, now, differs) in [
            ("a.list = [1]", "a.list = [2, 3]", false),
            ("a.list = [1]", "a.list = []", true),
            ("a.list = [1]", "", true),
            ("a.list = []", "", false),
        ] {
            assert_eq!(!differing(presence, before, now).is_empty(), differs, "{before} {now}");
        }
    }
}
