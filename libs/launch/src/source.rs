//! Where a process's config is, and one reading of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use settings::{Layers, Redacted, SecretRef, SettingsError};
use toml::{Table, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::Program;
use crate::fixed::at;
use crate::sections::Folders;

/// The layers of a config, to be read as often as needed.
#[derive(Clone, Debug, Default)]
pub struct Source {
    file: Option<PathBuf>,
    overrides: Vec<(String, Value)>,
    folders: Arc<Folders>,
}

/// What a file held at one moment; nothing if it could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look(Option<u64>);

/// A config that was read and is valid.
pub struct Reading<C> {
    /// The config itself.
    pub config: C,
    /// How it is told from others.
    pub mark: ConfigMark,
}

/// What is kept of a config to compare others with.
pub struct ConfigMark {
    /// Every key, defaults included.
    pub(crate) tree: Table,
    /// Where its keys were set.
    pub(crate) layers: Layers,
    /// The region's secret itself, of which the tree has only where it is.
    region_secret: Option<Redacted<String>>,
    pub(crate) look: Look,
}

impl Source {
    /// A file, if there is one, with keys that are set over file and environment.
    pub fn new(file: Option<PathBuf>, overrides: Vec<(String, Value)>) -> Self {
        Self { file, overrides, folders: Arc::default() }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// What the file holds now. Its content says whether it has changed; times and links do not:
    /// mounted configs are swapped by links, and keep the time of what they are swapped with.
    pub(crate) fn look(&self) -> Look {
        let text = self.file.as_deref().and_then(|path| std::fs::read(path).ok());
        Look(text.map(|text| xxh3_64(&text)))
    }

    pub(crate) fn layers(&self) -> Result<Layers, SettingsError> {
        Layers::gather(self.file.as_deref(), "WARMPATH", &self.overrides)
    }

    /// Reads all layers and the secrets they refer to, checks everything, and loads model folders
    /// that are not loaded yet. It blocks: for a second where there are such folders.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and key.
    pub fn read<P: Program>(&self) -> Result<Reading<P::Config>, SettingsError> {
        // Before the reading: what is written meanwhile is then seen as a change.
        let look = self.look();
        let layers = self.layers()?;
        let raw = layers.read::<P::Raw>()?;
        let tree = Table::try_from(&raw).map_err(|error| SettingsError::new("", error))?;
        let config = P::check(raw, &self.folders).map_err(|error| layers.explain(error))?;
        let region_secret = region_secret(&tree);
        Ok(Reading { config, mark: ConfigMark { tree, layers, region_secret, look } })
    }
}

fn region_secret(tree: &Table) -> Option<Redacted<String>> {
    let reference = at(tree, "region.secret")?.clone().try_into::<SecretRef>().ok()?;
    reference.resolve().ok()
}

impl ConfigMark {
    /// Tells configs apart, by what they say. The same for all processes that were given the same
    /// config; secrets have no part in it.
    pub fn hash(&self) -> String {
        // What cannot be written as TOML could not be made of a struct either.
        let text = toml::to_string(&self.tree).unwrap_or_default();
        format!("{:016x}", xxh3_64(text.as_bytes()))
    }

    /// Whether a process can go over to `next` as it runs.
    ///
    /// # Errors
    /// Settings differ that it takes only at its start. The error names the first and lists the
    /// others.
    pub(crate) fn allows<P: Program>(&self, next: &Self) -> Result<(), SettingsError> {
        let mut found = Vec::new();
        for fixed in P::FIXED {
            fixed.differing(&self.tree, &next.tree, &mut found);
        }
        // Of other secrets that are read at the start (TLS, the bus) the content is not compared:
        // they are renewed by machines, and must not stand in the way of the next change of keys.
        let is_named = found.iter().any(|key| key.starts_with("region.secret"));
        if !is_named && self.region_secret != next.region_secret {
            found.push("region.secret".to_owned());
        }
        let Some((first, others)) = found.split_first() else { return Ok(()) };
        let mut message =
            "it is taken only at the start, so nothing of this config is in force: restart the \
             process, or set it back"
                .to_owned();
        if !others.is_empty() {
            message += &format!("; so are {}", others.join(", "));
        }
        Err(next.layers.explain(SettingsError::new(first.as_str(), message)))
    }
}
