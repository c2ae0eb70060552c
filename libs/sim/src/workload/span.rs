//! Two numbers of seconds, the first not above the second.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// From when until when, or the shortest and the longest time. Written `0.05..0.5`, and as a list
/// of both in results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f64; 2]", into = "[f64; 2]")]
pub struct Span {
    /// The first or the shortest.
    pub low: f64,
    /// The last or the longest.
    pub high: f64,
}

impl Span {
    /// Whether both are times, and in order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.low >= 0.0 && self.low <= self.high && self.high.is_finite()
    }
}

impl From<[f64; 2]> for Span {
    fn from([low, high]: [f64; 2]) -> Self {
        Self { low, high }
    }
}

impl From<Span> for [f64; 2] {
    fn from(span: Span) -> Self {
        [span.low, span.high]
    }
}

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parts = text.split_once("..").and_then(|(low, high)| {
            Some(Self { low: low.trim().parse().ok()?, high: high.trim().parse().ok()? })
        });
        let expected = "two times in seconds, as 0.05..0.5, the first not above the second";
        parts.filter(Self::is_in_order).ok_or(Error::Config { field: "span", expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_times_in_order_are_a_span() {
        assert_eq!("0.05..0.5".parse(), Ok(Span { low: 0.05, high: 0.5 }));
        assert_eq!("40..50".parse(), Ok(Span { low: 40.0, high: 50.0 }));
        for wrong in ["", "1", "..", "2..1", "-1..1", "1..inf", "NaN..1", "1..2..3", "1-2"] {
            assert!(wrong.parse::<Span>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_have_both_times() {
        let span = Span { low: 0.05, high: 0.5 };
        let json = serde_json::to_string(&span).expect("JSON");
        assert_eq!(json, "[0.05,0.5]");
        assert_eq!(serde_json::from_str::<Span>(&json).expect("a span"), span);
    }
}
