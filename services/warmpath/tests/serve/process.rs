//! A running `warmpath serve`, and a client of it over a bare socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use warmpath::double::{Double, DoubleHandle};

/// What is waited at most for something that normally takes milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the binary to its end.
pub(crate) fn warmpath(args: &[&str]) -> (Option<i32>, String, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_warmpath")).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (run.status.code(), text(&run.stdout), text(&run.stderr))
}

/// A double on a port of its own. It lives in tasks of the test's runtime.
pub(crate) async fn double(shape: impl FnOnce(Double) -> Double) -> DoubleHandle {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    shape(Double::builder()).spawn(listener).unwrap()
}

/// A config file in a folder of its own.
pub(crate) struct ConfigFile {
    _folder: TempDir,
    path: PathBuf,
}

impl ConfigFile {
    pub(crate) fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warmpath.toml");
        std::fs::write(&path, text).unwrap();
        Self { _folder: folder, path }
    }

    /// Ports that are free, one backend, and whatever else.
    pub(crate) fn before(double: &DoubleHandle, more: &str) -> Self {
        let url = double.url();
        Self::new(&format!(
            "edge.listen = \"127.0.0.1:0\"\nedge.drain_notice = \"0s\"\nadmin.listen = \"127.0.0.1:0\"\n\
             log.level = \"debug\"\ntelemetry.metrics_interval = \"50ms\"\n\
             telemetry.probe_interval = \"100ms\"\n{more}\n\
             [[backends]]\nid = \"a\"\nurl = \"{url}\"\n\
             [[models]]\nid = \"warmpath-double\"\nfolder = \"builtin\"\n"
        ))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn arg(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

/// A running gateway. Dropping it kills it.
pub(crate) struct Serving {
    child: Child,
    lines: Receiver<String>,
    /// What it has logged so far.
    pub(crate) logged: Vec<String>,
    pub(crate) edge: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Serving {
    /// Starts it and waits until it welcomes traffic.
    pub(crate) fn start(config: &ConfigFile) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_warmpath"))
            .arg("serve")
            .arg("--config")
            .arg(config.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut serving = Self { child, lines, logged: Vec::new(), edge: nowhere, admin: nowhere };
        let line = serving.await_line("\"serving\"");
        let entry: Value = serde_json::from_str(&line).unwrap();
        serving.edge = find(&entry, "edge.listen").parse().unwrap();
        serving.admin = find(&entry, "admin.listen").parse().unwrap();
        serving.await_line("backend is ready");
        // The admin port is told a moment later.
        let ready = || get(serving.admin, "/readyz").starts_with("HTTP/1.1 200");
        assert!((0..1000).any(|_| ready()), "{}", get(serving.admin, "/readyz"));
        serving
    }

    /// Reads the log up to a line with this text.
    #[track_caller]
    pub(crate) fn await_line(&mut self, text: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.logged.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(error) => panic!("no {text} ({error}) in:\n{}", self.logged.join("\n")),
            }
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = ["-c", "kill -s \"$1\" \"$2\"", "sh", name, &pid];
        assert!(Command::new("sh").args(kill).status().unwrap().success());
    }

    /// Waits for its end. Its log ends with it.
    #[track_caller]
    pub(crate) fn await_exit(&mut self) -> ExitStatus {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.logged.push(line),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("it still runs:\n{}", self.logged.join("\n"))
                }
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A field of a log entry, wherever it stands.
pub(crate) fn find(entry: &Value, name: &str) -> String {
    let value = entry.get(name).or_else(|| entry["fields"].get(name));
    let value = value.unwrap_or_else(|| panic!("no {name} in {entry}"));
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A `GET`, read to the end of the connection.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    rest(send(address, &request), String::new())
}

/// A chat request, its answer unread.
pub(crate) fn chat(
    address: SocketAddr,
    headers: &str,
    content: &str,
    max_tokens: u32,
) -> TcpStream {
    let body = format!(
        r#"{{"model":"warmpath-double","messages":[{{"role":"user","content":"{content}"}}],"max_tokens":{max_tokens},"stream":true}}"#
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         connection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    send(address, &request)
}

fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Reads until a text came.
#[track_caller]
pub(crate) fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).unwrap();
        seen.extend_from_slice(&buffer[..read]);
        let so_far = String::from_utf8_lossy(&seen).into_owned();
        if so_far.contains(text) {
            return so_far;
        }
        assert!(read > 0, "no {text} in {so_far}");
    }
}

/// What came, and everything after it.
pub(crate) fn rest(mut stream: TcpStream, seen: String) -> String {
    let mut more = Vec::new();
    // A connection that breaks has ended too.
    let _ = stream.read_to_end(&mut more);
    seen + &String::from_utf8_lossy(&more)
}
