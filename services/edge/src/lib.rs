//! The edge: auth, limits, tokenising, streaming, failover.
