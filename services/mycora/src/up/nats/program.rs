//! The `nats-server` of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use broker::BrokerVersion;

use crate::up::UpError;

const NAME: &str = "nats-server";
/// Path on Debian, which is not in every user's `PATH`.
const OF_DEBIAN: &str = "/usr/sbin/nats-server";
/// From here on it can bring every message to the disk before it acknowledges.
const SYNCS_ALWAYS: BrokerVersion = BrokerVersion { major: 2, minor: 10, patch: 0 };

/// A `nats-server` that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsProgram {
    path: PathBuf,
    version: BrokerVersion,
}

impl NatsProgram {
    /// Finds it: the one that is named, else the one in the `PATH`, else Debian's.
    ///
    /// # Errors
    /// [`UpError::NoNats`] when there is none, [`UpError::NatsProgram`] when it is too old or is another program.
    pub fn find(named: Option<&Path>) -> Result<Self, UpError> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => in_path(std::env::var_os("PATH").as_deref(), Path::new(OF_DEBIAN))?,
        };
        let output = Command::new(&path).arg("--version").output();
        let output =
            output.map_err(|error| UpError::NatsProgram { path: path.clone(), why: error.to_string() })?;
        let version = accepted(&String::from_utf8_lossy(&output.stdout));
        match version {
            Ok(version) => Ok(Self { path, version }),
            Err(why) => Err(UpError::NatsProgram { path, why }),
        }
    }

    /// The program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version, as in 2.9.10.
    #[must_use]
    pub fn version(&self) -> String {
        self.version.to_string()
    }

    /// Returns true when the server can sync every message to disk before it acknowledges it.
    #[must_use]
    pub(super) fn syncs_always(&self) -> bool {
        self.version >= SYNCS_ALWAYS
    }
}

/// The version that a program reports, if sagas run with it.
fn accepted(output: &str) -> Result<BrokerVersion, String> {
    let version = output.trim().strip_prefix("nats-server: ").and_then(BrokerVersion::parse);
    let version = version.ok_or_else(|| "it does not report its version".to_owned())?;
    if version < BrokerVersion::OLDEST {
        return Err(format!("it is {version}, and {} or newer is needed", BrokerVersion::OLDEST));
    }
    Ok(version)
}

/// The first of that name in these directories, or Debian's.
fn in_path(path: Option<&std::ffi::OsStr>, of_debian: &Path) -> Result<PathBuf, UpError> {
    let directories = path.map(std::env::split_paths).into_iter().flatten();
    let mut places = directories.map(|directory| directory.join(NAME)).chain([of_debian.to_owned()]);
    places.find(|place| place.is_file()).ok_or(UpError::NoNats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_is_new_enough_is_taken() {
        let syncs_always = |output: &str| {
            let version = accepted(output).expect(output);
            NatsProgram { path: PathBuf::new(), version }.syncs_always()
        };
        assert!(!syncs_always("nats-server: v2.9.10\n"));
        assert!(syncs_always("nats-server: v2.12.0-RC.1\n"));
        for (output, why) in
            [("nats-server: v2.8.4", "it is 2.8.4, and 2.9.10"), ("hello", "does not report its version")]
        {
            let refused = accepted(output).expect_err(output);
            assert!(refused.contains(why), "{refused}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let none = NatsProgram::find(Some(&dir.path().join("none"))).expect_err("there is none");
        assert!(none.to_string().contains("--nats-server"), "{none}");
    }

    #[test]
    fn the_path_comes_before_debians_place() {
        let (dir, other) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("another"));
        let path = dir.path().join(NAME);
        std::fs::write(&path, "").expect("written");
        let paths = std::env::join_paths([other.path(), dir.path()]).expect("a PATH");
        let debians = other.path().join("of-debian");
        assert_eq!(in_path(Some(&paths), &debians).expect("found"), path);
        let error = in_path(Some(other.path().as_os_str()), &debians).expect_err("there is none").to_string();
        assert!(error.contains("`apt-get install nats-server` (`mycora up` also takes"), "{error}");
        std::fs::write(&debians, "").expect("written");
        assert_eq!(in_path(None, &debians).expect("found"), debians);
    }
}
