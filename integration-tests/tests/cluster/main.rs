//! A whole gateway before engine doubles, over real sockets, in one process.

mod access;
mod adapters;
mod affinity;
mod endpoints;
mod faults;
mod feedback;
mod hangups;
mod kill;
mod limits;
mod passing;
mod ranks;
mod series;
mod transcripts;
