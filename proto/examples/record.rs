//! Writes the messages of the current version under `tests/recorded`. Files that are there stay:
//! what was once sent must be read for ever.

use std::error::Error;
use std::fs;
use std::path::Path;

use prost::Message;

#[path = "../tests/samples/control.rs"]
mod control;
#[path = "../tests/samples/envelopes.rs"]
mod envelopes;
#[path = "../tests/samples/messages.rs"]
mod messages;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let edge = messages::edge_frames().into_iter().map(|(name, f)| (name, f.encode_to_vec()));
    let router = messages::router_frames().into_iter().map(|(name, f)| (name, f.encode_to_vec()));
    let peers = envelopes::envelopes().into_iter().map(|(name, e)| (name, e.encode_to_vec()));
    let routing = edge.chain(router).map(|(name, bytes)| (format!("routing-v1-{name}.bin"), bytes));
    let between = peers.map(|(name, bytes)| (format!("replication-v1-{name}.bin"), bytes));
    let asked = [
        ("renew", control::renew().encode_to_vec()),
        ("renewed", control::renewed().encode_to_vec()),
        ("leave", control::leave().encode_to_vec()),
        ("watch", control::watch().encode_to_vec()),
    ];
    let watched = control::frames().into_iter().map(|(name, frame)| (name, frame.encode_to_vec()));
    let control = asked.into_iter().chain(watched);
    let control = control.map(|(name, bytes)| (format!("control-v1-{name}.bin"), bytes));
    for (name, bytes) in routing.chain(between).chain(control) {
        let path = folder.join(name);
        if !path.exists() {
            fs::write(&path, bytes)?;
            println!("wrote {}", path.display());
        }
    }
    Ok(())
}
