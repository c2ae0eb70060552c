//! Whole requests over real sockets: scripted engines behind an edge, raw clients before it.

mod failover;
mod passing;
