//! Behaviours of the whole router over a scripted fleet and a virtual clock.

mod adapters;
mod admin;
mod breaking;
mod concurrency;
mod copies;
mod feedback;
mod kit;
mod lifetimes;
mod load;
mod mirrors;
mod pacing;
mod prefixes;
mod reference;
mod reload;
mod remote;
