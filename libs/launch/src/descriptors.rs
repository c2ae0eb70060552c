//! File descriptors: each connection takes one.
//!
//! Systems keep the soft limit low (1024) for programs that cannot use many, and leave it to
//! servers to raise it to the hard one.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Below this a gateway of any use runs short: each open request takes two or three.
const FEW: u64 = 1024;

/// Raises the soft limit to the hard one. Says so where that fails, or is little.
pub(crate) fn raise_limit() {
    let limit = match raised() {
        Ok(limit) => limit,
        Err(error) => {
            tracing::warn!(%error, "the limit of file descriptors could not be raised");
            getrlimit(Resource::Nofile).current
        }
    };
    if let Some(descriptors) = limit.filter(|limit| *limit < FEW) {
        tracing::warn!(
            descriptors,
            "few file descriptors are allowed, and each connection takes one: raise the hard limit \
             (LimitNOFILE, ulimit -Hn)",
        );
    }
}

/// The soft limit from now on; `None` if there is none.
fn raised() -> Result<Option<u64>, Errno> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let low = Rlimit { current: Some(128), maximum };
        setrlimit(Resource::Nofile, low).expect("lower is allowed");
        assert_eq!(raised(), Ok(maximum));
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
