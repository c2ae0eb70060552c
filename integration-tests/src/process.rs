//! Processes that tests start: found to be ready by what they print, and ended with the test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::environment;

/// What a server may take to load its model, on a machine that is busy with other things.
const START: Duration = Duration::from_secs(90);

/// A child process. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts it with its standard input open.
    ///
    /// # Panics
    /// There is no such program.
    pub fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = piped.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits until it prints a line with this text.
    ///
    /// # Panics
    /// It ends or takes too long before.
    pub fn await_line(&self, text: &str) {
        loop {
            match self.lines.recv_timeout(START) {
                Ok(line) if line.contains(text) => return,
                Ok(_) => {}
                Err(error) => panic!("`{text}` was not printed: {error}"),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A real llama.cpp server with a small model.
#[derive(Debug)]
pub struct LlamaServer {
    process: Process,
    port: u16,
}

impl LlamaServer {
    /// The name that its model goes by.
    pub const MODEL: &str = "smollm2";

    /// Starts one that keeps so many prefixes, on a port that is free now. It is still loading its
    /// model when this returns.
    ///
    /// # Panics
    /// The packages of the end-to-end tests are not installed.
    pub fn start(slots: u64) -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let script = environment::workspace_root().join("integration-tests/python/llama_server.py");
        let mut command = Command::new(environment::python());
        command.arg(script).arg(environment::llama_model());
        command.args([port.to_string(), slots.to_string()]);
        Self { process: Process::start(&mut command), port }
    }

    /// Waits until it serves.
    ///
    /// # Panics
    /// It ends or takes too long before.
    pub fn await_ready(&self) {
        self.process.await_line("listening");
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Drives an engine and the gateway with the official OpenAI SDK and compares; what it printed.
///
/// # Errors
/// A check failed; what it printed.
pub fn conformance(arguments: &[&str]) -> Result<String, String> {
    let script = environment::workspace_root().join("integration-tests/python/conformance.py");
    let run = Command::new(environment::python())
        .arg(script)
        .args(arguments)
        .output()
        .map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&run.stdout) + &text(&run.stderr);
    if run.status.success() { Ok(printed) } else { Err(printed) }
}
