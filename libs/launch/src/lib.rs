//! What every process of Warmpath does the same way: it reads its arguments, its config and its
//! secrets, starts, serves until a signal, drains, and ends with a code that says how it went.
//!
//! A service's binary is a [`Program`]: what its config file looks like, how it is checked, and
//! how it starts, on a [`Base`]. [`run`] does the rest. The sections that several config files share are in
//! [`sections`], what makes a process a
//! member of a region in [`region`].

mod descriptors;
mod program;
pub mod region;
pub mod sections;

pub use program::{Args, Base, Program, Started, run};
