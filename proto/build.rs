//! Makes Rust code of the `.proto` files, without protoc.

use std::error::Error;

const FILES: &[&str] = &[
    "warmpath/common/v1/common.proto",
    "warmpath/routing/v1/routing.proto",
    "warmpath/control/v1/control.proto",
    "warmpath/replication/v1/replication.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=warmpath");
    let descriptors = protox::compile(FILES, ["."])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
