//! The journal on a disk that loses what was not synced, and the store on damaged files.

mod crash;
mod damage;
mod index;
mod sim_disk;
mod support;
