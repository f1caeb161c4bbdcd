//! Where a Redis server is, or several that belong together, and who we are there.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use zeroize::Zeroizing;

mod parse;

/// Where Redis is. One of
/// - `redis://[user[:password]@]host[:port][/database]`: one server;
/// - `unix:///path/to/socket[?db=<database>&user=<user>&pass=<password>]`: one on this machine;
/// - `redis+cluster://[user[:password]@]host[:port],host[:port],…`: nodes of a cluster, by any of which the others are
///   found;
/// - `redis+sentinel://[user[:password]@]host[:port],…/<master name>[/database][?sentinel_user=<user>&sentinel_pass=<password>]`:
///   the server that Sentinels say is the master. The credentials in front are those of the server.
///
/// Passwords are never shown, neither by `Display` nor by `Debug`, and are wiped when the endpoint is dropped. What the
/// client of a connection keeps of them is its own.
#[derive(Clone, PartialEq, Eq)]
pub struct KvEndpoint {
    location: RedisLocation,
    database: u32,
    credentials: Credentials,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum RedisLocation {
    Tcp(RedisAddress),
    Unix(PathBuf),
    Cluster(Vec<RedisAddress>),
    Sentinel { sentinels: Vec<RedisAddress>, master: String, credentials: Credentials },
}

/// Host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RedisAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
}

#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Credentials {
    user: Option<String>,
    password: Option<Zeroizing<String>>,
}

/// Why a text is no [`KvEndpoint`]. The text itself is not repeated, since it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text begins with something else.
    #[error("a Redis URL begins with redis://, unix://, redis+cluster:// or redis+sentinel://")]
    Scheme,
    /// TLS towards Redis is not offered.
    #[error("rediss:// is not supported; use a unix socket, or a tunnel or sidecar for TLS")]
    Tls,
    /// The host is missing or malformed.
    #[error("a Redis URL names a host, as in redis://127.0.0.1:6379")]
    Host,
    /// The port is no number from 1 to 65535.
    #[error("the port of a Redis URL is a number from 1 to 65535")]
    Port,
    /// The database is no number.
    #[error("the database of a Redis URL is a number, as in redis://127.0.0.1:6379/2")]
    Database,
    /// A database of a cluster.
    #[error("a cluster has no databases to choose from: nothing follows the nodes of redis+cluster://")]
    ClusterDatabase,
    /// Sentinels, but not whom to ask them for.
    #[error("a redis+sentinel:// URL names the master, as in redis+sentinel://host:26379/mymaster")]
    Master,
    /// A `%` is not followed by two hex digits, or the result is not UTF-8.
    #[error("a % in a Redis URL is followed by two hex digits")]
    Escape,
    /// The path of a socket is missing.
    #[error("a unix:// URL names the socket's absolute path, as in unix:///run/redis.sock")]
    Path,
    /// A parameter is not known.
    #[error(
        "unknown parameter `{0}` in a Redis URL; a unix:// URL has db, user and pass, a redis+sentinel:// URL \
         sentinel_user and sentinel_pass"
    )]
    Parameter(String),
}

impl KvEndpoint {
    /// A server on a socket of this machine.
    #[must_use]
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { location: RedisLocation::Unix(path.into()), database: 0, credentials: Credentials::default() }
    }

    /// Returns the endpoint with these credentials, for passwords that must not stand in a URL.
    #[must_use]
    pub fn with_credentials(mut self, user: Option<String>, password: impl Into<String>) -> Self {
        self.credentials = Credentials { user, password: Some(Zeroizing::new(password.into())) };
        self
    }

    /// Returns the endpoint with `database` as the one that is meant.
    #[must_use]
    pub fn with_database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// The database that the URL names; 0 when it names none.
    #[must_use]
    pub const fn database(&self) -> u32 {
        self.database
    }

    /// Returns true for a cluster, which has one database and keeps keys apart by their tags.
    #[must_use]
    pub const fn is_cluster(&self) -> bool {
        matches!(self.location, RedisLocation::Cluster(_))
    }

    /// Returns the master's name at the Sentinels, when the endpoint names Sentinels.
    #[must_use]
    pub const fn master_name(&self) -> Option<&str> {
        match &self.location {
            RedisLocation::Sentinel { master, .. } => Some(master.as_str()),
            RedisLocation::Tcp(_) | RedisLocation::Unix(_) | RedisLocation::Cluster(_) => None,
        }
    }

    /// Returns the servers that the endpoint names: nodes of a cluster, Sentinels, or the one server; each with the
    /// credentials that are for it.
    #[must_use]
    pub fn servers(&self) -> Vec<Self> {
        match &self.location {
            RedisLocation::Tcp(_) | RedisLocation::Unix(_) => vec![self.clone()],
            RedisLocation::Cluster(nodes) => nodes.iter().map(|node| self.at(node.clone())).collect(),
            RedisLocation::Sentinel { sentinels, credentials, .. } => {
                sentinels.iter().map(|one| Self::sentinel(one.clone(), credentials.clone())).collect()
            }
        }
    }

    pub(crate) const fn location(&self) -> &RedisLocation {
        &self.location
    }

    /// One server at this address, with our credentials.
    pub(crate) fn at(&self, address: RedisAddress) -> Self {
        Self {
            location: RedisLocation::Tcp(address),
            database: self.database,
            credentials: self.credentials.clone(),
        }
    }

    /// A Sentinel, with the credentials that are for Sentinels.
    pub(crate) fn sentinel(address: RedisAddress, credentials: Credentials) -> Self {
        Self { location: RedisLocation::Tcp(address), database: 0, credentials }
    }

    /// How one server is connected to. For several it has to be known which of them.
    pub(crate) fn connection_info(
        &self,
        database: u32,
    ) -> std::result::Result<ConnectionInfo, redis::RedisError> {
        let mut settings = RedisConnectionInfo::default()
            .set_db(i64::from(database))
            // Under RESP3 a broken connection is noticed while idle.
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        if let Some(user) = &self.credentials.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.credentials.password {
            settings = settings.set_password(password.as_str());
        }
        let addr = match &self.location {
            RedisLocation::Tcp(RedisAddress { host, port }) => ConnectionAddr::Tcp(host.clone(), *port),
            RedisLocation::Unix(path) => ConnectionAddr::Unix(path.clone()),
            RedisLocation::Cluster(_) | RedisLocation::Sentinel { .. } => {
                return Err(
                    (redis::ErrorKind::InvalidClientConfig, "which of several servers is meant").into()
                );
            }
        };
        // Without this every answer waits for the delayed acknowledgement of the one before.
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        Ok(addr.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp))
    }
}

impl RedisAddress {
    /// Parses an address as servers write it: `host:port`, also for IPv6 (the last colon counts). Nothing without a host.
    pub(crate) fn of_server(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let host = host.trim_matches(['[', ']']);
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Display for KvEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |addresses: &[RedisAddress]| {
            addresses.iter().map(RedisAddress::to_string).collect::<Vec<_>>().join(",")
        };
        let user = self.credentials.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        match &self.location {
            RedisLocation::Tcp(address) => write!(f, "redis://{user}{address}/{}", self.database),
            RedisLocation::Unix(path) => write!(f, "unix://{}?db={}", path.display(), self.database),
            RedisLocation::Cluster(nodes) => write!(f, "redis+cluster://{user}{}", list(nodes)),
            RedisLocation::Sentinel { sentinels, master, .. } => {
                write!(f, "redis+sentinel://{user}{}/{master}/{}", list(sentinels), self.database)
            }
        }
    }
}

impl fmt::Debug for KvEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for KvEndpoint {
    type Err = EndpointError;
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        parse::endpoint(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn urls_are_read() {
        for (text, shown) in [
            ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
            ("redis://host:7000/3", "redis://host:7000/3"),
            ("redis://[::1]:7000", "redis://::1:7000/0"),
            ("redis://:pa%40ss@host/1", "redis://host:6379/1"),
            ("redis://me:secret@host", "redis://me@host:6379/0"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
            ("unix:///run/redis.sock?db=15&user=me&pass=secret", "unix:///run/redis.sock?db=15"),
            ("redis+cluster://a", "redis+cluster://a:6379"),
            ("redis+cluster://me:secret@a:1,[::1]:2,c/", "redis+cluster://me@a:1,::1:2,c:6379"),
            ("redis+sentinel://a,b:1/main", "redis+sentinel://a:26379,b:1/main/0"),
            (
                "redis+sentinel://me:secret@a/main/3?sentinel_user=s&sentinel_pass=secret",
                "redis+sentinel://me@a:26379/main/3",
            ),
        ] {
            let endpoint: KvEndpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), shown);
        }
        let endpoint: KvEndpoint = "redis://:pa%40ss@host/1".parse().expect("an endpoint");
        let password = endpoint.credentials.password.expect("there is one");
        assert_eq!(*password, "pa@ss");
        assert_eq!(endpoint.credentials.user, None);
        // A password that loses this bound is no longer wiped.
        fn is_wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        is_wiped(&password);
    }

    #[test]
    fn what_it_names_is_reached_one_by_one() {
        let named = |text: &str| {
            let endpoint: KvEndpoint = text.parse().expect(text);
            let all = endpoint.servers().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            (all, endpoint.master_name().unwrap_or_default().to_owned())
        };
        let shown = |all: &str, master: &str| (all.to_owned(), master.to_owned());
        assert_eq!(named("redis://me:x@a/3"), shown("redis://me@a:6379/3", ""));
        assert_eq!(named("redis+cluster://me:x@a,b:1"), shown("redis://me@a:6379/0 redis://me@b:1/0", ""));
        assert_eq!(
            named("redis+sentinel://me:x@a,b:1/main/3?sentinel_user=s&sentinel_pass=y"),
            shown("redis://s@a:26379/0 redis://s@b:1/0", "main")
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, error) in [
            ("http://x", EndpointError::Scheme),
            ("rediss://x", EndpointError::Tls),
            ("redis://", EndpointError::Host),
            ("redis://x:0", EndpointError::Port),
            ("redis://x:y", EndpointError::Port),
            ("redis://x/y", EndpointError::Database),
            ("redis://%zz@x", EndpointError::Escape),
            ("unix://relative", EndpointError::Path),
            ("unix:///x?database=1", EndpointError::Parameter("database".into())),
            ("redis+cluster://", EndpointError::Host),
            ("redis+cluster://a,,b", EndpointError::Host),
            ("redis+cluster://a,b/1", EndpointError::ClusterDatabase),
            ("redis+sentinel://a,b", EndpointError::Master),
            ("redis+sentinel://a,b/", EndpointError::Master),
            ("redis+sentinel://a/main/x", EndpointError::Database),
            ("redis+sentinel://a/main?pass=x", EndpointError::Parameter("pass".into())),
        ] {
            assert_eq!(text.parse::<KvEndpoint>(), Err(error), "{text}");
        }
    }

    #[test]
    fn addresses_are_read_as_servers_write_them() {
        let address = |host: &str, port| Some(RedisAddress { host: host.to_owned(), port });
        assert_eq!(RedisAddress::of_server("127.0.0.1:7000"), address("127.0.0.1", 7000));
        assert_eq!(RedisAddress::of_server("::1:7000"), address("::1", 7000));
        assert_eq!(RedisAddress::of_server(":7000"), None);
        assert_eq!(RedisAddress::of_server("host"), None);
    }

    proptest! {
        #[test]
        fn a_password_is_never_shown(password in "[a-z]{12}") {
            for url in [
                format!("redis://me:{password}@host:1/2"),
                format!("redis+cluster://me:{password}@host:1,other"),
                format!("redis+sentinel://me:{password}@host:1/main/2?sentinel_pass={password}"),
            ] {
                let endpoint: KvEndpoint = url.parse().expect("an endpoint");
                let shown = format!("{endpoint} {endpoint:?}");
                prop_assert!(!shown.contains(&password));
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "(redis://|unix:///|redis\\+(cluster|sentinel)://)?[ -~]{0,40}") {
            let _ = text.parse::<KvEndpoint>();
        }
    }
}
