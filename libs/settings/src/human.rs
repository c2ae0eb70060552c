//! Durations as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration with its unit: `"250ms"`, `"2s"`, `"10m"`, `"1h30m"`. A bare number is refused, as
/// nobody can tell its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

/// Units with their length in nanoseconds, longest first.
const DURATION_UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const DURATION_FORM: &str = r#"a duration such as "250ms", "2s", "10m" or "1h30m""#;

impl HumanDuration {
    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl From<HumanDuration> for Duration {
    fn from(human: HumanDuration) -> Self {
        human.0
    }
}

impl From<Duration> for HumanDuration {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    /// # Errors
    /// Text that is not whole numbers with a unit each, or that overflows 584 years.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not {DURATION_FORM}");
        let mut nanos = 0_u64;
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let (number, after) = split_number(rest).ok_or_else(wrong)?;
            let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, next) = after.split_at(unit_end);
            let (_, length) =
                DURATION_UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(wrong)?;
            nanos = number
                .checked_mul(*length)
                .and_then(|part| nanos.checked_add(part))
                .ok_or_else(|| format!("`{text}` is too long for a duration"))?;
            rest = next;
        }
        Ok(Self(Duration::from_nanos(nanos)))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        if nanos == 0 {
            return f.write_str("0s");
        }
        for (unit, length) in DURATION_UNITS {
            if nanos >= length {
                write!(f, "{}{unit}", nanos / length)?;
                nanos %= length;
            }
        }
        Ok(())
    }
}

/// Splits the leading digits off. `None`: no digit first, or more than 64 bits of them.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

/// Reads a duration from its text.
struct FromText;

impl Visitor<'_> for FromText {
    type Value = HumanDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DURATION_FORM)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HumanDuration, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FromText)
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duration(text: &str) -> Result<Duration, String> {
        text.parse::<HumanDuration>().map(HumanDuration::get)
    }

    #[test]
    fn durations_need_a_unit_and_may_join_several() {
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for wrong in ["", "2", "s", "2 parsecs", "-2s", "1.5s", "2s3", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
        assert!(duration("9999999h").is_err(), "overflow is an error, not a wrap");
    }

    #[test]
    fn what_is_printed_reads_back_the_same() {
        for text in ["0s", "1h30m", "2s250ms", "7us"] {
            assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), text);
        }
    }
}
