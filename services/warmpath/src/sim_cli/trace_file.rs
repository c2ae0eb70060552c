//! A trace on disk, plain or gzip, read line by line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::num::NonZero;
use std::path::Path;

use anyhow::{Context as _, bail};
use flate2::read::MultiGzDecoder;
use sim::trace::Trace;

use super::args::Args;

/// Longest line that is read: a prompt of a million tokens in 16-token blocks fits many times.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// What gzip files begin with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A trace with the name it goes by in rows.
pub(super) struct NamedTrace {
    pub(super) name: String,
    pub(super) trace: Trace,
}

/// Reads the trace that flags name, if they do.
pub(super) fn of(args: &Args) -> anyhow::Result<Option<NamedTrace>> {
    args.trace.as_deref().map(|path| read(path, args.block_tokens)).transpose()
}

/// Reads a trace, of blocks of so many tokens if that is told.
fn read(path: &Path, block_tokens: Option<NonZero<u32>>) -> anyhow::Result<NamedTrace> {
    let shown = path.display();
    let trace = read_lines(open_lines(path)?, Trace::new(block_tokens));
    let file_name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let name = file_name.split('.').next().unwrap_or_default().to_owned();
    Ok(NamedTrace { name, trace: trace.with_context(|| format!("in {shown}"))? })
}

/// Opens a file of lines, plain or gzip.
pub(crate) fn open_lines(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let mut reader = BufReader::new(file);
    let start = reader.fill_buf().with_context(|| format!("cannot read {shown}"))?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(reader))));
    }
    Ok(Box::new(reader))
}

fn read_lines(mut reader: impl BufRead, mut trace: Trace) -> anyhow::Result<Trace> {
    let mut line = String::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line)?;
        if read == 0 {
            break;
        }
        if read as u64 == MAX_LINE_BYTES {
            bail!("a line is longer than {MAX_LINE_BYTES} bytes");
        }
        trace.push_line(&line)?;
    }
    if trace.is_empty() {
        bail!("there are no requests");
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const LINES: &str = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \
                         \"hash_ids\": [1, 2]}\n\n{\"timestamp\": 9, \"input_length\": 600, \
                         \"output_length\": 5, \"hash_ids\": [1, 3]}\n";

    #[test]
    fn plain_and_gzip_are_told_apart_by_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("plain.jsonl");
        std::fs::write(&plain, LINES).expect("written");
        let packed = folder.path().join("packed");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(LINES.as_bytes()).expect("packed");
        std::fs::write(&packed, gzip.finish().expect("packed")).expect("written");
        for (path, name) in [(plain, "plain"), (packed, "packed")] {
            let read = read(&path, None).expect("a trace");
            assert_eq!((read.name.as_str(), read.trace.len()), (name, 2));
        }
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("broken.jsonl");
        let error = |text: &str| {
            std::fs::write(&path, text).expect("written");
            format!("{:#}", read(&path, None).err().expect("an error"))
        };
        let text = error(&format!("{LINES}no json\n"));
        assert!(text.contains("broken.jsonl") && text.contains("line 4"), "{text}");
        assert!(error("").contains("no requests"));
    }
}
