//! Where the ops port listens: at an address, or on a socket file.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::{AddrParseError, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::net::{TcpListener, UnixListener};

/// How the address of a socket file begins.
const UNIX: &str = "unix:";

/// Address of an ops port: `127.0.0.1:7801`, or `unix:/run/mycora/ops.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpsAddress {
    /// A port, which everyone on the machine reaches at least.
    Tcp(SocketAddr),
    /// A socket file, which only its owner opens.
    Unix(PathBuf),
}

/// Text that is no [`OpsAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadOpsAddress {
    /// The text is no address of a port either.
    #[error("it is neither ADDRESS:PORT nor unix:/PATH")]
    Address(#[source] AddrParseError),
    /// The path is not absolute.
    #[error("the path of a socket file is absolute, as in unix:/run/mycora/ops.sock")]
    Relative,
}

impl FromStr for OpsAddress {
    type Err = BadOpsAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(UNIX) {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(BadOpsAddress::Relative),
            None => text.parse().map(Self::Tcp).map_err(BadOpsAddress::Address),
        }
    }
}

impl fmt::Display for OpsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Bound ops port.
#[derive(Debug)]
pub enum OpsListener {
    /// A port.
    Tcp(TcpListener),
    /// A socket file.
    Unix(UnixListener),
}

impl OpsListener {
    /// Listens at an address. A socket file that an ended process left behind is replaced; the new one is for its owner alone.
    ///
    /// # Errors
    /// When the address is not available; `AddrInUse` when another process answers on the socket file.
    pub async fn bind(address: &OpsAddress) -> io::Result<Self> {
        match address {
            OpsAddress::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            OpsAddress::Unix(path) => {
                remove_left_over(path)?;
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener))
            }
        }
    }

    /// Returns the address that it listens at.
    ///
    /// # Errors
    /// When the system does not report it.
    pub fn address(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(|address| address.to_string()),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                Ok(address
                    .as_pathname()
                    .map_or_else(|| UNIX.to_owned(), |path| format!("{UNIX}{}", path.display())))
            }
        }
    }
}

fn remove_left_over(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(about) if !about.file_type().is_socket() => Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        },
    }
}
