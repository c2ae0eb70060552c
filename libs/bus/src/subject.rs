//! Subjects and the patterns that select them, as in NATS.
//!
//! A subject is a row of tokens with dots between them: `warmpath.backends.gpu-0`. In a pattern
//! `*` stands for one token and `>`, at the end, for one or more.

use std::fmt;
use std::sync::Arc;

use crate::BusError;

/// Longest subject in bytes. A NATS server takes some 4,000 for a whole protocol line.
const MAX_BYTES: usize = 256;

/// What a message is about.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(Arc<str>);

/// Which subjects a subscription is for.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Arc<str>);

impl Subject {
    /// Checks a subject.
    ///
    /// # Errors
    /// It is not 1 to 256 bytes of tokens between dots, or a token is empty, a wildcard, or holds
    /// white space or control characters.
    pub fn new(text: &str) -> Result<Self, BusError> {
        let plain = |token: &str| is_token(token) && token != "*" && token != ">";
        if text.len() > MAX_BYTES || !text.split('.').all(plain) {
            let reason = "tokens between dots are allowed, at most 256 bytes, without wildcards";
            return Err(BusError::Subject { reason });
        }
        Ok(Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The tokens.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }
}

impl Pattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// As [`Subject::new`], but for wildcards; or `>` is not the last token.
    pub fn new(text: &str) -> Result<Self, BusError> {
        let mut tokens = text.split('.').peekable();
        let mut plain = text.len() <= MAX_BYTES;
        while let Some(token) = tokens.next() {
            plain &= is_token(token) && (token != ">" || tokens.peek().is_none());
        }
        if !plain {
            let reason = "tokens between dots are allowed, at most 256 bytes, with `*` for one \
                          token and a last `>` for one or more";
            return Err(BusError::Subject { reason });
        }
        Ok(Self(text.into()))
    }

    /// Whether it selects a subject.
    pub fn matches(&self, subject: &Subject) -> bool {
        let mut tokens = subject.tokens();
        for wanted in self.0.split('.') {
            match (wanted, tokens.next()) {
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (wanted, Some(token)) if wanted == token => {}
                _ => return false,
            }
        }
        tokens.next().is_none()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&Subject> for Pattern {
    fn from(subject: &Subject) -> Self {
        Self(subject.0.clone())
    }
}

fn is_token(token: &str) -> bool {
    !token.is_empty() && !token.chars().any(|c| c.is_whitespace() || c.is_control())
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn odd_subjects_are_refused() {
        let odd =
            ["", ".", "a.", ".a", "a..b", "a b", "a.\t", "a\r\nPUB b", "*", "a.*", ">", "a.>"];
        for text in odd.into_iter().chain([&*"a".repeat(257)]) {
            assert!(Subject::new(text).is_err(), "{text:?}");
        }
        for text in ["a", "a.b-c.D_1", "a*.b>", "ü.x", "$SYS.x"] {
            assert!(Subject::new(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn odd_patterns_are_refused() {
        for text in ["", ".", "a.", "a..b", "a b", ">.a", "a.>.b", "a\n"] {
            assert!(Pattern::new(text).is_err(), "{text:?}");
        }
        for text in ["*", ">", "a.*", "*.b", "a.>", "*.*.>"] {
            assert!(Pattern::new(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn a_pattern_selects_as_in_nats() {
        let matches = |pattern: &str, subject: &str| {
            Pattern::new(pattern).unwrap().matches(&Subject::new(subject).unwrap())
        };
        for (pattern, subject) in [
            ("a.b", "a.b"),
            ("*.b", "a.b"),
            ("a.*", "a.b"),
            ("a.>", "a.b.c"),
            (">", "a"),
            ("*", "a"),
        ] {
            assert!(matches(pattern, subject), "{pattern} {subject}");
        }
        for (pattern, subject) in [
            ("a.b", "a"),
            ("a", "a.b"),
            ("a.>", "a"),
            ("*", "a.b"),
            ("a.*", "a.b.c"),
            ("a.b", "a.c"),
        ] {
            assert!(!matches(pattern, subject), "{pattern} {subject}");
        }
    }

    /// Selection by definition: the first token decides, the rest follows.
    fn selects(pattern: &[&str], subject: &[&str]) -> bool {
        match (pattern, subject) {
            ([], []) => true,
            ([">"], rest) => !rest.is_empty(),
            ([first, pattern @ ..], [token, subject @ ..]) => {
                (*first == "*" || first == token) && selects(pattern, subject)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn any_pattern_selects_as_defined(
            mut pattern in prop::collection::vec("[ab*]", 1..5),
            open in any::<bool>(),
            subject in prop::collection::vec("[ab]", 1..5),
        ) {
            if open {
                pattern.push(">".to_owned());
            }
            let found = Pattern::new(&pattern.join(".")).unwrap()
                .matches(&Subject::new(&subject.join(".")).unwrap());
            let pattern: Vec<_> = pattern.iter().map(String::as_str).collect();
            let subject: Vec<_> = subject.iter().map(String::as_str).collect();
            prop_assert_eq!(found, selects(&pattern, &subject));
        }
    }
}
