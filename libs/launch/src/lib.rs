//! What every process of Warmpath does the same way: it reads its arguments, its config and its
//! secrets, starts, serves until a signal, drains, and ends with a code that says how it went.
//!
//! A service's binary is a [`Program`]: what its config file looks like, how it is checked, and
//! how it starts, on a [`Base`]. [`run`] does the rest. The sections that several config files share
//! are in [`sections`], what makes a process a member of a region in [`region`].
//!
//! A config is read from its [`Source`] at the start, and again by a [`Reloader`] while the process
//! runs: [`Fixed`] settings need a restart, all others are [committed](Commit) together.

mod descriptors;
mod fixed;
mod program;
pub mod region;
mod reload;
pub mod sections;
mod source;

pub use fixed::Fixed;
pub use program::{Args, Base, Program, Started, run};
pub use reload::{Commit, Reloader};
pub use source::{ConfigMark, Reading, Source};
