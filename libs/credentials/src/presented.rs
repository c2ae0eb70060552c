//! The credential that a request carries.

/// The credential of `Authorization: Bearer …`, given all values of that header: exactly one,
/// of that kind, in printable ASCII. It is handed on as it is, blanks included.
pub fn bearer<'a>(authorization: impl IntoIterator<Item = &'a [u8]>) -> Option<&'a str> {
    let (scheme, credential) = only(authorization)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(credential)
}

/// A header's value where it is given exactly once, in printable ASCII.
pub fn only<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<&'a str> {
    let mut values = values.into_iter();
    let (Some(only), None) = (values.next(), values.next()) else { return None };
    let is_plain = only.iter().all(|byte| matches!(byte, b' '..=b'~'));
    std::str::from_utf8(only).ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bearer_credential_is_taken_as_it_is() {
        assert_eq!(bearer([&b"Bearer abc"[..]]), Some("abc"));
        assert_eq!(bearer([&b"bEARER  a b "[..]]), Some(" a b "));
        assert_eq!(bearer([&b"Bearer "[..]]), Some(""));
    }

    #[test]
    fn anything_else_is_none() {
        let odd: [&[u8]; 7] = [
            b"",
            b"Bearer",
            b"Basic abc",
            b" Bearer abc",
            b"Bearer a\0",
            b"Bearer \xff",
            b"Bearer\tabc",
        ];
        for odd in odd {
            assert_eq!(bearer([odd]), None, "{odd:?}");
        }
        assert_eq!(bearer([]), None);
        assert_eq!(bearer([&b"Bearer a"[..], b"Bearer a"]), None, "two are none");
    }
}
