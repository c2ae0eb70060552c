//! Benches that ship with the binary, so that anybody can repeat a figure of the documentation.

pub mod bare_proxy;
mod child;
mod drive;
pub mod index;
pub mod overhead;
mod prompts;
pub mod scrape;
pub mod session;
pub mod streams;
