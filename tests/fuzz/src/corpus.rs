//! Inputs that are kept: each led to something that no other did.

use std::io;
use std::path::{Path, PathBuf};

use crate::Target;
use crate::mutation::Random;

/// Inputs that a target begins with.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Seeds, then what is kept, always in the same order.
    inputs: Vec<Vec<u8>>,
    seeds: usize,
}

impl Corpus {
    /// Reads what is kept of a target.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(target: &Target) -> io::Result<Self> {
        let mut inputs = (target.seeds)();
        let (seeds, mut files) = (inputs.len(), Vec::new());
        match std::fs::read_dir(folder(target)) {
            Ok(entries) => {
                for entry in entries {
                    files.push(entry?.path());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        files.sort();
        for file in files {
            inputs.push(std::fs::read(file)?);
        }
        Ok(Self { inputs, seeds })
    }

    /// All of it.
    #[must_use]
    pub fn inputs(&self) -> &[Vec<u8>] {
        &self.inputs
    }

    /// One of it: every other time a seed, which is good, and few of the others are.
    pub fn pick(&self, random: &mut Random) -> &[u8] {
        let among = if random.below(2) == 0 { self.seeds } else { self.inputs.len() };
        &self.inputs[random.below(among)]
    }
}

/// Where what is kept of a target lies.
fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}
