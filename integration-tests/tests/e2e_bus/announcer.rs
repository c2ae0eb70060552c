//! `warmpath announce` as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use credentials::MintedToken;
use integration_tests::environment::warmpath_binary;
use tokio::time::Instant;

use crate::suite::PATIENCE;

/// Announces an engine as `gpu-0` with the token `rack-1`; killed when it is dropped.
pub(crate) struct Announcer {
    process: Child,
    log: Receiver<String>,
}

impl Announcer {
    pub(crate) fn start(engine: &str, nats_port: u16) -> Self {
        let token = MintedToken::generate("rack-1").unwrap();
        let mut process = Command::new(warmpath_binary())
            .args(["announce", "--id", "gpu-0", "--engine", engine, "--token-env", "JOIN_TOKEN"])
            .args(["--nats", &format!("nats://127.0.0.1:{nats_port}")])
            .env("JOIN_TOKEN", token.secret_text())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (tell, log) = channel();
        // It ends with the process, or when nobody listens any more.
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Self { process, log }
    }

    /// What it logs up to the line with these words, that line included.
    pub(crate) fn says_until(&self, words: &str) -> String {
        let until = Instant::now() + PATIENCE;
        let mut said = String::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = tokio::task::block_in_place(|| self.log.recv_timeout(left));
            let line = line.unwrap_or_else(|error| panic!("no {words:?}: {error}\n{said}"));
            said += &line;
            said.push('\n');
            if line.contains(words) {
                return said;
            }
        }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
