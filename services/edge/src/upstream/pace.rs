//! How slowly a client may send what is passed on.

use std::time::Duration;

use domain::Moment;

/// So much more has to come within the limit: a body that drips holds its engine all the while.
const PROGRESS_BYTES: usize = 16 * 1024;

/// Counts the time that is spent in waiting for the client, which is all that it can help: the
/// engine may take its time.
#[derive(Debug)]
pub(crate) struct ClientPace {
    limit: Duration,
    /// Since when the client is waited for.
    since: Option<Moment>,
    /// What was waited for it in this stretch, and what has come.
    waited: Duration,
    came: usize,
}

impl ClientPace {
    /// So long for every stretch of [`PROGRESS_BYTES`].
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: None, waited: Duration::ZERO, came: 0 }
    }

    /// Nothing is there: when the client has taken too long.
    pub(super) fn wait(&mut self, now: Moment) -> Moment {
        let since = *self.since.get_or_insert(now);
        since + self.limit.saturating_sub(self.waited)
    }

    /// So many bytes are there.
    pub(super) fn came(&mut self, bytes: usize, now: Moment) {
        self.came += bytes;
        if let Some(since) = self.since.take() {
            self.waited += now - since;
        }
        // A wait that ends beyond its limit with bytes was one for the engine in the end: nobody
        // looked.
        if self.came >= PROGRESS_BYTES || self.waited >= self.limit {
            (self.came, self.waited) = (0, Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Moment {
        Moment::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn bytes_that_drip_have_one_limit_together() {
        let mut pace = ClientPace::new(LIMIT);
        for second in [0, 10, 20] {
            assert_eq!(pace.wait(at(second)), at(30));
            pace.came(1, at(second + 10));
        }
        // The third byte came just at the limit.
        assert_eq!(pace.wait(at(30)), at(60));
    }

    #[test]
    fn every_stretch_of_bytes_has_the_limit_anew() {
        let mut pace = ClientPace::new(LIMIT);
        pace.wait(at(0));
        pace.came(PROGRESS_BYTES - 1, at(29));
        assert_eq!(pace.wait(at(29)), at(30));
        pace.came(1, at(29));
        assert_eq!(pace.wait(at(29)), at(59));
    }

    #[test]
    fn what_an_engine_takes_is_not_the_clients() {
        let mut pace = ClientPace::new(LIMIT);
        pace.wait(at(0));
        pace.came(1, at(1));
        // The engine takes nothing for long; then the client is waited for again.
        assert_eq!(pace.wait(at(1000)), at(1029));
        // It takes nothing while the client is waited for, and nobody sees that a byte has come.
        pace.came(1, at(2000));
        assert_eq!(pace.wait(at(2000)), at(2030));
    }
}
