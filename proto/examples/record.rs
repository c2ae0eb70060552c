//! Writes the messages of the current version under `tests/recorded`. Files that are there stay:
//! what was once sent must be read for ever.

use std::error::Error;
use std::fs;
use std::path::Path;

use prost::Message;

#[path = "../tests/samples/messages.rs"]
mod messages;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let edge = messages::edge_frames().into_iter().map(|(name, f)| (name, f.encode_to_vec()));
    let router = messages::router_frames().into_iter().map(|(name, f)| (name, f.encode_to_vec()));
    for (name, bytes) in edge.chain(router) {
        let path = folder.join(format!("routing-v1-{name}.bin"));
        if !path.exists() {
            fs::write(&path, bytes)?;
            println!("wrote {}", path.display());
        }
    }
    Ok(())
}
