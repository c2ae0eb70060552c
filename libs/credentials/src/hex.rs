//! Bytes as lower-case hex digits, as documents and credentials have them.

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .map(char::from)
        .collect()
}

/// Reads exactly `N` bytes from hex digits of either case.
pub fn bytes_from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_number_of_digits_is_read() {
        assert_eq!(bytes_from_hex::<32>(&"aF".repeat(32)), Some([0xaf; 32]));
        assert_eq!(bytes_from_hex::<32>("ab"), None);
        assert_eq!(bytes_from_hex::<32>(&"zz".repeat(32)), None);
        assert_eq!(bytes_from_hex::<32>(&"é".repeat(32)), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = [0, 1, 0x7f, 0x80, 0xff];
        assert_eq!(hex(&bytes), "00017f80ff");
        assert_eq!(bytes_from_hex(&hex(&bytes)), Some(bytes));
    }
}
