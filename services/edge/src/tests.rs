//! Whole requests over real sockets: scripted engines behind an edge, raw clients before it.

mod access;
mod aliases;
mod answers;
mod audio;
mod bodies;
mod cancel;
mod drain;
mod failover;
mod faults;
mod feed;
mod guard;
mod interrupted;
mod kept;
mod lifetime;
mod messages;
mod passing;
mod pool;
mod realtime;
mod reload;
mod responses;
mod retries;
mod routes;
mod timing;
mod token_ids;
mod traces;
