//! Where a Redis server is, and who we are there.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

/// `redis://[user[:password]@]host[:port][/database]` or
/// `unix:///path/to/socket[?db=<database>&user=<user>&pass=<password>]`.
///
/// The password is never shown, neither by `Display` nor by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    place: Place,
    database: u32,
    user: Option<String>,
    password: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Why a text is no [`Endpoint`]. The text itself is not repeated, since it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It begins with something else.
    #[error("a Redis URL begins with redis:// or unix://")]
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
    /// A `%` is not followed by two hex digits, or the result is not UTF-8.
    #[error("a % in a Redis URL is followed by two hex digits")]
    Escape,
    /// The path of a socket is missing.
    #[error("a unix:// URL names the socket's absolute path, as in unix:///run/redis.sock")]
    Path,
    /// A parameter is not known.
    #[error("unknown parameter `{0}` in a unix:// URL; there are db, user and pass")]
    Parameter(String),
}

impl Endpoint {
    /// A server on a socket of this machine.
    #[must_use]
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { place: Place::Unix(path.into()), database: 0, user: None, password: None }
    }

    /// The same server with these credentials, for passwords that must not stand in a URL.
    #[must_use]
    pub fn with_credentials(mut self, user: Option<String>, password: impl Into<String>) -> Self {
        self.user = user;
        self.password = Some(password.into());
        self
    }

    /// The same server, with `database` as the one that is meant.
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

    pub(crate) fn connection_info(
        &self,
        database: u32,
    ) -> std::result::Result<ConnectionInfo, redis::RedisError> {
        let mut settings = RedisConnectionInfo::default()
            .set_db(i64::from(database))
            // Under RESP3 a broken connection is noticed while idle.
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let addr = match &self.place {
            Place::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
            Place::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        // Without this every answer waits for the delayed acknowledgement of the one before.
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        Ok(addr.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref();
        match &self.place {
            Place::Tcp { host, port } => {
                let user = user.map(|user| format!("{user}@")).unwrap_or_default();
                write!(f, "redis://{user}{host}:{port}/{}", self.database)
            }
            Place::Unix(path) => write!(f, "unix://{}?db={}", path.display(), self.database),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if let Some(rest) = text.strip_prefix("redis://") {
            parse_tcp(rest)
        } else if let Some(rest) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("redis+unix://"))
        {
            parse_unix(rest)
        } else if text.starts_with("rediss://") {
            Err(EndpointError::Tls)
        } else {
            Err(EndpointError::Scheme)
        }
    }
}

fn parse_tcp(rest: &str) -> std::result::Result<Endpoint, EndpointError> {
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (credentials, rest),
        None => ("", rest),
    };
    let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match place.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']').ok_or(EndpointError::Host)?;
            let port =
                if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(EndpointError::Port)?) };
            host.parse::<std::net::Ipv6Addr>().map_err(|_| EndpointError::Host)?;
            (host, port)
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    if host.is_empty() || host.contains(['/', '?', '#', ' ']) {
        return Err(EndpointError::Host);
    }
    let port = match port {
        None => 6379,
        Some(text) => text.parse().ok().filter(|port| *port != 0).ok_or(EndpointError::Port)?,
    };
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (unescape(user)?, Some(unescape(password)?)),
        None => (unescape(credentials)?, None),
    };
    Ok(Endpoint {
        place: Place::Tcp { host: host.to_owned(), port },
        database: parse_database(database)?,
        user: Some(user).filter(|user| !user.is_empty()),
        password,
    })
}

fn parse_unix(rest: &str) -> std::result::Result<Endpoint, EndpointError> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') || path.len() < 2 {
        return Err(EndpointError::Path);
    }
    let mut endpoint = Endpoint::unix(unescape(path)?);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name {
            "db" => endpoint.database = parse_database(value)?,
            "user" => endpoint.user = Some(unescape(value)?),
            "pass" => endpoint.password = Some(unescape(value)?),
            other => return Err(EndpointError::Parameter(other.chars().take(40).collect())),
        }
    }
    Ok(endpoint)
}

fn parse_database(text: &str) -> std::result::Result<u32, EndpointError> {
    if text.is_empty() { Ok(0) } else { text.parse().map_err(|_| EndpointError::Database) }
}

fn unescape(text: &str) -> std::result::Result<String, EndpointError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or(EndpointError::Escape);
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).map_err(|_| EndpointError::Escape)?);
    }
    String::from_utf8(bytes).map_err(|_| EndpointError::Escape)
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
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), shown);
        }
        let endpoint: Endpoint = "redis://:pa%40ss@host/1".parse().expect("an endpoint");
        assert_eq!(endpoint.password.as_deref(), Some("pa@ss"));
        assert_eq!(endpoint.user, None);
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
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_password_is_never_shown(password in "[a-z]{12}") {
            let url = format!("redis://me:{password}@host:1/2");
            let endpoint: Endpoint = url.parse().expect("an endpoint");
            let shown = format!("{endpoint} {endpoint:?}");
            prop_assert!(!shown.contains(&password));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "(redis://|unix:///)?[ -~]{0,40}") {
            let _ = text.parse::<Endpoint>();
        }
    }
}
