//! Values of the headers that the SDKs read: when to try again, and what is left of a limit.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};

/// What a client that was refused should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Try again after so long. The SDKs follow it up to 120 s and else do not retry at all.
    After(Duration),
    /// Do not try again by yourself.
    Never,
}

impl Retry {
    /// Header names and values: `retry-after` in whole seconds (at least 1), `retry-after-ms`,
    /// which the SDKs prefer, and `x-should-retry`.
    pub fn headers(self) -> Vec<(&'static str, String)> {
        match self {
            Retry::After(wait) => {
                let millis = wait.as_nanos().div_ceil(1_000_000).max(1);
                let seconds = millis.div_ceil(1000);
                vec![
                    ("retry-after", seconds.to_string()),
                    ("retry-after-ms", millis.to_string()),
                    ("x-should-retry", "true".to_owned()),
                ]
            }
            Retry::Never => vec![("x-should-retry", "false".to_owned())],
        }
    }
}

/// The state of a request limit, before or after the request it is told with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// Requests allowed per minute.
    pub limit: u64,
    /// Requests left at this moment.
    pub remaining: u64,
    /// Time until all are left again.
    pub reset: Duration,
}

impl RequestLimit {
    /// Header names and values as Anthropic has them:
    /// `anthropic-ratelimit-requests-{limit,remaining,reset}`, the last as a point in time.
    pub fn headers_anthropic(self, now: SystemTime) -> [(&'static str, String); 3] {
        let reset = DateTime::<Utc>::from(now + self.reset);
        [
            ("anthropic-ratelimit-requests-limit", self.limit.to_string()),
            ("anthropic-ratelimit-requests-remaining", self.remaining.to_string()),
            (
                "anthropic-ratelimit-requests-reset",
                reset.to_rfc3339_opts(SecondsFormat::Secs, true),
            ),
        ]
    }

    /// Header names and values: `x-ratelimit-{limit,remaining,reset}-requests`.
    pub fn headers(self) -> [(&'static str, String); 3] {
        [
            ("x-ratelimit-limit-requests", self.limit.to_string()),
            ("x-ratelimit-remaining-requests", self.remaining.to_string()),
            ("x-ratelimit-reset-requests", go_duration(self.reset)),
        ]
    }
}

/// A duration as Go prints it, in steps of a millisecond, rounded up: `17ms`, `1s`, `1.5s`,
/// `6m0s`, `1h0m0s`.
pub fn go_duration(duration: Duration) -> String {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (total, fraction) = (millis / 1000, millis % 1000);
    let (hours, minutes, seconds) = (total / 3600, total / 60 % 60, total % 60);
    let mut out = String::new();
    // Writing to a string cannot fail.
    if hours > 0 {
        let _ = write!(out, "{hours}h");
    }
    if total >= 60 {
        let _ = write!(out, "{minutes}m");
    }
    let _ = write!(out, "{seconds}");
    if fraction > 0 {
        let digits = format!("{fraction:03}");
        let _ = write!(out, ".{}", digits.trim_end_matches('0'));
    }
    out.push('s');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_prints_them() {
        let millis = |n| go_duration(Duration::from_millis(n));
        assert_eq!(millis(0), "0s");
        assert_eq!(millis(17), "17ms");
        assert_eq!(millis(999), "999ms");
        assert_eq!(millis(1000), "1s");
        assert_eq!(millis(1500), "1.5s");
        assert_eq!(millis(1010), "1.01s");
        assert_eq!(millis(60_000), "1m0s");
        assert_eq!(millis(360_000), "6m0s");
        assert_eq!(millis(3_600_000), "1h0m0s");
        assert_eq!(millis(3_725_025), "1h2m5.025s");
        assert_eq!(go_duration(Duration::from_nanos(1)), "1ms");
    }

    #[test]
    fn a_wait_is_told_in_seconds_and_in_milliseconds_and_never_as_zero() {
        let headers = |wait| Retry::After(wait).headers();
        let value = |wait, name| {
            headers(wait).into_iter().find(|(n, _)| *n == name).map(|(_, value)| value)
        };
        let short = Duration::from_micros(1500);
        assert_eq!(value(short, "retry-after").as_deref(), Some("1"));
        assert_eq!(value(short, "retry-after-ms").as_deref(), Some("2"));
        assert_eq!(value(Duration::ZERO, "retry-after").as_deref(), Some("1"));
        assert_eq!(value(Duration::ZERO, "retry-after-ms").as_deref(), Some("1"));
        assert_eq!(value(Duration::from_millis(2001), "retry-after").as_deref(), Some("3"));
        assert_eq!(value(short, "x-should-retry").as_deref(), Some("true"));
    }

    #[test]
    fn a_limit_that_waiting_does_not_cure_says_so() {
        assert_eq!(Retry::Never.headers(), vec![("x-should-retry", "false".to_owned())]);
    }

    #[test]
    fn a_request_limit_has_three_headers() {
        let limit = RequestLimit { limit: 60, remaining: 0, reset: Duration::from_millis(250) };
        let [limit, remaining, reset] = limit.headers();
        assert_eq!(limit, ("x-ratelimit-limit-requests", "60".to_owned()));
        assert_eq!(remaining, ("x-ratelimit-remaining-requests", "0".to_owned()));
        assert_eq!(reset, ("x-ratelimit-reset-requests", "250ms".to_owned()));
    }

    #[test]
    fn anthropic_clients_are_told_when_a_limit_is_whole_again() {
        let limit = RequestLimit { limit: 60, remaining: 59, reset: Duration::from_secs(90) };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let [limit, remaining, reset] = limit.headers_anthropic(now);
        assert_eq!(limit, ("anthropic-ratelimit-requests-limit", "60".to_owned()));
        assert_eq!(remaining, ("anthropic-ratelimit-requests-remaining", "59".to_owned()));
        let expected = ("anthropic-ratelimit-requests-reset", "2023-11-14T22:14:50Z".to_owned());
        assert_eq!(reset, expected);
    }
}
