//! The one error of this crate, and the rewording of `serde`'s messages for people.

use std::fmt;

/// Exit code of a process whose settings cannot be used (`EX_USAGE` of BSD's `sysexits.h`).
pub const EXIT_CONFIG: u8 = 64;

/// One thing that is wrong with the settings. It prints as one line, `PLACE: KEY: MESSAGE`, where
/// the place is a file, an environment variable or a flag, and the key is the full dotted path.
/// Parts that are not known are left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    place: Option<String>,
    key: String,
    message: String,
}

impl SettingsError {
    /// An error at `key` (dotted, array items as `backends[1].url`; may be empty). The message
    /// says what is wrong and what is allowed.
    pub fn new(key: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { place: None, key: key.into(), message: one_line(&message.to_string()) }
    }

    /// The same error with its key put below `parent`: code that knows only its own section
    /// reports short keys and its caller completes them.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Self {
        self.key = match (parent.is_empty(), self.key.is_empty()) {
            (true, _) => self.key,
            (false, true) => parent.to_owned(),
            (false, false) => format!("{parent}.{}", self.key),
        };
        self
    }

    /// The same error with the place it comes from, unless it already has one.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place.get_or_insert_with(|| place.into());
        self
    }

    /// The file, environment variable or flag that holds the fault, where known.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// The full dotted key; empty where the fault belongs to no single key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What is wrong and what is allowed.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn add_note(&mut self, note: &str) {
        self.message.push_str(note);
    }

    /// Turns the message of `serde`'s derived code into ours; `key` is where it arose.
    pub(crate) fn from_serde(key: &str, message: &str) -> Self {
        if let Some(rest) = message.strip_prefix("missing field ") {
            return Self::new(rest.trim_matches('`'), "is missing").under(key);
        }
        if message.starts_with("unknown field ") {
            return Self::new(key, unknown("unknown key", "keys", message));
        }
        if message.starts_with("unknown variant ") {
            let (wrong, _) = quoted(message);
            return Self::new(key, unknown(&format!("unknown value `{wrong}`"), "values", message));
        }
        let reworded = message
            .strip_prefix("invalid type: ")
            .and_then(|rest| rest.split_once(", expected "))
            .map(|(got, expected)| wrong_type(key, got, expected));
        let reworded = reworded.or_else(|| (message == NO_ADDRESS).then(|| ADDRESS.to_owned()));
        Self::new(key, reworded.as_deref().unwrap_or(message))
    }
}

/// What the standard library says of text that is no address.
const NO_ADDRESS: &str = "invalid socket address syntax";

const ADDRESS: &str = "IP:PORT is needed, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080; names \
                       of hosts are not looked up";

fn wrong_type(key: &str, got: &str, expected: &str) -> String {
    // What TOML's brackets make of a slip.
    match (got, expected) {
        ("map", "a sequence") => {
            format!("it is a list: write [[{key}]] in two brackets, once for each entry")
        }
        ("sequence", expected) if expected.starts_with("struct ") => {
            format!("it is one section, no list: write [{key}] in single brackets")
        }
        _ => format!("wrong type: got {got}, expected {expected}"),
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Messages of parsers span lines and draw arrows; ours are one line.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The words in back quotes: the offending one, then those that are allowed.
fn quoted(message: &str) -> (&str, Vec<&str>) {
    let mut words = message.split('`').skip(1).step_by(2);
    let wrong = words.next().unwrap_or_default();
    (wrong, words.collect())
}

fn unknown(what: &str, kind: &str, message: &str) -> String {
    let (wrong, allowed) = quoted(message);
    if allowed.is_empty() {
        return format!("{what}; no {kind} are allowed here");
    }
    let hint = nearest(wrong, &allowed)
        .map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_else(|| ";".to_owned());
    format!("{what}{hint} allowed {kind}: {}", allowed.join(", "))
}

/// The allowed word that a slip of the fingers may have meant: at most a third of it differs.
fn nearest<'a>(wrong: &str, allowed: &[&'a str]) -> Option<&'a str> {
    allowed
        .iter()
        .map(|word| (edit_distance(wrong, word), *word))
        .filter(|(distance, word)| *distance <= word.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Levenshtein's distance, where two neighbours that change places count as one slip (the
/// restricted distance of Damerau).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, ca) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let substituted = rows[i][j] + usize::from(ca != cb);
            let mut best = substituted.min(row[j] + 1).min(rows[i][j + 1] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_lists_what_is_allowed_and_guesses_what_was_meant() {
        let error = SettingsError::from_serde(
            "edge.timeouts.conect",
            "unknown field `conect`, expected one of `connect`, `idle`",
        );
        assert_eq!(
            error.to_string(),
            "edge.timeouts.conect: unknown key; did you mean `connect`? allowed keys: connect, idle"
        );
        let far = SettingsError::from_serde("edge.zzz", "unknown field `zzz`, expected `listen`");
        assert_eq!(far.message(), "unknown key; allowed keys: listen");
        let none =
            SettingsError::from_serde("edge.zzz", "unknown field `zzz`, there are no fields");
        assert_eq!(none.message(), "unknown key; no keys are allowed here");
    }

    #[test]
    fn an_unknown_value_is_named_with_its_alternatives() {
        let error = SettingsError::from_serde(
            "router.policy",
            "unknown variant `prefx`, expected one of `prefix`, `least-load`",
        );
        assert_eq!(
            error.message(),
            "unknown value `prefx`; did you mean `prefix`? allowed values: prefix, least-load"
        );
    }

    #[test]
    fn a_slip_with_brackets_or_an_address_is_told_how_it_is_written() {
        let message = |key: &str, text: &str| SettingsError::from_serde(key, text).to_string();
        let list = message("backends", "invalid type: map, expected a sequence");
        assert!(list.contains("write [[backends]] in two brackets"), "{list}");
        let one = message("edge", "invalid type: sequence, expected struct RawConfig");
        assert!(one.contains("write [edge] in single brackets"), "{one}");
        let address = message("edge.listen", "invalid socket address syntax");
        assert!(address.contains("IP:PORT is needed, such as 127.0.0.1:8080"), "{address}");
    }

    #[test]
    fn a_missing_key_is_named_in_full() {
        let error = SettingsError::from_serde("backends[1]", "missing field `url`");
        assert_eq!(error.to_string(), "backends[1].url: is missing");
        assert_eq!(SettingsError::from_serde("", "missing field `url`").key(), "url");
    }

    #[test]
    fn an_error_is_one_line_with_its_place_first() {
        let error = SettingsError::new("listen", "first\n  second\n\n").under("edge").at("a.toml");
        assert_eq!(error.to_string(), "a.toml: edge.listen: first; second");
        assert_eq!(error.clone().at("b.toml"), error, "the first place stands");
    }

    #[test]
    fn the_edit_distance_counts_insertions_removals_and_substitutions() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", ""), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
        assert_eq!(edit_distance("ulr", "url"), 1, "two that changed places");
        let url = SettingsError::from_serde("b", "unknown field `ulr`, expected `id` or `url`");
        assert!(url.message().contains("did you mean `url`?"), "{url}");
    }
}
