//! `warmpath serve` and `warmpath key` as an operator meets them: the built binary, its exit
//! codes, its signals, its logs.

mod config;
mod logs;
mod process;
mod reload;
mod signals;
