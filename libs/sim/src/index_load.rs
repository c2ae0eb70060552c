//! Prompts for benches of an index: a recorded trace as lists of block keys, and nothing else.
//!
//! Unlike [`trace`](crate::trace) it keeps the partial last block of every prompt, as the
//! published measurements of prefix indexes on these traces do, and it can cut every block into
//! smaller ones, which makes the prompts of a 512-token trace look as an engine with 16-token
//! blocks has them.

use std::io::BufRead;

use domain::BlockKey;
use serde::Deserialize;

use crate::trace::TraceError;

/// What is read of a line.
#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u32>,
}

/// The prompts of a trace in the order of their arrival. A block is named by a small number that
/// stands for its whole prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexLoad {
    prompts: Vec<Vec<u32>>,
}

impl IndexLoad {
    /// Reads one JSON object a line; of each only `hash_ids` counts.
    ///
    /// # Errors
    /// [`LoadError`] when a line cannot be read or parsed.
    pub fn read(reader: impl BufRead) -> Result<Self, LoadError> {
        let mut prompts = Vec::new();
        for (number, text) in reader.lines().enumerate() {
            let text = text?;
            if text.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(&text)
                .map_err(|source| TraceError::Json { line: number + 1, source })?;
            prompts.push(line.hash_ids);
        }
        Ok(Self { prompts })
    }

    /// The same prompts with every block cut into `parts` blocks.
    pub fn cut(&self, parts: u32) -> Self {
        let cut = |ids: &Vec<u32>| {
            ids.iter().flat_map(|id| (0..parts).map(move |part| id * parts + part)).collect()
        };
        Self { prompts: self.prompts.iter().map(cut).collect() }
    }

    /// Requests.
    pub fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// The blocks of one prompt.
    pub fn prompt(&self, request: usize) -> &[u32] {
        &self.prompts[request]
    }

    /// The keys of one prompt.
    pub fn keys(&self, request: usize) -> Vec<BlockKey> {
        self.prompts[request].iter().map(|id| block_key(*id)).collect()
    }
}

/// The key that a block of a load goes by.
pub fn block_key(id: u32) -> BlockKey {
    BlockKey(domain::block::mix(u64::from(id)))
}

/// A load that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line of it.
    #[error(transparent)]
    Line(#[from] TraceError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_cut_keep_what_prompts_share() {
        let text = "{\"hash_ids\": [0, 4]}\n\n{\"hash_ids\": [0, 5], \"timestamp\": 3}\n";
        let load = IndexLoad::read(text.as_bytes()).expect("a load");
        assert_eq!((load.len(), load.prompt(1)), (2, &[0, 5][..]));
        let cut = load.cut(2);
        assert_eq!(cut.prompt(0), [0, 1, 8, 9]);
        assert_eq!(cut.keys(0)[..2], cut.keys(1)[..2]);
        assert_ne!(cut.keys(0)[2], cut.keys(1)[2]);
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = IndexLoad::read("{\"hash_ids\": []}\n{\n".as_bytes()).expect_err("broken");
        assert!(error.to_string().starts_with("line 2"), "{error}");
    }
}
