//! The round trip to a backend, from the time a TCP connection takes.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::config::BackendConfig;

/// Weight of a new measurement: a detour of the network shows after a few minutes, a single
/// hiccup hardly.
const WEIGHT: f64 = 0.3;

/// A smoothed round trip.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    seconds: Option<f64>,
}

impl RoundTrip {
    pub(crate) fn observe(&mut self, seconds: f64) {
        self.seconds = Some(match self.seconds {
            None => seconds,
            Some(before) => before + WEIGHT * (seconds - before),
        });
    }

    pub(crate) fn get(&self) -> Duration {
        let seconds = self.seconds.unwrap_or(0.0);
        // Below a microsecond is noise, and a value that changes with every measurement would be
        // published for nothing.
        Duration::from_micros((seconds * 1e6) as u64)
    }
}

/// Connects once and hangs up; one round trip, names resolved beforehand. `None` if it fails.
pub(crate) async fn connect_seconds(backend: &BackendConfig, limit: Duration) -> Option<f64> {
    let host = backend.authority.host().trim_start_matches('[').trim_end_matches(']');
    let measure = async {
        let address = tokio::net::lookup_host((host, backend.port())).await.ok()?.next()?;
        let from = lifecycle::monotonic();
        let stream = TcpStream::connect(address).await.ok()?;
        let seconds = lifecycle::monotonic().seconds_since(from);
        drop(stream);
        Some(seconds)
    };
    tokio::time::timeout(limit, measure).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_hiccup_moves_it_little() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.get(), Duration::ZERO);
        trip.observe(0.001);
        assert_eq!(trip.get(), Duration::from_millis(1));
        trip.observe(0.011);
        assert_eq!(trip.get(), Duration::from_millis(4));
        for _ in 0..20 {
            trip.observe(0.001);
        }
        assert!(trip.get() < Duration::from_micros(1010));
    }
}
